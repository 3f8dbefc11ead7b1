"""The numbers behind the figures, as plain rows: histograms, the trade-off curve with its band, the growing bound."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coalmine.auditing.proof import METHODS, claim_curve, grown
from coalmine.errors import InvalidInputError
from coalmine.records import EpsilonClaim, LowerBound, MechanismClaim, Scores
from coalmine.theory.curves import TradeOff

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult

Row = dict[str, Any]
_GRID = 200
_FEWEST = 8


def scores_of(one: AdversaryResult) -> Scores:
    """The scores behind a result; an error where they were not kept."""
    if one.scores is None:
        raise InvalidInputError(f"scores of {one.label} are missing: expected a result that still has its scores")
    return one.scores


def histogram(scores: Scores) -> list[Row]:
    """The share of each world's trials in bins of equal width, in percent.

    >>> histogram(Scores([0.0, 0.0], [1.0]))[0]["percent"]
    100.0
    """
    both = np.concatenate([scores.world0, scores.world1])
    low, high = float(both.min()), float(both.max())
    if not high > low:
        low, high = low - 0.5, high + 0.5
    count = int(np.clip(2.0 * math.sqrt(both.size), 10, 40))
    edges = np.linspace(low, high, count + 1)
    if not np.all(np.diff(edges) > 0.0):  # scores so close that floating-point numbers do not separate the bins
        edges = np.array([low, np.nextafter(high, math.inf)])
    rows = []
    for world, values in ((0, scores.world0), (1, scores.world1)):
        shares = 100.0 * np.histogram(values, bins=edges)[0] / values.size
        rows += [
            {"world": f"world {world}", "from": left, "to": right, "percent": percent}
            for left, right, percent in zip(edges[:-1].tolist(), edges[1:].tolist(), shares.tolist(), strict=True)
        ]
    return rows


def error_rates(scores: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(FPR, FNR) of "world 1 if the score is above t" for every t that matters, from the strictest t to the laxest."""
    zero, one = np.sort(scores.world0), np.sort(scores.world1)
    cuts = np.concatenate([[-math.inf], np.unique(np.concatenate([zero, one]))])[::-1]
    false_positive = 1.0 - np.searchsorted(zero, cuts, side="right") / zero.size
    false_negative = np.searchsorted(one, cuts, side="right") / one.size
    return false_positive, false_negative


def band_width(trials: int, *, level: float) -> float:
    """√(ln(2/level)/(2n)): how far the empirical distribution function may be off anywhere, but for ``level``.

    >>> round(band_width(1000, level=0.05), 6)
    0.042947
    """
    return math.sqrt(math.log(2.0 / level) / (2.0 * trials))


def trade_off(scores: Scores, *, confidence: float) -> list[Row]:
    """The empirical trade-off curve on a grid of false-positive rates, with a band that holds for the whole curve.

    Each world's distribution function stays within √(ln(2/(level/2))/(2n)) of the empirical one, at all thresholds at
    once and for both worlds together (Massart 1990). So the smallest false-negative rate at each false-positive rate
    lies between ``low`` and ``high``, everywhere at once, with the stated confidence.

    >>> rows = trade_off(Scores(range(100), range(50, 150)), confidence=0.99)
    >>> rows[20]["low"] < rows[20]["miss"] < rows[20]["high"]
    True
    """
    share = (1.0 - confidence) / 2.0
    wide0, wide1 = (band_width(world.size, level=share) for world in (scores.world0, scores.world1))
    alarm, miss = error_rates(scores)  # alarm rises, miss falls

    def smallest_miss(limit: NDArray[np.float64]) -> NDArray[np.float64]:
        """The miss rate of the laxest test whose false-alarm rate is within ``limit``; 1 where there is none."""
        at = np.searchsorted(alarm, limit + 1e-12, side="right") - 1
        return np.where(at >= 0, miss[np.maximum(at, 0)], 1.0)

    grid = np.linspace(0.0, 1.0, _GRID + 1)
    after = np.minimum(grid + 1.0 / _GRID, 1.0)  # a step drawn from here to the next grid value must not be too high
    high = np.where(grid >= wide0, np.minimum(smallest_miss(grid - wide0) + wide1, 1.0), 1.0)
    low = np.maximum(smallest_miss(after + wide0) - wide1, 0.0)
    found = smallest_miss(grid)
    return [
        {"alarm": a, "miss": m, "low": small, "high": large}
        for a, m, small, large in zip(grid.tolist(), found.tolist(), low.tolist(), high.tolist(), strict=True)
    ]


def promised_curves(result: AuditResult, one: AdversaryResult) -> list[tuple[str, TradeOff]]:
    """The trade-off curves that no attack may get below, for worlds that differ as this adversary's do.

    The curve of the algorithm itself where that is known, and for a claimed ε all that (ε, δ) says. Worlds that differ
    in k rows get the curve of k rows, by group privacy.
    """
    found: list[tuple[str, TradeOff]] = []
    if result.mechanism is not None:
        said = MechanismClaim(mechanism=result.mechanism, delta=result.config.audit.delta)
        name = "claim" if result.subject.own else "guarantee"
        found.append((name, claim_curve(said, copies=one.bound.copies)))
    if isinstance(result.claim, EpsilonClaim):
        found.append(("claim", claim_curve(result.claim, copies=one.bound.copies)))
    return found


def promised(result: AuditResult, one: AdversaryResult) -> list[Row]:
    """The points of :func:`promised_curves`, closer together where they are steep."""
    alphas = np.unique(np.concatenate([[0.0], np.geomspace(1e-4, 1e-2, 12), np.linspace(0.0, 1.0, 101)]))
    return [
        {"curve": name, "alarm": alpha, "miss": beta}
        for name, curve in promised_curves(result, one)
        for alpha, beta in zip(alphas.tolist(), curve(alphas).tolist(), strict=True)
    ]


def growth(one: AdversaryResult) -> list[Row]:
    """What the first n trials alone prove, for a few n, and the most that any attack could have proved with them."""
    return [
        {"trials": sum(bound.trials), "epsilon": bound.epsilon, "ceiling": bound.ceiling}
        for bound in grown(scores_of(one), assumes_nothing(one))
    ]


def assumes_nothing(one: AdversaryResult) -> LowerBound:
    """The bound that counts if it assumes nothing about the algorithm, otherwise the first other one that does so."""
    found = [other for other in (one.bound, *one.others) if isinstance(other, LowerBound)]
    return next((other for other in found if METHODS[other.method].decides), one.bound)
