"""The progress bar of an audit: trials done, trainings a second, time left, and the bound so far."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coalmine.bounds import AnytimeAudit
from coalmine.store import BlockResult, Trials

_REFRESH_SECONDS = 0.2
_PILOT = 64
"""The trials with the smallest numbers choose the threshold; only the others count towards the bound that is shown."""


class Watch:
    """A watcher (:class:`coalmine.auditing.run.Watcher`) that draws on stderr.

    The bound so far is a confidence sequence: it holds at every moment it is shown, after any number of stops and
    restarts. Its threshold is fixed by the first trials, which do not count, so it is not yet the bound of the report.
    Where several adversaries are watched, ``confidence`` is for each of them: share the level beforehand.
    """

    def __init__(self, *, delta: float, confidence: float, shown: bool) -> None:
        self._delta, self._confidence = delta, confidence
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[bound]}"),
            disable=not shown,
            transient=False,
            console=Console(stderr=True),
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, label: str, *, trials: int, copies: int, done: Trials) -> None:
        """A new bar; what is stored already counts as done."""
        self._bar = self._progress.add_task(label, total=trials, completed=len(done), rate="-", bound="")
        self._sequence = AnytimeAudit(delta=self._delta, confidence=self._confidence, copies=copies)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float64]]] = []
        self._threshold: float | None = None
        self._counted, self._wrong = [0, 0], [0, 0]
        self._seen = [0, 0]
        self._told = 0.0
        if len(done):
            self._learn(done.trial, done.world, done.score)
            self._progress.update(self._bar, bound=self._words())

    def block(self, result: BlockResult) -> None:
        """One more block: move the bar, add to the sequence."""
        self._learn(result.trial, result.world, result.score)
        self._progress.advance(self._bar, result.trial.size)
        if time.monotonic() - self._told < _REFRESH_SECONDS:  # blocks may come by the thousand a second
            return
        speed = self._progress.tasks[self._bar].speed
        self._progress.update(self._bar, rate="-" if speed is None else f"{speed:.1f}", bound=self._words())

    def end(self) -> None:
        """The bar is full."""
        task = self._progress.tasks[self._bar]
        self._progress.update(self._bar, completed=task.total, bound=self._words())

    def _learn(self, trial: NDArray[np.int64], world: NDArray[np.int8], score: NDArray[np.float64]) -> None:
        """Until the pilot trials are all there, gather; then fix the threshold on them and count the others."""
        score = np.where(np.isfinite(score), score, -np.inf)
        if self._threshold is None:
            self._waiting.append((trial, world, score))
            trial, world, score = (np.concatenate(parts) for parts in zip(*self._waiting, strict=True))
            pilot = trial < _PILOT
            if pilot.sum() < _PILOT:
                return
            self._threshold = _best_threshold(world[pilot], score[pilot])
            world, score = world[~pilot], score[~pilot]
        for side in (0, 1):
            mine = score[world == side] > self._threshold
            self._counted[side] += mine.size
            self._wrong[side] += int((mine != side).sum())

    def _words(self) -> str:
        """The bound so far, with all that was counted since it was last told."""
        self._told = time.monotonic()
        for side in (0, 1):
            if self._counted[side]:
                self._sequence.add(world=side, trials=self._counted[side], wrong=self._wrong[side])
                self._seen[side] += self._counted[side]
        self._counted, self._wrong = [0, 0], [0, 0]
        if min(self._seen) == 0:
            return ""
        return f"ε ≥ {self._sequence.bound().epsilon:.2f} so far"


def _best_threshold(world: NDArray[np.int8], score: NDArray[np.float64]) -> float:
    """The threshold with the fewest errors on the pilot trials, taken in equal shares of the two worlds."""
    candidates = np.unique(score[np.isfinite(score)])
    if candidates.size == 0:
        return 0.0
    wrong = [np.mean(score[world == 0] > t) + np.mean(score[world == 1] <= t) for t in candidates]
    return float(candidates[int(np.argmin(wrong))])
