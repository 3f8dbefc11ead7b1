"""What the two worlds differ in: examples, a gradient, or either chosen anew each step; and how neighbours differ.

The canary is a term of its own in the step: both worlds share the base data. With ``add_remove``, world 1 has the
canary's k rows on top of the base rows. With ``replace``, world 0 has the base rows as they are, and in world 1 the
canary's k rows stand in the sampling slots of k base rows. Each row is drawn on its own by the sampler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import Relation
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
        object.__setattr__(self, "x", inputs)
        object.__setattr__(self, "y", labels)

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
    copies: int

    def __init__(self, gradient: ArrayLike, *, copies: int = 1) -> None:
        object.__setattr__(self, "gradient", _validate.finite_vector("gradient", gradient))
        object.__setattr__(self, "copies", _validate.integer("copies", copies, at_least=1))


class StackState(Protocol):
    """What an adaptive canary may see before each step: everything up to the current model of each training."""

    @property
    def trials(self) -> NDArray[np.int64]:
        """The trial number of each model, ``[S]``."""
        ...

    @property
    def step(self) -> int:
        """The step about to be taken: 1 for the first."""
        ...

    @property
    def parameters(self) -> Any:
        """The current parameters, a tensor ``[S, P]``."""
        ...

    @property
    def private_gradient(self) -> Any | None:
        """The private gradient of the step before, ``[S, P]``; nothing before the first step."""
        ...


class AdaptiveExample(Protocol):
    """Chooses the canary's k examples anew each step, for every model of the stack.

    One whose examples are a function of the present state alone may say ``memoryless = True``: the trainer then asks
    it for those models only whose batch holds the canary.
    """

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        ...

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins: forget everything before it."""
        ...

    def examples(self, state: StackState) -> tuple[Any, Any]:
        """Inputs ``[S, k, features...]`` and labels ``[S, k]`` for this step (tensors or arrays)."""
        ...


class AdaptiveGradient(Protocol):
    """Chooses the canary's gradient anew each step, for every model of the stack."""

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        ...

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins: forget everything before it."""
        ...

    def gradients(self, state: StackState) -> Any:
        """One gradient a model, ``[S, P]`` (clipped to C by the trainer), for this step."""
        ...


Canary = ExampleCanary | GradientCanary | AdaptiveExample | AdaptiveGradient


@dataclasses.dataclass(frozen=True, eq=False)
class Neighbours:
    """The two worlds: base data, the canary, and the relation between the worlds.

    ``replaced`` lists, for ``replace``, the k base rows whose places the canary's rows take in world 1.

    >>> base = Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    >>> Neighbours(base, canary=ExampleCanary([1.0, 1.0], 1), relation="replace", replaced=[0]).replaced
    (0,)
    """

    base: Dataset | ZeroGradients | AlikeRows
    canary: Canary | None = None
    relation: Relation = Relation.ADD_REMOVE
    replaced: tuple[int, ...] = ()

    def __init__(
        self,
        base: Dataset | ZeroGradients | AlikeRows,
        *,
        canary: Canary | None = None,
        relation: Relation | str = Relation.ADD_REMOVE,
        replaced: Sequence[int] = (),
    ) -> None:
        _validate.instance("base", base, (Dataset, ZeroGradients, AlikeRows))
        relation = Relation.parse(relation)
        rows = tuple(
            _validate.integer(f"replaced[{i}]", row, at_least=0, at_most=base.rows - 1)
            for i, row in enumerate(replaced)
        )
        copies = 0 if canary is None else canary.copies
        if relation is Relation.ADD_REMOVE and rows:
            raise _validate.reject("replaced", rows, "no rows with relation = 'add_remove'")
        if relation is Relation.REPLACE and (len(rows) != copies or len(set(rows)) != copies):
            raise _validate.reject("replaced", rows, f"{copies} different rows of the base data, one for each copy")
        if not isinstance(base, Dataset) and isinstance(canary, ExampleCanary):
            raise InvalidInputError("canary is an example: expected a gradient where the base data has no examples")
        if isinstance(base, Dataset) and isinstance(canary, ExampleCanary) and canary.x.shape[1:] != base.shape:
            raise InvalidInputError(
                f"canary x has rows of shape {canary.x.shape[1:]}: expected {base.shape}, as in the base data"
            )
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "canary", canary)
        object.__setattr__(self, "relation", relation)
        object.__setattr__(self, "replaced", rows)

    @property
    def copies(self) -> int:
        """k: how many rows the worlds differ in."""
        return 0 if self.canary is None else self.canary.copies
