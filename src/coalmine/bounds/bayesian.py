"""A Bayesian estimate of ε from error counts: credible, not confident. It proves nothing."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.method import Evidence, Method
from coalmine.records import Counts, Estimate, Relation
from coalmine.theory.curves import EpsilonDeltaCurve

_NODES = 2000
_LARGEST = 100.0


@functools.lru_cache(maxsize=16)
def _quantiles(wrong: int, total: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Equally likely values that stand for the posterior of the false-negative rate, and their complements."""
    a, b = wrong + 0.5, total - wrong + 0.5
    levels = (np.arange(_NODES) + 0.5) / _NODES
    return special.betaincinv(a, b, levels), special.betaincinv(b, a, levels[::-1])


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
    a0, b0 = counts.false_positives + 0.5, counts.negatives - counts.false_positives + 0.5
    beta, complement = _quantiles(counts.false_negatives, counts.positives)
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
    from scipy import optimize  # only here: it takes longer to load than all the rest

    _validate.instance("counts", counts, Counts)
    delta = _validate.half_open_unit("delta", delta)
    half = (1.0 - _validate.open_unit("credibility", credibility)) / 2.0
    copies = _validate.integer("copies", copies, at_least=1)
    if copies != 1 and delta > 0.0:
        raise _validate.reject("copies", copies, "1 when delta is above 0 (the interval is for one row)")

    def at(mass: float) -> float:
        def excess(epsilon: float) -> float:
            return posterior_mass(counts, epsilon=epsilon, delta=delta) - mass

        if excess(0.0) >= 0.0:
            return 0.0
        return float(optimize.brentq(excess, 0.0, _LARGEST, xtol=1e-10)) if excess(_LARGEST) > 0.0 else _LARGEST

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


BAYESIAN = Method(
    name="bayesian",
    words="A credible interval",
    short="estimated",
    evidence=Evidence.COUNTS,
    proves=False,
    from_counts=lambda counts, *, confidence, **common: bayesian(counts, credibility=confidence, **common),
)
