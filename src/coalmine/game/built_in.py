"""Blocks by Coalmine's own trainer: train their trials, each in its world, and let the distinguisher score them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries import Shortcut
from coalmine.errors import InvalidInputError
from coalmine.game.blocks import ACCURACY, BLOCK_SIZE, trials_of, worlds_of
from coalmine.roles import Distinguisher, Iterate
from coalmine.store import BlockResult
from coalmine.training import (
    Dataset,
    Neighbours,
    Network,
    TrainingConfig,
    accuracy,
    as_scores,
    device_named,
    hardware,
    precision,
    stack_for,
    train,
)

_MANY_BLOCKS = 4096
_TEST_ROWS = 512
"""Test rows asked: the mean over many trials is exact enough, and the cost stays far below that of a training."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class BuiltInTask:
    """A task for Coalmine's own trainer: all the trials of some blocks are trained in one stack."""

    fingerprint: str
    network: Network
    neighbours: Neighbours
    training: TrainingConfig
    distinguisher: Distinguisher
    test: Dataset | None = None
    shortcut: Shortcut | None = None
    device: str = "cpu"
    separate: bool = False

    @property
    def most_together(self) -> int | None:
        """Many where nothing is trained; on a GPU of this machine one stack, so that each is stored when it is done.

        Otherwise the engine's own measure.
        """
        if self.shortcut is not None:
            return _MANY_BLOCKS
        if self.device == "cpu" or not torch.cuda.is_available():
            return None
        stack = stack_for(
            self.network,
            neighbours=self.neighbours,
            config=self.training,
            observer=self.distinguisher,
            device=self.device,
        )
        return max(1, stack // BLOCK_SIZE)

    def on(self, device: str) -> Self:
        """The same task on another device of the same kind."""
        return dataclasses.replace(self, device=device)

    def check(self) -> None:
        """All that it runs is Coalmine's own."""

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play several blocks in one stack; what each block gives does not depend on the others.

        The distinguisher sees what its view allows and nothing else: the trainer sees to that. A trial keeps the
        distinguisher's columns beside its score, and with ``test`` rows its model's accuracy. With a ``shortcut``
        nothing is trained.
        """
        return self._play([trials_of(block) for block in blocks])

    def again(self, units: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play single trials once more, each a result by itself."""
        return self._play([np.array([trial], dtype=np.int64) for trial in units])

    def _play(self, parts: Sequence[NDArray[np.int64]]) -> list[BlockResult]:
        """Play some trials in one stack; each part of them is a result by itself."""
        device_named(self.device)  # a shortcut never asks the trainer
        trials = np.concatenate(parts)
        worlds = worlds_of(trials)
        began = time.perf_counter()
        if self.shortcut is not None:
            scores = self.shortcut.scores(trials, worlds=worlds, fingerprint=self.fingerprint, device=self.device)
            kind = precision("float64", device=self.device)  # a shortcut may use the trainer's kernels
            elapsed = (time.perf_counter() - began) / len(parts)
            return self._results(parts, worlds, scores=scores, elapsed=elapsed, precision=kind)
        result = train(
            self.network,
            neighbours=self.neighbours,
            config=self.training,
            fingerprint=self.fingerprint,
            trials=trials,
            worlds=worlds,
            observer=self.distinguisher if self.test is None else _Examined(self.distinguisher, self.test),
            device=self.device,
        )
        elapsed = (time.perf_counter() - began) / len(parts)
        assert result.scores is not None
        names = (*self.distinguisher.columns, *(() if self.test is None else (ACCURACY,)))
        table = result.scores.reshape(trials.size, -1)
        if table.shape[1] != 1 + len(names):
            given, wanted = table.shape[1] - (self.test is not None), 1 + len(self.distinguisher.columns)
            raise InvalidInputError(
                f"{type(self.distinguisher).__name__}.finish gave {_validate.counted(given, 'number')} for each trial: "
                f"expected {wanted}, the score and what its columns name"
            )
        scores, columns = table[:, 0], dict(zip(names, table.T[1:], strict=True))
        return self._results(
            parts,
            worlds,
            scores=scores,
            elapsed=elapsed,
            precision=result.precision,
            columns=columns,
            failures=result.failures,
        )

    def _results(
        self,
        parts: Sequence[NDArray[np.int64]],
        worlds: NDArray[np.int8],
        *,
        scores: NDArray[np.float64],
        elapsed: float,
        precision: str,
        columns: Mapping[str, NDArray[np.float64]] = MappingProxyType({}),
        failures: Mapping[int, str] = MappingProxyType({}),
    ) -> list[BlockResult]:
        """The trials cut into their parts; ``elapsed`` is seconds a part."""
        ends = np.cumsum([part.size for part in parts])
        places = [slice(end - part.size, end) for part, end in zip(parts, ends.tolist(), strict=True)]
        return [
            BlockResult(
                trial=trials,
                world=worlds[place],
                score=scores[place],
                elapsed=elapsed,
                device=f"{self.device.partition(':')[0]} {precision}, {hardware(self.device)}",
                columns={name: values[place] for name, values in columns.items()},
                failures={int(t): failures[int(t)] for t in trials if int(t) in failures} if failures else {},
            )
            for trials, place in zip(parts, places, strict=True)
        ]

    def post_mortem(self, notes: Path) -> str | None:
        """Nothing is known."""
        return None


class _Examined(Distinguisher):
    """The distinguisher, shown what it would be shown alone, and beside its score the model's accuracy."""

    def __init__(self, distinguisher: Distinguisher, test: Dataset) -> None:
        self._distinguisher = distinguisher
        self._x, self._y = test.x[:_TEST_ROWS], test.y[:_TEST_ROWS]
        self.view, self.knows_both_worlds = distinguisher.view, distinguisher.knows_both_worlds

    def start(self, trials: NDArray[np.int64]) -> None:
        """The distinguisher starts too."""
        self._distinguisher.start(trials)

    def observe(self, iterate: Iterate) -> None:
        """The distinguisher's alone."""
        self._distinguisher.observe(iterate)

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Score, the distinguisher's columns and accuracy of each trial, ``[S, 2 + k]``."""
        found = self._distinguisher.finish(models)
        scores = as_scores(found, who=self._distinguisher, trials=len(models.trials))
        return np.column_stack([scores, accuracy(models, x=self._x, y=self._y)])
