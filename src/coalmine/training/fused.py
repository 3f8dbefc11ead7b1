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

from coalmine import seeds
from coalmine.records import Sampling
from coalmine.roles import Observer
from coalmine.training import sampling
from coalmine.training.canary import ExampleCanary, Neighbours
from coalmine.training.clipping import ClosedForm
from coalmine.training.config import Sgd, TrainingConfig
from coalmine.training.data import Dataset
from coalmine.training.layers import Run
from coalmine.training.networks import LogisticRegression, Mlp, Network
from coalmine.training.stack import StackResult, finish, initial_parameters

try:
    from coalmine.training import kernels
except ImportError:  # Triton comes with torch's GPU builds alone; without it the stacked torch path does the work
    kernels = None  # type: ignore[assignment]

MAX_BATCH = 4096
MAX_HIDDEN = 128
MAX_CLASSES = 64
STACK = 4096
"""Models trained together: more gains nothing, and fewer leave the device idle. Never changes a result."""
_QUERIED_TOGETHER = 512


def refusal(
    network: Network, *, config: TrainingConfig, neighbours: Neighbours, device: torch.device, every_step: bool
) -> str | None:
    """Why these kernels cannot train this, in words; None if they can."""
    if kernels is None or device.type != "cuda":
        return "needs Triton and a CUDA device"
    if not isinstance(network, Mlp | LogisticRegression):
        return "needs logistic regression or a perceptron with one hidden layer"
    hidden = network.hidden if isinstance(network, Mlp) else ()
    if len(hidden) > 1 or any(width > MAX_HIDDEN for width in hidden) or network.classes > MAX_CLASSES:
        return f"needs at most one hidden layer of {MAX_HIDDEN} and {MAX_CLASSES} classes"
    if every_step:
        return "shows no single steps"
    if config.noise_scale != "clip":
        return "scales the noise to the clipping norm alone"
    if config.sampling is Sampling.SHUFFLE:
        return "needs Poisson or full batches"
    if config.optimiser != Sgd() or callable(config.regulariser) or config.dtype != "float32":
        return "needs plain SGD in float32"
    if not isinstance(neighbours.base, Dataset) or neighbours.base.x.dtype == np.int64:
        return "needs a data set of numbers"
    if neighbours.canary is not None and not isinstance(neighbours.canary, ExampleCanary):
        return "needs an example as canary"
    if _lanes(config, neighbours) > MAX_BATCH:
        return f"needs batches of at most {MAX_BATCH}"
    return None


def _lanes(config: TrainingConfig, neighbours: Neighbours) -> int:
    """Room for one batch, a power of two: a Poisson batch exceeds it with probability below 1e-18 a step.

    By Chernoff's bound, P[Binomial(n, q) ≥ m] ≤ exp(−n·KL(m/n ‖ q)).
    """
    rows = neighbours.base.rows + neighbours.copies
    rate = config.rate(neighbours.base.rows)
    lanes = 64
    while lanes <= rows and lanes <= MAX_BATCH:
        share = lanes / rows
        if share > rate and rows * (special.rel_entr(share, rate) + special.rel_entr(1 - share, 1 - rate)) > 41.5:
            break
        lanes *= 2
    return lanes


def train_fused(
    network: Network,
    *,
    config: TrainingConfig,
    neighbours: Neighbours,
    fingerprint: str,
    trials: NDArray[np.int64],
    worlds: NDArray[np.int64],
    observer: Observer | None,
    device: torch.device,
) -> StackResult:
    """Train one stack with the fused kernels and show the models to the observer."""
    assert isinstance(network, Mlp | LogisticRegression)
    parameters = FusedStack(
        network,
        config=config,
        neighbours=neighbours,
        fingerprint=fingerprint,
        trials=trials.tolist(),
        worlds=worlds.tolist(),
        initial=initial_parameters(
            network,
            config,
            fingerprint=fingerprint,
            trials=trials.tolist(),
            device=device,
            dtype=torch.float32,
        ),
    ).run()
    bad = torch.isnan((parameters * 0.0).sum(1)).cpu().numpy()
    return finish(
        network,
        config,
        engine=_SameShape(ClosedForm(network)),
        parameters=parameters,
        fingerprint=fingerprint,
        trials=trials,
        observer=observer,
        failed_at={int(position): config.steps for position in np.flatnonzero(bad)},
    )


class _SameShape:
    """Asks models in groups of one fixed size: a library product of another shape may round otherwise."""

    tokens = False

    def __init__(self, engine: ClosedForm) -> None:
        self._engine = engine

    def logits(self, parameters: Tensor, x: Tensor, run: Run) -> Tensor:
        """Outputs of every model, ``[S, W, classes]``."""
        parts = []
        for first in range(0, parameters.shape[0], _QUERIED_TOGETHER):
            group = parameters[first : first + _QUERIED_TOGETHER]
            held = torch.zeros((_QUERIED_TOGETHER, parameters.shape[1]), dtype=group.dtype, device=group.device)
            held[: group.shape[0]] = group
            inputs = x[:1].expand(_QUERIED_TOGETHER, *x.shape[1:])
            parts.append(self._engine.logits(held, inputs, run)[: group.shape[0]].clone())
        return torch.cat(parts)


class FusedStack:
    """S models in training; :meth:`run` takes them through all steps and gives back their parameters."""

    def __init__(
        self,
        network: Mlp | LogisticRegression,
        *,
        config: TrainingConfig,
        neighbours: Neighbours,
        fingerprint: str,
        trials: Sequence[int],
        worlds: Sequence[int],
        initial: Tensor,
    ) -> None:
        self._config, device = config, initial.device
        hidden = network.hidden if isinstance(network, Mlp) else ()
        self._inputs, self._hidden, self._classes = network.inputs, hidden[0] if hidden else 0, network.classes
        self._activation = network.activation if isinstance(network, Mlp) else "relu"
        self._stack, self._size = initial.shape
        self._lanes = _lanes(config, neighbours)
        base, canary = neighbours.base, neighbours.canary
        assert isinstance(base, Dataset)
        x, y = base.x.reshape(base.rows, -1), base.y
        if isinstance(canary, ExampleCanary):
            x = np.concatenate([x, canary.x.reshape(canary.copies, -1)])
            y = np.concatenate([y, canary.y])
        self._x = torch.from_numpy(np.ascontiguousarray(x)).to(device=device, dtype=torch.float32)
        self._y = torch.from_numpy(y).to(device=device, dtype=torch.int32)
        self._squares = self._x.square().sum(1)
        tables = [sampling.slots(neighbours, world=world) for world in (0, 1)]
        width = max(table.size for table in tables)
        self._table = torch.zeros((2, width), dtype=torch.int32, device=device)
        for world, table in enumerate(tables):
            self._table[world, : table.size] = torch.from_numpy(table)
        self._slots = torch.tensor([table.size for table in tables], dtype=torch.int32, device=device)
        self._worlds = torch.tensor(list(worlds), dtype=torch.int32, device=device)
        self._keys = torch.from_numpy(_keys(fingerprint, trials)).to(device)
        rate = config.rate(base.rows)
        log_miss = math.log1p(-rate) if rate < 1.0 else -math.inf
        self._log_miss = torch.tensor([log_miss], dtype=torch.float64, device=device)
        self._scale = config.learning_rate / config.expected_batch(base.rows)
        # A stride of whole cache lines keeps the loads wide.
        self._parameters = torch.zeros((self._stack, -(-self._size // 32) * 32), dtype=torch.float32, device=device)
        self._parameters[:, : self._size] = initial
        rows = torch.int32
        self._index = torch.zeros((self._stack, self._lanes), dtype=rows, device=device)
        self._count = torch.zeros(self._stack, dtype=rows, device=device)
        self._overflow = torch.zeros(1, dtype=rows, device=device)
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
        decay = config.learning_rate * float(config.regulariser)  # type: ignore[arg-type]
        units, classes = _power(self._hidden), _power(self._classes)
        kernels.draw[(self._stack,)](
            *(self._keys, step, self._worlds, self._slots, self._table, self._table.shape[1], self._log_miss),
            *(self._index, self._count, self._overflow),
            LANES=self._lanes,
        )
        first = _FORWARD[exact]
        kernels.forward[(-(-self._lanes // first["ROWS"]), self._stack)](
            *(self._x, self._y, self._squares, self._index, self._count, self._parameters, stride),
            *(self._e1, self._e2, self._h, config.kernel_clip("cuda")),
            D=self._inputs, H=self._hidden, HP=units, C=self._classes, CP=classes, LANES=self._lanes,
            ACT=self._activation, EXACT=exact, **first,
        )  # fmt: skip
        second = _UPDATE[exact]
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


_FORWARD = {
    "bf16": {"ROWS": 64, "K": 32, "num_warps": 4, "num_stages": 3},
    "tf32": {"ROWS": 64, "K": 32, "num_warps": 4, "num_stages": 3},
    "tf32x3": {"ROWS": 64, "K": 32, "num_warps": 4, "num_stages": 3},
}
_UPDATE = {
    "bf16": {"COLUMNS": 64, "ROWS": 32, "num_warps": 4, "num_stages": 3},
    "tf32": {"COLUMNS": 64, "ROWS": 32, "num_warps": 4, "num_stages": 3},
    "tf32x3": {"COLUMNS": 64, "ROWS": 16, "num_warps": 4, "num_stages": 4},
}
"""Tile shapes, measured on an H200 (docs/performance.md). They fix the order of sums, so they belong to the result."""


def _power(n: int) -> int:
    """The next power of two of at least 16, the smallest tile of a matrix product."""
    return max(16, 1 << (max(1, n) - 1).bit_length())


def _keys(fingerprint: str, trials: Sequence[int]) -> NDArray[np.int64]:
    """A 64-bit Philox key for each trial."""
    keys = [seeds.key(fingerprint, purpose="gpu", trial=int(trial)) & (2**64 - 1) for trial in trials]
    return np.array(keys, dtype=np.uint64).view(np.int64)
