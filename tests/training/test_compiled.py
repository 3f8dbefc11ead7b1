"""The compiled kernels of a CPU: their random numbers, their arithmetic, when they are used, and torch without them.

What every engine must do (the reference's steps, the noise's law, the same bits in any stack) is in test_engines.py.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from engines import MovingExample
from test_observers import Turns

from coalmine import seeds
from coalmine.roles import Observer, View
from coalmine.training import Dataset, Linear, Mlp, NasrCnn, Neighbours, Sequential, TrainingConfig, backends, compiled
from coalmine.training.job import Job
from coalmine.training.noise import CompiledNoise

kernels = pytest.importorskip("coalmine.training.cpu_kernels", reason="needs numba")


def philox(counter, key):
    """Philox-4x32-10 as Salmon et al. 2011 write it, in whole numbers of Python."""
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        x = [(b >> 32) ^ x[1] ^ k[0], b % 2**32, (a >> 32) ^ x[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return x


def test_the_reference_generator_gives_the_published_numbers():
    # Known answers that come with the authors' library Random123.
    assert philox([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox([2**32 - 1] * 4, [2**32 - 1] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0]
    assert philox(pi[:4], pi[4:]) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def expected_noise(key, step, size):
    """The same numbers in float64: NumPy's logarithm, sine and cosine on the reference generator's words."""
    parts, block = [], 0
    for start in range(0, size, kernels.CHUNK):
        here = min(kernels.CHUNK, size - start)
        pairs = -(-here // 2)
        counters = 2 * -(-pairs // 4)
        upper = [(key >> 64) % 2**32, key >> 96]
        words = np.array(
            [philox([block + i, step, *upper], [key % 2**32, (key >> 32) % 2**32]) for i in range(counters)],
            dtype=np.uint32,
        ).view(np.int32)
        block += counters
        u = np.concatenate([words[:, 0], words[:, 1]])[:pairs].astype(np.float64)
        t = np.concatenate([words[:, 2], words[:, 3]])[:pairs].astype(np.float64)
        radius = np.sqrt(-2 * np.log(np.minimum(np.abs(u) / 2**31 + 2**-32, 1.0)))
        parts += [radius * np.cos(np.pi * t / 2**31), (radius * np.sin(np.pi * t / 2**31))[: here - pairs]]
    return np.concatenate(parts)


@pytest.mark.parametrize("size", [1, 2, 7, 9, 1023, 1024, 1025, 4000])
def test_noise_is_box_muller_of_philox(size):
    noise = CompiledNoise("a run", [3, 2**40])
    for step in (1, 2):
        rows = torch.zeros((2, size))
        noise.add_to(rows, scale=torch.tensor([1.0, 2.5]))
        for row, trial, scale in zip(rows.numpy(), (3, 2**40), (1.0, 2.5), strict=True):
            expected = expected_noise(seeds.key("a run", purpose="noise", trial=trial), step, size) * scale
            # Where u is near 1, √(−2·ln u) magnifies the rounding of u; elsewhere the error is below 1e-6.
            np.testing.assert_allclose(row, expected, atol=5e-5, rtol=2e-6)
            assert np.median(np.abs(row - expected)) < 2e-7 * scale


def test_logarithm_and_exponential():
    """Logarithm and exponential over all of their range, ends included."""
    from numba import njit

    log, exp = kernels._log, kernels._exp

    @njit
    def both(values, logs, exps):
        for i in range(values.size):
            logs[i], exps[i] = log(values[i]), exp(values[i])

    values = np.concatenate([np.geomspace(2**-32, 1, 4001), [1.0, 2**-32]]).astype(np.float32)
    logs, exps = np.empty_like(values), np.empty_like(values)
    both(values, logs, exps)
    np.testing.assert_allclose(logs, np.log(values.astype(np.float64)), rtol=3e-7, atol=1e-9)
    values = np.concatenate([np.linspace(-86.9, 87.9, 4001), [0.0, -1e-8]]).astype(np.float32)
    logs, exps = np.empty_like(values), np.empty_like(values)
    both(values, logs, exps)
    np.testing.assert_allclose(exps, np.exp(values.astype(np.float64)), rtol=3e-7)
    values = np.array([-np.inf, -100.0, np.inf, np.nan], dtype=np.float32)
    both(values, logs[:4], exps[:4])
    assert exps[:2].tolist() == [0.0, 0.0]
    assert exps[2] > 1e38
    assert np.isnan(exps[3])


def activations_of(kind, values):
    held = values.copy()
    kernels._activate(held, kind)
    return held


def test_activations_are_those_of_torch():
    values = np.concatenate([np.linspace(-20, 20, 5000), [0.0, 1e-6, 0.25, -0.25, np.nan]]).astype(np.float32)
    exact = torch.from_numpy(values.astype(np.float64))
    for kind, function in ((0, torch.relu), (1, torch.tanh), (2, torch.sigmoid)):
        np.testing.assert_allclose(activations_of(kind, values), function(exact).numpy(), rtol=4e-7, atol=1e-12)


def test_what_is_left_to_torch():
    base = Dataset(np.random.default_rng(0).normal(size=(4, 5)), [0, 1, 0, 1])

    def fits(network, canary=None, observer=None):
        config = TrainingConfig(steps=1, clip=1, noise_multiplier=1, learning_rate=1, sampling="full")
        job = Job(network, Neighbours(base, canary=canary), config, "c", torch.device("cpu"), observer)
        return compiled.fits(job)

    class Knowing(Observer):
        view = View.ALL_ITERATES
        knows_both_worlds = True

    assert fits(Mlp(5))
    assert not fits(NasrCnn(input_shape=(1, 16, 16), classes=3))
    assert not fits(Sequential((5,), 2, (Linear(5, 2, bias=False),)))
    assert not fits(Mlp(5), canary=MovingExample(Mlp(5)))
    assert fits(Mlp(5), canary=Turns(np.zeros((2, 5)), [0, 1]))
    assert not fits(Mlp(5), observer=Knowing())
    assert backends.compiled(device=torch.device("cpu"), dtype=torch.float32)
    assert not backends.compiled(device=torch.device("cpu"), dtype=torch.float64)
    assert not backends.compiled(device=torch.device("cuda"), dtype=torch.float32)


def test_without_numba_torch_does_the_work():
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"numba", "llvmlite"}:
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import numpy as np
from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig, train
rng = np.random.default_rng(0)
base = Neighbours(Dataset(rng.normal(size=(50, 3)), rng.integers(0, 2, size=50)))
config = TrainingConfig(steps=2, batch_size=10, clip=1, noise_multiplier=1, learning_rate=0.1)
print(train(Mlp(3), neighbours=base, config=config, fingerprint="m", trials=[0], worlds=[0]).precision)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "float32\n"), done.stderr


SAMPLE = """
import numpy as np
from coalmine.roles import Observer
from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig, train
class Final(Observer):
    view = "final_model"
    def finish(self, models): print(models.parameters.numpy().tobytes().hex())
rng = np.random.default_rng(0)
base = Dataset(rng.normal(size=(90, 70)), rng.integers(0, 3, size=90))
config = TrainingConfig(steps=3, batch_size=40, clip=1, noise_multiplier=1, learning_rate=0.1)
train(Mlp(70, hidden=(35, 9), classes=3, activation="tanh"), neighbours=Neighbours(base), config=config,
      fingerprint="m", trials=[0, 1], worlds=[0, 0], observer=Final())
"""


def test_neither_the_tiles_nor_where_the_code_is_kept_touch_a_bit():
    """Once as always; once as for a processor with narrower vectors, and with no folder to keep the code in."""
    narrow = """
import llvmlite.binding as llvm
found = llvm.get_host_cpu_features()
found.update({name: False for name in found if name.startswith("avx512")})
llvm.get_host_cpu_features = lambda: found
from coalmine.training import cpu_kernels
assert (cpu_kernels.ROWS, cpu_kernels.PAIR) == (6, 1)
assert type(cpu_kernels.add_noise._cache).__name__ == "NullCache"
"""
    nowhere = {**os.environ, "NUMBA_CACHE_LOCATOR_CLASSES": "ZipCacheLocator"}
    usual, other = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300, env=env)
        for code, env in ((SAMPLE, None), (narrow + SAMPLE, nowhere))
    )
    assert usual.returncode == 0, usual.stderr
    assert other.returncode == 0, other.stderr
    assert len(usual.stdout) > 8 * 2 * 35 * 70
    assert usual.stdout == other.stdout
