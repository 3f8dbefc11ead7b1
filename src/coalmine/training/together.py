"""Small work of several threads, done together: what waits while a device is busy goes in one launch next."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclasses.dataclass(eq=False)
class _Request(Generic[Item, Answer]):
    """What a thread asked for, and its answer when there is one."""

    item: Item
    kind: Hashable
    size: int
    answer: Future[Answer] = dataclasses.field(default_factory=Future)


class Together(Generic[Item, Answer]):
    """Answers what threads ask: one of them works for all that wait and are of its kind.

    At most ``at_once`` threads work at a time, so that a device has its next launch when one ends; nobody waits for
    company, so work that comes alone is done alone. An error is everybody's whose work was in that launch.

    >>> double = Together(lambda items: [2 * item for item in items], room=4)
    >>> double(21, kind="numbers", size=1)
    42
    """

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Answer]], *, room: int, at_once: int = 2) -> None:
        """``work`` answers items of one kind, whose sizes add up to at most ``room`` unless one alone is larger."""
        self._work, self._room, self._free = work, room, at_once
        self._turn = threading.Condition()
        self._waiting: list[_Request[Item, Answer]] = []

    def __call__(self, item: Item, *, kind: Hashable, size: int) -> Answer:
        """The answer to this item, from this thread's work or another's."""
        mine = _Request[Item, Answer](item, kind, size)
        with self._turn:
            self._waiting.append(mine)
            # Whoever is neither answered nor waiting is in a launch of another thread.
            self._turn.wait_for(lambda: mine.answer.done() or (self._free > 0 and mine in self._waiting))
            if mine.answer.done():
                return mine.answer.result()
            self._free -= 1
            company = self._company(mine)
        try:
            answers = list(zip(company, self._work([one.item for one in company]), strict=True))
            for one, answer in answers:
                one.answer.set_result(answer)
        except BaseException as error:
            for one in company:
                one.answer.set_exception(error)
            raise
        finally:
            with self._turn:
                self._free += 1
                self._turn.notify_all()
        return mine.answer.result()

    def _company(self, mine: _Request[Item, Answer]) -> list[_Request[Item, Answer]]:
        """The request itself and those that fit beside it, in the order they came; they wait no longer."""
        company, size = [mine], mine.size
        for one in self._waiting:
            if one is not mine and one.kind == mine.kind and size + one.size <= self._room:
                company.append(one)
                size += one.size
        self._waiting = [one for one in self._waiting if one not in company]
        return company
