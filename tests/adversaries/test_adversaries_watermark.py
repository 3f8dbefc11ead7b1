"""Distinguisher 3 and its shortcut, held against densities, a naive loop, the trainer and the accountant."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.accounting import standard
from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.distinguishers.watermark import WatermarkRatio
from coalmine.records import DpSgd
from coalmine.training import Dataset, GaussianSteps, Glorot, LogisticRegression, TrainingConfig, log_ratio, train
from coalmine.training.backends import SWITCH, numba_kernels


@pytest.fixture(params=["compiled", "torch"])
def road(request, monkeypatch):
    """Both ways of computing the shortcut on a CPU."""
    if request.param == "compiled" and numba_kernels is None:
        pytest.skip("numba is not installed")
    monkeypatch.setenv(SWITCH, "0" if request.param == "torch" else "1")


def scores(steps, trials, *, fingerprint="law", worlds=None):
    trials = np.asarray(trials)
    worlds = trials % 2 if worlds is None else worlds
    return steps.scores(trials, worlds=np.asarray(worlds, dtype=np.int8), fingerprint=fingerprint, device="cpu")


def scene(**changes):
    settings = {"steps": 30, "clip": 0.7, "noise_multiplier": 0.8, "learning_rate": 0.3, "sample_rate": 0.15}
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(60, 5)), rng.integers(0, 3, size=60))
    config = TrainingConfig(**{**settings, "initialization": Glorot(scale=0.0), **changes})
    return Scene(base=base, classes=3, network=LogisticRegression(5, classes=3), training=config)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("rate", [0.001, 0.3, 1.0])
def test_the_ratio_is_that_of_the_densities(sigma, rate):
    s = np.linspace(-4.0, 5.0, 37)
    null, marked = stats.norm.pdf(s, scale=sigma), stats.norm.pdf(s, loc=1.0, scale=sigma)
    with np.errstate(divide="ignore"):
        expected = np.log(((1 - rate) * null + rate * marked) / null)
    np.testing.assert_allclose(log_ratio(s, sample_rate=rate, sigma=sigma), expected, rtol=1e-9, atol=1e-12)


def test_the_ratio_does_not_overflow():
    assert log_ratio(np.array([1e6]), sample_rate=0.01, sigma=0.05)[0] == pytest.approx((1e6 - 0.5) / 0.0025, rel=1e-6)
    assert log_ratio(np.array([-1e6]), sample_rate=0.01, sigma=0.05)[0] == pytest.approx(math.log(0.99))
    assert np.isfinite(log_ratio(np.array([0.0, 1.0]), sample_rate=0.5, sigma=0.0)).all()


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [(0.1, 1.0, 1), (0.1, 1.0, 7), (0.004, 0.5, 5000), (0.5, 0.2, 40), (0.9, 3.0, 100), (0.999, 1.0, 33),
     (0.05, 0.03, 20), (1.0, 0.7, 50), (0.2, 0.0, 10)],
)  # fmt: skip
def test_a_score_does_not_depend_on_what_is_asked_beside_it(rate, sigma, steps):
    shortcut = GaussianSteps(sample_rate=rate, sigma=sigma, steps=steps)
    whole = scores(shortcut, np.arange(64))
    assert np.isfinite(whole).all()
    np.testing.assert_array_equal(scores(shortcut, [37, 2, 50]), whole[[37, 2, 50]])
    np.testing.assert_array_equal(scores(shortcut, [37, 2], worlds=[1, 0]), whole[[37, 2]])
    flipped = scores(shortcut, np.arange(64), worlds=1 - np.arange(64) % 2)
    in_world_1 = np.where(np.arange(64) % 2 == 1, whole, flipped)
    in_world_0 = np.where(np.arange(64) % 2 == 0, whole, flipped)
    assert (in_world_1 >= in_world_0 - 1e-6).all()  # the same noise with the canary on top
    assert not np.array_equal(scores(shortcut, np.arange(64), fingerprint="another"), whole)


@pytest.mark.parametrize(("sigma", "rate"), [(0.5, 0.01), (1.3, 0.2), (0.15, 0.4)])
def test_products_of_factors_are_sums_of_ratios(sigma, rate):
    """The fast sum against the plain formula on the same normal numbers."""
    shortcut = GaussianSteps(sample_rate=rate, sigma=sigma, steps=1000)
    few, dtype = shortcut._few
    normals = np.random.default_rng(0).normal(size=(16, 1024))
    drawn = np.arange(16) * 5
    inside = np.arange(1000) < drawn[:, None]
    expected = log_ratio(inside + sigma * normals[:, :1000], sample_rate=rate, sigma=sigma).sum(axis=1)
    found = shortcut._ratios(torch.tensor(normals, dtype=dtype), torch.from_numpy(drawn), 0, few)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=2e-4)


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("world", [0, 1])
def test_the_law_of_one_step_is_known(world):
    """P(LLR ≤ t) in closed form. A right program fails with a chance below 1e-6."""
    rate, sigma = 0.3, 0.6
    shortcut = GaussianSteps(sample_rate=rate, sigma=sigma, steps=1)
    found = scores(shortcut, np.arange(40_000), worlds=np.full(40_000, world))

    def below(t):
        # Smaller ratios than ln(1 − q) do not exist.
        lift = np.maximum(np.expm1(t) + rate, 1e-300) / rate
        s = 0.5 + sigma**2 * np.log(lift)
        marked = rate if world else 0.0
        return (1 - marked) * stats.norm.cdf(s / sigma) + marked * stats.norm.cdf((s - 1) / sigma)

    assert stats.kstest(found, below).pvalue > 1e-6


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize("pairs", [1, 3])
def test_the_shortcut_has_the_law_of_training_and_judging(pairs):
    """The trainer and the distinguisher on one side, the shortcut on the other. Chance of failure below 2e-6."""
    given = scene()
    attack = adversary("malicious-dataset", pairs=pairs).craft(given)
    trials = np.arange(6000)
    trained = train(
        attack.network, neighbours=attack.neighbours, config=attack.training, fingerprint="long road", trials=trials,
        worlds=trials % 2, observer=attack.distinguisher,
    ).scores  # fmt: skip
    short = scores(attack.shortcut, np.arange(20_000), fingerprint="short road")
    for world in (0, 1):
        assert stats.ks_2samp(trained[world::2], short[world::2]).pvalue > 1e-6
    # And the worlds do differ by far more than that.
    assert stats.ks_2samp(short[::2], short[1::2]).pvalue < 1e-100


def test_shuffled_batches_take_the_long_road():
    """Each row once an epoch is no Binomial(T, q): in 30 steps, 6 an epoch, the canary is used 5 times, always."""
    given = scene(sampling="shuffle", sample_rate=None, batch_size=10, noise_multiplier=0.0)
    attack = adversary("malicious-dataset").craft(given)
    assert attack.shortcut is None
    found = train(
        attack.network, neighbours=attack.neighbours, config=attack.training, fingerprint="deck", trials=range(8),
        worlds=[1] * 8, observer=attack.distinguisher,
    ).scores  # fmt: skip
    assert np.ptp(found) < 1e-6 * abs(found[0])


@pytest.mark.usefixtures("road")
@pytest.mark.parametrize(("rate", "sigma", "steps", "at"), [(0.1, 0.8, 100, 1.5), (256 / 60000, 0.7, 3000, 1.0)])
def test_the_scores_have_the_privacy_profile_of_the_accountant(rate, sigma, steps, at):
    """δ(ε) = E[(1 − e^{ε−L})₊] over world 1, and the same from the other side: five standard errors."""
    shortcut = GaussianSteps(sample_rate=rate, sigma=sigma, steps=steps)
    count = 40_000 if steps < 1000 else 6000
    found = scores(shortcut, np.arange(count))
    one, zero = found[1::2], found[::2]
    ratios = -np.expm1(np.minimum(at - one, 0.0)), np.maximum(np.exp(-at) - np.exp(zero), 0.0) * np.exp(at)
    mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps)
    promised = standard.delta(mechanism, epsilon=at).delta
    remove = float(ratios[0].mean())
    error = float(ratios[0].std() / math.sqrt(one.size))
    assert error > 0.0
    # The profile is the larger of the two directions; removing a row is the worse one for this mechanism.
    assert promised == pytest.approx(remove, abs=5 * error)
    assert float(ratios[1].mean()) <= promised + 5 * float(ratios[1].std() / math.sqrt(zero.size))


@pytest.mark.skipif(numba_kernels is None, reason="numba is not installed")
@pytest.mark.parametrize(("sigma", "rate", "steps"), [(0.5, 0.01, 5000), (1.3, 0.2, 100), (3.0, 0.9, 4097)])
def test_the_compiled_loop_adds_up_the_ratios_of_its_own_noise(sigma, rate, steps):
    """The plain formula on the noise that the trainer's kernel draws from the same keys."""
    keys = np.arange(6, dtype=np.uint64).reshape(3, 2) + np.uint64(7)
    drawn = np.array([0, 3, 60])
    found = np.empty(3)
    few, _ = GaussianSteps(sample_rate=rate, sigma=sigma, steps=steps)._few
    numba_kernels.log_ratios(keys, steps, drawn, sigma, rate, few, found)
    for i in range(3):
        normals = []
        for first in range(0, steps, numba_kernels.PIECE):
            row = np.zeros((1, numba_kernels.PIECE), dtype=np.float32)
            count = min(numba_kernels.PIECE, steps - first)
            numba_kernels.add_noise(
                row, count, keys[i : i + 1], first // numba_kernels.PIECE + 1, np.ones(1, dtype=np.float32)
            )
            normals.append(row[0, :count])
        inside = np.arange(steps) < drawn[i]
        expected = log_ratio(inside + sigma * np.concatenate(normals), sample_rate=rate, sigma=sigma).sum()
        assert found[i] == pytest.approx(expected, rel=1e-5, abs=1e-3)


def test_what_the_base_rows_add_is_taken_off():
    """With ``every`` = 1 and every row in every step, nothing but noise and the watermark is left of a projection."""
    given = scene(sample_rate=None, sampling="full", noise_multiplier=1e-3, learning_rate=0.5, dtype="float64")
    attack = adversary("gradient", pairs=2, measure=5, every=1).craft(given)
    seen = []

    class Spy(WatermarkRatio):
        def observe(self, iterate):
            super().observe(iterate)
            if self._points is not None:
                seen.append(self._scale * self._project(iterate.private_gradient, self._points) - self._drift)

    spy = Spy(given.base, given.network, given.training, pairs=2, measure=5, every=1)
    train(
        given.network, neighbours=attack.neighbours, config=given.training, fingerprint="centred", trials=[0, 1],
        worlds=[0, 1], observer=spy,
    )  # fmt: skip
    left = np.array(seen)
    assert left.shape == (25, 2)
    np.testing.assert_allclose(left[:, 0], 0.0, atol=6e-3)
    np.testing.assert_allclose(left[:, 1], 1.0, atol=6e-3)


def test_gradient_comes_close_to_the_worst_case():
    """The mean scores of the two worlds are as far apart as the malicious data set's, within sampling error."""
    given = scene(steps=40, noise_multiplier=1.0, learning_rate=0.2, sample_rate=0.2)
    trials = np.arange(1000)
    apart = {}
    for name, options in (("gradient", {"measure": 1, "pairs": 4}), ("malicious-dataset", {})):
        attack = adversary(name, **options).craft(given)
        found = train(
            attack.network or given.network, neighbours=attack.neighbours, config=attack.training or given.training,
            fingerprint="close", trials=trials, worlds=trials % 2, observer=attack.distinguisher,
        ).scores  # fmt: skip
        zero, one = found[::2], found[1::2]
        apart[name] = (one.mean() - zero.mean()) / math.sqrt((zero.var() + one.var()) / 2)
    # Each is known to about ±0.065, so ±0.09 for the difference; six of those.
    assert apart["gradient"] == pytest.approx(apart["malicious-dataset"], abs=0.55)
    assert apart["gradient"] > 0.8
