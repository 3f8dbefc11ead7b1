"""DP-SGD on a GPU without ever copying a batch: Triton kernels for networks with at most one hidden layer.

A step is four kernels over a whole stack: draw (Poisson batches from geometric gaps), forward (outputs, errors, clip
factors), and two updates (clipped sums, noise and the new weights in one go). Rows are read straight from the data set,
which stays in the L2 cache, so a batch costs no memory traffic of its own. Every random number is Philox-4x32-10 of
(trial's key, step, place), and each model is computed by programs of its own with fixed tile shapes: which models are
stacked cannot touch a result. So trainings of one network on the same rows share a launch where several threads ask for
them, whatever their canaries, noise, clipping norms and learning rates: a few models alone leave a GPU idle.

The factors of the large products are numbers of 16 bits, in units that are powers of 2 (a block of weights has its
own): half the bytes to read, and tensor cores take them twice as fast. With ``products = "tf32"`` a factor is one such
number of 11 bits, which is what TF32 has; otherwise it is the sum of two, which keeps float32 accuracy (relative error
of an update about 3e-7, as with plain float32).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.records import Sampling
from coalmine.training.answers import Answers
from coalmine.training.backends import triton_kernels as kernels
from coalmine.training.canary import ExampleCanary
from coalmine.training.clipping import ClosedForm
from coalmine.training.config import Sgd
from coalmine.training.data import Dataset
from coalmine.training.device_draws import MAX_BATCH, DeviceDraws, Launch, room_for_a_batch
from coalmine.training.job import Job, Share
from coalmine.training.networks import Mlp, Network
from coalmine.training.products import Counts, padded
from coalmine.training.stack import StackResult, finish, not_finite
from coalmine.training.together import Together

MAX_HIDDEN = 128
MAX_CLASSES = 64
MAX_CLIP = 64
"""Clipped errors must fit into 16 bits with room for small ones."""
STACK = 4096
"""Models trained together, of one job or of several: more gains nothing. Never changes a result."""
_QUERIED_TOGETHER = 512


def refusal(job: Job) -> str | None:
    """Why these kernels cannot train this, in words; None if they can."""
    network, config, neighbours = job.network, job.config, job.neighbours
    if kernels is None or job.device.type != "cuda":
        return "needs Triton and a CUDA device"
    if (words := too_large(network)) is not None:
        return words
    if job.watched:
        return "shows no single steps"
    if config.noise_scale != "clip":
        return "scales the noise to the clipping norm alone"
    if config.sampling is Sampling.SHUFFLE:
        return "needs Poisson or full batches"
    if config.optimizer != Sgd() or callable(config.regularizer) or config.dtype != "float32":
        return "needs plain SGD in float32"
    if not isinstance(neighbours.base, Dataset):
        return "needs a data set"
    if neighbours.canary is not None and not isinstance(neighbours.canary, ExampleCanary):
        return "needs an example as canary"
    if config.clip > MAX_CLIP:
        return f"needs a clipping norm of at most {MAX_CLIP}"
    if room_for_a_batch(job) > MAX_BATCH:
        return f"needs batches of at most {MAX_BATCH}"
    return None


def too_large(network: Network) -> str | None:
    """Why these kernels are not for this network, in words; None if they are."""
    if not isinstance(network, Mlp):
        return "needs logistic regression or a perceptron with one hidden layer"
    if len(network.hidden) > 1 or max((*network.hidden, 1)) > MAX_HIDDEN or network.classes > MAX_CLASSES:
        return f"needs at most one hidden layer of {MAX_HIDDEN} and {MAX_CLASSES} classes"
    return None


def train_fused(job: Job, *, trials: NDArray[np.int64], worlds: NDArray[np.int64], rows: FusedRows) -> StackResult:
    """Train these trials with the fused kernels, beside those of other threads, and show them to the observer."""
    share = Share(job, trials.tolist(), worlds.tolist())
    if job.observer is not None:
        job.observer.start(trials)
    part = Part(share, job.initial(share.trials), rows)
    stream = torch.cuda.current_stream(job.device)
    stream.synchronize()  # another thread's stream may train it
    parameters = _together(job.device)(part, kind=rows.kind(job), size=trials.size)
    parameters.record_stream(stream)
    engine = _SameShape(ClosedForm(job.network, device=job.device, dtype=job.dtype))
    failed_at = dict.fromkeys(not_finite(parameters), job.config.steps)
    return finish(job, engine, parameters, trials=trials, failed_at=failed_at)


@functools.cache
def _together(device: torch.device) -> Together[Part, Tensor]:
    """What trains the parts that threads ask for on this device."""
    return Together(lambda parts: FusedStack(parts).each(), room=STACK)


class _SameShape(Answers):
    """Asks models in groups of one fixed size: a library product of another shape may round otherwise."""

    takes_tokens = False

    def __init__(self, engine: ClosedForm) -> None:
        self._engine = engine

    def logits(self, parameters: Tensor, x: Tensor, counts: Counts) -> Tensor:
        """Outputs of every model, ``[S, W, classes]``."""
        parts = []
        for first in range(0, parameters.shape[0], _QUERIED_TOGETHER):
            group = parameters[first : first + _QUERIED_TOGETHER]
            held = torch.zeros((_QUERIED_TOGETHER, parameters.shape[1]), dtype=group.dtype, device=group.device)
            held[: group.shape[0]] = group
            inputs = x[:1].expand(_QUERIED_TOGETHER, *x.shape[1:])
            parts.append(self._engine.logits(held, inputs, counts)[: group.shape[0]].clone())
        return torch.cat(parts)


class FusedRows:
    """All rows that a step can draw as numbers of 16 bits, ``[parts, rows, columns]``: x = unit·(first + second/2048).

    The first part alone has 11 bits (8 with bfloat16), both have 22 and a sign; what is lost is measured by the largest
    of all numbers. Base rows that are small multiples of one number are ``whole``: their second part is 0.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        x, y = job.neighbours.all_rows()
        given = torch.from_numpy(x).to(device=device, dtype=torch.float32)
        self.base, self.parts = job.rows, 2 if job.config.products == "float32" else 1
        self.half = torch.bfloat16 if job.config.products == "bf16" else torch.float16
        self.stride = _lines(given.shape[1], 2)
        self.labels = torch.from_numpy(y).to(device=device, dtype=torch.int32)
        largest = float(given.abs().max())
        unit = whole_unit(given[: self.base]) if self.parts == 2 else None
        self.whole = unit is not None and largest <= 2.0**15 * unit
        self.unit = unit if unit is not None and self.whole else 2.0 ** (math.frexp(largest)[1] - 13)
        scaled = torch.zeros((given.shape[0], self.stride), dtype=torch.float64, device=device)
        scaled[:, : given.shape[1]] = given.double() / self.unit
        if self.whole:
            scaled[: self.base].round_()
        first = scaled.to(self.half)
        self.x = torch.stack([first, ((scaled - first.double()) * 2048.0).to(self.half)][: self.parts])
        # The norms of what is computed with.
        computed = given if self.parts == 2 else first.float() * self.unit
        self.squares = computed.square().sum(1)

    def kind(self, job: Job) -> Hashable:
        """What trainings have in common that can share a launch."""
        return (job.network, job.neighbours.base, job.config.steps, job.config.products, self.unit, self.whole)

    def with_canaries_of(self, others: Sequence[FusedRows]) -> FusedRows:
        """These rows, and behind them the canaries' of others with the same base rows."""
        if not others:
            return self
        joined = copy.copy(self)
        joined.x = torch.cat([self.x, *(one.x[:, one.base :] for one in others)], dim=1)
        joined.labels = torch.cat([self.labels, *(one.labels[one.base :] for one in others)])
        joined.squares = torch.cat([self.squares, *(one.squares[one.base :] for one in others)])
        return joined


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What a stack trains of one job: the trials, where they start, ``[S, P]``, and the rows they can draw."""

    share: Share
    initial: Tensor
    rows: FusedRows


class FusedStack:
    """S models in training; :meth:`run` takes them through all steps and gives back their parameters.

    Parts of several jobs are of one :meth:`~FusedRows.kind`.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        job, device = parts[0].share.job, parts[0].initial.device
        network, config = job.network, job.config
        assert isinstance(network, Mlp)
        self._config = config
        initial = torch.cat([part.initial for part in parts])
        self._sizes = [len(part.initial) for part in parts]
        self._inputs, self._hidden, self._classes = network.inputs, sum(network.hidden), network.classes
        self._activation = network.activation
        self._stack, self._size = initial.shape
        self._rows = rows = parts[0].rows.with_canaries_of([part.rows for part in parts[1:]])
        self._parts = rows.parts
        self._draws = DeviceDraws(*(part.share for part in parts), device=device)
        own = [_own_numbers(part.share.job, rows) for part in parts]
        counts = torch.tensor(self._sizes)
        self._own = torch.tensor(own, dtype=torch.float32).repeat_interleave(counts, dim=0).to(device)
        self._lanes = self._draws.lanes
        outputs = self._hidden or self._classes
        # Every unit's weights begin on a cache line while they are trained.
        self._wide, self._rest = _lines(self._inputs, 4), self._size - outputs * self._inputs
        self._parameters = torch.zeros(
            (self._stack, _lines(outputs * self._wide + self._rest, 4)), dtype=torch.float32, device=device
        )
        here, given = self._places(self._parameters, self._wide), self._places(initial, self._inputs)
        for one, other in zip(here, given, strict=True):
            one.copy_(other)
        self._w = torch.zeros((self._stack, self._parts, outputs, rows.stride), dtype=rows.half, device=device)
        self._w_unit = torch.zeros((self._stack, -(-self._inputs // _COLUMNS)), dtype=torch.float32, device=device)
        self._e1 = torch.zeros((self._stack, self._lanes, self._parts, outputs), dtype=rows.half, device=device)
        wide, deep = self._parts * _power(outputs), 1 if rows.whole else self._parts
        forward, update = _FORWARD[self._parts], _UPDATE[self._parts]
        self._tiles = _pipelined(forward, device, 2 * forward["K"] * (forward["ROWS"] * deep + wide))
        self._update = _pipelined(update, device, 2 * update["ROWS"] * (_COLUMNS * deep + wide))
        self._programs = -(-self._lanes // self._tiles["ROWS"])
        self._sums = torch.zeros((self._stack, self._programs, self._rest), dtype=torch.float32, device=device)

    def run(self) -> Tensor:
        """Train every model of the stack from the first step to the last; the parameters ``[S, P]``."""
        if self._parameters.is_cuda:
            _compile(self._launches(1), self._parameters.device)
        for step in range(1, self._config.steps + 1):
            self._step(step)
        self._draws.check()
        return self.parameters()

    def each(self) -> Sequence[Tensor]:
        """The same, cut into the parts."""
        return torch.split(self.run(), self._sizes)

    def parameters(self) -> Tensor:
        """The models as they are now, ``[S, P]``."""
        found = torch.zeros((self._stack, padded(self._size)), dtype=torch.float32, device=self._parameters.device)
        given, here = self._places(found, self._inputs), self._places(self._parameters, self._wide)
        for one, other in zip(given, here, strict=True):
            one.copy_(other)
        return found[:, : self._size]

    def _places(self, vectors: Tensor, wide: int) -> tuple[Tensor, Tensor]:
        """The first layer's weights, ``[S, units, inputs]``, and the rest, of vectors with ``wide`` places a unit."""
        outputs = self._hidden or self._classes
        end = outputs * wide
        weights = vectors[:, :end].view(-1, outputs, wide)[:, :, : self._inputs]
        return weights, vectors[:, end : end + self._rest]

    def _step(self, step: int) -> None:
        for kernel, grid, given, options in self._launches(step):
            kernel[grid](*given, **options)

    def _launches(self, step: int) -> list[Launch]:
        """The kernels of a step in their order: each with its grid, its arguments and its compile-time constants."""
        config, rows, draws = self._config, self._rows, self._draws
        exact = {"float32": "tf32x3"}.get(config.products, config.products)
        stride = self._parameters.shape[1]
        units, classes = _power(self._hidden), _power(self._classes)
        outputs, columns = self._hidden or self._classes, _COLUMNS
        width = {"D": self._inputs, "DP": rows.stride, "WIDE": self._wide, "PARTS": self._parts}
        shape = {**width, "WHOLE": rows.whole}
        plane, blocks = rows.x[0].numel(), -(-self._inputs // columns)
        block = min(1024, _power(self._rest))
        halve = (
            kernels.halve,
            (blocks, self._stack),
            (self._parameters, stride, self._w, self._w_unit),
            {"OUT": outputs, "OUTP": _power(outputs), "COLUMNS": columns, **width},
        )
        forward = (
            kernels.forward,
            (self._programs, self._stack),
            (
                *(rows.x, plane, rows.base, rows.labels, rows.squares, draws.index, draws.count),
                *(self._parameters, stride, self._w, self._w_unit, self._e1, self._sums),
                *(self._own, rows.unit),
            ),
            {"H": self._hidden, "HP": units, "C": self._classes, "CP": classes, "LANES": self._lanes}
            | {"ACT": self._activation, "EXACT": exact, "COLUMNS": columns, **shape, **self._tiles},
        )
        update_first = (
            kernels.update_first,
            (blocks, self._stack),
            (
                *(rows.x, plane, rows.base, draws.index, draws.count, self._e1, self._parameters, stride),
                *(self._w, self._w_unit, draws.keys, step, self._own),
            ),
            {"H": outputs, "HP": _power(outputs), "LANES": self._lanes, "COLUMNS": columns, **shape, **self._update},
        )
        update_rest = (
            kernels.update_rest,
            (self._stack, -(-self._rest // block)),
            (draws.count, self._sums, self._parameters, stride, draws.keys, step, self._own),
            {"FIRST": outputs * self._wide, "REST": self._rest, "PROGRAMS": self._programs}
            | {"ROWS": self._tiles["ROWS"], "BLOCK": block, "num_warps": max(1, min(4, block // 128))},
        )
        first = [halve] if step == 1 else []
        return [*first, draws.launch(step), forward, update_first, update_rest]


def _own_numbers(job: Job, rows: FusedRows) -> tuple[float, ...]:
    """What the kernels read for each model of a job, in the order of :data:`coalmine.training.kernels.OWN`."""
    config = job.config
    errors = 2.0 ** (14 - math.ceil(math.log2(config.clip)))  # a clipped error is at most C
    decay = config.learning_rate * float(config.regularizer)  # type: ignore[arg-type]
    noise = config.noise_multiplier * config.clip
    return (config.kernel_clip("cuda"), errors, rows.unit / errors, config.learning_rate / job.batch, noise, decay)


def _compile(launches: list[Launch], device: torch.device) -> None:
    """Compile what is not compiled yet, all at once: one after the other takes seconds."""

    def one(launch: Launch) -> None:
        kernel, grid, given, options = launch
        with torch.cuda.device(device):
            kernel.warmup(*given, grid=grid, **options)

    with ThreadPoolExecutor(len(launches)) as threads:
        list(threads.map(one, launches))


def whole_unit(x: Tensor) -> float | None:
    """The number that all these are small multiples of, to the precision of float32; None if there is none.

    Rows of pictures are: bytes divided by 255. 16 bits hold the multiples as they are.

    >>> 1.0 / whole_unit(torch.arange(256) / 255)
    255.0
    >>> whole_unit(torch.tensor([0.3, 0.5, 0.70001]))
    """
    sizes = x.abs()
    positive = sizes[sizes > 0]
    if positive.numel() == 0:
        return None
    most = float(positive.max())
    multiple = round(most / float(positive.min()))
    if not 1 <= multiple <= 2048:
        return None
    unit = most / multiple
    times = (positive.double() / unit).round()
    near = (positive.double() - times * unit).abs() <= 2.0**-23 * positive.double()
    return unit if bool(near.all()) else None


_FORWARD = {
    1: {"ROWS": 64, "K": 64, "num_warps": 4, "num_stages": 3},
    2: {"ROWS": 64, "K": 64, "num_warps": 4, "num_stages": 3},
}
_UPDATE = {
    1: {"ROWS": 64, "num_warps": 4, "num_stages": 2},
    2: {"ROWS": 32, "num_warps": 4, "num_stages": 5},
}
_COLUMNS = 64
"""Tile shapes, measured on an H200 (docs/performance.md). They fix the order of sums, so they belong to the result."""
_LINE = 128
"""Bytes in a cache line. Rows and weights begin on one: a tile's piece of them is whole lines, not parts of others."""


def _pipelined(tiles: dict[str, int], device: torch.device, stage: int) -> dict[str, int]:
    """As many loads ahead as the shared memory of this device has room for, ``stage`` bytes each; changes no result."""
    if device.type != "cuda":
        return tiles
    known = torch.cuda.get_device_properties(device)
    room = int(getattr(known, "shared_memory_per_block_optin", known.shared_memory_per_block)) - 2048
    return {**tiles, "num_stages": max(1, min(tiles["num_stages"], room // stage))}


def _lines(count: int, size: int) -> int:
    """At least so many numbers of ``size`` bytes each, in whole cache lines.

    >>> _lines(784, 2), _lines(784, 4)
    (832, 800)
    """
    return -(-count * size // _LINE) * (_LINE // size)


def _power(n: int) -> int:
    """The next power of two of at least 16, the smallest tile of a matrix product."""
    return max(16, 1 << (max(1, n) - 1).bit_length())
