"""From drawn rows to padded buffers: the base rows, the canary's rows, their labels and weights, for a few models."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from coalmine.records import Sampling
from coalmine.training.canary import AdaptiveExample, ExampleCanary, Neighbours
from coalmine.training.config import TrainingConfig
from coalmine.training.data import Dataset
from coalmine.training.products import Counts, padded

MAX_WIDTH = 1024
"""Larger batches go through in several passes."""
_PASS_FLOATS = 2**21
"""About how many numbers the examples of one model's pass may need."""

Examples = tuple[Tensor, Tensor]
"""An adaptive canary's inputs ``[S, k, ...]`` and one-hot labels ``[S, k, classes]``."""


@dataclasses.dataclass
class Batch:
    """At most W examples a model: inputs ``[S, W, ...]``, one-hot targets, weights (0: padding), squared norms.

    A single model may come without the stack's dimension and without padding; ``width`` is then W.
    """

    x: Tensor
    targets: Tensor
    weights: Tensor
    squares: Tensor | None
    counts: Counts
    width: int = 0


def width(config: TrainingConfig, *, rows: int, example_floats: int) -> int:
    """W, a function of config and network: what a Poisson batch exceeds once in a million steps, to a multiple of 32.

    A batch that does exceed it goes through in several passes, so nothing is ever cut off. Networks that need much
    memory for an example take fewer at a time.
    """
    limit = int(np.clip(_PASS_FLOATS // example_floats // 32 * 32, 32, MAX_WIDTH))
    rate = config.rate(rows)
    if config.sampling is Sampling.POISSON and 0.0 < rate < 1.0:
        size = _poisson_size(rows, rate)
    else:
        size = int(np.ceil(config.expected_batch(rows))) + 1
    return min(padded(size), limit)


@functools.lru_cache(maxsize=64)
def _poisson_size(rows: int, rate: float) -> int:
    """Asked at every step by those who look at single rows, and slow."""
    return int(stats.binom.isf(1e-6, rows, rate)) + 1


class Table:
    """All rows that a step can draw, ready on the device: base rows 0 to n − 1, canary rows n to n + k − 1."""

    def __init__(
        self, neighbours: Neighbours, *, classes: int, tokens: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        assert isinstance(neighbours.base, Dataset)
        self.base_rows, self.shape = neighbours.base.rows, neighbours.base.shape
        x, labels = neighbours.all_rows()
        self.x = torch.from_numpy(x).to(device=device, dtype=torch.int64 if tokens else dtype)
        self.onehot = torch.nn.functional.one_hot(torch.from_numpy(labels), classes).to(device=device, dtype=dtype)
        self.squares = None if tokens else torch.linalg.vector_norm(self.x, dim=1).square_()


class Batcher:
    """Gathers each model's own rows into buffers ``[models, W, ...]``.

    ``divisor`` is the expected batch size: a row in use has weight 1/divisor. Where a tile is a single model by design
    (``exact``), its rows come as plain matrices without padding; otherwise the width is always W, and ``counts`` says
    what is used.
    """

    def __init__(self, table: Table, *, models: int, width: int, exact: bool, divisor: float) -> None:
        self._table, self._width, self._exact = table, width, exact
        device, dtype = table.x.device, table.onehot.dtype
        self._on_cpu = device.type == "cpu"
        # Row c has 1/divisor in its first c places: the weights of a batch of c rows, looked up instead of built.
        self._masks = torch.ones((width + 1, width), dtype=dtype, device=device).tril_(-1).div_(divisor)
        self._buffer = torch.zeros((models, width, table.x.shape[1]), dtype=table.x.dtype, device=device)
        self._targets = torch.zeros((models, width, table.onehot.shape[1]), dtype=dtype, device=device)
        self._weights = torch.zeros((models, width), dtype=dtype, device=device)
        self._picked = torch.zeros((models, width), dtype=dtype, device=device)
        self._index = np.zeros((models, width), dtype=np.int64)

    def passes(self, drawn: Sequence[NDArray[np.int64]], *, examples: Examples | None = None) -> Iterator[Batch]:
        """The passes of one step: W rows of each model at a time, until every model's batch is done."""
        longest = max(rows.size for rows in drawn)
        if longest <= self._width:
            yield self._fill(drawn, examples)
            return
        for start in range(0, longest, self._width):
            yield self._fill([rows[start : start + self._width] for rows in drawn], examples)

    def _fill(self, drawn: Sequence[NDArray[np.int64]], examples: Examples | None) -> Batch:
        table, models = self._table, len(drawn)
        if self._exact:
            return self._fill_one(drawn[0], examples)
        counts = [rows.size for rows in drawn]
        for place, rows in zip(self._index, drawn, strict=False):
            place[: rows.size] = rows
        index = torch.from_numpy(self._index[:models])
        buffer, targets = self._buffer[:models], self._targets[:models]
        weights, squares = self._weights[:models], self._picked[:models]
        torch.index_select(self._masks, 0, torch.tensor(counts, device=self._masks.device), out=weights)
        if self._on_cpu:
            for n, chosen, target in zip(counts, index.unbind(0), buffer.unbind(0), strict=True):
                torch.index_select(table.x, 0, chosen[:n], out=target[:n])
            index = index.view(-1)
        else:
            index = index.to(table.x.device).view(-1)
            torch.index_select(table.x, 0, index, out=buffer.view(-1, table.x.shape[1]))
        torch.index_select(table.onehot, 0, index, out=targets.view(index.numel(), -1))
        if table.squares is not None:
            torch.index_select(table.squares, 0, index, out=squares.view(-1))
        if examples is not None:
            self._put(drawn, *examples)
        if len(table.shape) > 1:
            buffer = torch.unflatten(buffer, 2, table.shape)
        return Batch(
            buffer, targets, weights, None if table.squares is None else squares, counts if self._on_cpu else None
        )

    def _fill_one(self, rows: NDArray[np.int64], examples: Examples | None) -> Batch:
        """One model's rows as plain matrices, none of them padding."""
        table, index, used = self._table, torch.from_numpy(rows), rows.size
        buffer, targets, squares = self._buffer[0, :used], self._targets[0, :used], self._picked[0, :used]
        torch.index_select(table.x, 0, index, out=buffer)
        torch.index_select(table.onehot, 0, index, out=targets)
        if table.squares is not None:
            torch.index_select(table.squares, 0, index, out=squares)
        if examples is not None:
            self._put([rows], *examples)
        squares_or_none = None if table.squares is None else squares
        return Batch(buffer, targets, self._masks[used, :used], squares_or_none, None, width=self._width)

    def _put(self, drawn: Sequence[NDArray[np.int64]], x: Tensor, onehot: Tensor) -> None:
        """Write an adaptive canary's rows over their places."""
        flat, first = x.flatten(2), self._table.base_rows
        for i, rows in enumerate(drawn):
            for place in np.flatnonzero(rows >= first).tolist():
                copy = int(rows[place]) - first
                self._buffer[i, place] = flat[i, copy]
                self._targets[i, place] = onehot[i, copy]
                if self._table.squares is not None:
                    self._picked[i, place] = (flat[i, copy] * flat[i, copy]).sum()


def same_rows(table: Table, block: slice, weights: NDArray[Any], *, room: int | None = None) -> Batch:
    """A batch in which every model has the same rows, each with its own ``weights``, padded with zeros of weight 0.

    Padding is to ``room`` rows where they fit, or else to a multiple of 32.
    """
    models, used = weights.shape
    rows = padded(used) if room is None or room < used else room

    def spread(values: Tensor) -> Tensor:
        full = torch.zeros((rows, *values.shape[1:]), dtype=values.dtype, device=values.device)
        full[:used] = values[block]
        return full.expand(models, *full.shape)

    full = torch.zeros((models, rows), dtype=table.onehot.dtype, device=table.x.device)
    full[:, :used] = torch.from_numpy(weights)
    return Batch(
        torch.unflatten(spread(table.x), 2, table.shape),
        spread(table.onehot),
        full,
        None if table.squares is None else spread(table.squares),
        [used] * models if table.x.device.type == "cpu" else None,
    )


class FullBatcher:
    """Every row in every step: the base rows are shared by all models, so nothing is gathered."""

    def __init__(
        self,
        table: Table,
        neighbours: Neighbours,
        *,
        worlds: NDArray[np.int64],
        width: int,
        divisor: float,
        room: int | None = None,
    ) -> None:
        self._copies = neighbours.copies
        inside = worlds[:, None]
        self._passes: list[Batch] = []
        for start in range(0, table.base_rows, width):
            block = slice(start, min(start + width, table.base_rows))
            weights = np.ones((inside.size, block.stop - start))
            for row in neighbours.replaced:
                if start <= row < block.stop:
                    weights[worlds == 1, row - start] = 0.0
            self._passes.append(same_rows(table, block, weights / divisor, room=room))
        canary = neighbours.canary
        if isinstance(canary, ExampleCanary | AdaptiveExample):
            rows = slice(table.base_rows, table.base_rows + self._copies)
            self._passes.append(same_rows(table, rows, np.repeat(inside, self._copies, axis=1) / divisor))
        if isinstance(canary, AdaptiveExample):
            last = self._passes[-1]
            last.x, last.targets, last.squares = last.x.clone(), last.targets.clone(), None

    def passes(self, drawn: object = None, *, examples: Examples | None = None) -> Iterator[Batch]:
        """The passes of one step; what was drawn is every row."""
        if examples is not None:
            self._passes[-1].x[:, : self._copies] = examples[0]
            self._passes[-1].targets[:, : self._copies] = examples[1]
        yield from self._passes
