"""Trainings with canaries on our own trainer: one by one, and as blocks of an audit that are played and stored."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from coalmine import seeds
from coalmine.adversaries import ManyCanaries
from coalmine.errors import CoalmineError
from coalmine.game import ACCURACY, WITH_CANARIES, coins_of
from coalmine.store import BlockResult
from coalmine.training import Dataset, Neighbours, Network, TrainingConfig, TrainingResult, hardware, precision, train

Array = NDArray[np.float64]


class BrokenTrainingError(CoalmineError):
    """A training ended without finite numbers."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Trainings:
    """Everything but the coins. ``training`` is how it is really trained, whatever the scorer takes it for."""

    network: Network
    base: Dataset
    training: TrainingConfig
    attack: ManyCanaries
    fingerprint: str
    device: str = "cpu"

    def run(self, included: NDArray[np.bool_] | None, *, trial: int, purpose: str = "") -> Array:
        """One training with these canaries (with none if None): a score for each canary, then the accuracy."""
        scores: Array = np.asarray(self.trained(included, trial=trial, purpose=purpose).scores, dtype=np.float64)
        return np.asarray(scores[0])

    def trained(self, included: NDArray[np.bool_] | None, *, trial: int, purpose: str = "") -> TrainingResult:
        """The same with how it was computed."""
        canary = None if included is None else self.attack.taken(included)
        done = train(
            self.network,
            neighbours=Neighbours(self.base, canary=canary),
            config=self.training,
            fingerprint=f"{self.fingerprint}{purpose}",
            trials=[trial],
            worlds=[1],
            observer=self.attack.scorer,
            device=self.device,
        )
        if done.failures or done.scores is None:
            raise BrokenTrainingError(next(iter(done.failures.values()), "no score was given"))
        return done

    @functools.cached_property
    def expected(self) -> Array:
        """The mean score of each canary in the attacker's own trainings, which have coins of their own."""
        number = self.attack.number
        if not self.attack.references:
            return np.zeros(number)
        found = []
        for trial in range(self.attack.references):
            stream = seeds.generator(self.fingerprint, purpose="coins of a reference", trial=trial)
            found.append(self.run(stream.random(number) < 0.5, trial=trial, purpose=" references")[:-1])
        return np.asarray(np.mean(found, axis=0))

    def compared(self, scores: Array) -> Array:
        """The scores of one training against what was expected of each canary, and of all canaries of its group.

        Nothing here looks at a coin, and every canary counts, in or out: these are scores as good as any.
        """
        found = scores - self.expected
        groups = self.attack.groups
        for group in () if groups is None else np.unique(groups):
            mine = groups == group
            low, middle, high = np.quantile(found[mine], [0.25, 0.5, 0.75])
            found[mine] = (found[mine] - middle) / (high - low if high > low else 1.0)
        return found

    def flips(self, trial: int) -> NDArray[np.bool_]:
        """The coins of one training."""
        return coins_of(self.fingerprint, training=trial, canaries=self.attack.number)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class CanaryTask:
    """A task (:class:`coalmine.game.Task`) whose blocks are trainings: a trial is a canary, its world its coin.

    Block b holds trials b·m to (b + 1)·m − 1. The first training is repeated without canaries (same start, batches and
    noise) for what they cost in accuracy.
    """

    trainings: Trainings
    separate: bool = False
    most_together: int = 1

    @property
    def fingerprint(self) -> str:
        """The run that the blocks belong to."""
        return self.trainings.fingerprint

    @property
    def device(self) -> str:
        """Where it trains."""
        return self.trainings.device

    def on(self, device: str) -> Self:
        """The same task on another device of the same kind."""
        return dataclasses.replace(self, trainings=dataclasses.replace(self.trainings, device=device))

    def check(self) -> None:
        """All that it runs is Coalmine's own."""

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Train once for each block."""
        return [self._play(block) for block in blocks]

    def again(self, units: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Repeat some of the trainings."""
        return self.play(units)

    def _play(self, block: int) -> BlockResult:
        began = time.perf_counter()
        parts = self.trainings
        number, coins = parts.attack.number, parts.flips(block)
        trials = np.arange(block * number, (block + 1) * number)
        failures: dict[int, str] = {}
        with_canaries, without = np.nan, np.nan
        kind = precision(parts.training.dtype, device=parts.device)
        try:
            done = parts.trained(coins, trial=block)
            found, kind = np.asarray(done.scores, dtype=np.float64)[0], done.precision
            scores, with_canaries = parts.compared(found[:-1]), found[-1]
            if block == 0:
                without = parts.run(None, trial=block)[-1]
        except BrokenTrainingError as error:
            scores, failures = np.full(number, np.nan), dict.fromkeys(trials.tolist(), str(error))
        return BlockResult(
            trial=trials,
            world=coins.astype(np.int8),
            score=scores,
            elapsed=time.perf_counter() - began,
            device=f"{parts.device.partition(':')[0]} {kind}, {hardware(parts.device)}",
            columns={ACCURACY: np.full(number, without), WITH_CANARIES: np.full(number, with_canaries)},
            failures=failures,
        )

    def post_mortem(self, notes: Path) -> str | None:
        """Nothing is known."""
        return None
