"""The noise: its law and its independence; and the whole step as a Gaussian mechanism with a known law.

Kolmogorov-Smirnov tests use fixed seeds; a right program fails one with probability 1e-7.
"""

import numpy as np
import pytest
import torch
from recorders import Total
from scipy import stats

from coalmine.training import (
    Dataset,
    GradientCanary,
    Mlp,
    Neighbours,
    TrainingConfig,
    Vector,
    ZeroGradients,
    train,
)
from coalmine.training.job import Job
from coalmine.training.networks import glorot_law
from coalmine.training.noise import CpuNoise, make_noise

RARE = 1e-7
KINDS = ("torch", "compiled", "cuda")
DEVICES = ("cpu", "cuda")


def need(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device(device)


def draw(trials, steps, size, dtype=torch.float32, fingerprint="noise", kind="torch"):
    """``[trials, steps, size]`` standard normals: torch's operations, the compiled kernels, or a GPU's."""
    device = need("cuda" if kind == "cuda" else "cpu")
    if kind == "compiled":
        pytest.importorskip("numba", reason="needs numba")
    if kind == "torch":
        noise = CpuNoise(fingerprint, trials, size=size, steps=steps, dtype=dtype)
    else:
        noise = make_noise(fingerprint, trials, size=size, steps=steps, device=device, dtype=dtype)
    kept = []
    for _ in range(steps):
        rows = torch.zeros((len(trials), size + 5), dtype=dtype, device=device)
        noise.add_to(rows[:, :size], scale=2.0)
        assert not rows[:, size:].any()
        kept.append(rows[:, :size].cpu().numpy() / 2.0)
    return np.stack(kept, axis=1)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("torch", torch.float32), ("torch", torch.float64), ("compiled", torch.float32), ("cuda", torch.float32),
     ("cuda", torch.float64)],
)  # fmt: skip
def test_the_law_is_normal_and_other_levels_are_rejected(kind, dtype):
    z = draw([0, 1], 20, 25_186, dtype, kind=kind).ravel().astype(np.float64)
    assert np.isfinite(z).all()
    assert stats.kstest(z, "norm").pvalue > RARE
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(z * wrong, "norm").pvalue < 1e-12
    # Moments and tails to 6 standard errors (2e-9 each).
    n = z.size
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 6 * (spread / n) ** 0.5
    for cut in (3.0, 4.0, 4.5):
        expected = 2 * stats.norm.sf(cut)
        assert abs((np.abs(z) > cut).mean() - expected) < 6 * (expected / n) ** 0.5 + 3 / n


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 100, 20_000])
def test_parameters_steps_models_and_runs_are_independent(size, kind):
    steps = 6
    z = np.concatenate(
        [
            draw([0, 1, 2, 999], steps, size, kind=kind),
            draw([0, 1, 2, 999], steps, size, fingerprint="other", kind=kind),
        ]
    ).reshape(8 * steps, size)
    if size > 1000:
        # Every pair of (run, model, step) vectors: correlations are N(0, 1/size); 1128 pairs, 7 standard errors.
        correlation = np.corrcoef(z) - np.eye(len(z))
        assert np.abs(correlation).max() < 7 / size**0.5
        # Neighbouring parameters, and the two halves of a Box-Muller pair.
        for lag in (1, 2, 128, 256, 512, 1024, size // 2):
            pairs = (z[:, lag:] * z[:, :-lag]).ravel()
            assert abs(pairs.mean()) < 7 / pairs.size**0.5
    assert np.unique(z.ravel()).size > 0.99 * z.size


@pytest.mark.parametrize("kind", KINDS)
def test_large_and_small_models_never_reuse_a_number(kind):
    # Many steps of a small model, so that several chunks are drawn.
    z = draw([0], 12_000, 3, kind=kind)[0]
    assert np.unique(z).size > 0.99 * z.size
    assert stats.kstest(z.ravel().astype(np.float64), "norm").pvalue > RARE
    means = z.mean(0) * len(z) ** 0.5
    assert np.abs(means).max() < 6
    lagged = (z[1:] * z[:-1]).mean() * (z.size - 3) ** 0.5
    assert abs(lagged) < 6


@pytest.mark.parametrize("device", DEVICES)
def test_starts_follow_glorot_and_share_nothing_with_the_noise(device):
    network, trials, place = Mlp(30, hidden=(20,), classes=5), range(400), need(device)
    config = TrainingConfig(steps=1, clip=1.0, noise_multiplier=1.0, learning_rate=0.0, sample_rate=0.5)
    start = Job(network, Neighbours(ZeroGradients(rows=1)), config, "s", place).initial(trials)
    spread, mean = glorot_law(network, scale=1.0)
    values = start.cpu().double().numpy()
    z = (values - mean)[:, spread > 0] / spread[spread > 0]
    assert stats.kstest(z.ravel(), "norm").pvalue > RARE
    assert not values[:, spread == 0].any()
    noise = torch.zeros_like(start)
    make_noise("s", trials, size=start.shape[1], steps=1, device=place, dtype=torch.float32).add_to(noise, scale=1.0)
    shared = noise.cpu().double().numpy()[:, spread > 0]
    assert abs((z * shared).mean()) < 5.5 / np.sqrt(z.size)


def summed_gradients(config, trials, network, neighbours, device="cpu"):
    """The sum over steps of the private gradients, ``[trials, P]``; odd trials are in world 1."""
    need(device)
    seen = Total()
    train(
        network, neighbours=neighbours, config=config, fingerprint="level", trials=trials,
        worlds=np.asarray(trials) % 2, observer=seen, device=device,
    )  # fmt: skip
    return seen.total()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_gradient_canary_is_binomial_plus_gaussian(relation, copies, device):
    """Theorem 1 of last-iterate-2024: world 1 is Binomial(kT, q) + N(0, σ²T) in units of C, world 0 is N(0, σ²T)."""
    steps, rate, sigma, clip, rows = 25, 0.1, 0.6, 2.0, 500
    neighbours = Neighbours(
        ZeroGradients(rows=rows),
        canary=GradientCanary([0.0, 7.0, 0.0], copies=copies),  # longer than C: clipped to C
        relation=relation,
        replaced=tuple(range(copies)) if relation == "replace" else (),
    )
    config = TrainingConfig(
        steps=steps, clip=clip, noise_multiplier=sigma, learning_rate=0.1, sample_rate=rate, dtype="float64"
    )
    trials = np.arange(8000)
    gradients = summed_gradients(config, trials, Vector(3), neighbours, device)
    total = gradients * rows * rate / clip
    spread = sigma * steps**0.5

    def mixture(x):
        k = np.arange(copies * steps + 1)
        return (stats.binom.pmf(k, copies * steps, rate) * stats.norm.cdf((np.asarray(x)[:, None] - k) / spread)).sum(1)

    out, inside = total[0::2, 1], total[1::2, 1]
    assert stats.kstest(out, stats.norm(0, spread).cdf).pvalue > RARE
    assert stats.kstest(inside, mixture).pvalue > RARE
    # The test can fail: a divisor or a rate that is off by 15 % is rejected.
    assert stats.kstest(inside * 1.15, mixture).pvalue < 1e-9
    assert stats.kstest(inside, stats.norm(0, spread).cdf).pvalue < 1e-12
    for other in (0, 2):
        assert stats.kstest(total[:, other], stats.norm(0, spread).cdf).pvalue > RARE


def test_dirac_canary_on_real_zero_gradient_rows():
    """The same law where the rows go through the network: weights so large that every gradient underflows to 0."""
    rng = np.random.default_rng(1)
    network = Mlp(2, hidden=(2,), classes=2)
    x = np.abs(rng.normal(size=(30, 2))) + 1
    # Both hidden units are dead (negative input), and the bias decides for class 0 beyond all doubt.
    start = np.array([-1.0, -1, -1, -1, 0, 0, 0, 0, 0, 0, 1000.0, -1000.0])
    from coalmine.training import GivenWeights

    gradient = np.zeros(12)
    gradient[0] = 1.0
    neighbours = Neighbours(Dataset(x, np.zeros(30, dtype=int)), canary=GradientCanary(gradient))
    config = TrainingConfig(
        steps=10, clip=1.0, noise_multiplier=0.5, learning_rate=0.0, sample_rate=0.2, initialization=GivenWeights(start)
    )
    trials = np.arange(1600)
    total = summed_gradients(config, trials, network, neighbours) * 6
    spread = 0.5 * 10**0.5
    k = np.arange(11)

    def mixture(v):
        return (stats.binom.pmf(k, 10, 0.2) * stats.norm.cdf((np.asarray(v)[:, None] - k) / spread)).sum(1)

    assert stats.kstest(total[1::2, 0], mixture).pvalue > RARE
    assert stats.kstest(total[0::2, 0], stats.norm(0, spread).cdf).pvalue > RARE
