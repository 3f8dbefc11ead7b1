"""Blocks on this machine: one process a core, or this process where one worker or a GPU does the work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Any

import cloudpickle
import loky

from coalmine.game.play import TROUBLE
from coalmine.game.task import Task, WorkersDiedError
from coalmine.store import BlockResult


class LocalEngine:
    """Up to ``workers`` processes that play blocks, started when they are first needed and kept until the end.

    A process takes seconds to load what it needs, so several tasks in a row should share them. Tasks travel by value
    (cloudpickle), so lambdas, bound methods and functions of a notebook work. After an error the processes are not used
    again: whoever opened the engine leaves the ``with`` block, which ends them.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._executor: Any = None
        self._task: Task | None = None
        self._number = 0
        self._sealed = b""
        self._holders: set[int] = set()

    def width(self, task: Task) -> int:
        """One on a GPU, else as many as there are workers."""
        return self.workers if task.device == "cpu" else 1

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks, here or in a worker."""
        future: Future[list[BlockResult]] = Future()
        try:
            if task.device != "cpu" or (self.workers == 1 and not task.separate):
                future.set_result(task.play(blocks))
            else:
                self._send(task, blocks).add_done_callback(lambda answer: self._deliver(task, answer, future))
        except BrokenProcessPool:
            future.set_exception(_died(task))
        except TROUBLE as error:
            future.set_exception(error)
        return future

    def _send(self, task: Task, blocks: Sequence[int]) -> Future[_Answer]:
        """To a worker. The task goes along until every worker is known to hold it."""
        if self._executor is None:
            if hasattr(signal, "pthread_sigmask"):
                # Started by the first worker it would let Ctrl-C through again, to workers that are not ready for it.
                resource_tracker.ensure_running()
            self._executor = loky.ProcessPoolExecutor(
                self.workers, context=loky.backend.get_context("loky"), initializer=_prepare, initargs=(os.getpid(),)
            )
        if task is not self._task:
            self._task, self._number, self._sealed = task, self._number + 1, cloudpickle.dumps(task)
            self._holders = set()
        sealed = self._sealed if len(self._holders) < self.workers else b""
        with _interrupts_later():  # the first call starts the processes
            answer: Future[_Answer] = self._executor.submit(_play, self._number, sealed, tuple(blocks))
        return answer

    def _deliver(self, task: Task, answer: Future[_Answer], future: Future[list[BlockResult]]) -> None:
        """What a worker found, or why it did not."""
        error = answer.exception()
        if error is None:
            worker, results = answer.result()
            self._holders.add(worker)
            future.set_result(results)
        else:
            future.set_exception(_died(task) if isinstance(error, BrokenProcessPool) else error)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, kill_workers=True)


_Answer = tuple[int, list[BlockResult]]
"""The process that played, and what it found."""
_held: tuple[int, Task] | None = None
"""In a worker: the task that it played last, and its number."""


def _died(task: Task) -> WorkersDiedError:
    reason = task.post_mortem() or "a worker process ended without a word (killed, crashed, or out of memory?)"
    return WorkersDiedError(
        f"{reason}; all finished blocks are stored, and running the same audit again goes on from there"
    )


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back for a moment. Processes started meanwhile hold it back until they are ready to end quietly."""
    if not hasattr(signal, "pthread_sigmask"):  # no such thing on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(parent: int) -> None:
    """Make a worker ready: it ends with the process that started it, and on Ctrl-C at once."""
    # On a terminal Ctrl-C goes to all processes: the parent says what happened, a worker has nothing to add.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="coalmine-parent").start()


def _play(number: int, sealed: bytes, blocks: tuple[int, ...]) -> _Answer:
    """Play blocks of the task of that number, which comes along unless this worker holds it already."""
    global _held
    if sealed and (_held is None or _held[0] != number):
        _held = (number, cloudpickle.loads(sealed))
    assert _held is not None and _held[0] == number  # noqa: PT018
    return os.getpid(), _held[1].play(blocks)
