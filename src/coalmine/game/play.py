"""Blocks from a task through an engine into the store: leases, retries, and what another process does meanwhile."""

from __future__ import annotations

import concurrent.futures
import math
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from coalmine.errors import BlocksFailedError, CoalmineError, GameStoppedError, InvalidInputError, UnsupportedError
from coalmine.game import machine
from coalmine.game.task import Engine, Task, Watcher, stack_size
from coalmine.store import BlockResult, Store

_POLL_SECONDS = 0.5
_LOOK_SECONDS = 2.0
"""How often an engine is asked for its width while all that it can take is under way."""
_WINDOW = 1024
"""Blocks that are looked at, at most, to find one that is free."""
TROUBLE = (CoalmineError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, OSError)
"""What a training may raise: it fails its blocks and nothing else. Anything beyond is a bug and stops the audit."""


def play(task: Task, *, blocks: Sequence[int], store: Store, engine: Engine, watcher: Watcher) -> None:
    """Play the blocks that are not stored yet, and store each as it is done.

    Several processes may run the same audit on one store: a block that another one holds is waited for, not played
    twice. After an error the blocks that are under way are still waited for and stored. Only this process writes the
    store, and no more groups are under way than the engine is wide: the memory taken does not grow with the run.
    """
    name = task.fingerprint
    failed: dict[int, str] = {}
    stopped: GameStoppedError | None = None
    told = -math.inf
    with store.keeping(name):
        pending = _Pending(store, name, blocks)
        flying: dict[Future[list[BlockResult]], tuple[int, ...]] = {}
        group = _Group(task, engine)
        alone: list[int] = []  # blocks of a group that failed: one of them may be to blame for all
        while pending or flying or alone:
            width = engine.width(task)
            while alone and len(flying) < width:
                block = alone.pop(0)
                flying[engine.submit(task, (block,))] = (block,)
            while len(flying) < width and (taken := pending.take(group.of(len(pending), width=width))):
                flying[engine.submit(task, taken)] = taken
            status = engine.status()
            watcher.where(status)
            if status and time.monotonic() - told > _LOOK_SECONDS:  # for those who watch the store
                store.say(name, status)
                told = time.monotonic()
            if not flying:
                pending.wait(watcher)
                continue
            done, _ = concurrent.futures.wait(
                flying, timeout=_LOOK_SECONDS, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                taken = flying.pop(future)
                try:
                    results = future.result()
                except GameStoppedError as error:
                    stopped = stopped or error
                    pending.drop()
                    alone = []
                    for block in taken:
                        store.fail(name, block, stopped.kept)
                    continue
                except (InvalidInputError, UnsupportedError):
                    raise  # what is asked for is wrong, and would be for every block
                except TROUBLE as error:
                    if len(taken) > 1:
                        alone += taken
                        continue
                    failed[taken[0]] = f"{type(error).__name__}: {error}"
                    store.fail(name, taken[0], failed[taken[0]])
                    continue
                group.learn(results)
                store.put_many(name, dict(zip(taken, results, strict=True)), made=machine.versions())
                for result in results:
                    watcher.block(result)
    if stopped is not None:
        raise stopped
    if failed:
        block, reason = next(iter(failed.items()))
        raise BlocksFailedError(
            f"{len(failed)} of {len(blocks)} blocks could not be trained (block {block}: {reason}); "
            "all others are stored, and running the same audit again retries these"
        )


class _Pending:
    """The blocks that nobody here has taken yet, in their order; those that another process holds come last."""

    def __init__(self, store: Store, name: str, blocks: Sequence[int]) -> None:
        self._store, self._name = store, name
        self._next: NDArray[np.int64] = np.asarray(blocks, dtype=np.int64)
        self._elsewhere: list[int] = []

    def __len__(self) -> int:
        return self._next.size + len(self._elsewhere)

    def drop(self) -> None:
        """Forget them all."""
        self._next, self._elsewhere = self._next[:0], []

    def take(self, most: int) -> tuple[int, ...]:
        """Up to so many blocks that are free, with a lease on each; none if another process holds all that is left."""
        while self._next.size:
            window = self._next[: max(_WINDOW, most)]
            taken = self._store.claim(self._name, window.tolist(), limit=most)
            if taken:
                # What comes before the last one taken and was not taken is stored by another process, or held by it.
                end = int(np.flatnonzero(window == taken[-1])[0]) + 1
                gone = set(taken)
                self._elsewhere += [block for block in window[:end].tolist() if block not in gone]
                self._next = self._next[end:]
                return taken
            self._elsewhere += window.tolist()
            self._next = self._next[window.size :]
        return ()

    def wait(self, watcher: Watcher) -> None:
        """Another process holds all that is left: wait for it, tell of what it has done, take over what it drops."""
        time.sleep(_POLL_SECONDS)
        finished = self._store.done(self._name, among=self._elsewhere)
        if finished:
            watcher.block(_stored(self._store, self._name, finished))
        self._next = np.array([block for block in self._elsewhere if block not in finished], dtype=np.int64)
        self._elsewhere = []


def _stored(store: Store, name: str, blocks: set[int]) -> BlockResult:
    """Blocks that another process has stored, as one."""
    trials = store.scores(name, blocks=blocks)
    return BlockResult(
        trial=trials.trial,
        world=trials.world,
        score=trials.score,
        elapsed=0.0,
        device="another process",
        failures={int(trial): "failed in another process" for trial in trials.trial[np.isnan(trials.score)]},
    )


class _Group:
    """How many blocks to hand out together, learned from how long they take. A matter of speed alone."""

    def __init__(self, task: Task, engine: Engine) -> None:
        self._aim = engine.aim_seconds
        stack = stack_size(task)
        self._most = stack * engine.stacks
        self.size = 1 if task.device == "cpu" else stack
        # An accelerator takes about as long for a part of what it trains together as for all of it.
        self._whole = 1 if task.device == "cpu" else task.most_together or 1
        self._least = 1

    def of(self, left: int, *, width: int) -> int:
        """The size of the next group: as learned, but towards the end small enough that everybody has one.

        Not smaller than a tenth of that: handing out costs something too.
        """
        return max(self._least, min(self.size, -(-left // width)))

    def learn(self, results: list[BlockResult]) -> None:
        """Aim at the time that the engine asks for."""
        each = sum(result.elapsed for result in results) / len(results)
        self.size = max(self._whole, min(self._most, int(self._aim / max(each, 1e-6))))
        self._least = max(1, self.size // 10)
