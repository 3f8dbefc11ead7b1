"""A torch data set with a canary: both worlds are of one kind, which passes on what the user's data set has besides.

Only what cannot miss the canary is passed on. An attribute with a part for each row (``.data``, ``.targets``), a
method, or another data set inside would give the rows without the canary in both worlds, and the canary would never be
trained on. Nothing could then be refuted, so a training that asks for one is told so.
"""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data

from coalmine.integrations.content import SCALARS, library
from coalmine.integrations.fitting import MissesCanaryError

_DEEPEST = 4
"""How far into objects rows are looked for: an object of an object of one that is held."""


class Rows(torch.utils.data.Dataset[Any]):
    """The items of a data set and of the canary, in an order.

    ``order`` names items by their number; those after the last of the data set are the canary.
    """

    def __init__(self, data: Any, canary: Any, order: Sequence[int]) -> None:
        vars(self).update(_data=data, _canary=canary, _order=order, _passed={})

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: Any) -> Any:
        try:
            number = self._order[operator.index(index)]
        except TypeError:
            raise self._misses(
                f"the items [{' '.join(repr(index).split())[:60]}]", "expected the number of one item"
            ) from None
        return self._data[number] if number < len(self._data) else self._canary

    def __getattr__(self, name: str) -> Any:
        # What begins with __ is asked for by Python and by torch, which then do without it.
        if name.startswith("__") or "_data" not in vars(self):
            raise AttributeError(name)
        value = getattr(self._data, name)
        if self._passed.get(name, self) is not value:  # looked at once: a loop may ask for it in every step
            why = _rows_in(value, len(self._data), owner=self._data)
            if why is not None:
                raise self._misses(f".{name}", why)
            self._passed[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self._data, name):
            raise self._misses(f".{name} = …", "it would be set beside the data set, which would not know of it")
        vars(self)[name] = value

    def _misses(self, what: str, why: str) -> MissesCanaryError:
        kind = type(self._data).__name__
        return MissesCanaryError(
            f"{what} of {kind} would miss the canary that coalmine.neighbours has added ({why}): take the rows as "
            f"items (dataset[index], a DataLoader), or build both data sets yourself, "
            f"coalmine.Worlds(world0={kind}(...), world1={kind}(...), canary=...)"
        )


def _rows_in(value: Any, rows: int, *, owner: Any, depth: int = 0) -> str | None:
    """Why a value may hold the rows of a data set, or None.

    Short lists (names of classes), texts, numbers other than the number of rows, and functions do not.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, (bool, enum.Enum)):
        return f"it is the number of rows without it, {rows}" if value == rows and depth == 0 else None
    if isinstance(value, (*SCALARS, enum.Enum, Path, type, types.FunctionType, types.BuiltinFunctionType)):
        return None
    if isinstance(value, types.MethodType):
        if value.__self__ is owner or isinstance(value.__self__, torch.utils.data.Dataset):
            return "a method works on the data set without it"
        return _rows_in(value.__self__, rows, owner=owner, depth=depth + 1)
    if isinstance(value, torch.utils.data.Dataset):
        return "it is a data set without it"
    length = _length(value)
    if length is not None and (length == rows or (length > rows and _is_table(value))):
        return f"it has {length} parts, and the data set has {rows} rows"
    if depth == _DEEPEST:
        return None
    inside = list(value.values()) if isinstance(value, Mapping) else []
    inside += list(value) if isinstance(value, (list, tuple, set, frozenset)) else []
    inside += list(getattr(value, "__dict__", {}).values()) if not _is_table(value) else []
    found = (_rows_in(one, rows, owner=owner, depth=depth + 1) for one in inside)
    return next((why for why in found if why is not None), None)


def _length(value: Any) -> int | None:
    """How many parts a value has, if they can be taken one by one."""
    if not hasattr(type(value), "__getitem__") and not isinstance(value, (set, frozenset)):
        return None
    try:
        return len(value)
    except TypeError:  # a tensor of one number
        return None


def _is_table(value: Any) -> bool:
    """Whether it is an array or a frame: one with more rows than the data set may hold these among others."""
    return (
        isinstance(value, (np.ndarray, torch.Tensor))
        or library("pandas", value, "DataFrame", "Series")
        or library("polars", value, "DataFrame", "Series")
        or library("datasets", value, "Dataset")
    )
