"""Clipped sums of perceptrons by the compiled kernels of a CPU (:mod:`coalmine.training.backends` says when)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine.training.backends import numba_kernels as kernels
from coalmine.training.batching import width
from coalmine.training.canary import AdaptiveExample, ChosenExample, Neighbours, StackState
from coalmine.training.data import Dataset
from coalmine.training.job import Job
from coalmine.training.layers import Activation, Linear, Part
from coalmine.training.networks import example_floats
from coalmine.training.noise import row_storage
from coalmine.training.sums import Vectors


def fits(job: Job) -> bool:
    """Whether these kernels can do the steps of this training: linear layers with biases, activations between them,
    rows of features, worlds that need not be kept apart, and a canary whose examples are known beforehand.
    """
    layers, base = job.network.layers(), job.neighbours.base
    kinds = [Linear, Activation] * (len(layers) // 2) + [Linear]
    perceptron = len(layers) == len(kinds) and all(map(isinstance, layers, kinds))
    biased = all(layer.bias for layer in layers if isinstance(layer, Linear))
    features = isinstance(base, Dataset) and len(base.shape) == 1
    canary = job.neighbours.canary
    known = isinstance(canary, ChosenExample) or not isinstance(canary, AdaptiveExample)
    return perceptron and biased and features and not job.paired and known


def _aligned(*shape: int) -> NDArray[np.float32]:
    """Zeros that begin on a cache line, as torch's memory does."""
    return torch.zeros(shape, dtype=torch.float32).numpy()


def _whole(size: int) -> int:
    """The next whole number of vectors."""
    lanes: int = kernels.LANES
    return -(-size // lanes) * lanes


class CompiledTable:
    """All rows that a step can draw, each padded to whole vectors: base rows first, then the canary's."""

    def __init__(self, neighbours: Neighbours) -> None:
        x, self.labels = neighbours.all_rows()
        self.x = _aligned(len(x), _whole(x.shape[1]))
        self.x[:, : x.shape[1]] = x
        self.squares = np.square(self.x, dtype=np.float64).sum(axis=1).astype(np.float32)


class CompiledSums:
    """Clipped sums of a stack of perceptrons: one call a step."""

    def __init__(
        self, job: Job, vectors: Vectors, table: CompiledTable, *, divisor: float | None = None, rows: int | None = None
    ) -> None:
        """``divisor`` of the sums and ``rows`` in one pass, if not those of the training's batches."""
        self._vectors, self._table, self._rows = vectors, table, job.rows
        canary = job.neighbours.canary
        self._canary = canary if isinstance(canary, ChosenExample) else None
        self._width = rows or width(job.config, rows=job.rows, example_floats=example_floats(job.network))
        self._clip, self._weight = np.float32(job.config.clip), np.float32(1.0 / (divisor or job.batch))
        self._plan, size = _plan(job.network.layers(), rows=self._width + kernels.ROWS)
        self._work = _aligned(size)
        self._drawn = np.zeros((vectors.models, 0), dtype=np.int64)
        self._counts = np.zeros(vectors.models, dtype=np.int64)

    def __call__(self, drawn: list[Any], state: StackState) -> None:
        """The drawn rows' clipped gradients over the expected batch size."""
        longest = max(rows.size for rows in drawn) + kernels.ROWS
        if longest > self._drawn.shape[1]:
            self._drawn = np.zeros((self._counts.size, longest + longest // 4), dtype=np.int64)
        for position, rows in enumerate(drawn):
            self._drawn[position, : rows.size] = rows
            self._counts[position] = rows.size
        if self._canary is not None:
            for line, rows, place in zip(self._drawn, drawn, self._canary.places(state), strict=True):
                line[: rows.size][rows >= self._rows] = self._rows + place  # all copies are the chosen example
        table, vectors = self._table, self._vectors
        kernels.add_clipped_sums(
            *(row_storage(vectors.parameters), row_storage(vectors.gradient), self._drawn, self._counts),
            *(table.x, table.labels, table.squares),
            *(self._plan, self._work, self._width, self._clip, self._weight),
        )


_KINDS = {"relu": 0, "tanh": 1, "sigmoid": 2}


def _plan(layers: Sequence[Part], *, rows: int) -> tuple[NDArray[np.int64], int]:
    """Where everything is, layer by layer, as the kernel wants it, and how much room it takes."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    activations = [layer.kind for layer in layers if isinstance(layer, Activation)]
    place, start = 0, max(_whole(layer.inputs) for layer in linear)
    plan: list[tuple[int, ...]] = []
    for layer, kind in itertools.zip_longest(linear, activations, fillvalue="relu"):
        assert isinstance(layer, Linear)
        inputs, outputs = layer.inputs, layer.outputs
        wide_in, wide_out = _whole(inputs), _whole(outputs)
        sizes = (inputs * wide_out, wide_out, outputs * wide_in if plan else 0, rows * wide_out, rows * wide_out)
        begins = [start + sum(sizes[:i]) for i in range(len(sizes))]
        plan.append((inputs, outputs, place, place + inputs * outputs, *begins, wide_in, wide_out, _KINDS[kind]))
        place += (inputs + 1) * outputs
        start += sum(sizes)
    return np.array(plan, dtype=np.int64), start
