"""What others may ask of models that are given as parameter vectors: losses, clipped sums, accuracy."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coalmine.roles import Queries
from coalmine.training import backends, compiled, stages
from coalmine.training.batching import FullBatcher, Table, width
from coalmine.training.canary import Neighbours, StackState
from coalmine.training.clipping import ClosedForm, parameter_views
from coalmine.training.config import TrainingConfig
from coalmine.training.convolution import Conv2d
from coalmine.training.data import Dataset
from coalmine.training.engines import make_engine
from coalmine.training.job import Job
from coalmine.training.models import BlackBox
from coalmine.training.modules import PerExample
from coalmine.training.networks import Network, example_floats, takes_tokens
from coalmine.training.products import in_parts, padded
from coalmine.training.sums import Vectors

_ROWS_AT_ONCE = 64  # of a whole stack of models, which on a GPU is thousands
_FEW = 32
"""Rows up to which less than a whole pass may do."""
_LINE = 16
"""Numbers in a cache line, in float32."""


def losses(network: Network, parameters: Tensor, *, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
    """Cross-entropy of every model at B labelled inputs, in float64 from the logits.

    A model's losses have the same bits whatever other models stand beside it.

    Args:
        network: what the models are.
        parameters: one parameter vector a model, ``[S, P]``.
        x: inputs, ``[B, ...]``.
        y: labels, ``[B]``.

    Returns:
        The losses, ``[S, B]``.

    >>> from coalmine.training import LogisticRegression
    >>> losses(LogisticRegression(2), torch.zeros(1, 6), x=[[1.0, 2.0]], y=[0]).round(4).tolist()
    [[0.6931]]
    """
    engine = _engine(network, str(parameters.device), parameters.dtype)
    return BlackBox(engine, parameters, np.arange(parameters.shape[0]), network).losses(x, y)


def _engine(network: Network, device: str, dtype: torch.dtype) -> ClosedForm | PerExample:
    """Built once for a network, a device and a thread, whose buffers are its own: it is asked at every step."""
    hashable: Any = network  # a frozen dataclass
    return _built(hashable, device, dtype, threading.get_ident())


@functools.lru_cache(maxsize=8)
def _built(network: Network, device: str, dtype: torch.dtype, thread: int) -> ClosedForm | PerExample:
    return make_engine(network, device=torch.device(device), dtype=dtype)


def clipped_sums(network: Network, parameters: Tensor, *, dataset: Dataset, config: TrainingConfig) -> Tensor:
    """Σ_i clip_C(∇ℓ(m, x_i)) over all rows of a data set, for every model m, as a step of that training adds them up.

    Args:
        network: what the models are.
        parameters: one parameter vector a model, ``[S, P]``.
        dataset: the rows.
        config: the training whose clipping norm and order of sums are used; it samples nothing here.

    Returns:
        The sums, ``[S, P]``, on the device of the parameters; a model's do not depend on the others.

    >>> from coalmine.training import LogisticRegression
    >>> config = TrainingConfig(steps=1, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> base = Dataset([[1.0, 2.0], [-3.0, 1.0]], [0, 1])
    >>> clipped_sums(LogisticRegression(2), torch.zeros(1, 6), dataset=base, config=config).norm().round(decimals=4)
    tensor(1.4142)
    """
    job = Job(network, Neighbours(dataset), config, "", parameters.device)
    # The table of rows is laid out anew for every call, which for a few of them would take longer than their sums.
    if dataset.rows > _FEW and parameters.dtype == job.dtype and stages.fits(job):
        return stages.sums_of_all(job, parameters)
    return in_parts(functools.partial(_sums, job, dataset=dataset), parameters)


class PartSums:
    """Σ_i clip_C(∇ℓ(m, x_i)) over each of some parts of a data set, for those who ask again and again.

    >>> from coalmine.training import LogisticRegression
    >>> config = TrainingConfig(steps=1, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> base = Dataset([[1.0, 2.0], [-3.0, 1.0], [0.0, 2.0]], [0, 1, 0])
    >>> parts = PartSums(LogisticRegression(2), dataset=base, parts=[np.array([1]), np.array([0, 2])], config=config)
    >>> parts.at(torch.zeros(1, 6)).norm(dim=2).round(decimals=3)
    tensor([[1.0000, 1.9560]])
    """

    def __init__(
        self, network: Network, *, dataset: Dataset, parts: Sequence[NDArray[np.int64]], config: TrainingConfig
    ) -> None:
        """``parts``: the numbers of their rows; ``config``: as for :func:`clipped_sums`."""
        self._network, self._dataset, self._config, self._parts = network, dataset, config, parts
        self._apart: list[Dataset] = []
        self._there: tuple[stages.StageTable, list[Tensor]] | None = None

    def at(self, parameters: Tensor) -> Tensor:
        """The sums, ``[S, parts, P]``; a model's do not depend on the others."""
        job = Job(self._network, Neighbours(self._dataset), self._config, "", parameters.device)
        if parameters.dtype == job.dtype and stages.fits(job):
            if self._there is None or self._there[0].x.device != job.device:
                on_device = [torch.from_numpy(part).to(job.device) for part in self._parts]
                self._there = stages.StageTable(job), on_device
            table, parts = self._there
            return stages.sums_of_parts(job, table, parameters, parts)
        if not self._apart:
            self._apart = [Dataset(self._dataset.x[part], self._dataset.y[part]) for part in self._parts]
        shape = (parameters.shape[0], len(self._parts), parameters.shape[1])
        found = torch.empty(shape, dtype=parameters.dtype, device=parameters.device)
        for number, part in enumerate(self._apart):
            found[:, number] = clipped_sums(self._network, parameters, dataset=part, config=self._config)
        return found


class RowGradients:
    """The clipped gradient of one of some rows at each model, for those who ask at every step.

    >>> from coalmine.training import LogisticRegression
    >>> config = TrainingConfig(steps=1, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.1)
    >>> rows = RowGradients(LogisticRegression(2), rows=Dataset([[1.0, 2.0], [-3.0, 1.0]], [0, 1]), config=config)
    >>> rows.at(torch.zeros(2, 6), torch.tensor([1, 0])).norm(dim=1).round(decimals=4)
    tensor([1., 1.])
    """

    def __init__(self, network: Network, *, rows: Dataset, config: TrainingConfig) -> None:
        """``config``: the training whose clipping norm and precision are used; it samples nothing here."""
        self._network, self._rows, self._config = network, rows, config
        self._apart = [Dataset(rows.x[row : row + 1], rows.y[row : row + 1]) for row in range(rows.rows)]
        self._stages: stages.StageGradients | None = None

    def at(self, parameters: Tensor, places: Tensor) -> Tensor:
        """clip_C(∇ℓ(m_s, x_r)) with r = ``places[s]``, ``[S, P]``; a model's does not depend on the others."""
        job = Job(self._network, Neighbours(self._rows), self._config, "", parameters.device)
        if parameters.dtype == job.dtype and stages.fits(job):
            if self._stages is None or self._stages.device != parameters.device:
                self._stages = stages.StageGradients(job)
            return self._stages(parameters, places)
        found = torch.zeros(parameters.shape, dtype=parameters.dtype, device=parameters.device)
        for row, alone in enumerate(self._apart):
            mine = places == row
            if mine.any():
                found[mine] = clipped_sums(self._network, parameters[mine], dataset=alone, config=self._config)
        return found


def _sums(job: Job, parameters: Tensor, *, dataset: Dataset) -> Tensor:
    """The sums for models that go through together."""
    network, neighbours, config = job.network, job.neighbours, job.config
    device, dtype = parameters.device, parameters.dtype
    # Every model's vector starts on a cache line, as in the trainer: then its place does not touch its last bits.
    models, size = parameters.shape
    worlds = np.zeros(models, dtype=np.int64)
    room = torch.zeros((2, models, padded(size)), dtype=dtype, device=device)
    room[0, :, :size] = parameters
    # A batch size that is larger than this data set is no matter here.
    rows = width(
        config, rows=max(dataset.rows, math.ceil(config.batch_size or 0)), example_floats=example_floats(network)
    )
    if compiled.fits(job) and backends.compiled(device=device, dtype=dtype):
        vectors = Vectors(room[0, :, :size], room[1, :, :size], worlds, models)
        sums = compiled.CompiledSums(job, vectors, compiled.CompiledTable(neighbours), divisor=1.0, rows=rows)
        sums([np.arange(dataset.rows)] * models, StackState(worlds, 1, vectors.parameters, None))
        return vectors.gradient
    engine = _engine(network, str(device), dtype)
    table = Table(neighbours, classes=network.classes, tokens=takes_tokens(network), device=device, dtype=dtype)
    views, out = (parameter_views(side[:, :size], engine.layers) for side in room)
    few = _room(network, dataset.rows) if device.type == "cpu" and dataset.rows <= _FEW else None
    batches = FullBatcher(table, neighbours, worlds=worlds, width=rows, divisor=1.0, room=few)
    with torch.no_grad():
        for number, batch in enumerate(batches.passes()):
            engine.clipped_sums(views, out, batch, clip=config.clip, accumulate=number > 0)
    return room[1, :, :size]


def _room(network: Network, rows: int) -> int:
    """How many rows a buffer on a CPU must have for few ``rows`` to have the bits that they have among 32.

    Every model's part must begin on a cache line in every layer, and the last few numbers of a buffer, which are
    computed by other code than the rest, must be padding (:func:`~coalmine.training.products.padded`). Those who ask
    about one row ask thousands of times.

    >>> from coalmine.training import NasrCnn
    >>> _room(NasrCnn((1, 28, 28), classes=10), 1)
    8
    """
    shape, sizes = network.input_shape, [math.prod(network.input_shape)]
    for layer in network.layers():
        after = layer.output(shape)
        sizes.append(math.prod(after))
        if isinstance(layer, Conv2d):
            sizes.append(math.prod(after[1:]) * layer.inputs * layer.kernel**2)
        shape = after
    step = _LINE // math.gcd(_LINE, *sizes)
    return min(padded(rows), -(-(rows + -(-2 * _LINE // min(sizes))) // step) * step)


def accuracy(models: Queries, *, x: NDArray[Any], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of labelled rows that each model gets right, ``[S]``.

    >>> class Two:
    ...     trials = np.arange(2)
    ...     def logits(self, x): return np.stack([x, -x])
    >>> accuracy(Two(), x=np.eye(2), y=np.array([0, 1])).tolist()
    [1.0, 0.0]
    """
    right = np.zeros(models.trials.size)
    for start in range(0, len(y), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        right += (models.logits(x[part]).argmax(axis=2) == y[part]).sum(axis=1)
    return right / len(y)
