"""Numbers that papers print or that a second way of computing gives."""

import math

import mpmath
import numpy as np
import pytest
from scipy import special, stats

from coalmine import bounds
from coalmine.bounds._rates import dkw_width, errors_by_position, lattice
from coalmine.bounds.families import EpsilonDelta, Gdp, group_epsilon
from coalmine.records import Counts, Estimate, LowerBound, Relation, Scores
from coalmine.theory.curves import gaussian_epsilon
from coalmine.theory.rates import lower_limit, two_sided, upper_limit


def counts(fp, n0, fn, n1):
    return Counts(false_positives=fp, negatives=n0, false_negatives=fn, positives=n1)


@pytest.mark.parametrize(
    ("evidence", "delta", "confidence", "epsilon"),
    [
        (counts(0, 500, 0, 500), 0.0, 0.99, 4.541916),  # ε_OPT of jagielski-2020
        (counts(0, 1000, 0, 1000), 1e-5, 0.95, 5.600577),  # the ceiling of nasr-2021
        (counts(2, 1000, 983, 1000), 1e-5, 0.95, 0.320015),  # its CIFAR-10 case, printed 0.31
    ],
)
def test_clopper_pearson_gives_the_published_values(evidence, delta, confidence, epsilon):
    found = bounds.clopper_pearson(evidence, delta=delta, confidence=confidence)
    assert found.epsilon == pytest.approx(epsilon, abs=1e-6)
    assert isinstance(found, LowerBound)
    assert found.counts == evidence
    assert bounds.lower_bound(evidence, delta=delta, confidence=confidence).epsilon == found.epsilon


def test_both_directions_are_used():
    few_false_positives = counts(2, 1000, 983, 1000)
    mirrored = counts(983, 1000, 2, 1000)
    one = bounds.clopper_pearson(few_false_positives, delta=1e-5, confidence=0.95)
    two = bounds.clopper_pearson(mirrored, delta=1e-5, confidence=0.95)
    assert one.epsilon == pytest.approx(two.epsilon, abs=1e-12)
    alpha, beta = upper_limit(2, 1000, 0.025), upper_limit(983, 1000, 0.025)
    assert one.epsilon == pytest.approx(math.log((1 - 1e-5 - beta) / alpha), abs=1e-9)


@pytest.mark.parametrize(
    ("wrong", "total", "level"), [(0, 7, 0.3), (3, 50, 0.025), (49, 50, 1e-6), (500, 10**6, 0.005)]
)
def test_clopper_pearson_limit_is_where_the_binomial_tail_is_the_level(wrong, total, level):
    limit = float(upper_limit(wrong, total, level))
    assert stats.binom.cdf(wrong, total, limit) == pytest.approx(level, rel=1e-8)
    assert upper_limit(total, total, level) == 1.0
    above = float(lower_limit(total - wrong, total, level))
    assert above == pytest.approx(1.0 - limit, rel=1e-12)
    assert lower_limit(0, total, level) == 0.0
    theirs = stats.binomtest(wrong, total).proportion_ci(confidence_level=1 - 2 * level)
    assert two_sided(wrong, wrong, total, confidence=1 - 2 * level) == pytest.approx(tuple(theirs), rel=1e-9)


def test_gdp_epsilon_and_limits():
    assert Gdp(delta=1e-5).epsilon(1.0) == pytest.approx(4.377178, abs=1e-6)
    evidence = counts(50, 1000, 500, 1000)
    found = bounds.gdp(evidence, delta=1e-5, confidence=0.95)
    alpha, beta = upper_limit(50, 1000, 0.025), upper_limit(500, 1000, 0.025)
    mu = stats.norm.ppf(1 - alpha) - stats.norm.ppf(beta)
    assert found.details["mu"] == pytest.approx(mu, abs=1e-9)
    assert found.epsilon == pytest.approx(gaussian_epsilon(float(mu), delta=1e-5), abs=1e-8)


def test_gdp_never_takes_the_absolute_value_of_mu():
    # A test that is wrong nearly always says nothing in its own direction.
    assert bounds.gdp(counts(990, 1000, 990, 1000), delta=1e-5, confidence=0.95).epsilon == 0.0
    assert bounds.clopper_pearson(counts(990, 1000, 990, 1000), delta=1e-5, confidence=0.95).epsilon == 0.0


@pytest.mark.parametrize(("n", "cp", "gdp"), [(100, 3.28, 21), (500, 4.91, 32), (1000, 5.60, 36), (5000, 7.21, 47)])
def test_ceilings(n, cp, gdp):
    common = {"positives": n, "delta": 1e-5, "confidence": 0.95}
    assert bounds.ceiling(n, **common) == pytest.approx(cp, abs=0.006)
    assert bounds.ceiling(n, **common, method="gdp") == pytest.approx(gdp, abs=0.6)


@pytest.mark.parametrize("copies", [1, 2, 3, 8, 32])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
@pytest.mark.parametrize(("larger", "smaller"), [(0.5, 0.01), (0.99, 1e-6), (0.2, 0.19), (0.9, 0.5)])
def test_group_epsilon_solves_its_equation_and_rounds_down(copies, delta, larger, smaller):
    found = float(group_epsilon(larger, smaller, delta=delta, copies=copies))
    with mpmath.workdps(50):

        def right(epsilon):
            return mpmath.e ** (copies * epsilon) * mpmath.mpf(smaller) + mpmath.mpf(delta) * mpmath.fsum(
                mpmath.e ** (j * epsilon) for j in range(copies)
            )

        if larger <= right(mpmath.mpf(0)):
            assert found == 0.0
            return
        low, high = mpmath.mpf(0), mpmath.mpf(50)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if right(middle) < larger else (low, middle)
        assert found == pytest.approx(float(low), rel=1e-9)
        assert found <= float(low) * (1 + 1e-13)


def test_group_curve_agrees_with_group_epsilon():
    family = EpsilonDelta(delta=1e-4, copies=3)
    alpha, beta = np.array([0.02]), np.array([0.4])
    theta = family.most_refuted(alpha, beta)
    assert beta < family.curve(theta * (1 - 1e-9))(alpha)
    assert not beta < family.curve(theta * (1 + 1e-9))(alpha)


def test_copies_are_per_row():
    evidence = counts(5, 1000, 100, 1000)
    common = {"delta": 1e-5, "confidence": 0.95}
    single = bounds.gdp(evidence, **common)
    double = bounds.gdp(evidence, **common, copies=2)
    assert double.details["mu"] == pytest.approx(single.details["mu"] / 2)
    assert bounds.clopper_pearson(evidence, delta=0.0, confidence=0.95, copies=4).epsilon == pytest.approx(
        bounds.clopper_pearson(evidence, delta=0.0, confidence=0.95).epsilon / 4
    )
    with_delta = bounds.clopper_pearson(evidence, delta=1e-3, confidence=0.95, copies=4).epsilon
    assert with_delta < bounds.clopper_pearson(evidence, delta=1e-3, confidence=0.95).epsilon / 4


def test_dkw_width_is_massarts():
    assert dkw_width(100, 0.025) == pytest.approx(math.sqrt(math.log(2 / 0.05) / 200))


def test_lattice_is_complete_when_small_and_thin_when_large():
    assert lattice(1).tolist() == [0, 1]
    assert lattice(100).tolist() == list(range(101))
    for total in (129, 1000, 10**6):
        ranks = lattice(total)
        assert ranks[0] == 0
        assert ranks[-1] == total
        assert np.all(np.diff(ranks) > 0)
        assert set(range(60)) <= set(ranks.tolist())
        assert set((total - np.arange(60)).tolist()) <= set(ranks.tolist())
        assert ranks.size < 700


def test_errors_by_position_is_exact_with_ties():
    rng = np.random.default_rng(0)
    for _ in range(200):
        scores = Scores(rng.integers(0, 5, rng.integers(1, 20)), rng.integers(0, 6, rng.integers(1, 20)))
        found = errors_by_position(scores)
        for i in range(found.positions.size):
            t = found.thresholds[i]
            assert found.false_positives[i] == np.sum(scores.world0 > t) <= found.positions[i]
            assert found.false_negatives[i] == np.sum(scores.world1 <= t)
        # No threshold at all does better than those listed.
        for t in np.concatenate([[-np.inf], scores.world0, scores.world1]):
            fp, fn = np.sum(scores.world0 > t), np.sum(scores.world1 <= t)
            assert np.any((found.false_positives <= fp) & (found.false_negatives <= fn))


def test_given_threshold_is_the_counts_at_that_threshold():
    rng = np.random.default_rng(1)
    scores = Scores(rng.integers(0, 10, 300), rng.integers(4, 14, 400))
    at = counts(int(np.sum(scores.world0 > 6)), 300, int(np.sum(scores.world1 <= 6)), 400)
    for method in ("clopper_pearson", "gdp"):
        by_scores = bounds.lower_bound(scores, delta=1e-5, confidence=0.9, method=method, threshold=bounds.Given(6))
        by_counts = bounds.lower_bound(at, delta=1e-5, confidence=0.9, method=method)
        assert by_scores.epsilon == by_counts.epsilon
        assert by_scores.counts == at
        assert by_scores.threshold_rule == "given:6"


def test_hold_out_counts_only_the_rest_and_depends_on_its_seed():
    rng = np.random.default_rng(2)
    scores = Scores(rng.normal(size=400), rng.normal(size=200) + 2)
    found = bounds.clopper_pearson(scores, delta=0.0, confidence=0.95, threshold=bounds.HoldOut(fraction=0.25))
    assert (found.counts.negatives, found.counts.positives) == (300, 150)
    assert found.trials == (400, 200)
    again = bounds.clopper_pearson(scores, delta=0.0, confidence=0.95, threshold=bounds.HoldOut(fraction=0.25))
    other = bounds.clopper_pearson(scores, delta=0.0, confidence=0.95, threshold=bounds.HoldOut(fraction=0.25, seed=1))
    assert again.epsilon == found.epsilon
    assert other.counts != found.counts


def test_bonferroni_grid_is_the_best_of_given_thresholds_at_a_share_of_the_level():
    rng = np.random.default_rng(3)
    scores = Scores(rng.normal(size=400), rng.normal(size=400) + 1)
    grid = (0.0, 0.5, 1.0, 2.0)
    found = bounds.clopper_pearson(scores, delta=1e-5, confidence=0.95, threshold=bounds.Bonferroni(grid))
    singles = [
        bounds.clopper_pearson(scores, delta=1e-5, confidence=1 - 0.05 / 4, threshold=bounds.Given(t)).epsilon
        for t in grid
    ]
    assert found.epsilon == pytest.approx(max(singles), rel=1e-9)


def test_dkw_is_the_best_threshold_with_the_band():
    rng = np.random.default_rng(4)
    scores = Scores(rng.normal(size=60), rng.normal(size=80) + 2)
    found = bounds.gdp(scores, delta=1e-5, confidence=0.95, threshold=bounds.DKW())
    best = 0.0
    for t in np.concatenate([scores.world0, scores.world1]):
        alpha = min(1.0, float(np.mean(scores.world0 > t)) + math.sqrt(math.log(40) / 120))
        beta = min(1.0, float(np.mean(scores.world1 <= t)) + math.sqrt(math.log(40) / 160))
        best = max(best, float(-special.ndtri(alpha) - special.ndtri(beta)))
    assert found.details["mu"] == pytest.approx(best, abs=1e-9)


def test_optimistic_is_an_estimate_and_no_bound():
    rng = np.random.default_rng(5)
    scores = Scores(rng.normal(size=100), rng.normal(size=100) + 1)
    found = bounds.lower_bound(scores, delta=1e-5, confidence=0.95, threshold=bounds.Optimistic())
    assert isinstance(found, Estimate)
    assert not isinstance(found, LowerBound)
    assert found.to_dict()["kind"] == "estimate"


def test_record_says_what_it_rests_on():
    found = bounds.gdp(counts(1, 100, 5, 100), delta=1e-5, confidence=0.9, copies=2, relation=Relation.REPLACE)
    assert found.relation is Relation.REPLACE
    assert found.copies == 2
    assert found.ceiling >= found.epsilon
    assert any("Gaussian" in word for word in found.assumptions)
    assert any("independent" in word for word in found.assumptions)
    assert found.to_dict()["counts"]["negatives"] == 100
