"""What an engine is given: a task, which plays blocks; and who is told how it goes. No trainer is loaded here."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Protocol

from coalmine.errors import CoalmineError
from coalmine.store import BlockResult, Trials


class GameStoppedError(CoalmineError):
    """A task found that going on is of no use; the message says why. What is stored stays."""


class WorkersDiedError(GameStoppedError):
    """A worker process ended without a word; what was stored stays, and the next run tries the rest again."""


class Task(Protocol):
    """Everything that a block needs to be played, and nothing that depends on which block it is.

    An engine may send a task to another process, so it must survive that trip.
    """

    @property
    def fingerprint(self) -> str:
        """The run that the blocks belong to."""
        ...

    @property
    def device(self) -> str:
        """Where it trains: cpu, or a kind of accelerator."""
        ...

    @property
    def most_together(self) -> int | None:
        """How many blocks may be played in one call, where that is not for the engine to say."""
        ...

    @property
    def separate(self) -> bool:
        """Whether it must be played in a process of its own, even where one worker is enough."""
        ...

    def play(self, blocks: Sequence[int]) -> list[BlockResult]:
        """Play several blocks; what each block gives does not depend on the others."""
        ...

    def post_mortem(self) -> str | None:
        """Why a process that played it has ended, where the task can tell."""
        ...


class Engine(Protocol):
    """Where blocks are played. It knows no store: leases, retries and storing belong to :func:`coalmine.game.play`."""

    def width(self, task: Task) -> int:
        """How many groups of blocks may be under way at once."""
        ...

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks somewhere. A dead worker is a :class:`WorkersDiedError` in the future."""
        ...


class Watcher:
    """Is told how an audit goes, and never changes it. This one does not look; others override what they need."""

    def begin(self, label: str, *, trials: int, copies: int, done: Trials) -> None:
        """An attack starts: this many trials are wanted, these are stored already.

        ``copies`` is in how many rows its worlds differ; 0 where trials depend on each other (many canaries in one
        training), so that nothing can be said before all are there.
        """

    def block(self, result: BlockResult) -> None:
        """A block is done and stored."""

    def end(self) -> None:
        """The attack has all its trials."""
