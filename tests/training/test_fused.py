"""The fused GPU kernels against the float64 CPU path, and their random numbers against what they must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.training import Dataset, ExampleCanary, GivenWeights, LogisticRegression, Mlp, Neighbours, TrainingConfig
from coalmine.training.fused import FusedStack, _lanes, refusal
from coalmine.training.stack import Stack, initial_parameters

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")


def _data(rows: int = 90, features: int = 21, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(1)
    return Dataset(rng.normal(size=(rows, features)).astype(np.float32), rng.integers(0, classes, size=rows))


def _fused(network, config, neighbours, *, trials, worlds, fingerprint="a run"):
    return FusedStack(
        network, config=config, neighbours=neighbours, fingerprint=fingerprint, trials=trials, worlds=worlds,
        initial=_start(network, config, trials=trials, fingerprint=fingerprint).to(DEVICE).float(),
    )  # fmt: skip


def _start(network, config, *, trials, fingerprint="a run"):
    """Where the float64 path on a CPU starts."""
    cpu = torch.device("cpu")
    return initial_parameters(network, config, fingerprint=fingerprint, trials=trials, device=cpu, dtype=torch.float64)


NETWORKS = [
    LogisticRegression(21, classes=3),
    Mlp(21, hidden=(7,), classes=3),
    Mlp(21, hidden=(32,), classes=3, activation="tanh"),
    Mlp(21, hidden=(16,), classes=3, activation="sigmoid"),
]


@needs_gpu
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: f"{type(n).__name__}-{getattr(n, 'activation', '')}")
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_without_noise_it_computes_what_the_float64_path_computes(network, relation):
    base = _data()
    canary = ExampleCanary(np.full(21, 0.5, dtype=np.float32), 2, copies=2)
    neighbours = Neighbours(base, canary=canary, relation=relation, replaced=[3, 5] if relation == "replace" else ())
    shared = {"steps": 6, "clip": 0.7, "noise_multiplier": 0.0, "learning_rate": 2.0, "sampling": "full",
              "regulariser": 0.01}  # fmt: skip
    trials, worlds = np.arange(4), np.array([0, 1, 0, 1])
    exact = Stack(network, neighbours, TrainingConfig(dtype="float64", **shared), fingerprint="a run", trials=trials,
                  worlds=worlds, device=torch.device("cpu"))  # fmt: skip
    exact.train(None)
    found = _fused(network, TrainingConfig(**shared), neighbours, trials=[0, 1, 2, 3], worlds=[0, 1, 0, 1]).run()
    start = _start(network, TrainingConfig(**shared), trials=[0, 1, 2, 3])
    moved = (exact.parameters.double() - start).norm(dim=1)
    error = (found.double().cpu() - exact.parameters.double()).norm(dim=1) / moved
    assert error.max() < 1e-5


@needs_gpu
@pytest.mark.parametrize(("products", "most"), [("tf32", 5e-3), ("bf16", 4e-2)])
def test_coarser_products_are_close_too_and_only_on_request(products, most):
    base, network = _data(), Mlp(21, hidden=(32,), classes=3)
    runs = []
    for one in ("float32", products):
        config = TrainingConfig(
            steps=3, clip=1.0, noise_multiplier=0.0, learning_rate=1.0, sampling="full", products=one
        )
        runs.append(_fused(network, config, Neighbours(base), trials=[0], worlds=[0]).run())
    difference = (runs[1] - runs[0]).abs().max().item()
    assert 0.0 < difference < most


@needs_gpu
@pytest.mark.parametrize("products", ["tf32", "bf16"])
@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: f"{type(n).__name__}-{getattr(n, 'activation', '')}")
def test_a_clipped_gradient_never_exceeds_the_clip_whatever_the_products(network, products):
    """One row, clipped hard: what it adds to the sum is at most C long, though its factors were rounded up."""
    rng = np.random.default_rng(2)
    lengths = []
    for seed in range(8):
        base = Dataset(rng.normal(size=(1, 21)).astype(np.float32) * 30, [0])
        config = TrainingConfig(
            steps=1, clip=0.5, noise_multiplier=0.0, learning_rate=1.0, sampling="full", products=products
        )
        start = _start(network, config, trials=[seed])
        moved = _fused(network, config, Neighbours(base), trials=[seed], worlds=[0]).run().double().cpu() - start
        lengths.append(float(moved.norm()))
    assert 0.49 < max(lengths) <= 0.5 * (1 + 1e-5)


@needs_gpu
@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_noise_is_standard_normal_and_independent(sigma):
    network = Mlp(21, hidden=(32,), classes=3)
    config = TrainingConfig(
        steps=2, sample_rate=0.0, clip=0.5, noise_multiplier=sigma, learning_rate=1.0,
        initialisation=GivenWeights(np.zeros(21 * 32 + 32 + 32 * 3 + 3)),
    )  # fmt: skip
    one = TrainingConfig(
        steps=1, sample_rate=0.0, clip=0.5, noise_multiplier=sigma, learning_rate=1.0,
        initialisation=GivenWeights(np.zeros(21 * 32 + 32 + 32 * 3 + 3)),
    )  # fmt: skip
    trials = list(range(256))
    after_one = _fused(network, one, Neighbours(_data()), trials=trials, worlds=[0] * 256).run().cpu().numpy()
    after_two = _fused(network, config, Neighbours(_data()), trials=trials, worlds=[0] * 256).run().cpu().numpy()
    first, second = -after_one / (sigma * 0.5), -(after_two - after_one) / (sigma * 0.5)
    # Each test fails a right program with probability below 1e-9.
    assert stats.kstest(first.ravel(), "norm").pvalue > 1e-9
    assert stats.kstest(second.ravel(), "norm").pvalue > 1e-9
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(first.ravel() * wrong, "norm").pvalue < 1e-9
    n = first.size
    for a, b in [
        (first, second),  # steps
        (first[1:], first[:-1]),  # models
        (first[:, 1:], first[:, :-1]),  # neighbouring parameters
        (first[:, 21:], first[:, :-21]),  # a row of the weight matrix apart
        (first**2, second**2),
    ]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 7.0 / np.sqrt(n * 0.9)


@needs_gpu
def test_batches_are_poisson_samples():
    base = _data(rows=400)
    canary = ExampleCanary(np.ones(21, dtype=np.float32), 0, copies=3)
    config = TrainingConfig(steps=1, sample_rate=0.1, clip=1.0, noise_multiplier=1.0, learning_rate=0.0)
    stack = _fused(LogisticRegression(21, classes=3), config, Neighbours(base, canary=canary), trials=list(range(4096)),
                   worlds=[t % 2 for t in range(4096)])  # fmt: skip
    drawn = np.zeros((2, 403))
    sizes: list[list[int]] = [[], []]
    for step in range(1, 6):
        stack._step(step)
        counts, index = stack._count.cpu().numpy(), stack._index.cpu().numpy()
        for world in (0, 1):
            sizes[world] += counts[world::2].tolist()
            for m in range(world, 4096, 2):
                rows = index[m, : counts[m]]
                assert np.unique(rows).size == rows.size
                drawn[world][rows] += 1
    n = 2048 * 5
    assert drawn[0, 400:].sum() == 0
    for world, rows in ((0, 400), (1, 403)):
        z = (drawn[world, :rows] - n * 0.1) / np.sqrt(n * 0.1 * 0.9)
        assert np.abs(z).max() < 7.0
        mean, spread = np.mean(sizes[world]), np.var(sizes[world])
        assert abs(mean - rows * 0.1) < 7.0 * np.sqrt(rows * 0.09 / n)
        assert abs(spread / (rows * 0.09) - 1.0) < 7.0 * np.sqrt(2.0 / n)


@needs_gpu
def test_a_trial_is_the_same_bit_for_bit_in_any_stack():
    network = Mlp(21, hidden=(32,), classes=3)
    config = TrainingConfig(steps=20, sample_rate=0.3, clip=1.0, noise_multiplier=1.0, learning_rate=0.5)
    neighbours = Neighbours(_data(), canary=ExampleCanary(np.ones(21, dtype=np.float32), 0))
    many = _fused(network, config, neighbours, trials=list(range(300)), worlds=[t % 2 for t in range(300)]).run()
    few = _fused(network, config, neighbours, trials=[299, 7], worlds=[1, 1]).run()
    assert torch.equal(many[299], few[0])
    assert torch.equal(many[7], few[1])


@needs_gpu
def test_full_sampling_draws_every_row():
    config = TrainingConfig(steps=1, clip=1.0, noise_multiplier=0.0, learning_rate=0.1, sampling="full")
    stack = _fused(LogisticRegression(21, classes=3), config, Neighbours(_data()), trials=[0, 1], worlds=[0, 1])
    stack._step(1)
    assert stack._count.tolist() == [90, 90]
    assert stack._index[0, :90].tolist() == list(range(90))


def test_room_for_a_batch_is_enough_but_not_wasteful():
    for rows, rate in [(6000, 250 / 6000), (1000, 0.5), (100, 1.0), (50, 0.001), (100_000, 0.001)]:
        config = TrainingConfig(steps=1, sample_rate=rate, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
        room = _lanes(config, Neighbours(Dataset(np.zeros((rows, 1)), np.zeros(rows, dtype=np.int64))))
        assert stats.binom.logsf(room, rows, rate) < np.log(1e-18)
        assert room == 64 or stats.binom.logsf(room // 4, rows, rate) > np.log(1e-18)


def test_it_says_why_it_cannot_train_something():
    config = TrainingConfig(steps=1, sample_rate=0.1, clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    words = refusal(
        Mlp(21, hidden=(8,)),
        config=config,
        neighbours=Neighbours(_data()),
        device=torch.device("cpu"),
        every_step=False,
    )
    assert words is not None
    assert "CUDA" in words
