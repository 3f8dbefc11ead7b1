"""The progress of an audit: trials done, trials a second, time left, and the bound so far.

A bar on a terminal; elsewhere (a log, a pipe) a line now and then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coalmine.auditing.progress import BoundSoFar
from coalmine.cli._output import printable
from coalmine.game import Watcher
from coalmine.report.rounding import down
from coalmine.store import BlockResult, Trials

_REFRESH_SECONDS = 0.2
_LINE_SECONDS = 60.0
"""Between two lines where there is no terminal."""


class Watch(Watcher):
    """A watcher that draws or writes on stderr, unless it is to be ``quiet``.

    The bound so far is a confidence sequence: it holds at every moment it is shown, after any number of stops and
    restarts. Its threshold is fixed by the first trials, which do not count, so it is not yet the bound of the report.
    Where several adversaries are watched, ``confidence`` is for each of them: share the level beforehand.
    """

    def __init__(self, *, delta: float, confidence: float, quiet: bool = False) -> None:
        self._delta, self._confidence = delta, confidence
        terminal = sys.stderr.isatty()
        self._ended = threading.Event()
        self._teller = None if quiet or terminal else threading.Thread(target=self._tell, daemon=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}/s"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[bound]}"),
            TextColumn("{task.fields[where]}"),
            disable=quiet or not terminal,
            transient=False,
            console=Console(stderr=True),
        )
        self._idle = self._progress.add_task("preparing", total=None, visible=False, rate="-", bound="", where="")

    def __enter__(self) -> Self:
        self._progress.start()
        self._progress.update(self._idle, visible=True)
        if self._teller is not None:
            self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._progress.update(self._idle, visible=False)
        self._progress.stop()

    def begin(self, label: str, *, trials: int, copies: int, done: Iterator[Trials]) -> None:
        """A new bar; what is stored already counts as done."""
        self._progress.update(self._idle, visible=False)
        self._bar = self._progress.add_task(printable(label), total=trials, rate="-", bound="", where="")
        self._so_far = BoundSoFar(delta=self._delta, confidence=self._confidence, copies=copies) if copies else None
        self._told = 0.0
        for part in done:
            if self._so_far is not None:
                self._so_far.add(part.trial, part.world, part.score)
            self._progress.update(self._bar, advance=len(part), bound=self._words())

    def where(self, status: str) -> None:
        """The machines at work."""
        self._progress.update(self._bar, where=status)

    def block(self, result: BlockResult) -> None:
        """One more block: move the bar, add to the sequence."""
        if self._so_far is not None:
            self._so_far.add(result.trial, result.world, result.score)
        self._progress.advance(self._bar, result.trial.size)
        if time.monotonic() - self._told < _REFRESH_SECONDS:  # blocks may come by the thousand a second
            return
        speed = self._progress.tasks[self._bar].speed
        self._progress.update(self._bar, rate="-" if speed is None else f"{speed:.1f}", bound=self._words())

    def end(self) -> None:
        """The bar is full."""
        task = self._progress.tasks[self._bar]
        self._progress.update(self._bar, completed=task.total, bound=self._words())
        # What comes next, another attack or the judging, may take seconds too.
        self._progress.update(self._idle, description="judging", visible=True)

    def _tell(self) -> None:
        """Until the end, a line a minute."""
        while not self._ended.wait(_LINE_SECONDS):
            idle, *bars = self._progress.tasks
            at = idle if idle.visible or not bars else bars[-1]
            done = "" if at.total is None else f": {at.completed:,.0f} of {at.total:,.0f} trials"
            so_far = f", {at.fields['bound']}" if at.fields["bound"] else ""
            self._progress.console.print(f"coalmine: {at.description}{done}{so_far}", highlight=False, soft_wrap=True)

    def _words(self) -> str:
        """The bound so far, rounded down."""
        self._told = time.monotonic()
        found = None if self._so_far is None else self._so_far.epsilon()
        return "" if found is None else f"ε ≥ {down(found)} so far"
