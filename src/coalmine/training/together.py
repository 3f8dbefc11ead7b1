"""Small work of several threads, done together: what waits while a device is busy goes in one launch next."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


_AT_WORK = 2
"""Threads that work at a time."""


@dataclasses.dataclass(eq=False)
class _Request(Generic[Item, Answer]):
    """What a thread asked for, and its answer when there is one."""

    item: Item
    kind: Hashable
    size: int
    answer: Future[Answer] = dataclasses.field(default_factory=Future)


class Together(Generic[Item, Answer]):
    """Answers what threads ask: one of them works for all that wait and are of its kind.

    While one works, the others wait for company, until they fill half of the room: then a second one works beside it,
    so that a device has its next launch when one ends. Work that comes alone is done alone and at once. An error is
    everybody's whose work was in that launch.

    >>> double = Together(lambda items: [2 * item for item in items], room=4)
    >>> double(21, kind="numbers", size=1)
    42
    """

    def __init__(self, work: Callable[[Sequence[Item]], Sequence[Answer]], *, room: int) -> None:
        """``work`` answers items of one kind, whose sizes add up to at most ``room`` unless one alone is larger."""
        self._work, self._room, self._at_work = work, room, 0
        self._turn = threading.Condition()
        self._waiting: list[_Request[Item, Answer]] = []

    def __call__(self, item: Item, *, kind: Hashable, size: int) -> Answer:
        """The answer to this item, from this thread's work or another's."""
        mine = _Request[Item, Answer](item, kind, size)
        with self._turn:
            self._waiting.append(mine)
            self._turn.notify_all()  # it may be the company that others wait for
            self._turn.wait_for(lambda: mine.answer.done() or self._may_work(mine))
            if mine.answer.done():
                return mine.answer.result()
            company = self._company(mine)
            self._waiting = [one for one in self._waiting if one not in company]
            self._at_work += 1
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
                self._at_work -= 1
                self._turn.notify_all()
        return mine.answer.result()

    def _may_work(self, mine: _Request[Item, Answer]) -> bool:
        """Whether to begin now. Whoever is neither answered nor waiting is in a launch of another thread."""
        if mine not in self._waiting or self._at_work == _AT_WORK:
            return False
        return self._at_work == 0 or 2 * sum(one.size for one in self._company(mine)) >= self._room

    def _company(self, mine: _Request[Item, Answer]) -> list[_Request[Item, Answer]]:
        """The request itself and those that fit beside it, in the order they came."""
        company, size = [mine], mine.size
        for one in self._waiting:
            if one is not mine and one.kind == mine.kind and size + one.size <= self._room:
                company.append(one)
                size += one.size
        return company
