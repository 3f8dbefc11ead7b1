"""DP-SGD on a GPU without ever copying a batch: Triton kernels for networks with at most one hidden layer.

A step is four kernels over a whole stack: draw (Poisson batches from geometric gaps), forward (outputs, errors, clip
factors), and two updates (clipped sums, noise and the new weights in one go). Rows are read straight from the data set,
which stays in the L2 cache, so a batch costs no memory traffic of its own. Every random number is Philox-4x32-10 of
(trial's key, step, place), and each model is computed by programs of its own with fixed tile shapes: how many
models are stacked cannot touch a result.

Matrix products round their factors to TF32 or bfloat16 only if the config asks for it; otherwise each product is split
into three TF32 products, which keeps float32 accuracy (relative error of an update about 3e-7, as with plain float32).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from coalmine.records import Sampling
from coalmine.training import sampling
from coalmine.training.backends import triton_kernels as kernels
from coalmine.training.canary import ExampleCanary
from coalmine.training.clipping import ClosedForm
from coalmine.training.config import Sgd
from coalmine.training.data import Dataset
from coalmine.training.job import Job
from coalmine.training.networks import Mlp
from coalmine.training.noise import key_words
from coalmine.training.products import Counts, padded
from coalmine.training.stack import StackResult, finish, not_finite

MAX_BATCH = 4096
MAX_HIDDEN = 128
MAX_CLASSES = 64
STACK = 4096
"""Models trained together: more gains nothing, and fewer leave the device idle. Never changes a result."""
_QUERIED_TOGETHER = 512


def refusal(job: Job) -> str | None:
    """Why these kernels cannot train this, in words; None if they can."""
    network, config, neighbours = job.network, job.config, job.neighbours
    if kernels is None or job.device.type != "cuda":
        return "needs Triton and a CUDA device"
    if not isinstance(network, Mlp):
        return "needs logistic regression or a perceptron with one hidden layer"
    if len(network.hidden) > 1 or max((*network.hidden, 1)) > MAX_HIDDEN or network.classes > MAX_CLASSES:
        return f"needs at most one hidden layer of {MAX_HIDDEN} and {MAX_CLASSES} classes"
    if job.watched:
        return "shows no single steps"
    if config.noise_scale != "clip":
        return "scales the noise to the clipping norm alone"
    if config.sampling is Sampling.SHUFFLE:
        return "needs Poisson or full batches"
    if config.optimizer != Sgd() or callable(config.regularizer) or config.dtype != "float32":
        return "needs plain SGD in float32"
    if not isinstance(neighbours.base, Dataset) or neighbours.base.x.dtype == np.int64:
        return "needs a data set of numbers"
    if neighbours.canary is not None and not isinstance(neighbours.canary, ExampleCanary):
        return "needs an example as canary"
    if room_for_a_batch(job) > MAX_BATCH:
        return f"needs batches of at most {MAX_BATCH}"
    return None


def room_for_a_batch(job: Job) -> int:
    """A power of two of rows: a Poisson batch exceeds it with probability below 1e-18 a step.

    By Chernoff's bound, P[Binomial(n, q) ≥ m] ≤ exp(−n·KL(m/n ‖ q)).
    """
    rows = job.rows + job.neighbours.copies
    rate = job.config.rate(job.rows)
    lanes = 64
    while lanes <= rows and lanes <= MAX_BATCH:
        share = lanes / rows
        if share > rate and rows * (special.rel_entr(share, rate) + special.rel_entr(1 - share, 1 - rate)) > 41.5:
            break
        lanes *= 2
    return lanes


def train_fused(job: Job, *, trials: NDArray[np.int64], worlds: NDArray[np.int64]) -> StackResult:
    """Train one stack with the fused kernels and show the models to the observer."""
    numbers = trials.tolist()
    parameters = FusedStack(job, trials=numbers, worlds=worlds.tolist(), initial=job.initial(numbers)).run()
    engine = _SameShape(ClosedForm(job.network, device=job.device, dtype=job.dtype))
    failed_at = dict.fromkeys(not_finite(parameters), job.config.steps)
    return finish(job, engine, parameters, trials=trials, failed_at=failed_at)


class _SameShape:
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


class FusedStack:
    """S models in training; :meth:`run` takes them through all steps and gives back their parameters."""

    def __init__(self, job: Job, *, trials: Sequence[int], worlds: Sequence[int], initial: Tensor) -> None:
        network, config, neighbours, device = job.network, job.config, job.neighbours, initial.device
        assert isinstance(network, Mlp)
        self._config = config
        self._inputs, self._hidden, self._classes = network.inputs, sum(network.hidden), network.classes
        self._activation = network.activation
        self._stack, self._size = initial.shape
        self._lanes = room_for_a_batch(job)
        x, y = neighbours.all_rows()
        self._x = torch.from_numpy(x).to(device=device, dtype=torch.float32)
        self._y = torch.from_numpy(y).to(device=device, dtype=torch.int32)
        self._squares = self._x.square().sum(1)
        tables = [sampling.slots(neighbours, world=world) for world in (0, 1)]
        width = max(table.size for table in tables)
        self._table = torch.zeros((2, width), dtype=torch.int32, device=device)
        for world, table in enumerate(tables):
            self._table[world, : table.size] = torch.from_numpy(table)
        self._slots = torch.tensor([table.size for table in tables], dtype=torch.int32, device=device)
        self._worlds = torch.tensor(list(worlds), dtype=torch.int32, device=device)
        self._keys = key_words(job.fingerprint, trials, purpose="gpu").to(device)
        rate = config.rate(job.rows)
        log_miss = math.log1p(-rate) if rate < 1.0 else -math.inf
        self._log_miss = torch.tensor([log_miss], dtype=torch.float64, device=device)
        self._scale = config.learning_rate / job.batch
        # A stride of whole cache lines keeps the loads wide.
        self._parameters = torch.zeros((self._stack, padded(self._size)), dtype=torch.float32, device=device)
        self._parameters[:, : self._size] = initial
        self._index = torch.zeros((self._stack, self._lanes), dtype=torch.int32, device=device)
        self._count = torch.zeros(self._stack, dtype=torch.int32, device=device)
        self._overflow = torch.zeros(1, dtype=torch.int32, device=device)
        units = max(1, self._hidden)
        self._h = torch.zeros((self._stack, self._lanes, units), dtype=torch.float32, device=device)
        self._e1 = torch.zeros_like(self._h)
        self._e2 = torch.zeros((self._stack, self._lanes, self._classes), dtype=torch.float32, device=device)

    def run(self) -> Tensor:
        """Train every model of the stack from the first step to the last; the parameters ``[S, P]``."""
        for step in range(1, self._config.steps + 1):
            self._step(step)
        if int(self._overflow.item()):
            raise RuntimeError("a Poisson batch outgrew its room, which should happen once in 1e18 steps")
        return self._parameters[:, : self._size]

    def _step(self, step: int) -> None:
        config = self._config
        exact = {"float32": "tf32x3"}.get(config.products, config.products)
        stride = self._parameters.shape[1]
        noise = config.noise_multiplier * config.clip
        decay = config.learning_rate * float(config.regularizer)  # type: ignore[arg-type]
        units, classes = _power(self._hidden), _power(self._classes)
        kernels.draw[(self._stack,)](
            *(self._keys, step, self._worlds, self._slots, self._table, self._table.shape[1], self._log_miss),
            *(self._index, self._count, self._overflow),
            LANES=self._lanes,
        )
        kernels.forward[(-(-self._lanes // _FORWARD["ROWS"]), self._stack)](
            *(self._x, self._y, self._squares, self._index, self._count, self._parameters, stride),
            *(self._e1, self._e2, self._h, config.kernel_clip("cuda")),
            D=self._inputs, H=self._hidden, HP=units, C=self._classes, CP=classes, LANES=self._lanes,
            ACT=self._activation, EXACT=exact, **_FORWARD,
        )  # fmt: skip
        second = _EXACT_UPDATE if exact == "tf32x3" else _UPDATE
        outputs = self._hidden or self._classes
        kernels.update_first[(-(-self._inputs // second["COLUMNS"]), self._stack)](
            *(self._x, self._index, self._count, self._e1 if self._hidden else self._e2, self._parameters, stride),
            *(self._keys, step, self._scale, noise, decay),
            D=self._inputs, H=outputs, HP=_power(outputs), LANES=self._lanes, EXACT=exact, **second,
        )  # fmt: skip
        kernels.update_rest[(self._stack,)](
            *(self._count, self._e1, self._e2, self._h, self._parameters, stride, self._keys, step),
            *(self._scale, noise, decay),
            D=self._inputs, H=self._hidden, HP=units, C=self._classes, CP=classes, LANES=self._lanes, ROWS=64,
            EXACT="tf32x3",
        )  # fmt: skip


_FORWARD = {"ROWS": 64, "K": 32, "num_warps": 4, "num_stages": 3}
_UPDATE = {"COLUMNS": 64, "ROWS": 32, "num_warps": 4, "num_stages": 3}
_EXACT_UPDATE = {"COLUMNS": 64, "ROWS": 16, "num_warps": 4, "num_stages": 4}
"""Tile shapes, measured on an H200 (docs/performance.md). They fix the order of sums, so they belong to the result."""


def _power(n: int) -> int:
    """The next power of two of at least 16, the smallest tile of a matrix product."""
    return max(16, 1 << (max(1, n) - 1).bit_length())
