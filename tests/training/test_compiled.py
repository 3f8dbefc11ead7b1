"""The compiled kernels of a CPU: their random numbers, their arithmetic, when they are used, and torch without them.

The law of the noise is in test_noise.py, the clipped sums against autograd in test_clipped_sums.py, the independence of
the stack in test_stacking.py: all of them run on these kernels where numba is installed.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from recorders import Everything, Final

from coalmine import seeds
from coalmine.training import (
    Dataset,
    ExampleCanary,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Neighbours,
    Sequential,
    TrainingConfig,
    alternating_worlds,
    compiled,
    train,
)
from coalmine.training.compiled import CompiledNoise
from coalmine.training.layers import Linear

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


NETWORKS = {
    "logistic": LogisticRegression(21, classes=3),
    "relu": Mlp(784, hidden=(32,), classes=2),
    "tanh": Mlp(50, hidden=(33, 17), classes=10, activation="tanh"),
    "sigmoid": Mlp(16, hidden=(5, 48, 3), classes=2, activation="sigmoid"),
    "wide": Mlp(7, hidden=(130,), classes=65),
}


@pytest.mark.parametrize(
    "sampling", [{"batch_size": 300}, {"batch_size": 300, "sampling": "shuffle"}, {"sampling": "full"}]
)
@pytest.mark.parametrize("name", NETWORKS)
def test_whole_trainings_agree_with_torch(name, sampling, monkeypatch):
    """Several passes a batch (more rows than the width), both worlds; equal but for rounding along ten steps."""
    network = NETWORKS[name]
    rng = np.random.default_rng(3)
    rows = 1500
    base = Dataset(rng.normal(size=(rows, network.inputs)), rng.integers(0, network.classes, size=rows))
    neighbours = Neighbours(base, canary=ExampleCanary(base.x[:3] + 1, base.y[:3]))
    config = TrainingConfig(steps=10, clip=0.8, noise_multiplier=0.0, learning_rate=0.5, **sampling)
    assert compiled.refusal(network, neighbours=neighbours, paired=False) is None
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv(compiled.SWITCH, switch)
        seen = Final()
        result = train(
            network, neighbours=neighbours, config=config, fingerprint="c", trials=[0, 1, 5], worlds=[0, 1, 1],
            observer=seen,
        )  # fmt: skip
        assert result.precision == ("float32 compiled" if switch == "1" else "float32")
        found.append(seen.parameters)
    for trial, vector in found[0].items():
        np.testing.assert_allclose(vector, found[1][trial], rtol=0, atol=2e-5)
        assert vector.tobytes() != found[1][trial].tobytes()


def test_empty_batches_are_noise_alone():
    network = Mlp(5, hidden=(4,))
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(40, 5)), rng.integers(0, 2, size=40))
    config = TrainingConfig(steps=30, clip=1.0, noise_multiplier=0.0, learning_rate=1.0, sample_rate=0.01)
    seen = Everything()
    train(network, neighbours=Neighbours(base), config=config, fingerprint="e", trials=[0], worlds=[0], observer=seen)
    empty = [not np.any(gradient) for gradient in seen.gradients[0]]
    # Each step is empty with probability 0.99⁴⁰ = 0.67; all alike in 30 steps: below 1e-5, and the seed is fixed.
    assert any(empty)
    assert not all(empty)


def test_what_is_left_to_torch():
    rng = np.random.default_rng(0)
    rows = Neighbours(Dataset(rng.normal(size=(4, 5)), [0, 1, 0, 1]))

    class Moving:
        copies = 1

        def start(self, trials): ...

        def examples(self, state): ...

    pictures = NasrCnn(input_shape=(1, 16, 16), classes=3)
    assert "linear layers" in compiled.refusal(pictures, neighbours=rows, paired=False)
    plain = Sequential((5,), 2, (Linear(5, 2, bias=False),))
    assert "bias" in compiled.refusal(plain, neighbours=rows, paired=False)
    moving = Neighbours(rows.base, canary=Moving())
    assert "examples do not change" in compiled.refusal(Mlp(5), neighbours=moving, paired=False)
    assert "two worlds" in compiled.refusal(Mlp(5), neighbours=rows, paired=True)
    assert compiled.usable(device=torch.device("cpu"), dtype=torch.float32)
    assert not compiled.usable(device=torch.device("cpu"), dtype=torch.float64)
    assert not compiled.usable(device=torch.device("cuda"), dtype=torch.float32)


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


def test_what_is_kept_is_thrown_away_when_the_kernels_change():
    """numba looks at a function's own file alone; functions of other files that build on these look at both."""
    from coalmine.adversaries import shortcut_kernels

    for function in (kernels.add_noise, shortcut_kernels.log_ratios):
        kept = function._cache._cache_file
        stamp = kept._source_stamp
        assert stamp[1] == kernels._STAMP
        kept._source_stamp = (stamp[0], "another state of the file")
        assert not kept._load_index()
        kept._source_stamp = stamp


SAMPLE = """
import numpy as np
from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig, train
class Final:
    view = "final_model"
    def start(self, trials): ...
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


def test_trials_beside_do_not_matter_for_a_perceptron_of_odd_sizes():
    network = NETWORKS["sigmoid"]
    rng = np.random.default_rng(8)
    base = Dataset(rng.normal(size=(100, 16)), rng.integers(0, 2, size=100))
    config = TrainingConfig(steps=6, clip=1.0, noise_multiplier=1.0, learning_rate=0.3, sample_rate=0.3)

    def go(trials, stack):
        seen = Final()
        train(
            network, neighbours=Neighbours(base), config=config, fingerprint="s", trials=trials,
            worlds=alternating_worlds(trials), observer=seen, stack=stack,
        )  # fmt: skip
        return seen.parameters

    together = go(np.arange(16), 16)
    for trial, vector in {**go(np.arange(16)[::-1], 5), **go(np.array([7]), 1)}.items():
        assert vector.tobytes() == together[trial].tobytes()
