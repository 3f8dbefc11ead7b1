"""Blocks on this machine: one process a core, or one process and a GPU. Every finished block is committed at once."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from coalmine.errors import CoalmineError, InvalidInputError, UnsupportedError
from coalmine.game.plan import trials_of
from coalmine.game.play import GameStoppedError, Task
from coalmine.store import BlockResult, Store

OnBlock = Callable[[BlockResult], None]

_AIM_SECONDS = 2.0
"""Blocks are handed out in groups that take about this long: less is overhead, more is lost in a crash."""
_MOST_TOGETHER = {"cpu": 64, "cuda": 512}
_POLL_SECONDS = 0.5
_TROUBLE = (CoalmineError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, OSError)
"""What a training may raise: it fails its blocks and nothing else. Anything beyond is a bug and stops the audit."""


class BlocksFailedError(CoalmineError):
    """Some blocks could not be trained; everything else is stored, and the next run tries them again."""


class WorkersDiedError(GameStoppedError):
    """A worker process ended without a word; what was stored stays, and the next run tries the rest again."""


class Workers:
    """Up to ``count`` processes that play blocks, started when they are first needed and kept until the end.

    A process takes seconds to load what it needs, so several tasks in a row should share them. After an error they are
    not used again: whoever opened them leaves the ``with`` block, which ends them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor: ProcessPoolExecutor | None = None
        self._tasks = 0

    def pool(self, task: Task) -> _Pool:
        """What plays this task: these processes, or this process where one worker or a GPU does the work."""
        if task.device != "cpu" or (self.count == 1 and not task.separate):
            return _Pool(task, 1 if task.device != "cpu" else self.count)
        if self._executor is None:
            # A forked copy of a process with threads may hang; a spawned one starts clean.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(self.count, context, _prepare, (os.getpid(),))
        self._tasks += 1
        return _Pool(task, self.count, executor=self._executor, number=self._tasks)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def run(task: Task, *, blocks: Sequence[int], store: Store, workers: int | Workers, on_block: OnBlock) -> None:
    """Play the blocks that are not stored yet, and store each as it is done.

    Several processes may run the same audit on one store: a block that another one holds is waited for, not played
    twice. With one worker, or on a GPU, the blocks are played in this process.
    """
    if not isinstance(workers, Workers):
        with Workers(workers) as own:
            run(task, blocks=blocks, store=store, workers=own, on_block=on_block)
        return
    name = task.fingerprint
    failed: dict[int, str] = {}
    stopped: GameStoppedError | None = None
    waiting = list(blocks)
    pool = workers.pool(task)
    with store.keeping(name):
        flying: dict[Future[_Answer], tuple[int, ...]] = {}
        group = _Group(task.device.partition(":")[0], most=task.most_together)
        alone: list[int] = []  # blocks of a group that failed: one of them may be to blame for all
        while waiting or flying or alone:
            while alone and len(flying) < pool.width:
                block = alone.pop(0)
                flying[pool.submit((block,))] = (block,)
            while waiting and len(flying) < pool.width:
                taken = store.claim(name, waiting, limit=group.size)
                if not taken:
                    break
                gone = set(taken)
                waiting = [block for block in waiting if block not in gone]
                flying[pool.submit(taken)] = taken
            if not flying:
                waiting = _others(store, name, waiting, on_block)
                continue
            done, _ = concurrent.futures.wait(flying, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                taken = flying.pop(future)
                try:
                    results = pool.results(future)
                except (GameStoppedError, BrokenProcessPool) as error:
                    stopped = stopped or _stop(task, error)
                    waiting, alone = [], []
                    for block in taken:
                        store.fail(name, block, str(stopped))
                    continue
                except (InvalidInputError, UnsupportedError):
                    raise  # what is asked for is wrong, and would be for every block
                except _TROUBLE as error:
                    if len(taken) > 1:
                        alone += taken
                        continue
                    failed[taken[0]] = f"{type(error).__name__}: {error}"
                    store.fail(name, taken[0], failed[taken[0]])
                    continue
                group.learn(results)
                store.put_many(name, dict(zip(taken, results, strict=True)))
                for result in results:
                    on_block(result)
    if stopped is not None:
        raise stopped
    if failed:
        block, reason = next(iter(failed.items()))
        raise BlocksFailedError(
            f"{len(failed)} of {len(blocks)} blocks could not be trained (block {block}: {reason}); "
            "all others are stored, and running the same audit again retries these"
        )


def _stop(task: Task, error: GameStoppedError | BrokenProcessPool) -> GameStoppedError:
    """Why no more blocks are handed out; those that are under way are still waited for and stored."""
    if isinstance(error, GameStoppedError):
        return error
    reason = task.post_mortem() or "a worker process ended without a word (killed, crashed, or out of memory?)"
    return WorkersDiedError(
        f"{reason}; all finished blocks are stored, and running the same audit again goes on from there"
    )


def _others(store: Store, name: str, waiting: list[int], on_block: OnBlock) -> list[int]:
    """Another process holds all that is left: wait for it, tell of what it has done, and take over what it drops."""
    time.sleep(_POLL_SECONDS)
    finished = store.done(name).intersection(waiting)
    if finished:
        on_block(_stored(store, name, finished))
    return [block for block in waiting if block not in finished]


def _stored(store: Store, name: str, blocks: set[int]) -> BlockResult:
    """Blocks that another process has stored, as one."""
    trials = store.scores(name)
    mine = np.isin(trials.trial, np.concatenate([trials_of(block) for block in sorted(blocks)]))
    lost = trials.trial[mine & np.isnan(trials.score)]
    return BlockResult(
        trial=trials.trial[mine],
        world=trials.world[mine],
        score=trials.score[mine],
        elapsed=0.0,
        device="another process",
        failures={int(trial): "failed in another process" for trial in lost},
    )


class _Group:
    """How many blocks to hand out together, learnt from how long they take. A matter of speed alone."""

    def __init__(self, device: str, *, most: int | None) -> None:
        self._most = most or _MOST_TOGETHER[device]
        self.size = 1 if device == "cpu" else self._most

    def learn(self, results: list[BlockResult]) -> None:
        """Aim at groups of a couple of seconds."""
        each = sum(result.elapsed for result in results) / len(results)
        self.size = max(1, min(self._most, int(_AIM_SECONDS / max(each, 1e-6))))


class _Pool:
    """One task and who plays it: worker processes, or this process without an ``executor``."""

    def __init__(self, task: Task, width: int, *, executor: ProcessPoolExecutor | None = None, number: int = 0) -> None:
        self._task = task
        self._executor = executor
        self._number = number
        self._holders: set[int] = set()
        self.width = width

    def submit(self, blocks: tuple[int, ...]) -> Future[_Answer]:
        """Play these blocks somewhere. The task goes along until every worker is known to hold it."""
        future: Future[_Answer] = Future()
        try:
            if self._executor is not None:
                task = self._task if len(self._holders) < self.width else None
                with _interrupts_later():  # the first call starts the processes
                    return self._executor.submit(_play, self._number, task, blocks)
            future.set_result((os.getpid(), self._task.play(blocks)))
        except _TROUBLE as error:
            future.set_exception(error)
        return future

    def results(self, future: Future[_Answer]) -> list[BlockResult]:
        """What was played, or the error that came instead."""
        worker, results = future.result()
        self._holders.add(worker)
        return results


_Answer = tuple[int, list[BlockResult]]
"""The process that played, and what it found."""
_held: tuple[int, Task] | None = None
"""In a worker: the task that it played last, and its number."""


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


def _play(number: int, task: Task | None, blocks: tuple[int, ...]) -> _Answer:
    """Play blocks of the task of that number, which comes along unless this worker holds it already."""
    global _held
    if task is not None and (_held is None or _held[0] != number):
        _held = (number, task)
    assert _held is not None and _held[0] == number  # noqa: PT018
    return os.getpid(), _held[1].play(blocks)
