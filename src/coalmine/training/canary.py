"""What the two worlds differ in: examples, a gradient, or either chosen anew each step; and how neighbours differ.

The canary is a term of its own in the step: both worlds share the base data. With ``add_remove``, world 1 has the
canary's k rows on top of the base rows. With ``replace``, world 0 has the base rows as they are, and in world 1 the
canary's k rows stand in the sampling slots of k base rows. Each row is drawn on its own by the sampler.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import Relation
from coalmine.training.config import assign
from coalmine.training.data import AlikeRows, Dataset, ZeroGradients, inputs_array, labels_array


@dataclasses.dataclass(frozen=True, eq=False)
class ExampleCanary:
    """Examples: ``x`` of shape ``(k, features...)`` with labels ``y``, or one example and ``copies`` of it.

    >>> ExampleCanary([0.0, 1.0], 1, copies=4).copies
    4
    """

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __init__(self, x: ArrayLike, y: ArrayLike, *, copies: int | None = None) -> None:
        inputs, labels = inputs_array("canary x", x), np.asarray(y)
        if labels.ndim == 0:
            times = _validate.integer("copies", 1 if copies is None else copies, at_least=1)
            inputs = np.repeat(inputs[None], times, axis=0)
            labels = np.repeat(labels[None], times)
        elif copies is not None:
            raise InvalidInputError(f"copies = {copies!r} is not allowed with a list of labels: expected one example")
        labels = labels_array("canary y", labels)
        if inputs.ndim < 2 or inputs.shape[0] != labels.size or labels.size == 0:
            raise InvalidInputError(
                f"canary x has shape {inputs.shape}: expected one row for each of the {labels.size} labels"
            )
        assign(self, x=inputs, y=labels)

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        return int(self.y.size)


@dataclasses.dataclass(frozen=True, eq=False)
class GradientCanary:
    """A row whose gradient is this vector, clipped to C like every other; ``copies`` such rows.

    >>> GradientCanary([0.0, 3.0, 0.0]).copies
    1
    """

    gradient: NDArray[np.float64]
    _: dataclasses.KW_ONLY
    copies: int = 1

    def __post_init__(self) -> None:
        copies = _validate.integer("copies", self.copies, at_least=1)
        assign(self, gradient=_validate.finite_vector("gradient", self.gradient), copies=copies)


@dataclasses.dataclass(frozen=True, eq=False)
class GradientRows:
    """k rows with a gradient each: row i has ``values[i]`` at the parameters ``indices[i]`` and 0 elsewhere.

    Each row is drawn on its own and clipped to C like every other. Few entries a row cost next to nothing. An observer
    of every step is also shown what the other rows add (``Iterate.shared``).

    >>> GradientRows([[0], [2], [2]], [[1.0], [1.0], [-1.0]]).copies
    3
    """

    indices: NDArray[np.int64]
    values: NDArray[np.float64]

    def __init__(self, indices: ArrayLike, values: ArrayLike) -> None:
        places, entries = np.asarray(indices), np.asarray(values, dtype=np.float64)
        if places.ndim != 2 or places.shape != entries.shape or not places.size or places.dtype.kind not in "iu":
            raise InvalidInputError(
                f"indices has shape {places.shape} and values {entries.shape}: expected whole numbers (rows, entries) "
                "and a value for each"
            )
        if not np.isfinite(entries).all() or places.min() < 0:
            raise InvalidInputError("indices or values is not allowed: expected parameter numbers and finite numbers")
        assign(self, indices=places.astype(np.int64), values=entries)

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        return int(self.indices.shape[0])


@dataclasses.dataclass(frozen=True, eq=False)
class StackState:
    """What an adaptive canary may see before each step: everything up to the current model of each training."""

    trials: NDArray[np.int64]
    """The trial number of each model, ``[S]``."""
    step: int
    """The step about to be taken: 1 for the first."""
    parameters: Any
    """The current parameters, a tensor ``[S, P]``."""
    private_gradient: Any | None
    """The private gradient of the step before, ``[S, P]``; nothing before the first step."""


class _Adaptive:
    """What canaries that are chosen anew each step share."""

    copies: int = 1
    """k: how many rows the worlds differ in."""

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins: forget everything before it."""


class AdaptiveExample(_Adaptive, abc.ABC):
    """Chooses the canary's k examples anew each step, for every model of the stack."""

    memoryless: bool = False
    """Whether the examples are a function of the present state alone: then only those models are asked for whose batch
    holds the canary."""

    @abc.abstractmethod
    def examples(self, state: StackState) -> tuple[Any, Any]:
        """Inputs ``[S, k, features...]`` and labels ``[S, k]`` for this step (tensors or arrays)."""


class ChosenExample(AdaptiveExample, abc.ABC):
    """Chooses each step, for every model of the stack, one of m examples that are known beforehand; ``copies`` of it.

    The examples stand in the table of rows like any other, so a step costs what it costs with a fixed example.
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, *, copies: int = 1) -> None:
        """``x``: inputs ``[m, features...]``; ``y``: labels ``[m]``; ``copies``: rows that are all the chosen one."""
        fixed = ExampleCanary(x, np.atleast_1d(y))
        self.x, self.y = fixed.x, fixed.y
        self.copies = _validate.integer("copies", copies, at_least=1)

    @abc.abstractmethod
    def choose(self, state: StackState) -> NDArray[np.int64]:
        """The place of the chosen example for each model, ``[S]``."""

    def places(self, state: StackState) -> NDArray[np.int64]:
        """What was chosen, checked."""
        places = np.asarray(self.choose(state))
        fits = places.shape == state.trials.shape and places.dtype.kind in "iu"
        if not fits or not ((places >= 0) & (places < self.y.size)).all():
            raise InvalidInputError(
                f"the canary chose {places}: expected the place, 0 to {self.y.size - 1}, of an example for each of the "
                f"{state.trials.size} models"
            )
        return places

    def examples(self, state: StackState) -> tuple[Any, Any]:
        """As :class:`AdaptiveExample` says."""
        places = np.repeat(self.places(state)[:, None], self.copies, axis=1)
        return self.x[places], self.y[places]


class AdaptiveGradient(_Adaptive, abc.ABC):
    """Chooses the canary's gradient anew each step, for every model of the stack."""

    @abc.abstractmethod
    def gradients(self, state: StackState) -> Any:
        """One gradient a model, ``[S, P]`` (clipped to C by the trainer), for this step."""


Canary = ExampleCanary | GradientCanary | GradientRows | AdaptiveExample | AdaptiveGradient


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbours:
    """The two worlds: base data, the canary, and the relation between the worlds.

    ``replaced`` lists, for ``replace``, the k base rows whose places the canary's rows take in world 1.

    >>> base = Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    >>> Neighbours(base, canary=ExampleCanary([1.0, 1.0], 1), relation="replace", replaced=[0]).replaced
    (0,)
    """

    base: Dataset | ZeroGradients | AlikeRows
    _: dataclasses.KW_ONLY
    canary: Canary | None = None
    relation: Relation = Relation.ADD_REMOVE
    replaced: Sequence[int] = ()

    def __post_init__(self) -> None:
        base, canary = self.base, self.canary
        _validate.instance("base", base, (Dataset, ZeroGradients, AlikeRows))
        if canary is not None:
            kinds = (ExampleCanary, GradientCanary, GradientRows, AdaptiveExample, AdaptiveGradient)
            _validate.instance("canary", canary, kinds)
        relation, rows, copies = Relation.parse(self.relation), tuple(self.replaced), self.copies
        for i, row in enumerate(rows):
            _validate.integer(f"replaced[{i}]", row, at_least=0, at_most=base.rows - 1)
        if relation is Relation.ADD_REMOVE and rows:
            raise _validate.reject("replaced", rows, "no rows with relation = 'add_remove'")
        if relation is Relation.REPLACE and (len(rows) != copies or len(set(rows)) != copies):
            raise _validate.reject("replaced", rows, f"{copies} different rows of the base data, one for each copy")
        if not isinstance(base, Dataset) and isinstance(canary, ExampleCanary | AdaptiveExample):
            raise InvalidInputError("canary is an example: expected a gradient where the base data has no examples")
        known = canary if isinstance(canary, ExampleCanary | ChosenExample) else None
        if isinstance(base, Dataset) and known is not None and known.x.shape[1:] != base.shape:
            raise InvalidInputError(
                f"canary x has rows of shape {known.x.shape[1:]}: expected {base.shape}, as in the base data"
            )
        assign(self, relation=relation, replaced=tuple(int(row) for row in rows))

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        return 0 if self.canary is None else self.canary.copies

    def all_rows(self) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Copies of every row that a step can draw, flat, and its label: the base rows, then the canary's examples.

        For a chosen example these are all it may choose; those of any other adaptive canary are zeros, to be written
        over.
        """
        assert isinstance(self.base, Dataset)
        x, y = [self.base.x.reshape(self.base.rows, -1)], [self.base.y]
        if isinstance(self.canary, ExampleCanary | ChosenExample):
            x, y = [*x, self.canary.x.reshape(self.canary.y.size, -1)], [*y, self.canary.y]
            if (missing := self.copies - self.canary.y.size) > 0:  # a place for each copy of a chosen example
                x, y = [*x, np.zeros_like(x[0][:1]).repeat(missing, 0)], [*y, np.zeros(missing, dtype=np.int64)]
        elif isinstance(self.canary, AdaptiveExample):
            x, y = [*x, np.zeros_like(x[0][:1]).repeat(self.copies, 0)], [*y, np.zeros(self.copies, dtype=np.int64)]
        return np.concatenate(x), np.concatenate(y)
