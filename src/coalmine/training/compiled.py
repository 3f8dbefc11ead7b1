"""Training on a CPU by compiled kernels, where numba is installed: noise for all networks, clipped sums of perceptrons.

Numbers computed this way differ in the last bits from those of torch's own operations, and the noise comes from another
generator, so the two are told apart like two kinds of device: ``TrainingResult.precision`` says ``float32 compiled``.
Which of the two is used depends on config and machine alone, never on the stack.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.training.canary import ExampleCanary, Neighbours
from coalmine.training.data import Dataset
from coalmine.training.layers import Activation, Linear, Part
from coalmine.training.networks import Network

try:
    from coalmine.training import cpu_kernels as kernels
except ImportError:  # numba is an extra; without it torch does the work
    kernels = None  # type: ignore[assignment]

SWITCH = "COALMINE_COMPILED"
"""Environment variable: 0 leaves the work to torch even where numba is installed."""
ALL = slice(None)


def usable(*, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether trainings on this device, in numbers of this type, are computed by compiled kernels here."""
    if kernels is None or not kernels.READY or os.environ.get(SWITCH) == "0":
        return False
    return device.type == "cpu" and dtype == torch.float32


def precision(name: str, *, device: str) -> str:
    """The name of a precision, with ``compiled`` where compiled kernels may have shaped the numbers.

    >>> precision("float32", device="cuda")
    'float32'
    """
    return f"{name} compiled" if usable(device=torch.device(device), dtype=torch.float32) else name


def refusal(network: Network, *, neighbours: Neighbours, paired: bool) -> str | None:
    """Why the steps of this training are left to torch, in words; None if they are not."""
    layers = network.layers()
    kinds = [Linear, Activation] * (len(layers) // 2) + [Linear]
    if len(layers) != len(kinds) or not all(map(isinstance, layers, kinds)):
        return "needs linear layers with activations between them"
    if not all(layer.bias for layer in layers if isinstance(layer, Linear)):
        return "needs a bias in every linear layer"
    if not isinstance(neighbours.base, Dataset) or len(neighbours.base.shape) != 1:
        return "needs rows of features"
    if paired:
        return "keeps no two worlds apart"
    if hasattr(neighbours.canary, "examples"):
        return "needs a canary whose examples do not change"
    return None


def _aligned(*shape: int) -> NDArray[np.float32]:
    """Zeros that begin on a cache line, as torch's memory does."""
    return torch.zeros(shape, dtype=torch.float32).numpy()


def _storage(rows: Tensor) -> NDArray[np.float32]:
    """Rows with the padding behind each: always contiguous, so that the kernels are compiled once."""
    stride = rows.stride(0)
    return rows.as_strided((rows.shape[0], stride), (stride, 1)).numpy()


def _whole(size: int) -> int:
    """The next whole number of vectors."""
    lanes: int = kernels.LANES
    return -(-size // lanes) * lanes


class CompiledNoise:
    """Noise from Philox-4x32-10: for each trial, step and place a counter of its own, so nothing is ever carried."""

    one_at_a_time = False

    def __init__(self, fingerprint: str, trials: Sequence[int]) -> None:
        self._keys = seeds.keys(fingerprint, purpose="noise", trials=trials)
        self._step = 0

    def add_to(self, gradient: Tensor, *, scale: float | Tensor, part: slice = ALL) -> None:
        """Add ``scale`` (one for all, or one a row) times a fresh vector of standard normals to each row."""
        assert part == ALL
        self._step += 1
        scales = np.empty(len(self._keys), dtype=np.float32)
        scales[:] = scale
        kernels.add_noise(_storage(gradient), gradient.shape[1], self._keys, self._step, scales)


class CompiledTable:
    """All rows that a step can draw, each padded to whole vectors: base rows first, then the canary's."""

    def __init__(self, neighbours: Neighbours) -> None:
        base, canary = neighbours.base, neighbours.canary
        assert isinstance(base, Dataset)
        own = canary.copies if isinstance(canary, ExampleCanary) else 0
        self.x = _aligned(base.rows + own, _whole(base.shape[0]))
        self.labels = np.zeros(base.rows + own, dtype=np.int64)
        self.x[: base.rows, : base.shape[0]], self.labels[: base.rows] = base.x, base.y
        if isinstance(canary, ExampleCanary):
            self.x[base.rows :, : base.shape[0]], self.labels[base.rows :] = canary.x, canary.y
        self.squares = np.square(self.x, dtype=np.float64).sum(axis=1).astype(np.float32)


class CompiledSums:
    """Clipped sums of a stack of perceptrons: one call a step."""

    def __init__(
        self, layers: Sequence[Part], table: CompiledTable, *, models: int, width: int, clip: float, divisor: float
    ) -> None:
        self._table, self._width = table, width
        self._clip, self._weight = np.float32(clip), np.float32(1.0 / divisor)
        self._plan, size = _plan(layers, rows=width + kernels.ROWS)
        self._work = _aligned(size)
        self._drawn = np.zeros((models, 0), dtype=np.int64)
        self._counts = np.zeros(models, dtype=np.int64)

    def __call__(self, parameters: Tensor, gradient: Tensor, drawn: Sequence[NDArray[np.int64]]) -> None:
        """The drawn rows' clipped gradients over the expected batch size, into ``gradient``."""
        longest = max(rows.size for rows in drawn) + kernels.ROWS
        if longest > self._drawn.shape[1]:
            self._drawn = np.zeros((self._counts.size, longest + longest // 4), dtype=np.int64)
        for position, rows in enumerate(drawn):
            self._drawn[position, : rows.size] = rows
            self._counts[position] = rows.size
        table = self._table
        kernels.add_clipped_sums(
            *(
                _storage(parameters),
                _storage(gradient),
                self._drawn,
                self._counts,
                table.x,
                table.labels,
                table.squares,
            ),
            *(self._plan, self._work, self._width, self._clip, self._weight),
        )


_KINDS = {"relu": 0, "tanh": 1, "sigmoid": 2}


def _plan(layers: Sequence[Part], *, rows: int) -> tuple[NDArray[np.int64], int]:
    """Where everything is, layer by layer, as the kernel wants it, and how much room it takes."""
    linear = [layer for layer in layers if isinstance(layer, Linear)]
    activations = [layer.kind for layer in layers if isinstance(layer, Activation)]
    place, start = 0, max(_whole(layer.inputs) for layer in linear)
    plan: list[tuple[int, ...]] = []
    for layer, kind in itertools.zip_longest(linear, activations, fillvalue="relu"):
        assert isinstance(layer, Linear)
        inputs, outputs = layer.inputs, layer.outputs
        wide_in, wide_out = _whole(inputs), _whole(outputs)
        sizes = (inputs * wide_out, wide_out, outputs * wide_in if plan else 0, rows * wide_out, rows * wide_out)
        begins = [start + sum(sizes[:i]) for i in range(len(sizes))]
        plan.append((inputs, outputs, place, place + inputs * outputs, *begins, wide_in, wide_out, _KINDS[kind]))
        place += (inputs + 1) * outputs
        start += sum(sizes)
    return np.array(plan, dtype=np.int64), start
