"""The sup-test: against a naive form, on all kinds of scores, and as tight as was promised."""

import math
import time

import numpy as np
import pytest
from scipy import stats

from coalmine import bounds
from coalmine.bounds import sup
from coalmine.bounds._rates import lattice
from coalmine.bounds.families import EpsilonDelta, Gdp
from coalmine.errors import UnsupportedError
from coalmine.records import Scores
from coalmine.theory.curves import gaussian_epsilon

EPSILON = gaussian_epsilon(1.0, delta=1e-5)


def naive_statistic(family, zero, one):
    """max over thresholds of g, straight from its definition."""
    best = -math.inf
    for t in [-math.inf, *zero]:
        fp, fn = int(np.sum(zero > t)), int(np.sum(one <= t))
        alpha = stats.beta.ppf(1 - family.inner_level, fp + 1, zero.size - fp) if fp < zero.size else 1.0
        beta = stats.beta.ppf(1 - family.inner_level, fn + 1, one.size - fn) if fn < one.size else 1.0
        best = max(best, float(family.statistic(np.array(alpha), np.array(beta))))
    return best


@pytest.mark.parametrize("family", [Gdp(delta=1e-5), EpsilonDelta(delta=1e-5), EpsilonDelta(delta=0.05, copies=2)])
@pytest.mark.parametrize("kind", ["continuous", "tied"])
def test_statistic_and_simulation_agree_with_the_naive_form(family, kind):
    rng = np.random.default_rng(7)
    zero, one = rng.normal(size=23), rng.normal(size=31) + 1
    if kind == "tied":
        zero, one = zero.round(), one.round()
    s, _, _ = sup.observed(family, Scores(zero, one))
    assert s == pytest.approx(naive_statistic(family, zero, one), abs=1e-9)

    # The p-value at θ by drawing 4000 whole samples from the extremal pair, W against V ≤ f(W), with other random
    # numbers: 0.05 at the bound. Both simulations have 4000 copies: the difference has a standard deviation of 0.005;
    # 0.03 is six of them. Away from the bound it is far smaller or larger.
    theta = sup.sup_test(family, Scores(zero, one), level=0.05, rule=bounds.Sup(simulations=3999)).theta
    limits = [
        [stats.beta.ppf(1 - family.inner_level, k + 1, n - k) if k < n else 1.0 for k in range(n + 1)] for n in (23, 31)
    ]
    table = family.statistic(np.array(limits[0])[:, None], np.array(limits[1])[None, :])
    w = np.column_stack([np.sort(rng.random((4000, 23)), axis=1), np.ones(4000)])
    v = rng.random((4000, 31))

    def p_value(value):
        wrong = family.curve(value)(w)
        fn = (v[:, None, :] <= wrong[:, :, None]).sum(axis=2)
        best = np.max(table[np.arange(24)[None, :], fn], axis=1)
        return float(np.mean(best >= s - 1e-9))

    assert p_value(theta) == pytest.approx(0.05, abs=0.03)
    assert p_value(0.5 * theta) < p_value(theta) < p_value(2.0 * theta)


def test_order_statistics_have_the_right_law():
    # Uniform order statistics are Beta(r, n + 1 − r). Kolmogorov–Smirnov at 1e-8 each: false failure under 1e-7.
    zero = sup._world0(1000, 4000, 3)
    one = sup._world1(100_000, 4000, 3, (1, 77, 50_000, 100_000))
    for rank, total, values in (
        (1, 1000, zero[:, 0]),
        (1 + int(lattice(1000)[100]), 1000, zero[:, 100]),
        (1, 100_000, one[:, 0]),
        (50_000, 100_000, one[:, 2]),
        (100_000, 100_000, one[:, 3]),
    ):
        assert stats.kstest(values, stats.beta(rank, total + 1 - rank).cdf).pvalue > 1e-8


def test_constant_and_useless_scores_prove_nothing():
    for method in ("clopper_pearson", "gdp"):
        for scores in (
            Scores(np.zeros(200), np.zeros(300)),
            Scores(np.ones(1), np.ones(1)),
            Scores([3.0], [5.0]),
            Scores(np.arange(100), np.arange(100) - 200),  # the wrong way round
        ):
            for rule in (bounds.Sup(), bounds.Bonferroni(), bounds.DKW(), bounds.Given(0.0)):
                found = bounds.lower_bound(scores, delta=1e-5, confidence=0.95, method=method, threshold=rule)
                assert found.epsilon == 0.0, (method, rule)


def test_scores_matter_only_through_their_order():
    rng = np.random.default_rng(8)
    zero, one = rng.integers(0, 30, 200), rng.integers(5, 35, 200)
    plain = bounds.gdp(Scores(zero, one), delta=1e-5, confidence=0.95)
    moved = bounds.gdp(Scores(np.exp(zero / 7), np.exp(one / 7)), delta=1e-5, confidence=0.95)
    assert plain.epsilon == moved.epsilon > 0.0


def test_perfect_scores_reach_the_ceiling():
    scores = Scores(np.zeros(300), np.ones(200))
    for method in ("clopper_pearson", "gdp"):
        found = bounds.lower_bound(scores, delta=1e-5, confidence=0.95, method=method)
        # The ceiling is computed, the bound simulated with 500 copies above it: 20 % in the level, little in ε.
        assert found.epsilon == pytest.approx(found.ceiling, rel=0.03)
        assert found.ceiling == pytest.approx(
            bounds.ceiling(300, positives=200, delta=1e-5, confidence=0.95, method=method, threshold=bounds.Sup()),
            rel=0.03,
        )


def test_more_evidence_never_lowers_the_bound():
    rng = np.random.default_rng(9)
    zero, one = rng.normal(size=150), rng.normal(size=150) + 1
    for method in ("clopper_pearson", "gdp"):
        values = [
            bounds.lower_bound(Scores(zero, one + shift), delta=1e-5, confidence=0.95, method=method).epsilon
            for shift in (0.0, 0.1, 0.5, 2.0, 9.0)
        ]
        assert values == sorted(values)


@pytest.mark.parametrize(
    ("method", "n", "wanted"),
    [
        ("gdp", 100, 0.60 * EPSILON),
        ("gdp", 500, 0.80 * EPSILON),
        ("clopper_pearson", 500, 1.4),
        ("clopper_pearson", 1000, 1.6),
    ],
)
def test_tightness_and_size_on_the_gaussian_mechanism(method, n, wanted):
    # 200 audits. The mean bounds are about 0.69 ε, 0.86 ε, 1.51 and 1.75, with standard deviations of one audit of 0.8,
    # 0.38, 0.26 and 0.25: the wanted values lie more than 5 standard errors below.
    # Misses are Binomial(200, ≤ 0.05): more than 30 with probability under 1e-8.
    rng = np.random.default_rng(10)
    found = [
        bounds.lower_bound(
            Scores(rng.normal(size=n), rng.normal(size=n) + 1),
            delta=1e-5,
            confidence=0.95,
            method=method,
            threshold=bounds.Sup(simulations=1999),
        ).epsilon
        for _ in range(200)
    ]
    assert np.mean(found) >= wanted
    assert np.sum(np.array(found) > EPSILON) <= 30


def test_size_with_the_seed_that_is_shipped():
    # 60 000 audits of the Gaussian mechanism at μ = 1. The bound grows with the statistic, so those above the truth are
    # those whose statistic is above one value, which is found once. The standard error is 0.0009.
    family, n, level = Gdp(delta=1e-5), 150, 0.05
    rng = np.random.default_rng(123)
    statistics = np.array(
        [sup.observed(family, Scores(rng.normal(size=n), rng.normal(size=n) + 1.0))[0] for _ in range(60_000)]
    )

    def size(rule):
        low, high = 0.0, 4.0
        for _ in range(30):
            middle = 0.5 * (low + high)
            above = sup.invert(family, n, n, middle, level=level, rule=rule) > 1.0
            low, high = (low, middle) if above else (middle, high)
        return float(np.mean(statistics >= high))

    assert 0.04 < size(bounds.Sup()) <= level
    assert size(bounds.Sup(simulations=9999)) > level + 0.003  # the same copies, without care: an unlucky seed


@pytest.mark.parametrize(("level", "simulations"), [(0.05, 9999), (0.01, 19_999), (0.001, 99_999), (0.2, 199)])
def test_the_careful_rank_is_the_largest_that_one_seed_in_a_thousand_spoils(level, simulations):
    rank = sup.rank_for(level, simulations, rule=bounds.Sup())
    assert stats.beta.sf(level, rank, simulations + 1 - rank) <= 1e-3
    assert stats.beta.sf(level, rank + 1, simulations - rank) > 1e-3
    assert rank < sup.rank_for(level, simulations, rule=bounds.Sup(simulations=simulations))


def test_size_over_fresh_simulations():
    # The level is kept on average over the simulated copies too: 400 audits with a seed of their own each, at the worst
    # case (the Gaussian mechanism for its own family). Binomial(400, 0.05) exceeds 45 with probability under 1e-6.
    rng = np.random.default_rng(11)
    family = Gdp(delta=1e-5)
    misses = 0
    for seed in range(400):
        scores = Scores(rng.normal(size=40), rng.normal(size=40) + 1)
        misses += sup.sup_test(family, scores, level=0.05, rule=bounds.Sup(simulations=99, seed=seed)).theta > 1.0
    assert misses <= 45
    assert misses >= 3  # and it is not empty of meaning: Binomial(400, 0.05) ≤ 2 has probability 4e-7 at exact size


@pytest.mark.parametrize("rule", [bounds.Sup(), bounds.HoldOut(), bounds.Bonferroni(), bounds.DKW(), bounds.Given(1.0)])
def test_a_million_scores_take_seconds(rule):
    rng = np.random.default_rng(12)
    scores = Scores(rng.normal(size=500_000), rng.normal(size=500_000) + 1)
    start = time.perf_counter()
    found = bounds.gdp(scores, delta=1e-5, confidence=0.95, threshold=rule)
    assert time.perf_counter() - start < 20.0  # about one second when nothing else runs
    least = 4.0 if isinstance(rule, bounds.HoldOut) else 4.25  # half the trials, and their threshold by chance far out
    assert least < found.epsilon < EPSILON * 1.01


def test_a_confidence_too_high_for_simulation_is_refused_with_a_way_out():
    with pytest.raises(UnsupportedError, match="bonferroni"):
        bounds.gdp(Scores([0.0], [1.0]), delta=1e-5, confidence=1 - 1e-7)
    with pytest.raises(UnsupportedError, match="simulations"):
        bounds.gdp(Scores([0.0], [1.0]), delta=1e-5, confidence=0.99, threshold=bounds.Sup(simulations=50))
