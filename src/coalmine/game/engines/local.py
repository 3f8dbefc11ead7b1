"""Blocks on this machine: one process a core, or this process where one worker or a GPU does the work."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from pathlib import Path
from typing import IO, Any

import cloudpickle
import loky
import psutil

from coalmine.errors import WorkersDiedError
from coalmine.game.engines.inline import InlineEngine
from coalmine.game.play import TROUBLE
from coalmine.game.task import Task, play_in_stacks
from coalmine.store import BlockResult

if sys.platform != "win32":
    import fcntl

_WATCH_SECONDS = 0.5
_PREFIX, _LOCK = "coalmine-", "in-use"


class LocalEngine:
    """Up to ``workers`` processes that play blocks, started when they are first needed and kept until the end.

    A process takes seconds to load what it needs, so several tasks in a row should share them. Tasks travel by value
    (cloudpickle), so lambdas, bound methods and functions of a notebook work. After an error the processes are not used
    again: whoever opened the engine leaves the ``with`` block, which ends them, and whatever they have started.

    With ``apart`` every task is played in a worker, also where this process would do.
    """

    aim_seconds = 2.0
    stacks = 1

    def __init__(self, workers: int, *, apart: bool = False) -> None:
        self.workers = workers
        self._apart = apart
        self._executor: Any = None
        self._notes: Path | None = None
        self._lock: IO[bytes]
        self._closed = threading.Event()
        self._task: Task | None = None
        self._number = 0
        self._sealed = b""
        self._holders: set[int] = set()

    def width(self, task: Task) -> int:
        """One on a GPU, else as many as there are workers."""
        return self.workers if task.device == "cpu" else 1

    def status(self) -> str:
        """Nothing to say: it is this machine."""
        return ""

    def submit(self, task: Task, blocks: Sequence[int]) -> Future[list[BlockResult]]:
        """Play these blocks, here or in a worker."""
        if not (self._apart or task.separate) and (task.device != "cpu" or self.workers == 1):
            return InlineEngine().submit(task, blocks)
        future: Future[list[BlockResult]] = Future()
        try:
            self._send(task, blocks).add_done_callback(lambda answer: self._deliver(task, answer, future))
        except BrokenProcessPool:
            future.set_exception(self._died(task))
        except TROUBLE as error:
            future.set_exception(error)
        return future

    def _send(self, task: Task, blocks: Sequence[int]) -> Future[_Answer]:
        """To a worker. The task goes along until every worker is known to hold it."""
        if self._executor is None:
            with _interrupts_later():
                self._start()
        if task is not self._task:
            self._task, self._number, self._sealed = task, self._number + 1, cloudpickle.dumps(task)
            self._holders = set()
        sealed = self._sealed if len(self._holders) < self.workers else b""
        with _interrupts_later():  # the first call starts the processes
            answer: Future[_Answer] = self._executor.submit(_play, self._number, sealed, tuple(blocks))
        return answer

    def _start(self) -> None:
        """The processes, a folder in which they leave notes, and a thread that looks after what they have started."""
        if hasattr(signal, "pthread_sigmask"):
            # Started by the first worker it would let Ctrl-C through again, to workers that are not ready for it.
            resource_tracker.ensure_running()
        self._notes, self._lock = _folder()
        self._executor = loky.ProcessPoolExecutor(
            self.workers,
            context=loky.backend.get_context("loky"),
            initializer=_prepare,
            initargs=(os.getpid(), self._notes),
        )
        threading.Thread(target=self._watch, daemon=True, name="coalmine-workers").start()

    def _watch(self) -> None:
        """End what a dead worker has left behind: a child of its own keeps its pipes open, as if it still lived."""
        ended: set[int] = set()
        while not self._closed.wait(_WATCH_SECONDS):
            for worker in _workers(self._notes):
                if worker not in ended and _is_dead(worker):
                    ended.add(worker)
                    _end_group(worker)

    def _deliver(self, task: Task, answer: Future[_Answer], future: Future[list[BlockResult]]) -> None:
        """What a worker found, or why it did not."""
        error = answer.exception()
        if error is None:
            worker, results = answer.result()
            self._holders.add(worker)
            future.set_result(results)
        else:
            future.set_exception(self._died(task) if isinstance(error, BrokenProcessPool) else error)

    def _died(self, task: Task) -> WorkersDiedError:
        reason = self._notes and task.post_mortem(self._notes)
        reason = reason or "a worker process ended without a word (killed, crashed, or out of memory?)"
        return WorkersDiedError(
            f"{reason}; all finished blocks are stored, and running the same audit again goes on from there"
        )

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with _interrupts_later():  # asked twice to end, it still puts everything away
            if self._executor is not None:
                workers = _workers(self._notes)
                self._executor.shutdown(wait=False, kill_workers=True)
                for worker in workers:
                    _end_group(worker)
                self._executor.shutdown(wait=True, kill_workers=True)
            if self._notes is not None:
                shutil.rmtree(self._notes, ignore_errors=True)
                self._lock.close()


_Answer = tuple[int, list[BlockResult]]
"""The process that played, and what it found."""
_held: tuple[int, Task] | None = None
"""In a worker: the task that it played last, and its number."""
_here: Path | None = None
"""In a worker: the folder for notes."""


def _folder() -> tuple[Path, IO[bytes]]:
    """A folder for notes, and the lock that says that it is in use.

    Folders whose lock nobody holds belonged to processes that were killed before they could put anything away. A lock
    is let go by the operating system, and it is seen from other containers too, which a process id is not.
    """
    place = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = (place / "locking").open("wb")
    if sys.platform == "win32":
        return place, lock
    fcntl.flock(lock, fcntl.LOCK_EX)
    (place / "locking").rename(place / _LOCK)  # nobody finds it before it is held
    for other in place.parent.glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError), other.open("rb") as free:  # another user's, in use, or gone by now
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other.parent, ignore_errors=True)
    return place, lock


def _workers(notes: Path | None) -> list[int]:
    """The processes that have begun to work."""
    try:
        return [] if notes is None else [int(path.suffix[1:]) for path in notes.glob("worker.*")]
    except OSError:
        return []


def _is_dead(process: int) -> bool:
    try:
        return psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def _end_group(worker: int) -> None:
    """End a worker and all that it has started; a worker leads a process group of its own."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)


@contextlib.contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back for a moment. Processes started meanwhile hold Ctrl-C back until they are ready.

    The mask is what those processes inherit. Here it is not enough: the signal goes to any thread that lets it through
    (a numerical library's, too), and Python then interrupts the main thread all the same, half-way through a start.
    SIGTERM comes to this process alone, so no mask: a worker must always be open to it.
    """
    if not hasattr(signal, "pthread_sigmask"):  # no such thing on Windows
        yield
        return
    held: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for one in (signal.SIGINT, signal.SIGTERM):
            if callable(signal.getsignal(one)):
                handlers[one] = signal.signal(one, lambda number, _: held.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for one, handler in handlers.items():
            signal.signal(one, handler)
        if held:
            signal.raise_signal(held[0])


def _prepare(parent: int, notes: Path) -> None:
    """Make a worker ready: it ends with the process that started it, on Ctrl-C at once, and prints to stderr alone."""
    global _here
    _here = notes
    os.dup2(2, 1)  # stdout belongs to the result: a training that prints must not get between
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a group of its own: what it starts can be found, and ends with it
    (notes / f"worker.{os.getpid()}").touch()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a job in the background ignores it, and so do we then
        # On a terminal Ctrl-C goes to all processes: the parent says what happened, a worker has nothing to add.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_WATCH_SECONDS)
        shutil.rmtree(notes, ignore_errors=True)
        if hasattr(os, "killpg"):
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="coalmine-parent").start()


def _play(number: int, sealed: bytes, blocks: tuple[int, ...]) -> _Answer:
    """Play blocks of the task of that number, which comes along unless this worker holds it already."""
    global _held
    if sealed and (_held is None or _held[0] != number):
        _held = (number, cloudpickle.loads(sealed))
    assert _held is not None and _held[0] == number  # noqa: PT018
    return os.getpid(), play_in_stacks(_held[1], blocks, notes=_here)
