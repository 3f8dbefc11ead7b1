"""The limit of every method without assumptions, against the best tests of small cases, found by other means."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from coalmine import bounds
from coalmine.bounds.limit import chance_to_refute, most_provable
from coalmine.errors import InvalidInputError
from coalmine.theory.curves import GaussianCurve


def nearest(law: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """The pair that keeps ε and has the least sum of squared distances of roots, by a general optimizer."""
    size, most = len(law), math.exp(epsilon)
    truth = np.sqrt(np.concatenate([law, law[::-1]]))

    def distance(roots: np.ndarray) -> float:
        return float(((roots - truth) ** 2).sum())

    kept = [
        {"type": "eq", "fun": lambda roots: (roots[:size] ** 2).sum() - 1.0},
        {"type": "eq", "fun": lambda roots: (roots[size:] ** 2).sum() - 1.0},
        {"type": "ineq", "fun": lambda roots: most * roots[:size] ** 2 - roots[size:] ** 2},
        {"type": "ineq", "fun": lambda roots: most * roots[size:] ** 2 - roots[:size] ** 2},
    ]
    start = np.full(2 * size, size**-0.5)
    found = optimize.minimize(
        distance, start, constraints=kept, method="SLSQP", options={"ftol": 1e-14, "maxiter": 500}
    )
    assert found.success
    return found.x[:size] ** 2, found.x[size:] ** 2


@pytest.mark.parametrize(("law", "epsilon"), [([0.85, 0.15], 0.3), ([0.6, 0.3, 0.1], 0.2), ([0.5, 0.3, 0.2], 0.6)])
def test_the_chance_is_that_of_the_best_test_of_all_outcomes(law, epsilon):
    # Every outcome of 3 + 3 scores, one by one, against the nearest pair as a general optimizer finds it.
    p = np.array(law)
    q = p[::-1]
    near_p, near_q = nearest(p, epsilon)
    true, null = [], []
    for outcome in itertools.product(range(len(law)), repeat=6):
        first, second = list(outcome[:3]), list(outcome[3:])
        true.append(p[first].prod() * q[second].prod())
        null.append(near_p[first].prod() * near_q[second].prod())
    best = optimize.linprog(-np.array(true), A_ub=[null], b_ub=[0.05], bounds=(0, 1)).fun
    ours = chance_to_refute(epsilon, law=p, trials=3, level=0.05)
    assert -best - 1e-6 <= ours <= -best + 1e-3


@pytest.mark.parametrize(("trials", "epsilon"), [(12, 0.2), (12, 0.6), (25, 0.6), (25, 1.0)])
def test_no_valid_test_does_better_and_the_best_comes_close(trials, epsilon):
    # Scores are 0 or 1, so their two sums say all. The most powerful test among all that keep their level on every
    # pair of coins within ε is a linear program; its pairs lie on a grid, with the one that is its own mirror image.
    level, chance = 0.05, 0.15
    sums = np.arange(trials + 1)

    def both(first: float, second: float) -> np.ndarray:
        return np.outer(stats.binom.pmf(sums, trials, first), stats.binom.pmf(sums, trials, second)).ravel()

    pairs = []
    for first in [1.0 / (1.0 + math.exp(epsilon)), *np.linspace(0.002, 0.998, 125)]:
        # The largest second coin within ε of the first, and the smallest.
        high = min(math.exp(epsilon) * first, 1.0 - math.exp(-epsilon) * (1.0 - first))
        low = max(math.exp(-epsilon) * first, 1.0 - math.exp(epsilon) * (1.0 - first))
        pairs += [both(first, high), both(first, low)]
    found = optimize.linprog(
        -both(chance, 1.0 - chance), A_ub=np.array(pairs), b_ub=np.full(len(pairs), level), bounds=(0, 1)
    )
    ours = chance_to_refute(epsilon, law=np.array([1.0 - chance, chance]), trials=trials, level=level)
    assert found.status == 0
    assert -found.fun <= ours + 1e-3
    assert -found.fun >= ours - 0.1


@pytest.mark.parametrize(("trials", "published"), [(500, (1.01, 1.44)), (2500, (1.45, 1.96))])
def test_the_table_of_the_documentation(trials, published):
    for mu, value in zip((0.775, 1.0), published, strict=True):
        assert most_provable(mu, trials=trials, confidence=1 - 0.01 / 6) == pytest.approx(value, abs=0.006)


@pytest.mark.parametrize("trials", [100, 1000])
def test_our_bound_stays_below_and_comes_close(trials):
    curve = GaussianCurve(mu=1.0)
    ours = bounds.typical_bound(
        curve, negatives=trials, positives=trials, method="clopper_pearson", delta=1e-5, confidence=0.99
    )
    assert 0.7 * most_provable(1.0, trials=trials, confidence=0.99) <= ours
    assert ours <= most_provable(1.0, trials=trials, confidence=0.99)


def test_more_scores_and_less_confidence_prove_more():
    few = most_provable(1.0, trials=100, confidence=0.99)
    assert few < most_provable(1.0, trials=200, confidence=0.99)
    assert few < most_provable(1.0, trials=100, confidence=0.95)
    assert few < most_provable(1.0, trials=100, confidence=0.99, share=0.1)
    assert most_provable(0.01, trials=10, confidence=0.99) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"mu": 0.0}, {"mu": 21.0}, {"trials": 0}, {"confidence": 1.0}, {"share": 0.0}, {"trials": 1.5}]
)
def test_wrong_input_is_named(wrong):
    given = {"mu": 1.0, "trials": 10, "confidence": 0.95, **wrong}
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        most_provable(given.pop("mu"), **given)
