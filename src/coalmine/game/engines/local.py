"""Blocks on this machine: one process a core, or one process and a GPU. Every finished block is committed at once."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
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


def run(task: Task, *, blocks: Sequence[int], store: Store, workers: int, on_block: OnBlock) -> None:
    """Play the blocks that are not stored yet, and store each as it is done.

    Several processes may run the same audit on one store: a block that another one holds is waited for, not played
    twice. With one worker, or on a GPU, the blocks are played in this process.
    """
    name = task.fingerprint
    failed: dict[int, str] = {}
    stopped: GameStoppedError | None = None
    waiting = list(blocks)
    with store.keeping(name), _pool(task, workers) as pool:
        flying: dict[Future[list[BlockResult]], tuple[int, ...]] = {}
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
                    results = future.result()
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
    """Worker processes, or this process where one worker is enough."""

    def __init__(self, task: Task, workers: int) -> None:
        self._task = task
        self.width = workers
        self._executor: ProcessPoolExecutor | None = None
        if workers > 1 or task.separate:
            # A forked copy of a process with threads may hang; a spawned one starts clean.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(workers, context, _prepare, (task, os.getpid()))

    def submit(self, blocks: tuple[int, ...]) -> Future[list[BlockResult]]:
        """Play these blocks somewhere."""
        future: Future[list[BlockResult]] = Future()
        try:
            if self._executor is not None:
                return self._executor.submit(_play, blocks)
            future.set_result(self._task.play(blocks))
        except _TROUBLE as error:
            future.set_exception(error)
        return future

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _pool(task: Task, workers: int) -> _Pool:
    return _Pool(task, 1 if task.device != "cpu" else workers)


_task: Task | None = None


def _prepare(task: Task, parent: int) -> None:
    """Make a worker ready: it holds the task, and it ends when the process that started it is gone."""
    global _task
    _task = task

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="coalmine-parent").start()


def _play(blocks: tuple[int, ...]) -> list[BlockResult]:
    assert _task is not None
    return _task.play(blocks)
