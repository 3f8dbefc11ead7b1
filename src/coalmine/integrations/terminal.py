"""Progress on a terminal or in a notebook, for an audit that nobody else watches."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

from coalmine.game import Watcher
from coalmine.store import BlockResult, Trials


@contextlib.contextmanager
def progress() -> Iterator[Watcher]:
    """A watcher that draws a bar on stderr where somebody sees it, and one that does not look elsewhere."""
    # In a notebook rich draws by ipywidgets, and warns where it is missing.
    notebook = "ipykernel" in sys.modules and importlib.util.find_spec("ipywidgets") is not None
    if not (sys.stderr.isatty() or notebook):
        yield Watcher()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bars:
        yield _Bar(bars)


class _Bar(Watcher):
    """One bar for each run of an audit."""

    def __init__(self, bars: object) -> None:
        self._bars: Any = bars

    def begin(self, label: str, *, trials: int, copies: int, done: Iterator[Trials]) -> None:
        """A new bar; what is stored already counts as done."""
        self._bar = self._bars.add_task(label, total=trials, completed=sum(map(len, done)))

    def block(self, result: BlockResult) -> None:
        """Some trials more."""
        self._bars.advance(self._bar, result.trial.size)

    def end(self) -> None:
        """The bar is full."""
        self._bars.update(self._bar, completed=self._bars.tasks[self._bar].total)
