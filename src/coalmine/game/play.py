"""Blocks from a task through an engine into the store: leases, retries, and what another process does meanwhile."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np

from coalmine.errors import CoalmineError, InvalidInputError, UnsupportedError
from coalmine.game.task import Engine, GameStoppedError, Task
from coalmine.store import BlockResult, Store

OnBlock = Callable[[BlockResult], None]

_AIM_SECONDS = 2.0
"""Blocks are handed out in groups that take about this long: less is overhead, more is lost in a crash."""
_MOST_TOGETHER = {"cpu": 64, "cuda": 512}
_POLL_SECONDS = 0.5
TROUBLE = (CoalmineError, ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, OSError)
"""What a training may raise: it fails its blocks and nothing else. Anything beyond is a bug and stops the audit."""


class BlocksFailedError(CoalmineError):
    """Some blocks could not be trained; everything else is stored, and the next run tries them again."""


def play(task: Task, *, blocks: Sequence[int], store: Store, engine: Engine, on_block: OnBlock) -> None:
    """Play the blocks that are not stored yet, and store each as it is done.

    Several processes may run the same audit on one store: a block that another one holds is waited for, not played
    twice. After an error the blocks that are under way are still waited for and stored.
    """
    name = task.fingerprint
    failed: dict[int, str] = {}
    stopped: GameStoppedError | None = None
    waiting = list(blocks)
    with store.keeping(name):
        flying: dict[Future[list[BlockResult]], tuple[int, ...]] = {}
        group = _Group(task.device.partition(":")[0], most=task.most_together)
        alone: list[int] = []  # blocks of a group that failed: one of them may be to blame for all
        while waiting or flying or alone:
            while alone and len(flying) < engine.width(task):
                block = alone.pop(0)
                flying[engine.submit(task, (block,))] = (block,)
            while waiting and len(flying) < engine.width(task):
                taken = store.claim(name, waiting, limit=group.size)
                if not taken:
                    break
                gone = set(taken)
                waiting = [block for block in waiting if block not in gone]
                flying[engine.submit(task, taken)] = taken
            if not flying:
                waiting = _others(store, name, waiting, on_block)
                continue
            done, _ = concurrent.futures.wait(flying, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                taken = flying.pop(future)
                try:
                    results = future.result()
                except GameStoppedError as error:
                    stopped = stopped or error
                    waiting, alone = [], []
                    for block in taken:
                        store.fail(name, block, str(stopped))
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


def _others(store: Store, name: str, waiting: list[int], on_block: OnBlock) -> list[int]:
    """Another process holds all that is left: wait for it, tell of what it has done, and take over what it drops."""
    time.sleep(_POLL_SECONDS)
    finished = store.done(name).intersection(waiting)
    if finished:
        on_block(_stored(store, name, finished))
    return [block for block in waiting if block not in finished]


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

    def __init__(self, device: str, *, most: int | None) -> None:
        self._most = most or _MOST_TOGETHER[device]
        # A task that knows how many belong together is not asked to begin with one.
        self.size = 1 if device == "cpu" and most is None else self._most

    def learn(self, results: list[BlockResult]) -> None:
        """Aim at groups of a couple of seconds."""
        each = sum(result.elapsed for result in results) / len(results)
        self.size = max(1, min(self._most, int(_AIM_SECONDS / max(each, 1e-6))))
