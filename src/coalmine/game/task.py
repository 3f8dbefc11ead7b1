"""What an engine is given: a task, which plays blocks; and who is told how it goes. No trainer is loaded here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, Self

from coalmine.store import BlockResult, Trials

MOST_TOGETHER = {"cpu": 64, "cuda": 512}
"""Blocks that are trained in one stack, by the kind of device, where a task does not say."""


class Task(Protocol):
    """Everything that a block needs to be played, and nothing that depends on which block it is.

    An engine may send a task to another process or machine, so it must survive that trip.
    """

    @property
    def fingerprint(self) -> str:
        """The run that the blocks belong to."""

    @property
    def device(self) -> str:
        """Where it trains: cpu, or an accelerator (``cuda`` or ``cuda:1``)."""

    @property
    def most_together(self) -> int | None:
        """How many blocks may be played in one call, where that is not for the engine to say."""

    @property
    def separate(self) -> bool:
        """Whether it must be played in a process of its own, even where one worker is enough."""

    def on(self, device: str) -> Self:
        """The same task on another device of the same kind."""

    def check(self) -> None:
        """An error unless this machine plays the task as the one that made it would (the same code of a user)."""

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play several blocks; what each block gives does not depend on the others.

        In the folder ``notes`` it may leave word of what it is doing, for :meth:`post_mortem`.
        """

    def post_mortem(self, notes: Path) -> str | None:
        """Why a process that played it has ended, where the task can tell."""


def stack_size(task: Task) -> int:
    """How many blocks of the task are played in one call."""
    return task.most_together or MOST_TOGETHER[task.device.partition(":")[0]]


def play_in_stacks(task: Task, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
    """Play blocks in as few calls as memory allows."""
    size = stack_size(task)
    return [
        result
        for start in range(0, len(blocks), size)
        for result in task.play(blocks[start : start + size], notes=notes)
    ]


class Engine(Protocol):
    """Where blocks are played. It knows no store: leases, retries and storing belong to :func:`coalmine.game.play`."""

    @property
    def aim_seconds(self) -> float:
        """How long a group of blocks should take: less is overhead, more is lost in a crash."""

    @property
    def stacks(self) -> int:
        """How many stacks (:func:`stack_size`) a group may have at most."""

    def width(self, task: Task) -> int:
        """How many groups of blocks may be under way at once; it may change from one moment to the next."""

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks somewhere. A dead worker is a :class:`WorkersDiedError` in the future."""

    def status(self) -> str:
        """Where blocks are being played, for people; empty if there is nothing to say."""


class Watcher:
    """Is told how an audit goes, and never changes it. This one does not look; others override what they need."""

    def begin(self, label: str, *, trials: int, copies: int, done: Iterator[Trials]) -> None:
        """An attack starts: this many trials are wanted, these are stored already (a part at a time).

        ``copies`` is in how many rows its worlds differ; 0 where trials depend on each other (many canaries in one
        training), so that nothing can be said before all are there.
        """

    def block(self, result: BlockResult) -> None:
        """A block is done and stored."""

    def where(self, status: str) -> None:
        """Where blocks are being played now."""

    def end(self) -> None:
        """The attack has all its trials."""
