"""The two worlds kept apart in every step: what they share, and the gradients of the one row in which they differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalmine.errors import UnsupportedError
from coalmine.records import Sampling
from coalmine.roles import WorldsApart
from coalmine.training.batching import Table, same_rows
from coalmine.training.canary import ExampleCanary, Neighbours, StackState
from coalmine.training.clipping import ClosedForm, parameter_views
from coalmine.training.data import Dataset
from coalmine.training.job import Job
from coalmine.training.modules import PerExample
from coalmine.training.products import padded
from coalmine.training.sums import TiledSums, Vectors


def check_pair(neighbours: Neighbours) -> None:
    """The worlds must differ in one example."""
    if not isinstance(neighbours.base, Dataset) or not isinstance(neighbours.canary, ExampleCanary):
        raise UnsupportedError("the local sensitivity is that of one example: the canary or the base data is none")
    if neighbours.copies != 1:
        raise UnsupportedError(
            f"the worlds differ in {neighbours.copies} rows: expected neighbours that differ in one row"
        )


class PairedSums:
    """Clipped sums of the rows that both worlds share, and of the pair's rows, for every model whatever its world."""

    def __init__(self, job: Job, vectors: Vectors, table: Table, engine: ClosedForm | PerExample) -> None:
        neighbours, parameters = job.neighbours, vectors.parameters
        self._vectors, self._engine, self._rows = vectors, engine, job.rows
        self._clip = job.config.kernel_clip(job.device.type)
        self._full = job.config.sampling is Sampling.FULL
        # Full batches share one pass over the base rows, the replaced one included, which is taken out again.
        self._shared_rows = TiledSums(job, vectors, table, engine, neighbours=Neighbours(neighbours.base))
        numbers = [self._rows, *neighbours.replaced]
        weights = np.full((vectors.models, 1), 1.0 / job.batch)
        self._batches = [same_rows(table, slice(row, row + 1), weights) for row in numbers]
        held = torch.zeros((len(numbers) + 1, vectors.models, padded(parameters.shape[1]))).to(parameters)
        self._shared, self._canary, *rest = held[:, :, : parameters.shape[1]].unbind(0)
        self._replaced: Tensor | None = rest[0] if rest else None
        self._replaced_row = neighbours.replaced[0] if rest else -1
        self._views = parameter_views(parameters, engine.layers)
        self._out = [parameter_views(one, engine.layers) for one in (self._canary, *rest)]

    def __call__(self, drawn: list[Any], state: StackState) -> None:
        """What both worlds share is kept; added to it is what each model's own world drew of the pair."""
        rows, gradient = drawn, self._vectors.gradient
        worlds = self._vectors.worlds
        times = np.stack([worlds, 1 - worlds]).astype(np.float64)
        if not self._full:
            count = [[(mine >= self._rows).sum(), (mine == self._replaced_row).sum()] for mine in drawn]
            times = np.asarray(count).T.astype(np.float64)
            rows = [mine[(mine < self._rows) & (mine != self._replaced_row)] for mine in drawn]
        self._shared_rows(rows, state)
        with torch.inference_mode(isinstance(self._engine, ClosedForm)):
            for batch, out in zip(self._batches, self._out, strict=True):
                self._engine.clipped_sums(self._views, out, batch, clip=self._clip, accumulate=False)
        if self._full and self._replaced is not None:
            gradient.sub_(self._replaced)
        self._shared.copy_(gradient)
        for one, often in ((self._canary, times[0]), (self._replaced, times[1])):
            if one is not None:
                gradient.add_(one * torch.from_numpy(often).to(one)[:, None])

    def sensitivity(self) -> Tensor:
        """LS of each model over the expected batch size, ``[S]``: ‖ḡ(x̂)‖, or ‖ḡ(x̂) − ḡ(x̂′)‖ for replaced rows."""
        apart = self._canary if self._replaced is None else self._canary - self._replaced
        # Row by row from memory of its own, so that the order of the sum cannot depend on the other models.
        return torch.stack([torch.linalg.vector_norm(row.clone()) for row in apart.unbind(0)])

    def shown(self) -> WorldsApart:
        """For the observer: the models that are not idle."""
        used = self._vectors.used
        replaced = None if self._replaced is None else self._replaced[:used]
        return WorldsApart(self._shared[:used], self._canary[:used], replaced)
