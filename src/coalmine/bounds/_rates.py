"""The error counts of a score at every threshold worth looking at, and what their rates may be."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from coalmine.records import Counts, Scores
from coalmine.theory.rates import upper_limit

_COARSE = (64, 1.04)
_FINE = (512, 1.002)


def dkw_width(total: int, level: float) -> float:
    """Width of the one-sided band around an empirical distribution function: √(ln(1/level)/(2n)).

    Dvoretzky–Kiefer–Wolfowitz with Massart's constant 1; the one-sided form needs level ≤ 1/2.
    """
    return math.sqrt(math.log(1.0 / level) / (2.0 * total))


@functools.lru_cache(maxsize=64)
def lattice(total: int, *, fine: bool = False) -> NDArray[np.int64]:
    """Counts 0 … total, thinned where they are plenty: all within 64 of either end, then in steps of 4 %.

    It depends on ``total`` alone, so it is fixed before any score is seen. The fine lattice keeps all within 512 of
    either end and goes on in steps of 0.2 %.
    """
    dense, ratio = _FINE if fine else _COARSE
    half = total // 2 + 1
    steps = [float(dense)]
    while steps[-1] < half:
        steps.append(steps[-1] * ratio)
    near = np.concatenate([np.arange(dense), np.ceil(np.asarray(steps))]).astype(np.int64)
    near = near[near <= half]
    both = np.unique(np.concatenate([near, total - near, [0, total]]))
    return both[(both >= 0) & (both <= total)]


@functools.lru_cache(maxsize=256)
def lattice_limits(total: int, level: float, *, fine: bool = False) -> NDArray[np.float64]:
    """:func:`upper_limit` at every count of :func:`lattice`."""
    return upper_limit(lattice(total, fine=fine), total, level)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Errors:
    """Error counts of the tests "score > threshold", one for each lattice count of false positives.

    ``positions[i]`` is the lattice count; the threshold is the smallest at which no more than that many world-0
    scores lie above it. ``false_positives[i]`` is smaller than ``positions[i]`` where scores are tied.
    """

    positions: NDArray[np.int64]
    thresholds: NDArray[np.float64]
    false_positives: NDArray[np.int64]
    false_negatives: NDArray[np.int64]
    trials: tuple[int, int]

    @property
    def places(self) -> NDArray[np.int64]:
        """The false negatives as places in the fine lattice of counts, rounded down."""
        return np.searchsorted(lattice(self.trials[1], fine=True), self.false_negatives, side="right") - 1

    def counts(self, index: int) -> Counts:
        """The counts at one threshold."""
        return Counts(
            false_positives=int(self.false_positives[index]),
            negatives=self.trials[0],
            false_negatives=int(self.false_negatives[index]),
            positives=self.trials[1],
        )


def errors_by_position(scores: Scores) -> Errors:
    """The errors at every lattice position, by one sort of each world and two binary searches; ties are exact.

    For a position i the threshold is the (n0 − i)-th smallest world-0 score: every other threshold with as many
    false positives is larger and has at least as many false negatives. Position n0 is the threshold −∞.
    """
    zero = np.sort(scores.world0)
    positions = lattice(zero.size)
    inner = positions[positions < zero.size]
    return dataclasses.replace(errors_at(scores, np.append(zero[zero.size - 1 - inner], -np.inf)), positions=positions)


def errors_at(scores: Scores, thresholds: NDArray[np.float64]) -> Errors:
    """The errors at these thresholds."""
    zero, one = np.sort(scores.world0), np.sort(scores.world1)
    wrong = zero.size - np.searchsorted(zero, thresholds, side="right")
    return Errors(
        positions=wrong,
        thresholds=thresholds,
        false_positives=wrong,
        false_negatives=np.searchsorted(one, thresholds, side="right"),
        trials=(zero.size, one.size),
    )
