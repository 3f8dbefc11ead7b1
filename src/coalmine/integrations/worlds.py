"""The two worlds of a user's own game: the same data without and with the canary, or with one row replaced by it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import Relation


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """Two data sets that differ in ``copies`` rows under ``relation``; ``canary`` is shown to a score that asks for it.

    >>> Worlds(world0=[1.0, 2.0], world1=[1.0, 2.0, 9.0]).relation.value
    'add_remove'
    """

    world0: Any
    world1: Any
    canary: Any = None
    relation: Relation = Relation.ADD_REMOVE
    copies: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        object.__setattr__(self, "copies", _validate.integer("copies", self.copies, at_least=1))


GivenWorlds = Worlds | tuple[Any, Any] | Callable[[], Any]
"""How a user may give the worlds: ready, as a pair (world 0, world 1), or as a function that builds either."""


def as_worlds(value: object) -> Worlds:
    """The worlds from what a user gave or a user's function returned."""
    if isinstance(value, Worlds):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return Worlds(world0=value[0], world1=value[1])
    kind = f"{len(value)} parts" if isinstance(value, (tuple, list)) else f"an object of type {type(value).__name__}"
    raise InvalidInputError(
        f"worlds gave {kind}: expected a pair (data set of world 0, data set of world 1), or coalmine.Worlds"
    )


def neighbours(
    dataset: Any, canary: Any, *, relation: Relation | str = Relation.ADD_REMOVE, copies: int = 1, row: int = -1
) -> Worlds:
    """The worlds of a data set and a canary: world 1 has ``copies`` more rows, each the canary (``add_remove``), or has
    the canary in the place of ``row`` (``replace``).

    The data set may be an array or a tensor (rows first), a tuple of these with as many rows each, a torch
    ``TensorDataset``, or a list of rows; the canary is one row of it in the same form.

    >>> worlds = neighbours((np.zeros((3, 2)), np.zeros(3)), ([5.0, 0.0], 1.0))
    >>> worlds.world1[0].shape, worlds.world1[1].tolist()
    ((4, 2), [0.0, 0.0, 0.0, 1.0])
    """
    relation = Relation.parse(relation)
    k = _validate.integer("copies", copies, at_least=1)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dataset, torch.utils.data.TensorDataset):
        inner = neighbours(dataset.tensors, canary, relation=relation, copies=k, row=row)
        world1: Any = torch.utils.data.TensorDataset(*inner.world1)
        return dataclasses.replace(inner, world0=dataset, world1=world1)
    if isinstance(dataset, tuple):
        parts = tuple(canary) if isinstance(canary, (tuple, list)) else (canary,)
        if len(parts) != len(dataset):
            raise InvalidInputError(
                f"canary has {len(parts)} parts: expected {len(dataset)}, one for each part of the data set"
            )
        world1 = tuple(
            _changed(data, part, relation=relation, copies=k, row=row)
            for data, part in zip(dataset, parts, strict=True)
        )
    else:
        world1 = _changed(dataset, canary, relation=relation, copies=k, row=row)
    return Worlds(world0=dataset, world1=world1, canary=canary, relation=relation, copies=k)


def _changed(data: Any, canary: Any, *, relation: Relation, copies: int, row: int) -> Any:
    """World 1 of one array, tensor or list."""
    if not hasattr(data, "__len__"):
        raise _validate.reject("dataset", data, "an array, a tensor, a TensorDataset, a list or a tuple of these")
    rows = len(data)
    if relation is Relation.REPLACE:
        if copies != 1:
            raise _validate.reject("copies", copies, "1 with relation 'replace'")
        if not -rows <= _validate.integer("row", row, at_least=-rows) < rows:
            raise _validate.reject("row", row, f"the number of a row, at most {rows - 1}")
    torch = sys.modules.get("torch")
    try:
        if isinstance(data, list):
            if relation is Relation.ADD_REMOVE:
                return [*data, *[canary] * copies]
            return [canary if index == row % rows else one for index, one in enumerate(data)]
        if torch is not None and isinstance(data, torch.Tensor):
            one = torch.as_tensor(canary, dtype=data.dtype, device=data.device).reshape(data.shape[1:])
            if relation is Relation.ADD_REMOVE:
                return torch.cat([data, one.expand(copies, *data.shape[1:])])
            changed: Any = data.clone()
        else:
            one = np.asarray(canary, dtype=data.dtype).reshape(data.shape[1:])
            if relation is Relation.ADD_REMOVE:
                return np.concatenate([data, np.broadcast_to(one, (copies, *data.shape[1:]))])
            changed = data.copy()
        changed[row] = one
        return changed
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"canary does not fit the data set ({error}): expected one row of an array, a tensor, a TensorDataset, a "
            "list or a tuple of these; build other data sets yourself and give both as worlds"
        ) from None
