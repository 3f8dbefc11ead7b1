"""The two worlds of a user's own game: the same data without and with the canary, or with one row replaced by it."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.integrations.content import library
from coalmine.integrations.fitting import check_kept, check_place, shown, values_of
from coalmine.integrations.frames import with_canary
from coalmine.records import Relation


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Worlds:
    """Two data sets that differ in ``copies`` rows under ``relation``; ``canary`` is shown to a score that asks for it.

    With ``add_remove`` the rows that are more belong into world 1: a claim is tested in that order, with more power.

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

    The data set may be an array, a tensor or a JAX array (rows first), a tuple or mapping of these with as many rows
    each, a list of rows, a torch data set with a length, a Hugging Face ``Dataset``, or a frame of pandas or Polars.
    The canary is one row of it in the same form: an item of the data set, or a mapping from the columns to values (for
    a frame also a frame of one row or a Series, which brings the canary's label where the index has any).
    The items of a torch data set are given by one of ours in both worlds, which passes on other attributes of yours
    (``.classes``) unless these would miss the canary (``.data``): then build both worlds yourself.

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
    if library("torch.utils.data", dataset, "Dataset"):
        world0, world1 = _in_torch_items(dataset, canary, relation=relation, copies=k, row=row)
        return Worlds(world0=world0, world1=world1, canary=canary, relation=relation, copies=k)
    if library("datasets", dataset, "Dataset"):
        changed = _in_a_hugging_face_set(dataset, canary, relation=relation, copies=k, row=row)
        return Worlds(world0=dataset, world1=changed, canary=canary, relation=relation, copies=k)
    if library("pandas", dataset, "DataFrame") or library("polars", dataset, "DataFrame"):
        changed = with_canary(dataset, canary, relation=relation, copies=k, row=row)
        return Worlds(world0=dataset, world1=changed, canary=canary, relation=relation, copies=k)
    if isinstance(dataset, Mapping):
        more = " (a mapping is read as columns; units such as users go into a list, list(data.items()))"
        values = values_of(dataset, canary, more=more)
        inner = neighbours(tuple(dataset.values()), tuple(values), relation=relation, copies=k, row=row)
        world1 = dict(zip(dataset, inner.world1, strict=True))
        return Worlds(world0=dataset, world1=world1, canary=canary, relation=relation, copies=k)
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


def _in_torch_items(data: Any, canary: Any, *, relation: Relation, copies: int, row: int) -> tuple[Any, Any]:
    """Both worlds of a torch data set: the same items, then with one more, or with one in another's place."""
    if not hasattr(data, "__len__"):
        raise _validate.reject("dataset", data, "a data set with a length")
    rows = len(data)
    check_place(rows, relation=relation, copies=copies, row=row)
    # It needs torch, which this room works without: here it is loaded, because the data set is one of its own.
    kind = importlib.import_module("coalmine.integrations.data_sets").Rows
    order = list(range(rows))
    changed = [*order, *[rows] * copies]
    if relation is Relation.REPLACE:
        changed = [rows if index == row % rows else index for index in order]
    return kind(data, canary, order), kind(data, canary, changed)


def _in_a_hugging_face_set(data: Any, canary: Any, *, relation: Relation, copies: int, row: int) -> Any:
    """World 1 of a Hugging Face data set."""
    rows = len(data)
    check_place(rows, relation=relation, copies=copies, row=row)
    values_of(data.column_names, canary)
    replaced = relation is Relation.REPLACE
    some = data.select([index for index in range(rows) if not (replaced and index == row % rows)])
    new = type(data).from_list([dict(canary)] * copies, features=data.features)
    return sys.modules["datasets"].concatenate_datasets([some, new])


def _changed(data: Any, canary: Any, *, relation: Relation, copies: int, row: int) -> Any:
    """World 1 of one array, tensor or list."""
    try:
        rows = len(data)
    except TypeError:  # a number, an iterator, a sparse matrix
        raise InvalidInputError(
            f"dataset = {shown(data)} is not allowed: expected an array, a tensor, a list, a data set, a data frame, "
            "or these by parts; build data sets of another type yourself, coalmine.Worlds(world0=..., world1=...)"
        ) from None
    check_place(rows, relation=relation, copies=copies, row=row)
    torch = sys.modules.get("torch")
    try:
        if isinstance(data, list):
            if relation is Relation.ADD_REMOVE:
                return [*data, *[canary] * copies]
            return [canary if index == row % rows else one for index, one in enumerate(data)]
        if torch is not None and isinstance(data, torch.Tensor):
            one = torch.as_tensor(canary, dtype=data.dtype, device=data.device).reshape(data.shape[1:])
            check_kept(one.cpu().double().numpy(), canary, data.dtype)
            if relation is Relation.ADD_REMOVE:
                return torch.cat([data, one.expand(copies, *data.shape[1:])])
            changed: Any = data.clone()
        elif library("jax", data, "Array"):
            jnp = sys.modules["jax.numpy"]
            one = jnp.asarray(canary, dtype=data.dtype).reshape(data.shape[1:])
            check_kept(np.asarray(one), canary, data.dtype)
            if relation is Relation.REPLACE:
                return data.at[row].set(one)
            return jnp.concatenate([data, jnp.broadcast_to(one, (copies, *data.shape[1:]))])
        else:
            with np.errstate(over="ignore"):
                one = np.asarray(canary, dtype=data.dtype).reshape(data.shape[1:])
            check_kept(one, canary, data.dtype)
            if relation is Relation.ADD_REMOVE:
                return np.concatenate([data, np.broadcast_to(one, (copies, *data.shape[1:]))])
            changed = data.copy()
        changed[row] = one
        return changed
    except InvalidInputError:
        raise
    except (AttributeError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(
            f"canary does not fit the data set ({error}): expected one row of an array, a tensor, a TensorDataset, a "
            "list or a tuple of these; build other data sets yourself and give both as worlds"
        ) from None
