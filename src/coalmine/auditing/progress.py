"""The bound so far, while an audit runs: it holds at every moment it is looked at."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coalmine.bounds import AnytimeAudit
from coalmine.records import LowerBound

PILOT = 64
"""The trials with the smallest numbers choose the threshold; only the others count towards the bound."""


class BoundSoFar:
    """A confidence sequence over the trials as they come, after any number of stops and restarts.

    Its threshold is fixed by the first trials, which do not count, so it is not yet the bound of the report.
    """

    def __init__(self, *, delta: float, confidence: float, copies: int) -> None:
        self._sequence = AnytimeAudit(delta=delta, confidence=confidence, copies=copies)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float64]]] = []
        self._threshold: float | None = None
        self._counted, self._wrong, self._seen = [0, 0], [0, 0], [0, 0]

    def add(self, trial: NDArray[np.int64], world: NDArray[np.int8], score: NDArray[np.float64]) -> None:
        """More trials: until the pilot ones are all there, gather; then fix the threshold and count the others."""
        score = np.where(np.isfinite(score), score, -np.inf)
        if self._threshold is None:
            self._waiting.append((trial, world, score))
            trial, world, score = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
            pilot = trial < PILOT
            if pilot.sum() < PILOT:
                return
            self._threshold = _best_threshold(world[pilot], score[pilot])
            world, score = world[~pilot], score[~pilot]
        for side in (0, 1):
            mine = score[world == side] > self._threshold
            self._counted[side] += mine.size
            self._wrong[side] += int((mine != side).sum())

    def bound(self) -> LowerBound | None:
        """The bound, with all that was counted since it was last asked for; None while a world has no trials."""
        for side in (0, 1):
            if self._counted[side]:
                self._sequence.add(world=side, trials=self._counted[side], wrong=self._wrong[side])
                self._seen[side] += self._counted[side]
        self._counted, self._wrong = [0, 0], [0, 0]
        return None if min(self._seen) == 0 else self._sequence.bound()

    def epsilon(self) -> float | None:
        """The ε of :meth:`bound`."""
        found = self.bound()
        return None if found is None else found.epsilon


def _best_threshold(world: NDArray[np.int8], score: NDArray[np.float64]) -> float:
    """The threshold with the fewest errors on the pilot trials, taken in equal shares of the two worlds."""
    candidates = np.unique(score[np.isfinite(score)])
    if candidates.size == 0:
        return 0.0
    wrong = [np.mean(score[world == 0] > t) + np.mean(score[world == 1] <= t) for t in candidates]
    return float(candidates[int(np.argmin(wrong))])
