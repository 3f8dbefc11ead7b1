"""Blocks in this very process, one group after the other: for a debugger, and for what cannot be sent elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from coalmine.game.play import TROUBLE
from coalmine.game.task import Task
from coalmine.store import BlockResult


class InlineEngine:
    """Plays each group when it is handed in. A user's code that ends the process ends all."""

    aim_seconds = 2.0
    stacks = 1

    def width(self, task: Task) -> int:
        """One."""
        return 1

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks now."""
        future: Future[list[BlockResult]] = Future()
        try:
            future.set_result(task.play(blocks))
        except TROUBLE as error:
            future.set_exception(error)
        return future

    def status(self) -> str:
        """Nothing to say."""
        return ""

    def __enter__(self) -> InlineEngine:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to give back."""
