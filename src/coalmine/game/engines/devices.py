"""Blocks on several accelerators of this machine: one worker process for each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future

from coalmine.game.engines.local import LocalEngine
from coalmine.game.task import Task
from coalmine.store import BlockResult


class DevicesEngine:
    """One process for each of ``devices`` (``cuda:0``, ``cuda:1``); a device named twice has two."""

    aim_seconds = 10.0
    stacks = 16

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = tuple(devices)
        self._engines = [LocalEngine(1, apart=True) for _ in devices]
        self._free = list(range(len(devices)))
        self._task: Task | None = None
        self._placed: list[Task] = []

    def width(self, task: Task) -> int:
        """One for each device."""
        return len(self._devices)

    def status(self) -> str:
        """How many devices are at work."""
        return f"{len(self._devices) - len(self._free)} of {len(self._devices)} devices at work"

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks on a device that is free."""
        if task is not self._task:
            self._task, self._placed = task, [task.on(device) for device in self._devices]
        at = self._free.pop()
        future: Future[list[BlockResult]] = Future()

        def deliver(answer: Future[list[BlockResult]]) -> None:
            self._free.append(at)  # before anybody hears of the answer and asks for more
            error = answer.exception()
            if error is None:
                future.set_result(answer.result())
            else:
                future.set_exception(error)

        self._engines[at].submit(self._placed[at], blocks).add_done_callback(deliver)
        return future

    def __enter__(self) -> DevicesEngine:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as stack:
            for engine in self._engines:
                stack.push(engine)
