"""The two worlds kept apart in every step: what they share, and the gradients of the one row in which they differ."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.errors import UnsupportedError
from coalmine.records import Sampling
from coalmine.training.batching import Pass, Table
from coalmine.training.canary import ExampleCanary, Neighbours
from coalmine.training.clipping import ClosedForm, parameter_views
from coalmine.training.config import TrainingConfig
from coalmine.training.data import Dataset
from coalmine.training.layers import Run, Scratch
from coalmine.training.models import padded
from coalmine.training.modules import PerExample


@dataclasses.dataclass(frozen=True)
class Pair:
    """What an observer who knows both data sets sees of a step (:class:`coalmine.roles.WorldsApart`)."""

    shared: Tensor
    canary: Tensor
    replaced: Tensor | None


def check_pair(neighbours: Neighbours) -> None:
    """The worlds must differ in one example."""
    if not isinstance(neighbours.base, Dataset) or not isinstance(neighbours.canary, ExampleCanary):
        raise UnsupportedError("the local sensitivity is that of one example: the canary or the base data is none")
    if neighbours.copies != 1:
        raise UnsupportedError(
            f"the worlds differ in {neighbours.copies} rows: expected neighbours that differ in one row"
        )


class PairTerm:
    """The clipped gradients of the canary and of the row that it replaces, for every model whatever its world."""

    def __init__(
        self,
        neighbours: Neighbours,
        config: TrainingConfig,
        *,
        engine: ClosedForm | PerExample,
        table: Table,
        parameters: Tensor,
    ) -> None:
        models, size = parameters.shape
        self._engine, self._clip = engine, config.kernel_clip(parameters.device.type)
        self._rows = neighbours.base.rows
        self._full = config.sampling is Sampling.FULL
        self._views = parameter_views(parameters, engine.layers)
        divisor = config.expected_batch(neighbours.base.rows)
        numbers = [self._rows, *neighbours.replaced]
        self._passes = [_one_row(table, row, models=models, divisor=divisor) for row in numbers]
        held = torch.zeros((len(numbers) + 1, models, padded(size)), dtype=parameters.dtype, device=parameters.device)
        self._shared, self._canary, *rest = held[:, :, :size].unbind(0)
        self._replaced: Tensor | None = rest[0] if rest else None
        self._replaced_row = neighbours.replaced[0] if rest else -1
        self._out = [parameter_views(one, engine.layers) for one in (self._canary, *rest)]

    def split(
        self, drawn: list[NDArray[np.int64]], worlds: NDArray[np.int64]
    ) -> tuple[list[NDArray[np.int64]], NDArray[np.float64]]:
        """The drawn rows without the pair's, and how often each row of the pair was drawn, ``[2, S]``.

        Full batches share one pass over the base rows, the replaced one included: ``join`` takes it out again.
        """
        if self._full:
            return drawn, np.stack([worlds, 1 - worlds]).astype(np.float64)
        times = np.asarray([[(rows >= self._rows).sum(), (rows == self._replaced_row).sum()] for rows in drawn])
        return [rows[(rows < self._rows) & (rows != self._replaced_row)] for rows in drawn], times.T.astype(np.float64)

    def compute(self, scratch: Scratch) -> None:
        """The pair's clipped gradients at the current parameters, over the expected batch size."""
        for one, out in zip(self._passes, self._out, strict=True):
            self._engine.clipped_sums(
                self._views,
                out,
                x=one.x,
                targets=one.targets,
                weights=one.weights,
                clip=self._clip,
                run=Run(scratch, one.counts, width=0, input_squares=one.squares),
                accumulate=False,
            )

    def join(self, gradient: Tensor, times: NDArray[np.float64]) -> None:
        """Keep what both worlds share and add to it what each model's own world drew of the pair."""
        if self._full and self._replaced is not None:
            gradient.sub_(self._replaced)
        self._shared.copy_(gradient)
        for mine, often in ((self._canary, times[0]), (self._replaced, times[1])):
            if mine is not None:
                gradient.add_(mine * torch.from_numpy(often).to(mine)[:, None])

    def sensitivity(self) -> Tensor:
        """LS of each model over the expected batch size, ``[S]``: ‖ḡ(x̂)‖, or ‖ḡ(x̂) − ḡ(x̂′)‖ for replaced rows."""
        apart = self._canary if self._replaced is None else self._canary - self._replaced
        # Row by row, so that the order of the sum cannot depend on how many models there are.
        return torch.stack([torch.linalg.vector_norm(row) for row in apart.unbind(0)])

    def shown(self, models: int) -> Pair:
        """For the observer: the models that are not idle."""
        replaced = None if self._replaced is None else self._replaced[:models]
        return Pair(self._shared[:models], self._canary[:models], replaced)


def _one_row(table: Table, row: int, *, models: int, divisor: float) -> Pass:
    """A pass in which every model has this one row, padded with zeros of weight 0."""

    def spread(values: Tensor) -> Tensor:
        full = torch.zeros((padded(1), *values.shape[1:]), dtype=values.dtype, device=values.device)
        full[0] = values[row]
        return full.expand(models, *full.shape)

    weights = torch.zeros((models, padded(1)), dtype=table.onehot.dtype, device=table.x.device)
    weights[:, 0] = 1.0 / divisor
    return Pass(
        torch.unflatten(spread(table.x), 2, table.shape),
        spread(table.onehot),
        weights,
        None if table.squares is None else spread(table.squares),
        [1] * models if table.x.device.type == "cpu" else None,
    )
