"""One block of the game: train its trials, each in its world, and let the distinguisher score them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import numpy as np

from coalmine.game.plan import BLOCK_SIZE, trials_of, worlds_of
from coalmine.roles import Distinguisher
from coalmine.store import BlockResult
from coalmine.training import Neighbours, Network, TrainingConfig, train


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """Everything that a block needs to be played, and nothing that depends on which block it is."""

    fingerprint: str
    network: Network
    neighbours: Neighbours
    training: TrainingConfig
    distinguisher: Distinguisher
    device: str = "cpu"


def play(task: Task, blocks: Sequence[int]) -> list[BlockResult]:
    """Play several blocks in one stack; what each block gives does not depend on the others.

    The distinguisher sees what its view allows and nothing else: the trainer sees to that.
    """
    trials = np.concatenate([trials_of(block) for block in blocks])
    worlds = worlds_of(trials)
    began = time.perf_counter()
    result = train(
        task.network,
        neighbours=task.neighbours,
        config=task.training,
        fingerprint=task.fingerprint,
        trials=trials,
        worlds=worlds,
        observer=task.distinguisher,
        device=task.device,
    )
    elapsed = (time.perf_counter() - began) / len(blocks)
    assert result.scores is not None
    parts = np.split(np.arange(trials.size), range(BLOCK_SIZE, trials.size, BLOCK_SIZE))
    return [
        BlockResult(
            trial=trials[part],
            world=worlds[part],
            score=result.scores[part],
            elapsed=elapsed,
            device=f"{task.device.partition(':')[0]} {result.precision}",
            failures={int(t): result.failures[int(t)] for t in trials[part] if int(t) in result.failures},
        )
        for part in parts
    ]
