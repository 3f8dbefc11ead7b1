"""From drawn rows to padded buffers: the base rows, the canary's rows, their labels and weights, for a whole stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from coalmine.records import Sampling
from coalmine.training.canary import ExampleCanary, Neighbours
from coalmine.training.config import TrainingConfig
from coalmine.training.data import Dataset
from coalmine.training.models import padded
from coalmine.training.products import Counts

MAX_WIDTH = 1024
"""Larger batches go through in several passes."""


@dataclasses.dataclass
class Pass:
    """At most W examples a model: inputs ``[S, W, ...]``, one-hot targets, weights (0: padding), squared norms."""

    x: Tensor
    targets: Tensor
    weights: Tensor
    squares: Tensor | None
    counts: Counts


def width(config: TrainingConfig, *, rows: int, limit: int = MAX_WIDTH) -> int:
    """W, a function of the config alone: what a Poisson batch exceeds once in a million steps, to a multiple of 32.

    A batch that does exceed it goes through in two passes, so nothing is ever cut off.
    """
    rate = config.rate(rows)
    if config.sampling is Sampling.POISSON and 0.0 < rate < 1.0:
        size = int(stats.binom.isf(1e-6, rows, rate)) + 1
    else:
        size = int(np.ceil(config.expected_batch(rows))) + 1
    return min(padded(size), limit)


class Batcher:
    """Builds the passes of a step. Base rows are 0 to n − 1, canary rows n to n + k − 1."""

    def __init__(
        self, neighbours: Neighbours, *, stack: int, classes: int, width: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        base = neighbours.base
        assert isinstance(base, Dataset)
        self.rows = base.rows
        self._shape = base.shape
        self._width, self._stack, self._device = width, stack, device
        copies, canary = neighbours.copies, neighbours.canary
        x = np.zeros((base.rows + copies, int(np.prod(base.shape))), dtype=base.x.dtype)
        x[: base.rows] = base.x.reshape(base.rows, -1)
        labels = np.zeros(base.rows + copies, dtype=np.int64)
        labels[: base.rows] = base.y
        if isinstance(canary, ExampleCanary):
            x[base.rows :] = canary.x.reshape(copies, -1)
            labels[base.rows :] = canary.y
        tokens = x.dtype == np.int64
        self._x = torch.from_numpy(x).to(device=device, dtype=torch.int64 if tokens else dtype)
        self._onehot = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).to(device=device, dtype=dtype)
        self._squares = None if tokens else (self._x * self._x).sum(1)
        self._buffer = torch.zeros((stack, width, self._x.shape[1]), dtype=self._x.dtype, device=device)
        self._targets = torch.zeros((stack, width, classes), dtype=dtype, device=device)
        self._weights = torch.zeros((stack, width), dtype=dtype, device=device)
        self._picked = torch.zeros((stack, width), dtype=dtype, device=device)
        self._index = np.zeros((stack, width), dtype=np.int64)
        self._places = np.arange(width)

    def passes(self, drawn: Sequence[NDArray[np.int64]], *, examples: tuple[Tensor, Tensor] | None) -> Iterator[Pass]:
        """The passes of one step: W rows of each model at a time, until every model's batch is done.

        ``examples`` are an adaptive canary's inputs ``[S, k, ...]`` and one-hot labels ``[S, k, classes]``.
        """
        longest = max(rows.size for rows in drawn)
        for start in range(0, max(1, longest), self._width):
            yield self._fill([rows[start : start + self._width] for rows in drawn], examples)

    def _fill(self, drawn: Sequence[NDArray[np.int64]], examples: tuple[Tensor, Tensor] | None) -> Pass:
        counts = [rows.size for rows in drawn]
        for i, rows in enumerate(drawn):
            self._index[i, : rows.size] = rows
        index = torch.from_numpy(self._index)
        on_cpu = self._device.type == "cpu"
        if on_cpu:
            for n, chosen, target in zip(counts, index.unbind(0), self._buffer.unbind(0), strict=True):
                if n:
                    torch.index_select(self._x, 0, chosen[:n], out=target[:n])
        else:
            index = index.to(self._device)
            torch.index_select(self._x, 0, index.view(-1), out=self._buffer.view(-1, self._x.shape[1]))
        flat = index.view(-1)
        torch.index_select(self._onehot, 0, flat, out=self._targets.view(flat.numel(), -1))
        mask = self._places < np.asarray(counts)[:, None]
        self._weights.copy_(torch.from_numpy(mask))
        squares = None
        if self._squares is not None:
            squares = torch.index_select(self._squares, 0, flat, out=self._picked.view(-1)).view_as(self._picked)
        if examples is not None:
            self._put(drawn, *examples, squares=squares)
        return Pass(
            self._buffer.unflatten(2, self._shape), self._targets, self._weights, squares, counts if on_cpu else None
        )

    def _put(self, drawn: Sequence[NDArray[np.int64]], x: Tensor, onehot: Tensor, *, squares: Tensor | None) -> None:
        """Write an adaptive canary's rows over their places."""
        flat = x.flatten(2)
        for i, rows in enumerate(drawn):
            for place in np.flatnonzero(rows >= self.rows).tolist():
                copy = int(rows[place]) - self.rows
                self._buffer[i, place] = flat[i, copy]
                self._targets[i, place] = onehot[i, copy]
                if squares is not None:
                    squares[i, place] = (flat[i, copy] * flat[i, copy]).sum()


class FullBatcher:
    """Every row in every step: the base rows are shared by all models, so nothing is gathered."""

    def __init__(
        self,
        neighbours: Neighbours,
        *,
        worlds: Sequence[int],
        classes: int,
        width: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        base, canary, copies = neighbours.base, neighbours.canary, neighbours.copies
        assert isinstance(base, Dataset)
        self.rows = base.rows
        self._stack = len(worlds)
        self._device, self._dtype, self._classes = device, dtype, classes
        counts: Counts = None
        self._passes: list[Pass] = []
        for start in range(0, base.rows, width):
            block = slice(start, min(start + width, base.rows))
            used = block.stop - block.start
            weights = np.ones((self._stack, used))
            for row in neighbours.replaced:
                if block.start <= row < block.stop:
                    weights[np.asarray(worlds) == 1, row - block.start] = 0.0
            counts = [used] * self._stack if device.type == "cpu" else None
            self._passes.append(self._shared(base.x[block], base.y[block], weights, counts))
        self._canary: Pass | None = None
        if isinstance(canary, ExampleCanary):
            self._canary = self._shared(canary.x, canary.y, np.repeat(np.asarray(worlds)[:, None], copies, 1), None)
        elif canary is not None and hasattr(canary, "examples"):
            x = np.zeros((copies, *base.shape), dtype=base.x.dtype)
            weights = np.repeat(np.asarray(worlds)[:, None], copies, 1)
            self._canary = self._shared(x, np.zeros(copies, dtype=np.int64), weights, None)
            self._canary.x = self._canary.x.clone()
            self._canary.targets = self._canary.targets.clone()
            self._canary.squares = None
        if self._canary is not None and device.type == "cpu":
            self._canary.counts = [copies * world for world in worlds]
        self._copies = copies

    def _shared(
        self, x: NDArray[np.generic], y: NDArray[np.int64], weights: NDArray[np.generic], counts: Counts
    ) -> Pass:
        rows = padded(x.shape[0])
        inputs = torch.from_numpy(np.concatenate([x, np.zeros((rows - x.shape[0], *x.shape[1:]), dtype=x.dtype)]))
        inputs = inputs.to(device=self._device, dtype=self._dtype if inputs.is_floating_point() else torch.int64)
        labels = torch.from_numpy(np.concatenate([y, np.zeros(rows - y.size, dtype=np.int64)]))
        onehot = torch.nn.functional.one_hot(labels, self._classes).to(device=self._device, dtype=self._dtype)
        full = np.zeros((self._stack, rows))
        full[:, : weights.shape[1]] = weights
        squares = None
        if inputs.is_floating_point():
            squares = inputs.flatten(1).square().sum(1).expand(self._stack, rows)
        return Pass(
            inputs.expand(self._stack, *inputs.shape),
            onehot.expand(self._stack, *onehot.shape),
            torch.from_numpy(full).to(device=self._device, dtype=self._dtype),
            squares,
            counts,
        )

    def passes(self, *, examples: tuple[Tensor, Tensor] | None) -> Iterator[Pass]:
        """The passes of one step."""
        yield from self._passes
        if self._canary is not None:
            if examples is not None:
                self._canary.x[:, : self._copies] = examples[0]
                self._canary.targets[:, : self._copies] = examples[1]
            yield self._canary
