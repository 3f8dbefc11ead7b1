"""How far apart the scores of two worlds are, as d′ of Gaussian scores, and how far they should be."""

from __future__ import annotations

import math

import numpy as np
from scipy import integrate, special, stats

from coalmine import bounds
from coalmine.records import Claim, EpsilonClaim, MechanismClaim, Relation, Scores
from coalmine.theory.curves import gaussian_mu

_SURELY = 1.645
"""Standard errors that are allowed for the chance of the trials."""
_SAME = 1 / 3, 1 / 2
"""An attack that sees less than this part of what its control leads to expect is not the one that caught it: the first
where so many trials tell that part from nothing at all, the second, halfway between the two, where they do not."""


def separation(scores: Scores) -> float:
    """d′ = √2·Φ⁻¹(AUC): how far apart the worlds' scores are, in units of their spread, if they were Gaussian.

    >>> rng = np.random.default_rng(0)
    >>> round(separation(Scores(rng.normal(size=100_000), rng.normal(1.5, size=100_000))), 1)
    1.5
    """
    share = stats.mannwhitneyu(scores.world1, scores.world0).statistic / (scores.world0.size * scores.world1.size)
    return float(math.sqrt(2.0) * special.ndtri(share))


def surely_below(seen: float, limit: float, worlds: tuple[int, int]) -> bool:
    """Whether d′ is below a limit, and not by the chance of so many trials in each world."""
    return math.isfinite(limit) and seen + _SURELY * _error(seen, worlds) <= limit


def least(expected: float, worlds: tuple[int, int]) -> float:
    """The d′ that scores must show where so much is expected: what chance alone seldom gives, from a third to a half.

    Not whether it is surely less than expected: of few trials of a training that never looks at its rows that is seldom
    sure.

    >>> least(0.9, (10, 10)), round(least(0.9, (60, 60)), 2), round(least(0.9, (1000, 1000)), 2)
    (0.45, 0.3, 0.3)
    """
    return min(max(_SAME[0] * expected, _SURELY * _error(0.0, worlds)), _SAME[1] * expected)


def surely_another(seen: float, expected: float, worlds: tuple[int, int]) -> bool:
    """Whether even the chance of the trials does not explain so little of what is expected."""
    return surely_below(seen, _SAME[0] * expected, worlds)


def allowed(claim: Claim, copies: int) -> float:
    """d′ of a perfect attack on a training that just keeps the claim; for a claimed ε, on a Gaussian one."""
    if isinstance(claim, EpsilonClaim):
        return copies * gaussian_mu(claim.epsilon, delta=claim.delta)
    alpha = np.unique(np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 2000), np.linspace(0.0, 1.0, 2001)]))
    share = 1.0 - float(
        integrate.trapezoid(bounds.claim_curve(claim, copies=copies, added=ordered(claim))(alpha), alpha)
    )
    return float(math.sqrt(2.0) * special.ndtri(share))


def ordered(claim: Claim) -> bool:
    """Whether a claim has a curve for each order of the worlds: world 1 is world 0 with rows added."""
    return isinstance(claim, MechanismClaim) and claim.relation is Relation.ADD_REMOVE


def _error(seen: float, worlds: tuple[int, int]) -> float:
    """The standard error of d′ of so many trials in each world."""
    return math.sqrt((1.0 / worlds[0] + 1.0 / worlds[1]) * (1.0 + seen**2 / 8.0))
