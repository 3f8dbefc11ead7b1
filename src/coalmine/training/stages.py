"""Clipped sums of convolution networks on a GPU by a few Triton kernels, without patches or gradients in memory.

A network is a chain of *stages* (:mod:`coalmine.training.chain`). A step computes, for each stage, outputs, errors,
squared norms of each example's gradient, and the sum of the clipped gradients. Patches are read where they lie, the
first stage's in the data set itself, and an example's gradient (few numbers for a convolution) lives in registers: it
is built once for its norm and once more for the sum. The factor of the clipping multiplies the finished gradient, so
what is added is what the norm was taken of, however the factors of the products are rounded.

Each model is computed by programs of its own with tiles of fixed shapes, so how many models are stacked cannot touch
a result.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalmine.records import Sampling
from coalmine.training import batching
from coalmine.training.backends import stage_kernels as kernels
from coalmine.training.canary import AdaptiveExample, GradientRows, StackState
from coalmine.training.chain import MOST_OUTPUTS, Stage, stages
from coalmine.training.data import Dataset
from coalmine.training.device_draws import DeviceDraws, room_for_a_batch
from coalmine.training.job import Job
from coalmine.training.networks import Network, parameter_count
from coalmine.training.products import padded
from coalmine.training.sums import ChosenRows, Vectors

_BUDGET = 2**35
"""Bytes that the buffers of a stack may take, about, but at most half of what a GPU has free."""
_STACK = 1024
_BESIDE = 2**32
"""The same for what an observer asks beside the training."""
_ROWS_BESIDE = 256
"""Rows of each model that go through together there."""
_ASKED = 64
"""Inputs at which all models of a stack are asked together."""


def there(network: Network, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this network is computed by these kernels here."""
    return kernels is not None and device.type == "cuda" and dtype == torch.float32 and stages(network) is not None


def fits(job: Job) -> bool:
    """Whether these kernels can do the steps of this training."""
    if job.paired or not isinstance(job.neighbours.base, Dataset):
        return False
    return there(job.network, device=job.device, dtype=job.dtype)


def draws_on_device(job: Job) -> bool:
    """Whether the GPU draws the batches itself: where they fit in one pass, and nobody on the host looks at them."""
    if not fits(job) or job.config.sampling is Sampling.SHUFFLE or isinstance(job.neighbours.canary, GradientRows):
        return False
    return room_for_a_batch(job) <= batching.MAX_WIDTH


def lanes(job: Job) -> int:
    """How many rows of a batch go through together."""
    if draws_on_device(job):
        return room_for_a_batch(job)
    return batching.width(job.config, rows=job.rows, example_floats=1)


def stack_size(job: Job) -> int:
    """How many models to stack: their buffers are kept to about 32 GiB. Never changes a result."""
    chain = stages(job.network)
    assert chain is not None
    return _models_in(_BUDGET, chain, rows=lanes(job), device=job.device)


def _models_in(budget: int, chain: Sequence[Stage], *, rows: int, device: torch.device) -> int:
    """How many models' buffers for so many rows each fit into so many bytes, to a power of two."""
    example = sum(stage.places * stage.outputs for stage in chain) + sum(9 * stage.size // 4 for stage in chain[1:])
    example += sum(stage.places * stage.outputs + 3 * stage.outputs for stage in chain if stage.groups)
    example += sum(stage.packed for stage in chain if _tiles(stage, exact=True).kept)
    free = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else budget
    fit = max(1, min(budget, free) // (4 * rows * example))
    return int(min(_STACK, 2 ** int(math.log2(fit))))


def prepared(network: Network, device: torch.device) -> tuple[tuple[Stage, ...], list[Tensor]]:
    """The chain with its first stage folded, and for each stage where its packed numbers are in a parameter vector."""
    chain = stages(network)
    assert chain is not None
    folded = (chain[0].folded(), *chain[1:])
    return folded, [torch.from_numpy(stage.order(given)).to(device) for stage, given in zip(folded, chain, strict=True)]


def picture_shape(network: Network) -> tuple[int, ...]:
    """Rows of numbers are pictures of one place."""
    shape = network.input_shape
    return shape if len(shape) == 3 else (shape[0], 1, 1)


class StageTable:
    """All rows that a step can draw, each as the first stage's picture: base rows first, then the canary's.

    The examples of an adaptive canary differ from model to model: then there are places for those of a whole stack.
    """

    def __init__(self, job: Job) -> None:
        self.stages, self.orders = prepared(job.network, job.device)
        first = self.stages[0]
        self.back_orders = [torch.from_numpy(stage.back_order()).to(job.device) for stage in self.stages[1:]]
        x, labels = job.neighbours.all_rows()
        self.rows = job.rows
        self.copies = job.neighbours.copies if isinstance(job.neighbours.canary, AdaptiveExample) else 0
        room = max(len(labels), self.rows + self.copies * (stack_size(job) if self.copies else 0))
        self.x = torch.zeros((room, first.size), dtype=torch.float32, device=job.device)
        self.labels = torch.zeros(room, dtype=torch.int32, device=job.device)
        self._shape = picture_shape(job.network)
        for start in range(0, len(labels), 4096):
            part = slice(start, min(start + 4096, len(labels)))
            self.put(part, torch.from_numpy(x[part]).to(self.x), torch.from_numpy(labels[part]))

    def put(self, rows: slice, x: Tensor, labels: Tensor) -> None:
        """Write these rows, flat as torch has them, and their labels."""
        self.stages[0].lay_out(x.reshape(-1, *self._shape), self.x[rows])
        self.labels[rows] = labels.to(self.labels)


class _Drawn:
    """Drawn rows on their way to the device: two places on the host, used in turn, so that nobody waits."""

    def __init__(self, models: int, lanes: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._index = [torch.zeros((models, lanes), dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._count = [torch.zeros(models, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._sent: list[Any] = [None, None]
        self._turn = 0
        self.index = torch.zeros((models, lanes), dtype=torch.int32, device=device)
        self.count = torch.zeros(models, dtype=torch.int32, device=device)

    def send(self, rows: Sequence[Any]) -> None:
        """Rows of each model, at most as many as there are lanes."""
        turn = self._turn = 1 - self._turn
        if self._sent[turn] is not None:
            self._sent[turn].synchronize()
        index, count = self._index[turn].numpy(), self._count[turn].numpy()
        for line, mine in zip(index, rows, strict=True):
            line[: mine.size] = mine
        count[:] = [mine.size for mine in rows]
        self.index.copy_(self._index[turn], non_blocking=True)
        self.count.copy_(self._count[turn], non_blocking=True)
        if self.index.is_cuda:
            self._sent[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._sent[turn].record()


class _Outputs:
    """The forward pass of a stack of networks that are chains of stages, and the buffers that it fills."""

    def __init__(
        self, chain: Sequence[Stage], orders: Sequence[Tensor], *, models: int, lanes: int, exact: str
    ) -> None:
        """``lanes``: rows of each model that go through together; ``exact``: how factors of products are rounded."""
        self._stages, self._orders, self.models, self._lanes, self._exact = chain, orders, models, lanes, exact
        self._tiles = [_tiles(stage, exact=exact == "tf32x3") for stage in chain]
        device = orders[0].device
        self._room = functools.partial(_room, models, lanes, device=device)
        self._y = [self._room(stage.places * stage.outputs) for stage in chain]
        self._pictures = [self._room(stage.size) for stage in chain[1:]]
        self._which = [
            self._room(math.prod(stage.pooled) * stage.outputs if stage.pooling[1] > 1 else 1, dtype=torch.int8)
            for stage in chain
        ]
        self._norm = {
            i: (self._room(stage.places * stage.outputs), self._room(stage.outputs), self._room(2 * stage.outputs))
            for i, stage in enumerate(chain)
            if stage.groups
        }
        """Of a stage with a norm: normalized outputs, spreads, and each example's gradient in scales and shifts."""
        self._weights = [torch.zeros((models, stage.packed), dtype=torch.float32, device=device) for stage in chain]

    def forward(
        self, parameters: Tensor, x: Tensor, index: Tensor, count: Tensor, labels: Tensor, *, ends: str = "softmax"
    ) -> Tensor:
        """Outputs of the last stage, ``[S, lanes, classes]``: errors softmax − one-hot, or logits (``ends`` = "none").

        ``x``: all rows as the first stage's pictures; ``index`` ``[S, lanes]``: which of them; ``count`` ``[S]``.
        """
        chain, lanes, models, stride = self._stages, self._lanes, self.models, parameters.stride(0)
        last, block = len(chain) - 1, 1024
        for i, stage in enumerate(chain):
            tiles = self._tiles[i]
            kernels.pack[(-(-stage.packed // block), models)](
                parameters, stride, self._orders[i], self._weights[i], SIZE=stage.packed, BLOCK=block
            )
            blocks = -(-stage.outputs // tiles.outputs)
            kernels.forward[(-(-lanes * stage.places // tiles.forward["ROWS"]), models, blocks)](
                *(self._pictures[i - 1] if i else x, index, count, labels, self._weights[i], self._y[i]),
                **self._patch(i), BIAS=stage.bias, EXACT=self._exact, **tiles.forward,
                ACT=ends if i == last else "none" if stage.groups else stage.activation,
            )  # fmt: skip
            if stage.groups:
                kernels.normalize[(lanes, models)](
                    *(self._y[i], count, parameters[:, stage.place + stage.parameters :], stride, *self._norm[i][:2]),
                    stage.epsilon, ACT=stage.activation, **self._group(i),
                )  # fmt: skip
            if i < last:
                kernels.pool[(-(-lanes * math.prod(stage.pooled) * stage.outputs // block), models)](
                    self._y[i], count, self._pictures[i], self._which[i], **self._pool(i), BLOCK=block
                )
        return self._y[last]

    def _patch(self, i: int) -> dict[str, Any]:
        """How the patches of a stage lie."""
        stage = self._stages[i]
        (high, wide), (down, right) = stage.kernel, stage.stride
        return {
            "GATHER": i == 0, "LANES": self._lanes, "SIZE": stage.size, "W": stage.wide, "CP": stage.room,
            "KH": high, "KW": wide, "SH": down, "SW": right, "OW": stage.output[1], "P": stage.places,
            "O": stage.outputs, "OP": self._tiles[i].outputs,
        }  # fmt: skip

    def _group(self, i: int) -> dict[str, int]:
        """How the groups of a norm lie."""
        stage = self._stages[i]
        channels = 1 << (stage.outputs - 1).bit_length()
        return {
            "LANES": self._lanes, "P": stage.places, "O": stage.outputs, "OC": channels,
            "GROUP": stage.outputs // stage.groups, "PB": max(1, 1024 // channels),
        }  # fmt: skip

    def _pool(self, i: int) -> dict[str, Any]:
        """How a stage's outputs are pooled into the next one's picture."""
        stage, after = self._stages[i], self._stages[i + 1]
        kind, window, step = stage.pooling
        return {
            "LANES": self._lanes, "OH": stage.output[0], "OW": stage.output[1], "O": stage.outputs,
            "ACT": stage.activation, "KIND": kind,
            "PK": window, "PS": step, "PH": stage.pooled[0], "PW": stage.pooled[1], "SIZE": after.size,
            "W": after.wide, "CP": after.room, "TOP": after.before[0], "LEFT": after.before[1],
        }  # fmt: skip


class StageSums(_Outputs):
    """Clipped sums of a stack of networks that are chains of stages."""

    def __init__(
        self, job: Job, vectors: Vectors, table: StageTable, *, rows: int | None = None, divisor: float | None = None
    ) -> None:
        """``rows`` of each model go through together, and sums are divided by the expected batch size, if not told."""
        exact = {"float32": "tf32x3"}.get(job.config.products, job.config.products)
        models, device, chain = vectors.models, vectors.parameters.device, table.stages
        super().__init__(chain, table.orders, models=models, lanes=rows or lanes(job), exact=exact)
        self._vectors, self._table = vectors, table
        canary = job.neighbours.canary
        self._chosen = ChosenRows(job, vectors, canary) if isinstance(canary, AdaptiveExample) else None
        self._full = job.config.sampling is Sampling.FULL
        self._scale = 1.0 / (divisor or job.batch)
        self._clip = job.config.kernel_clip("cuda")
        self._drawn: list[_Drawn] = []
        self._x = [table.x, *self._pictures]
        self._d = [table.x[:0], *(self._room(stage.size) for stage in chain[1:])]
        self._norms = self._room()
        self._kept = [
            self._room(stage.packed if tiles.kept else 1) for stage, tiles in zip(chain, self._tiles, strict=True)
        ]
        self._in_order = torch.arange(2 * MOST_OUTPUTS, dtype=torch.int32, device=device)
        self._back_weights = [torch.zeros((models, order.numel()), device=device) for order in table.back_orders]
        self._parts = [
            torch.zeros((models, tiles.parts, stage.packed), dtype=torch.float32, device=device)
            for stage, tiles in zip(chain, self._tiles, strict=True)
        ]

    def __call__(self, drawn: list[Any] | DeviceDraws, state: StackState) -> None:
        """The drawn rows' clipped gradients over the expected batch size."""
        table = self._table
        if self._chosen is not None:
            x, labels = self._chosen(drawn, state)
            place = slice(table.rows, table.rows + labels.numel())
            table.put(place, x.flatten(0, 1), labels.flatten())
        if isinstance(drawn, DeviceDraws):
            index = drawn.index
            if self._chosen is not None:
                others = torch.arange(index.shape[0], dtype=torch.int32, device=index.device)[:, None] * table.copies
                index = torch.where(index < table.rows, index, index + others)
            self._pass(index, drawn.count, add=False)
            return
        if self._chosen is not None:
            drawn = [np.where(rows < table.rows, rows, rows + model * table.copies) for model, rows in enumerate(drawn)]
        longest = max(1, max(rows.size for rows in drawn))
        for number, start in enumerate(range(0, longest, self._lanes)):
            sent = self._sent(number, start, drawn)
            self._pass(sent.index, sent.count, add=number > 0)

    def add_rows(self, rows: Tensor) -> None:
        """The clipped gradients of these rows of the table, for each model."""
        if not rows.shape[0]:
            self._vectors.gradient.zero_()
        index = torch.zeros((self.models, self._lanes), dtype=torch.int32, device=rows.device)
        count = torch.zeros(self.models, dtype=torch.int32, device=rows.device)
        for start in range(0, rows.shape[0], self._lanes):
            part = rows[start : start + self._lanes]
            index[:, : part.shape[0]] = part
            count.fill_(part.shape[0])
            self._pass(index, count, add=start > 0)

    def add_one(self, models: Tensor, places: Tensor, out: Tensor) -> None:
        """Write the clipped gradient of one row of the table for each of some models; ``places``: which."""
        used, vectors, device = models.shape[0], self._vectors, self._table.x.device
        vectors.parameters[:used] = models
        index = torch.zeros((self.models, 1), dtype=torch.int32, device=device)
        index[:used, 0] = places
        count = torch.zeros(self.models, dtype=torch.int32, device=device)
        count[:used] = 1
        self._pass(index, count, add=False)
        out.copy_(vectors.gradient[:used])

    def _sent(self, number: int, start: int, drawn: list[Any]) -> _Drawn:
        """The rows of one pass on the device. With full batches they are always the same, and stay there."""
        place = number if self._full else 0
        known = place < len(self._drawn)
        if not known:
            self._drawn.append(_Drawn(self._vectors.models, self._lanes, self._table.x.device))
        if not (known and self._full):
            self._drawn[place].send([rows[start : start + self._lanes] for rows in drawn])
        return self._drawn[place]

    def _pass(self, index: Tensor, count: Tensor, *, add: bool) -> None:
        """At most as many rows of each model as there are lanes: row numbers ``[S, lanes]``, and how many."""
        chain, vectors, table, lanes = self._stages, self._vectors, self._table, self._lanes
        models = vectors.models
        parameters, stride, exact = vectors.parameters, vectors.parameters.stride(0), self._exact
        last = len(chain) - 1
        self.forward(parameters, table.x, index, count, table.labels)
        for i in range(last, -1, -1):
            stage, tiles = chain[i], self._tiles[i]
            if i < last:
                block = 1024
                kernels.errors[(-(-lanes * stage.places * stage.outputs // block), models)](
                    self._y[i], count, self._d[i + 1], self._which[i], **self._pool(i), BLOCK=block
                )  # fmt: skip
            if stage.groups:
                hat, spread, kept = self._norm[i]
                kernels.norm_errors[(lanes, models)](
                    *(self._y[i], count, parameters[:, stage.place + stage.parameters :], stride, hat, spread),
                    *(self._norms, kept), **self._group(i),
                )  # fmt: skip
            given = (self._x[i], index, count, self._y[i], self._norms)
            if stage.places == 1:
                kernels.norms_of_one[(-(-lanes // 32), models)](
                    *given, GATHER=i == 0, LANES=lanes, SIZE=stage.size, O=stage.outputs, OP=tiles.outputs,
                    BIAS=stage.bias, ADD=i < last, ROWS=32, KB=64,
                )  # fmt: skip
            else:
                kernels.norms_of_places[(lanes, models)](
                    *given, self._kept[i], **self._patch(i), BIAS=stage.bias, ADD=i < last, KEEP=tiles.kept,
                    EXACT=exact, **tiles.norms,
                )  # fmt: skip
            if i > 0:
                (down, right), (high, wide) = stage.stride, (stage.high, stage.wide)
                weights, order = self._back_weights[i - 1], table.back_orders[i - 1]
                kernels.pack[(-(-order.numel() // 1024), models)](
                    parameters, stride, order, weights, SIZE=order.numel(), BLOCK=1024
                )
                blocks, columns = -(-high // down) * -(-wide // right), down * right * stage.room
                grid = (-(-lanes * blocks // tiles.back["ROWS"]), -(-columns // tiles.back["COLUMNS"]), models)
                kernels.back[grid](
                    *(self._y[i], count, weights, self._d[i]), LANES=lanes, SIZE=stage.size, H=high, W=wide,
                    C=stage.channels, CP=stage.room, TH=stage.reach[0], TW=stage.reach[1], SH=down, SW=right,
                    OH=stage.output[0], OW=stage.output[1], O=stage.outputs, WEIGHTS=order.numel(),
                    EXACT=exact, **tiles.back,
                )  # fmt: skip
        gradient = vectors.gradient
        for i, stage in enumerate(chain):
            tiles, block = self._tiles[i], 1024
            inputs = stage.room * math.prod(stage.kernel)
            if tiles.kept:
                kernels.sums_of_kept[(-(-stage.packed // 256), models)](
                    *(count, self._norms, self._clip, self._kept[i], self._parts[i]),
                    LANES=lanes, SIZE=stage.packed, ROWS=16, BLOCK=256,
                )  # fmt: skip
            else:
                blocks = -(-inputs // tiles.sums["KB"]) * -(-stage.outputs // tiles.outputs)
                kernels.sums[(blocks, tiles.parts, models)](
                    *(self._x[i], index, count, self._y[i], self._norms, self._clip, self._parts[i]),
                    **self._patch(i), PARTS=tiles.parts, EXACT=exact, **tiles.sums,
                )  # fmt: skip
            kernels.collect[(-(-stage.packed // block), models)](
                *(self._parts[i], table.orders[i], gradient, gradient.stride(0), self._scale),
                SIZE=stage.packed, PARTS=tiles.parts, ADD=add, BLOCK=block,
            )  # fmt: skip
            if stage.groups:
                size = 2 * stage.outputs
                kernels.sums_of_kept[(1, models)](
                    *(count, self._norms, self._clip, self._norm[i][2], self._parts[i]),
                    LANES=lanes, SIZE=size, ROWS=16, BLOCK=_power(size),
                )  # fmt: skip
                kernels.collect[(1, models)](
                    *(self._parts[i], self._in_order, gradient[:, stage.place + stage.parameters :]),
                    *(gradient.stride(0), self._scale), SIZE=size, PARTS=1, ADD=add, BLOCK=_power(size),
                )  # fmt: skip


def sums_of_all(job: Job, parameters: Tensor) -> Tensor:
    """Σ_i clip_C(∇ℓ(m, x_i)) over all rows of the data set, for every model m, ``[S, P]``."""
    table = StageTable(job)
    return sums_of_parts(job, table, parameters, [torch.arange(table.rows, device=job.device)])[:, 0]


def sums_of_parts(job: Job, table: StageTable, parameters: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """The same over each of some ``parts`` of the rows, ``[S, parts, P]``."""
    size = parameters.shape[1]
    if parameters.stride(1) != 1:  # the kernels are told how far models lie apart, and no more
        parameters = parameters.contiguous()
    found = torch.zeros((parameters.shape[0], len(parts), size), dtype=parameters.dtype, device=parameters.device)
    rows = min(_ROWS_BESIDE, _power(max(part.shape[0] for part in parts)))
    together = _models_in(_BESIDE, table.stages, rows=rows, device=job.device)
    for models, out in zip(torch.split(parameters, together), torch.split(found, together), strict=True):
        worlds, gradient = np.zeros(models.shape[0], dtype=np.int64), torch.zeros_like(out[:, 0])
        sums = StageSums(job, Vectors(models, gradient, worlds, models.shape[0]), table, rows=rows, divisor=1.0)
        for number, part in enumerate(parts):
            sums.add_rows(part)
            out[:, number] = gradient
    return found


class StageGradients:
    """The clipped gradient of one of a job's rows at each model, for those who ask at every step.

    Rows and buffers stay on the device, with room for as many models as were asked about at once.
    """

    def __init__(self, job: Job) -> None:
        self._job, self._table, self.device = job, StageTable(job), job.device
        packed = sum((2 + _tiles(stage, exact=True).parts) * stage.packed for stage in self._table.stages)
        most = _models_in(_BESIDE, self._table.stages, rows=1, device=job.device)
        self._most = max(1, min(most, _BESIDE // (4 * (2 * parameter_count(job.network) + packed))))
        self._sums: StageSums | None = None

    def __call__(self, parameters: Tensor, places: Tensor) -> Tensor:
        """clip_C(∇ℓ(m_s, x_r)) with r = ``places[s]``, ``[S, P]``; a model's does not depend on the others."""
        models = parameters.shape[0]
        found = torch.zeros((models, parameters.shape[1]), dtype=parameters.dtype, device=parameters.device)
        sums = self._for(min(models, self._most))
        for start in range(0, models, sums.models):
            part = slice(start, start + sums.models)
            sums.add_one(parameters[part], places[part], found[part])
        return found

    def _for(self, models: int) -> StageSums:
        """Sums of at least so many models."""
        if self._sums is None or self._sums.models < models:
            self._sums = None  # free, before there is room for others
            size = parameter_count(self._job.network)
            room = torch.zeros((2, models, padded(size)), device=self._job.device)
            vectors = Vectors(room[0, :, :size], room[1, :, :size], np.zeros(models, dtype=np.int64), models)
            self._sums = StageSums(self._job, vectors, self._table, rows=1, divisor=1.0)
        return self._sums


class StageAnswers:
    """What models answer that are all asked at the same inputs, with float32 accuracy."""

    def __init__(self, network: Network, device: torch.device) -> None:
        self._chain, self._orders = prepared(network, device)
        self._shape, self._classes = picture_shape(network), network.classes
        self._held: tuple[tuple[int, int], _Outputs] | None = None

    def __call__(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Logits ``[S, W, classes]`` of models ``[S, P]`` at ``[W, ...]``; a model's do not depend on the others."""
        answers = torch.zeros((parameters.shape[0], inputs.shape[0], self._classes), device=inputs.device)
        first, device = self._chain[0], inputs.device
        for start in range(0, inputs.shape[0], _ASKED):
            chunk = inputs[start : start + _ASKED]
            rows, lanes = chunk.shape[0], 1 << (chunk.shape[0] - 1).bit_length()
            x = torch.zeros((rows, first.size), device=device)
            first.lay_out(chunk.reshape(-1, *self._shape), x)
            together = _models_in(_BESIDE, self._chain, rows=lanes, device=device)
            index = torch.arange(lanes, dtype=torch.int32, device=device).clamp(max=rows - 1).repeat(together, 1)
            count = torch.full((together,), rows, dtype=torch.int32, device=device)
            for place in range(0, parameters.shape[0], together):
                models = parameters[place : place + together]
                found = self._outputs(models.shape[0], lanes).forward(models, x, index, count, index, ends="none")
                answers[place : place + together, start : start + rows] = found[:, :rows]
        return answers

    def _outputs(self, models: int, lanes: int) -> _Outputs:
        """Buffers; those of the last call are kept, because an observer asks the same at every step."""
        if self._held is None or self._held[0] != (models, lanes):
            self._held = None  # free, before there is room for others
            made = _Outputs(self._chain, self._orders, models=models, lanes=lanes, exact="tf32x3")
            self._held = (models, lanes), made
        return self._held[1]


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Tiles of a stage's kernels, measured on an H200. They fix the order of sums, so they belong to the result."""

    outputs: int
    forward: dict[str, int]
    norms: dict[str, int]
    back: dict[str, int]
    sums: dict[str, int]
    parts: int
    """A batch is added up in so many parts, to keep the whole device busy."""
    kept: bool = False
    """Whether the examples' gradients are written down: where they are fewer numbers than what they are made of."""


def _tiles(stage: Stage, *, exact: bool) -> Tiles:
    """The tiles of a stage; ``exact``: for products of float32 accuracy, which take three times the registers."""
    inputs, outputs = _power(stage.room * math.prod(stage.kernel)), min(MOST_OUTPUTS, _power(stage.outputs))
    rows, many = 64 if exact else 128, stage.places > 64
    forward = {"ROWS": rows, "KB": min(32, inputs), "num_warps": 4, "num_stages": 2}
    columns = min(64, _power(stage.room * math.prod(stage.stride)))
    back = {"ROWS": 128, "COLUMNS": columns, "KB": min(32, outputs), "num_warps": 4, "num_stages": 1}
    if stage.places == 1:
        dense = {"KB": min(64, inputs), "num_warps": 4, "num_stages": 2}
        back |= {"ROWS": 64, "num_stages": 2}
        return Tiles(outputs, {"ROWS": 64, **dense}, {}, back, {"PB": 64, **dense}, parts=1)
    if many and inputs == 64:
        forward |= {"KB": 64, "num_warps": 2 if exact else 4, "num_stages": 1}
    norms = {"PB": 32 if stage.places > 16 else 16, "KB": min(64, inputs), "num_warps": 1, "num_stages": 2}
    sums = {**norms, "KB": min(128, inputs), "num_warps": 2 if exact else 1}
    if exact and many:
        norms |= {"PB": 16, "num_stages": 3}
    elif exact:
        norms["num_warps"] = 4
    kept = 2 * stage.packed <= stage.size + stage.places * stage.outputs
    return Tiles(outputs, forward, norms, back, sums, parts=1 if kept else 16 if many else 8, kept=kept)


def _room(models: int, lanes: int, *shape: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A buffer with room for every row of every model."""
    return torch.zeros((models, lanes, *shape), dtype=dtype, device=device)


def _power(n: int) -> int:
    """The next power of two of at least 16, the smallest tile of a matrix product."""
    return max(16, 1 << (max(1, n) - 1).bit_length())
