"""The sum of a step's clipped gradients for a whole stack: of the rows that were drawn, and of a canary's gradient."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.errors import InvalidInputError
from coalmine.records import Sampling
from coalmine.training.batching import Batcher, FullBatcher, Table, width
from coalmine.training.canary import (
    AdaptiveExample,
    AdaptiveGradient,
    GradientCanary,
    GradientRows,
    Neighbours,
    StackState,
)
from coalmine.training.clipping import ClosedForm, Views, clip_divisors, parameter_views
from coalmine.training.data import AlikeRows, ZeroGradients
from coalmine.training.device_draws import DeviceDraws
from coalmine.training.job import Job
from coalmine.training.modules import PerExample
from coalmine.training.networks import example_floats, takes_tokens
from coalmine.training.products import in_parts, line_norms

_TILE_BYTES = 2**19
"""Inputs of one tile: about half of a core's second-level cache."""
_SMALL = 4096
"""Up to this many parameters, a canary's gradient is added for the whole stack at once."""


@dataclasses.dataclass(frozen=True, eq=False)
class Vectors:
    """Parameters and private gradient ``[S, P]`` and the world of S trainings, of which those after ``used`` are idle.

    On a GPU every stack is filled up to the same number of models, so that all have the same shapes.
    """

    parameters: Tensor
    gradient: Tensor
    worlds: NDArray[np.int64]
    used: int

    @property
    def models(self) -> int:
        """S, idle ones included."""
        return self.parameters.shape[0]

    def filled(self, rows: Tensor) -> Tensor:
        """Repeat the last row until there is one for every model, idle ones included."""
        missing = self.models - rows.shape[0]
        return torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])]) if missing else rows

    def clipped(self, gradients: Any, *, whose: str, clip: float, divisor: float) -> Tensor:
        """Gradients that were chosen, one for each model in use, clipped to C and divided by the batch size."""
        tensor, expected = torch.as_tensor(gradients), (self.used, self.parameters.shape[1])
        if tuple(tensor.shape) != expected:
            raise InvalidInputError(f"the {whose} gave gradients of shape {tuple(tensor.shape)}: expected {expected}")
        tensor = self.filled(tensor.to(self.parameters))
        return tensor / clip_divisors(in_parts(line_norms, tensor), clip=clip) / divisor


Sums = Callable[[list[Any], StackState], object]
"""Writes the clipped gradients of the rows that were drawn, over the expected batch size, into the gradient."""


class AlikeSums:
    """Base rows that are all alike: only how many were drawn matters."""

    def __init__(self, job: Job, base: AlikeRows, vectors: Vectors) -> None:
        self._gradient, self._vectors = base.gradient, vectors
        self._options: dict[str, Any] = {"whose": "base data", "clip": job.config.clip, "divisor": job.batch}

    def __call__(self, drawn: list[Any], state: StackState) -> None:
        """The one gradient, as often as a base row was drawn."""
        shared = self._vectors.clipped(self._gradient(state.parameters, state.step), **self._options)
        counts = torch.as_tensor([base for base, _ in drawn]).to(shared)
        torch.mul(shared, counts[:, None], out=self._vectors.gradient)


class CanaryTerm(abc.ABC):
    """What a canary adds that is no example."""

    shared: Tensor | None = None
    """What the other rows added in this step, ``[S, P]``, where an observer may see it."""

    def __init__(self, job: Job, vectors: Vectors) -> None:
        self._job, self._vectors, self._base = job, vectors, job.neighbours.base

    def split(self, drawn: list[Any]) -> tuple[list[Any], list[Any]]:
        """For each model what was drawn of the base rows, and the numbers of the canary's rows (or how many)."""
        if isinstance(self._base, AlikeRows):
            return drawn, [range(canary) for _, canary in drawn]
        n = self._base.rows
        own = [rows[rows >= n] - n for rows in drawn]
        return drawn if isinstance(self._base, ZeroGradients) else [rows[rows < n] for rows in drawn], own

    @abc.abstractmethod
    def add(self, own: list[Any]) -> None:
        """Add to the gradient of each model what was drawn of the canary."""


class CanaryGradient(CanaryTerm):
    """A canary that is a gradient, fixed or chosen anew each step."""

    def __init__(self, job: Job, vectors: Vectors, canary: GradientCanary | AdaptiveGradient) -> None:
        super().__init__(job, vectors)
        self._canary = canary
        self._options: dict[str, Any] = {"whose": "canary", "clip": job.config.clip, "divisor": job.batch}
        self._now: Tensor | None = None
        if isinstance(canary, GradientCanary):
            fixed = torch.from_numpy(canary.gradient).to(vectors.parameters)
            self._now = vectors.clipped(fixed.expand(vectors.used, -1), **self._options)

    def look(self, state: StackState) -> None:
        """Choose the gradient of this step, before the sums overwrite the one that is shown here."""
        if isinstance(self._canary, AdaptiveGradient):
            self._now = self._vectors.clipped(self._canary.gradients(state), **self._options)

    def split(self, drawn: Any) -> tuple[Any, Any]:
        """The same, or both on the device that drew them."""
        return (drawn, drawn.times) if isinstance(drawn, DeviceDraws) else super().split(drawn)

    def add(self, own: Any) -> None:
        """The gradient, as often as a row of the canary was drawn."""
        gradient, now = self._vectors.gradient, self._now
        assert now is not None
        if isinstance(own, Tensor):
            gradient.addcmul_(now, own.to(now)[:, None])
            return
        times = np.asarray([len(rows) for rows in own])
        if not times.any():
            return
        if gradient.shape[1] <= _SMALL:
            gradient.add_(now * torch.from_numpy(times).to(now)[:, None])
            return
        for position in np.flatnonzero(times).tolist():
            gradient[position].add_(now[position] * float(times[position]))


class CanaryRows(CanaryTerm):
    """A canary of rows with a few entries each."""

    def __init__(self, job: Job, vectors: Vectors, canary: GradientRows) -> None:
        super().__init__(job, vectors)
        norms = torch.linalg.vector_norm(torch.from_numpy(canary.values), dim=1, keepdim=True)
        clipped = torch.from_numpy(canary.values) / clip_divisors(norms, clip=job.config.clip) / job.batch
        self._places, self._values = torch.from_numpy(canary.indices).to(job.device), clipped.to(vectors.parameters)
        self.shared = torch.zeros_like(vectors.gradient)

    def add(self, own: list[Any]) -> None:
        """Each row that was drawn, at its places; what was there before is kept to be shown."""
        assert self.shared is not None
        self.shared.copy_(self._vectors.gradient)
        for gradient, rows in zip(self._vectors.gradient.unbind(0), own, strict=True):
            index = torch.from_numpy(rows).to(gradient.device)
            # index_put_ adds in a fixed order on every device; index_add_ does not on a GPU.
            gradient.index_put_((self._places[index].view(-1),), self._values[index].view(-1), accumulate=True)


class ChosenRows:
    """The examples that an adaptive canary chooses, checked, for the whole stack."""

    def __init__(self, job: Job, vectors: Vectors, canary: AdaptiveExample) -> None:
        self._job, self._vectors, self._canary = job, vectors, canary

    def __call__(self, drawn: Any, state: StackState) -> tuple[Tensor, Tensor]:
        """Inputs ``[S, k, ...]`` and labels ``[S, k]``.

        A canary without memory gives a model the same examples whether or not others are asked beside it, so on a CPU,
        where models take turns anyway, only those are asked for whose batch holds the canary.
        """
        job, vectors, canary = self._job, self._vectors, self._canary
        if job.device.type != "cpu" or not canary.memoryless:
            inputs, labels = self._checked(state)
            return vectors.filled(inputs), vectors.filled(labels)
        shape = (vectors.used, canary.copies)
        inputs = torch.zeros((*shape, *job.network.input_shape), dtype=job.dtype)
        labels = torch.zeros(shape, dtype=torch.int64)
        needed = [position for position, rows in enumerate(drawn) if rows.size and int(rows.max()) >= job.rows]
        if needed:
            gradient = None if state.private_gradient is None else state.private_gradient[needed]
            part = StackState(state.trials[needed], state.step, state.parameters[needed], gradient)
            inputs[needed], labels[needed] = self._checked(part)
        return inputs, labels

    def _checked(self, state: StackState) -> tuple[Tensor, Tensor]:
        """What the canary gives for these models."""
        job, canary, network = self._job, self._canary, self._job.network
        x, y = canary.examples(state)
        inputs, labels = torch.as_tensor(x), torch.as_tensor(y)
        expected = (state.trials.size, canary.copies)
        shape = (*expected, *network.input_shape)
        if tuple(inputs.shape) != shape or tuple(labels.shape) != expected:
            raise InvalidInputError(
                f"the canary gave inputs of shape {tuple(inputs.shape)} and labels of shape {tuple(labels.shape)}: "
                f"expected {shape} and {expected}"
            )
        if not ((labels >= 0) & (labels < network.classes)).all():
            raise InvalidInputError(
                f"the canary gave labels from {labels.min()} to {labels.max()}: expected 0 to {network.classes - 1}"
            )
        kind = torch.int64 if takes_tokens(network) else job.dtype
        return inputs.to(device=job.device, dtype=kind), labels.to(device=job.device, dtype=torch.int64)


@dataclasses.dataclass(frozen=True)
class Tile:
    """A few models of the stack that go through forward and backward together."""

    part: slice
    views: Views
    out: Views
    batcher: Batcher | FullBatcher


class TiledSums:
    """Torch's operations on the rows of a data set, a few models at a time whose buffers stay in the cache."""

    def __init__(
        self,
        job: Job,
        vectors: Vectors,
        table: Table,
        engine: ClosedForm | PerExample,
        *,
        then: Callable[[slice], None] | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """``then`` is called for the models of each tile that is done. ``neighbours``: other worlds than the job's."""
        self._job, self._vectors, self._engine, self._then = job, vectors, engine, then
        self._clip = job.config.kernel_clip(job.device.type)
        canary = job.neighbours.canary
        self._chosen = ChosenRows(job, vectors, canary) if isinstance(canary, AdaptiveExample) else None
        self._tiles = list(self._make_tiles(table, neighbours or job.neighbours))

    def _make_tiles(self, table: Table, neighbours: Neighbours) -> Iterator[Tile]:
        """The stack cut into tiles (one tile on a GPU)."""
        job, vectors, engine = self._job, self._vectors, self._engine
        stack, on_cpu = vectors.models, job.device.type == "cpu"
        rows = width(job.config, rows=job.rows, example_floats=example_floats(job.network))
        size = stack
        if on_cpu:
            size = max(1, _TILE_BYTES // (rows * math.prod(table.shape) * vectors.parameters.element_size()))
        batcher, exact = None, False
        if job.config.sampling is not Sampling.FULL:
            # A tile that holds one model whatever the stack needs no padding to be the same in every stack.
            exact = size == 1 and on_cpu and engine.takes_matrices
            batcher = Batcher(table, models=min(size, stack), width=rows, exact=exact, divisor=job.batch)
        for start in range(0, stack, size):
            part = slice(start, min(start + size, stack))
            views, out = (parameter_views(side[part], engine.layers) for side in (vectors.parameters, vectors.gradient))
            if exact:
                views, out = ([[p[0] for p in layer] for layer in side] for side in (views, out))
            full = batcher or FullBatcher(table, neighbours, worlds=vectors.worlds[part], width=rows, divisor=job.batch)
            yield Tile(part, views, out, full)

    def __call__(self, drawn: list[Any], state: StackState) -> None:
        """Tile by tile, an adaptive canary's examples in their places."""
        examples = None
        if self._chosen is not None:
            inputs, labels = self._chosen(drawn, state)
            examples = inputs, torch.nn.functional.one_hot(labels, self._job.network.classes).to(self._job.dtype)
        # Inference mode spares each call some bookkeeping; torch.func cannot work within it.
        with torch.inference_mode(isinstance(self._engine, ClosedForm)):
            for tile in self._tiles:
                mine = None if examples is None else (examples[0][tile.part], examples[1][tile.part])
                for number, batch in enumerate(tile.batcher.passes(drawn[tile.part], examples=mine)):
                    self._engine.clipped_sums(tile.views, tile.out, batch, clip=self._clip, accumulate=number > 0)
                if self._then is not None:
                    self._then(tile.part)
