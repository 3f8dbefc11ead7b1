"""From drawn rows to padded buffers: the base rows, the canary's rows, their labels and weights, for a few models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

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
_PASS_FLOATS = 2**21
"""About how many numbers the examples of one model's pass may need."""

Examples = tuple[Tensor, Tensor]
"""An adaptive canary's inputs ``[S, k, ...]`` and one-hot labels ``[S, k, classes]``."""


@dataclasses.dataclass
class Pass:
    """At most W examples a model: inputs ``[S, W, ...]``, one-hot targets, weights (0: padding), squared norms."""

    x: Tensor
    targets: Tensor
    weights: Tensor
    squares: Tensor | None
    counts: Counts


def width(config: TrainingConfig, *, rows: int, example_floats: int) -> int:
    """W, a function of config and network: what a Poisson batch exceeds once in a million steps, to a multiple of 32.

    A batch that does exceed it goes through in several passes, so nothing is ever cut off. Networks that need much
    memory for an example take fewer at a time.
    """
    limit = int(np.clip(_PASS_FLOATS // example_floats // 32 * 32, 32, MAX_WIDTH))
    rate = config.rate(rows)
    if config.sampling is Sampling.POISSON and 0.0 < rate < 1.0:
        size = int(stats.binom.isf(1e-6, rows, rate)) + 1
    else:
        size = int(np.ceil(config.expected_batch(rows))) + 1
    return min(padded(size), limit)


class Batcher:
    """Gathers each model's own rows. Base rows are 0 to n − 1, canary rows n to n + k − 1.

    ``divisor`` is the expected batch size: a row in use has weight 1/divisor.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        *,
        models: int,
        classes: int,
        width: int,
        tokens: bool,
        divisor: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        base, copies, canary = neighbours.base, neighbours.copies, neighbours.canary
        assert isinstance(base, Dataset)
        self._rows, self._shape, self._width, self._on_cpu = base.rows, base.shape, width, device.type == "cpu"
        kind = torch.int64 if tokens else dtype
        x = np.zeros((base.rows + copies, int(np.prod(base.shape))), dtype=np.int64 if tokens else np.float64)
        x[: base.rows] = base.x.reshape(base.rows, -1)
        labels = np.zeros(base.rows + copies, dtype=np.int64)
        labels[: base.rows] = base.y
        if isinstance(canary, ExampleCanary):
            x[base.rows :] = canary.x.reshape(copies, -1)
            labels[base.rows :] = canary.y
        self._x = torch.from_numpy(x).to(device=device, dtype=kind)
        self._onehot = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).to(device=device, dtype=dtype)
        self._squares = None if tokens else (self._x * self._x).sum(1)
        # Row c has 1/divisor in its first c places: the weights of a batch of c rows, looked up instead of built.
        self._masks = torch.ones((width + 1, width), dtype=dtype, device=device).tril_(-1).div_(divisor)
        self._buffer = torch.zeros((models, width, self._x.shape[1]), dtype=self._x.dtype, device=device)
        self._targets = torch.zeros((models, width, classes), dtype=dtype, device=device)
        self._weights = torch.zeros((models, width), dtype=dtype, device=device)
        self._picked = torch.zeros((models, width), dtype=dtype, device=device)
        self._index = np.zeros((models, width), dtype=np.int64)

    def passes(self, drawn: Sequence[NDArray[np.int64]], *, examples: Examples | None) -> Iterator[Pass]:
        """The passes of one step: W rows of each model at a time, until every model's batch is done."""
        longest = max(rows.size for rows in drawn)
        if longest <= self._width:
            yield self._fill(drawn, examples)
            return
        for start in range(0, longest, self._width):
            yield self._fill([rows[start : start + self._width] for rows in drawn], examples)

    def _fill(self, drawn: Sequence[NDArray[np.int64]], examples: Examples | None) -> Pass:
        models, counts = len(drawn), [rows.size for rows in drawn]
        for place, rows in zip(self._index, drawn, strict=False):
            place[: rows.size] = rows
        index = torch.from_numpy(self._index[:models])
        buffer, targets, weights = self._buffer[:models], self._targets[:models], self._weights[:models]
        if self._on_cpu:
            for n, chosen, target in zip(counts, index.unbind(0), buffer.unbind(0), strict=True):
                torch.index_select(self._x, 0, chosen[:n], out=target[:n])
        else:
            index = index.to(self._x.device)
            torch.index_select(self._x, 0, index.view(-1), out=buffer.view(-1, self._x.shape[1]))
        flat = index.view(-1)
        torch.index_select(self._onehot, 0, flat, out=targets.view(flat.numel(), -1))
        torch.index_select(self._masks, 0, torch.tensor(counts, device=self._x.device), out=weights)
        squares = None
        if self._squares is not None:
            squares = self._picked[:models]
            torch.index_select(self._squares, 0, flat, out=squares.view(-1))
        if examples is not None:
            self._put(drawn, *examples, squares=squares)
        return Pass(
            torch.unflatten(buffer, 2, self._shape), targets, weights, squares, counts if self._on_cpu else None
        )

    def _put(self, drawn: Sequence[NDArray[np.int64]], x: Tensor, onehot: Tensor, *, squares: Tensor | None) -> None:
        """Write an adaptive canary's rows over their places."""
        flat = x.flatten(2)
        for i, rows in enumerate(drawn):
            for place in np.flatnonzero(rows >= self._rows).tolist():
                copy = int(rows[place]) - self._rows
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
        tokens: bool,
        divisor: float,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        base, canary, self._copies = neighbours.base, neighbours.canary, neighbours.copies
        assert isinstance(base, Dataset)
        self._classes, self._divisor, self._device, self._dtype = classes, divisor, device, dtype
        self._tokens = tokens
        inside = np.asarray(worlds)[:, None]
        self._passes: list[Pass] = []
        for start in range(0, base.rows, width):
            x, y = base.x[start : start + width], base.y[start : start + width]
            weights = np.ones((inside.size, y.size))
            for row in neighbours.replaced:
                if start <= row < start + y.size:
                    weights[inside[:, 0] == 1, row - start] = 0.0
            self._passes.append(self._shared(x, y, weights))
        self._adaptive = canary is not None and hasattr(canary, "examples")
        if isinstance(canary, ExampleCanary):
            self._passes.append(self._shared(canary.x, canary.y, np.repeat(inside, self._copies, axis=1)))
        elif self._adaptive:
            x, y = np.zeros((self._copies, *base.shape), dtype=base.x.dtype), np.zeros(self._copies, dtype=np.int64)
            chosen = self._shared(x, y, np.repeat(inside, self._copies, axis=1))
            chosen.x, chosen.targets, chosen.squares = chosen.x.clone(), chosen.targets.clone(), None
            self._passes.append(chosen)

    def _shared(self, x: NDArray[np.generic], y: NDArray[np.int64], weights: NDArray[Any]) -> Pass:
        """A pass in which every model has the same rows."""
        (models, used), rows = weights.shape, padded(y.size)
        inputs = torch.from_numpy(np.concatenate([x, np.zeros((rows - used, *x.shape[1:]), dtype=x.dtype)]))
        inputs = inputs.to(device=self._device, dtype=torch.int64 if self._tokens else self._dtype)
        labels = torch.from_numpy(np.concatenate([y, np.zeros(rows - used, dtype=np.int64)]))
        onehot = torch.nn.functional.one_hot(labels, self._classes).to(device=self._device, dtype=self._dtype)
        full = np.zeros((models, rows))
        full[:, :used] = weights / self._divisor
        squares = inputs.flatten(1).square().sum(1).expand(models, rows) if not self._tokens else None
        return Pass(
            inputs.expand(models, *inputs.shape),
            onehot.expand(models, *onehot.shape),
            torch.from_numpy(full).to(device=self._device, dtype=self._dtype),
            squares,
            [used] * models if self._device.type == "cpu" else None,
        )

    def passes(self, *, examples: Examples | None) -> Iterator[Pass]:
        """The passes of one step."""
        if self._adaptive and examples is not None:
            self._passes[-1].x[:, : self._copies] = examples[0]
            self._passes[-1].targets[:, : self._copies] = examples[1]
        yield from self._passes
