"""One block of the game: train its trials, each in its world, and let the distinguisher score them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coalmine.errors import CoalmineError
from coalmine.game.plan import BLOCK_SIZE, trials_of, worlds_of
from coalmine.roles import Distinguisher
from coalmine.store import BlockResult
from coalmine.training import Neighbours, Network, TrainingConfig, train


class GameStoppedError(CoalmineError):
    """A task found that going on is of no use; the message says why. What is stored stays."""


class Task(Protocol):
    """Everything that a block needs to be played, and nothing that depends on which block it is.

    An engine may send a task to another process, so it must survive that trip.
    """

    @property
    def fingerprint(self) -> str:
        """The run that the blocks belong to."""
        ...

    @property
    def device(self) -> str:
        """Where it trains: cpu, or a kind of accelerator."""
        ...

    @property
    def separate(self) -> bool:
        """Whether it must be played in a process of its own, even where one worker is enough."""
        ...

    def play(self, blocks: Sequence[int]) -> list[BlockResult]:
        """Play several blocks; what each block gives does not depend on the others."""
        ...

    def post_mortem(self) -> str | None:
        """Why a process that played it has ended, where the task can tell."""
        ...


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BuiltInTask:
    """A task for Coalmine's own trainer: all the trials of some blocks are trained in one stack."""

    fingerprint: str
    network: Network
    neighbours: Neighbours
    training: TrainingConfig
    distinguisher: Distinguisher
    device: str = "cpu"
    separate: bool = False

    def play(self, blocks: Sequence[int]) -> list[BlockResult]:
        """Play several blocks in one stack; what each block gives does not depend on the others.

        The distinguisher sees what its view allows and nothing else: the trainer sees to that.
        """
        trials = np.concatenate([trials_of(block) for block in blocks])
        worlds = worlds_of(trials)
        began = time.perf_counter()
        result = train(
            self.network,
            neighbours=self.neighbours,
            config=self.training,
            fingerprint=self.fingerprint,
            trials=trials,
            worlds=worlds,
            observer=self.distinguisher,
            device=self.device,
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
                device=f"{self.device.partition(':')[0]} {result.precision}",
                failures={int(t): result.failures[int(t)] for t in trials[part] if int(t) in result.failures},
            )
            for part in parts
        ]

    def post_mortem(self) -> str | None:
        """Nothing is known."""
        return None
