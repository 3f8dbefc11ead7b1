"""The three estimates of ε and δ′ against simulated Gaussian mechanisms and known formulas."""

import math

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import optimize, stats

from coalmine.errors import InvalidInputError
from coalmine.identifiability import estimates
from coalmine.records import Estimate, Scores


def simulated(mu, trials=4000, seed=0):
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(-(mu**2) / 2, mu, trials), rng.normal(mu**2 / 2, mu, trials))


@pytest.mark.parametrize(("mu", "delta"), [(0.02, 0.01), (0.55, 0.001), (2.0, 1e-5)])
def test_rdp_is_the_best_order(mu, delta):
    found = optimize.minimize_scalar(
        lambda log_order: math.exp(log_order) * mu**2 / 2 + math.log(1 / delta) / math.expm1(log_order),
        bounds=(1e-6, 12), method="bounded", options={"xatol": 1e-12},
    )  # fmt: skip
    assert estimates.rdp_epsilon(mu, delta=delta) == pytest.approx(found.fun, rel=1e-6)
    sigma = estimates.rdp_noise(estimates.rdp_epsilon(mu, delta=delta), delta=delta, steps=30)
    assert math.sqrt(30) / sigma == pytest.approx(mu, rel=1e-10)


def test_rdp_is_an_upper_bound_near_the_library():
    # The library converts a little better; ours is the paper's conversion and must not be below it.
    accountant = RdpAccountant()
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(9.94), 30))
    library = accountant.get_epsilon(0.001)
    assert library <= 2.2 <= library * 1.3


def test_estimates_find_a_mechanism_whose_epsilon_is_known():
    delta, epsilon = 0.001, 2.2
    mu = math.sqrt(30) / estimates.rdp_noise(epsilon, delta=delta, steps=30)
    scores = simulated(mu)
    found = estimates.summary(
        scores, epsilon=epsilon, delta=delta, relation="add_remove", promised=True, distances=np.full(8000, mu)
    )
    by = {one.method: one for one in found.estimates}
    assert all(isinstance(one, Estimate) for one in found.estimates)
    assert by["sensitivities"].epsilon == pytest.approx(epsilon, rel=1e-9)
    # 8000 beliefs: the standard error of the advantage is 0.011; five of them are passed once in a million.
    assert found.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, abs=0.056)
    low, high = by["advantage"].interval
    assert low <= by["advantage"].epsilon <= high
    assert by["largest belief"].epsilon == pytest.approx(np.concatenate([-scores.world0, scores.world1]).max())
    # δ′ is Φ(μ/2 − ε/μ) in expectation: about 1e-4 of 8000. More than 12 come once in a million.
    assert found.exceeded.count <= 12
    assert found.exceeded.interval[0] <= delta
    assert found.to_dict()["bound"] == pytest.approx(1 / (1 + math.exp(-2.2)))


def test_shares_have_the_interval_of_clopper_and_pearson():
    for count, trials in ((0, 10), (3, 1000), (999, 1000), (10, 10)):
        share = estimates.Share.of(count, trials=trials, confidence=0.95)
        expected = stats.binomtest(count, trials).proportion_ci(0.95, method="exact")
        assert share.interval == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_membership_counts_only_trials_that_did_not_choose():
    rng = np.random.default_rng(1)
    share = estimates.loss_wins(rng.normal(size=2000), rng.normal(size=2000))
    assert share.trials == 2000
    assert share.interval[0] < 0.5 < share.interval[1]
    share = estimates.loss_wins(rng.normal(size=2000), rng.normal(2.0, size=2000))
    assert share.value == pytest.approx(stats.norm.cdf(1.0), abs=0.05)


def test_certainty_is_infinite_and_guessing_is_zero():
    sure = Scores([-9.0] * 5, [9.0] * 5)
    assert estimates.from_advantage(sure, delta=0.01, relation="replace").epsilon == math.inf
    blind = Scores([0.0] * 4, [0.0] * 4)
    assert estimates.wins(blind).value == 0.5
    assert estimates.from_advantage(blind, delta=0.01, relation="replace").epsilon == 0.0
    assert estimates.from_belief(blind, delta=0.01, relation="replace").epsilon == 0.0


def test_bad_input_is_refused():
    with pytest.raises(InvalidInputError, match="distances"):
        estimates.from_sensitivities([-1.0], delta=0.1, relation="replace")
    with pytest.raises(InvalidInputError, match="epsilon"):
        estimates.rdp_noise(0.0, delta=0.1)
    with pytest.raises(InvalidInputError, match="two trials"):
        estimates.loss_wins([1.0], [2.0])
