"""The room as a whole: what it imports, and how its memory grows."""

import subprocess
import sys

import pytest


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_torch_numpy_and_scipy_are_enough():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pydantic", "typer", "rich", "dp_accounting", "opacus", "sklearn", "pooch"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import coalmine.training, coalmine.adversaries, coalmine.bounds
print("torch" in sys.modules)
"""
    assert python(code) == "True\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read as Linux writes it")
def test_memory_does_not_grow_with_the_number_of_trials():
    code = """
import numpy as np
from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig, train
rng = np.random.default_rng(0)
base = Neighbours(Dataset(rng.normal(size=(500, 300)), rng.integers(0, 2, size=500)))
config = TrainingConfig(steps=2, batch_size=100, clip=1, noise_multiplier=1, learning_rate=0.1)
def peak(trials):
    train(Mlp(300), neighbours=base, config=config, fingerprint="m", trials=trials, worlds=trials % 2)
    # Not ru_maxrss, which begins at what the process that started this one held.
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
first = peak(np.arange(16))
print(peak(np.arange(16, 16 + 640)) - first)
"""
    # 640 models of 9,698 parameters would be 24 MiB; what is allowed is 8.
    assert int(python(code)) < 8192
