"""Noise that numbers share, within a tensor and across tensors, however it is arranged.

Right noise goes through every test at level 1e-7; the seeds are fixed.
"""

import numpy as np
import pytest

from coalmine.probing import independence
from coalmine.probing.noise import collect
from coalmine.probing.repeats import Dimensions

LEVEL, RUNS = 1e-7, 200
SHUFFLED = np.random.default_rng(5).permutation(24)


def half(z):
    return np.concatenate([z[:, :12], z[:, :12]], axis=1)


def mirrored(z):
    return np.concatenate([z[:, :12], -z[:, :12]], axis=1)


def shuffled(z):
    return mirrored(z)[:, SHUFFLED]


def two_equal(z):
    z = z.copy()
    z[:, 17] = z[:, 1]
    return z


def without_mean(z):
    return z - z.mean(axis=1, keepdims=True)


def dependent(z):
    """One number is a mixture of all others, with signs that leave sums and pairs as they are."""
    z = z.copy()
    signs = np.where(np.arange(23) % 4 < 2, 1.0, -1.0)
    z[:, 23] = z[:, :23] @ signs / np.sqrt(23)
    return z


def found(change, *, shape=(4, 6), seed=0):
    size = int(np.prod(shape))
    z = change(np.random.default_rng(seed).normal(size=(RUNS, size)))
    return independence.findings(collect([("gradient of w", shape)], z[:, None, :]), LEVEL)


@pytest.mark.parametrize("change", [half, mirrored, shuffled, two_equal, without_mean, dependent])
def test_shared_noise_within_a_tensor_is_found(change):
    (one,) = found(change)
    assert one.fault == "shared noise"
    assert one.level <= LEVEL


def test_the_two_numbers_are_named():
    (one,) = found(two_equal)
    assert one.sentence == "The noise of number 1 of w and of number 17 of w is the same."


@pytest.mark.parametrize("shape", [(2,), (4, 6), (50,), (40, 30), (3000,)])
@pytest.mark.parametrize("seed", range(3))
def test_independent_noise_passes(shape, seed):
    assert found(lambda z: z, shape=shape, seed=seed) == []


def test_a_pool_that_is_used_twice_is_found_across_large_tensors():
    pool = np.random.default_rng(1).normal(size=(40, 5000))
    runs = [[row[:4000], np.concatenate([row[4000:], -row[:500]])] for row in pool]
    (one,) = independence.findings(collect([("a", (4000,)), ("b", (1500,))], runs), LEVEL)
    assert "with the opposite sign" in one.sentence
    assert "of a and of" in one.sentence


def test_a_gradient_and_its_parameter_have_names_of_their_own():
    assert independence.labels(["gradient of w", "w"]) == ["the gradient of w", "w"]


def flat(numbers, dimensions):
    """A map from so many independent numbers to more of them, which all have variance 1."""
    basis = np.linalg.qr(np.random.default_rng(7).normal(size=(numbers, dimensions)))[0]
    return (basis / np.linalg.norm(basis, axis=1, keepdims=True)).T


@pytest.mark.parametrize(("shape", "dimensions"), [((24,), 12), ((10, 20), 160), ((1000,), 800)])
def test_noise_of_fewer_dimensions_is_found(shape, dimensions):
    numbers = int(np.prod(shape))
    (one,) = found(lambda z: z[:, :dimensions] @ flat(numbers, dimensions), shape=shape)
    assert one.fault == "shared noise"
    assert one.level <= LEVEL


def test_noise_of_fewer_dimensions_in_all_tensors_together_is_found():
    z = np.random.default_rng(0).normal(size=(RUNS, 150)) @ flat(200, 150)
    samples = collect([("a", (100,)), ("b", (100,))], [[row[:100], row[100:]] for row in z])
    (one,) = independence.findings(samples, LEVEL)
    assert one.sentence.startswith("The noise of all tensors together has about 15")


def test_a_large_tensor_of_few_dimensions_is_found():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20, 1500)) @ rng.normal(size=(1500, 10_000)) / np.sqrt(1500)
    (one,) = independence.findings(collect([("a", (10_000,))], z[:, None, :]), LEVEL)
    assert "dimensions, where 10000 numbers need as many" in one.sentence


@pytest.mark.parametrize(("runs", "numbers"), [(200, 6), (60, 24), (20, 100)])
def test_independent_noise_of_any_sizes_keeps_the_level_of_the_span(runs, numbers):
    # Of 2000 draws, a test of level 5 % passes 160, 6.1 standard deviations more than 100, with a chance below 1e-7.
    rng = np.random.default_rng(3)
    sizes = np.exp(rng.normal(size=numbers))
    p = [independence.span_p(sizes * rng.normal(size=(runs, numbers)))[0] for _ in range(2000)]
    assert np.sum(np.array(p) < 0.05) < 160


def test_what_rounding_adds_to_every_run_is_no_shared_noise():
    # Noise of eight spacings, beside a value that is rounded too: all runs share up to half a spacing.
    rng, size = np.random.default_rng(6), 1_500_000
    rounded = rng.uniform(-0.5, 0.5, size)
    runs = ([np.round(8.0 * rng.standard_normal(size, dtype=np.float32) + rounded) / 8.0] for _ in range(40))
    assert independence.findings(collect([("a", (size,))], runs), LEVEL) == []


def test_coarse_numbers_that_agree_by_chance_are_no_finding():
    # Noise of eight spacings: of 1.5 million numbers, several pairs are equal in each of eight runs, up to their sign.
    rng, size = np.random.default_rng(3), 1_500_000
    runs = ([np.round(8.0 * rng.standard_normal(size, dtype=np.float32)) / 8.0] for _ in range(20))
    assert independence.findings(collect([("a", (size,))], runs), LEVEL) == []


def test_the_same_noise_twice_is_found_beside_numbers_with_hardly_any():
    z = np.random.default_rng(0).normal(size=(20, 6000))
    z[:, 1000:3000] *= 1e-6
    z[:, 5999] = -z[:, 17]
    (one,) = independence.findings(collect([("a", (6000,))], z[:, None]), LEVEL)
    assert one.sentence == "The noise of number 17 of a and of number 5999 of a is the same with the opposite sign."


@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_independent_noise_of_any_sizes_keeps_the_level_of_consecutive_runs(law):
    # Of 1000 draws, a test of level 5 % passes 95, 6.5 standard deviations more than 50, with a chance below 1e-7.
    rng = np.random.default_rng(4)
    sizes = np.exp(rng.normal(size=300))
    passed = 0
    for _ in range(1000):
        found = Dimensions()
        for run in sizes * getattr(rng, law)(size=(30, 300)):
            found.add(run)
        passed += found.p() < 0.05
    assert passed < 95


@pytest.mark.parametrize(("runs", "dimensions"), [(20, 600), (200, 2000)])
def test_consecutive_runs_tell_the_dimensions(runs, dimensions):
    rng, found = np.random.default_rng(5), Dimensions()
    mixed = rng.standard_normal((dimensions, 4000), dtype=np.float32)
    for _ in range(runs):
        found.add((rng.standard_normal(dimensions, dtype=np.float32) @ mixed).astype(np.float64))
    assert found.p() < 1e-5
    assert found.estimate(4000) == pytest.approx(dimensions, rel=0.6)
