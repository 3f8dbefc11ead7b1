"""A Bayesian estimate of ε from error counts: credible, not confident. It proves nothing."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.curves import EpsilonDeltaCurve, smallest_true
from coalmine.records import Counts, Estimate, Relation

_NODES = 4000
_LARGEST = 100.0


@functools.lru_cache(maxsize=1)
def _midpoints() -> NDArray[np.float64]:
    """Quantile levels that stand for a whole distribution."""
    return (np.arange(_NODES) + 0.5) / _NODES


def posterior_mass(counts: Counts, *, epsilon: float, delta: float) -> float:
    """The posterior probability that the two rates are possible under (ε, δ)-DP.

    α ~ Beta(½ + FP, ½ + TN) and β ~ Beta(½ + FN, ½ + TP), independent; possible when f(β) ≤ α ≤ 1 − f(1 − β) with
    f the (ε, δ) trade-off curve (Zanella-Béguelin et al. 2023, Section 4).

    >>> counts = Counts(false_positives=5, negatives=10, false_negatives=5, positives=10)
    >>> round(posterior_mass(counts, epsilon=9.0, delta=0.0), 3)
    1.0
    """
    _validate.instance("counts", counts, Counts)
    epsilon = _validate.non_negative("epsilon", epsilon)
    delta = _validate.half_open_unit("delta", delta)
    hits0, hits1 = counts.negatives - counts.false_positives, counts.positives - counts.false_negatives
    a0, b0 = counts.false_positives + 0.5, hits0 + 0.5
    a1, b1 = counts.false_negatives + 0.5, hits1 + 0.5
    beta = special.betaincinv(a1, b1, _midpoints())
    complement = special.betaincinv(b1, a1, _midpoints()[::-1])
    curve = EpsilonDeltaCurve(epsilon=epsilon, delta=delta)
    inside = special.betaincc(b0, a0, curve(complement)) - special.betainc(a0, b0, curve(beta))
    return float(np.clip(np.mean(np.maximum(inside, 0.0)), 0.0, 1.0))


def bayesian(
    counts: Counts,
    *,
    delta: float,
    credibility: float = 0.95,
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
) -> Estimate:
    """The joint-beta credible interval of Zanella-Béguelin et al. 2023 (Jeffreys priors), labelled an estimate.

    The ends are the ε at which the posterior mass of all possible rates is (1 − credibility)/2 and
    1 − (1 − credibility)/2; ε itself is where it is ½. The interval is cut at ε = 100.

    >>> counts = Counts(false_positives=100, negatives=1000, false_negatives=500, positives=1000)
    >>> [round(x, 2) for x in bayesian(counts, delta=0.0).interval]
    [1.42, 1.81]
    """
    _validate.instance("counts", counts, Counts)
    delta = _validate.half_open_unit("delta", delta)
    half = (1.0 - _validate.open_unit("credibility", credibility)) / 2.0
    copies = _validate.integer("copies", copies, at_least=1)
    if copies != 1 and delta > 0.0:
        raise _validate.reject("copies", copies, "1 when delta is above 0 (the interval is for one row)")

    def at(mass: float) -> float:
        def reached(epsilon: float) -> bool:
            return posterior_mass(counts, epsilon=epsilon, delta=delta) >= mass

        if reached(0.0):
            return 0.0
        return smallest_true(reached, 0.0, _LARGEST, relative=1e-9) if reached(_LARGEST) else _LARGEST

    return Estimate(
        epsilon=at(0.5) / copies,
        delta=delta,
        method="bayesian",
        relation=Relation.parse(relation),
        copies=copies,
        assumptions=(
            "the test was fixed before the counted trials were run",
            "both error rates have independent Beta(½, ½) priors; credible, not confident",
        ),
        interval=(at(half) / copies, at(1.0 - half) / copies),
        credibility=credibility,
    )
