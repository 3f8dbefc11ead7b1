"""A data frame with a canary: pandas with its index, Polars."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Mapping
from typing import Any

from coalmine.errors import InvalidInputError
from coalmine.integrations.content import library
from coalmine.integrations.fitting import check_kept, check_place, shown, values_of
from coalmine.records import Relation

_TROUBLE = (ArithmeticError, LookupError, TypeError, ValueError)
"""What frames raise where a value does not fit."""


def with_canary(data: Any, canary: Any, *, relation: Relation, copies: int, row: int) -> Any:
    """World 1 of a data frame. The canary is a mapping, a frame of one row, or a pandas Series."""
    rows = len(data)
    check_place(rows, relation=relation, copies=copies, row=row)
    replaced = relation is Relation.REPLACE
    place = row % rows if replaced else rows
    values = dict(zip(data.columns, values_of(data.columns, _mapping(canary)), strict=True))
    if library("polars", data, "DataFrame"):
        try:
            new = type(data)([values] * copies, schema=data.schema)
        except _TROUBLE as error:
            raise _misfit("", shown(values), data.schema, error) from None
        return type(data).vstack(data[:place], new).vstack(data[place + 1 :])
    new = _rows(data, values, copies)
    labels = _labels(data.index, canary, copies=copies, place=place, replaced=replaced)
    parts = [data.iloc[:place], new, data.iloc[place + 1 :]]
    changed = sys.modules["pandas"].concat([one for one in parts if len(one)], ignore_index=True)
    changed.index = labels
    changed.attrs = copy.deepcopy(data.attrs)
    return changed


def _mapping(canary: Any) -> Any:
    """One row as a mapping, whatever holds it."""
    if library("pandas", canary, "Series"):
        return dict(zip(canary.index, canary.array, strict=True))
    if not (library("pandas", canary, "DataFrame") or library("polars", canary, "DataFrame")):
        return canary
    if len(canary) != 1:
        raise InvalidInputError(
            f"canary is a frame of {len(canary)} rows: expected one row (copies=... adds it several times)"
        )
    return {name: canary[name].to_list()[0] for name in canary.columns}


def _rows(data: Any, values: Mapping[Any, Any], copies: int) -> Any:
    """The canary as rows of the frame's own types, column by column."""
    if not data.columns.is_unique:
        raise InvalidInputError("dataset has several columns of one name: expected a name of its own for each")
    pandas = sys.modules["pandas"]
    new = {}
    for name, value in values.items():
        kind = data.dtypes[name]
        try:
            new[name] = pandas.Series([value] * copies).astype(kind)
        except _TROUBLE as error:
            raise _misfit(f"[{name!r}]", shown(value), kind, error) from None
        kept = new[name].iloc[0]
        if pandas.api.types.is_datetime64_any_dtype(kind) or pandas.api.types.is_timedelta64_dtype(kind):
            continue  # a date may be given as a text; one that is none has been refused
        if not (_missing(pandas, kept) and _missing(pandas, value)):
            check_kept(new[name].to_numpy()[0], value, kind)
    return type(data)(new, columns=data.columns)


def _missing(pandas: Any, value: Any) -> bool:
    return bool(pandas.api.types.is_scalar(value) and pandas.isna(value))


def _misfit(where: str, value: str, kind: Any, error: Exception) -> InvalidInputError:
    said = " ".join(str(error).split())[:120]
    return InvalidInputError(
        f"canary{where} = {value} does not fit a column of {kind} ({said}): expected a value that the column can hold, "
        "or a data set of another type (data.astype(...))"
    )


def _labels(index: Any, canary: Any, *, copies: int, place: int, replaced: bool) -> Any:
    """The index of world 1: that of the data set, with a label for the canary.

    A training may read the index, so it must not be another one in world 1. Numbered rows go on being numbered. Other
    labels say something about a row, so the canary brings its own.
    """
    pandas = sys.modules["pandas"]
    if isinstance(index, pandas.RangeIndex):
        end = index.start + index.step * (len(index) + copies)
        return index if replaced else pandas.RangeIndex(index.start, end, index.step, name=index.name)
    others = index.delete(place) if replaced else index
    whole = index.nlevels == 1 and getattr(index.dtype, "kind", "O") in "iu"
    given = _label(index, canary)
    if given is not None and whole and given[0] in others:
        given = None  # a row of the data set that was changed has that row's label still
    if given is None and replaced:
        return index
    if given is None and whole:
        first = int(index.max()) + 1 if len(index) else 0
        given = pandas.Index(range(first, first + copies), dtype=index.dtype)
    elif given is None:
        raise _unlabelled(index, f"canary has no label for the index of the data set ({_kind(index)})")
    elif others.is_unique and given[0] in others:
        raise _unlabelled(index, f"canary has the label {shown(given[0])}, which another row of the data set has")
    else:
        given = given.repeat(copies)
    found = index[:place].append(given).append(index[place + 1 :])
    if found.nlevels != index.nlevels or _kind(found) != _kind(index):
        raise _unlabelled(index, f"canary's label {shown(given[0])} does not fit the index ({_kind(index)})")
    if getattr(index, "freq", None) is not None:
        with contextlib.suppress(ValueError):  # dates that go on in the same steps
            found = type(index)(found, freq=index.freq)
    return found.set_names(index.names)


def _label(index: Any, canary: Any) -> Any:
    """The label that the canary brings, as an index of one, or None. Rows that are just numbered have none."""
    pandas = sys.modules["pandas"]
    if library("pandas", canary, "DataFrame"):
        return None if isinstance(canary.index, pandas.RangeIndex) else canary.index
    if not library("pandas", canary, "Series") or canary.name is None:
        return None
    try:
        if index.nlevels > 1:
            return pandas.MultiIndex.from_tuples([canary.name])
        return pandas.Index([canary.name], dtype=index.dtype)
    except _TROUBLE:
        raise _unlabelled(
            index, f"canary's label {shown(canary.name)} does not fit the index ({_kind(index)})"
        ) from None


def _kind(index: Any) -> str:
    """The types of an index, for people and to compare."""
    return " and ".join(str(one) for one in index.dtypes) if index.nlevels > 1 else str(index.dtype)


def _unlabelled(index: Any, said: str) -> InvalidInputError:
    known = index[-1] if len(index) else "..."
    return InvalidInputError(
        f"{said}, and a training that reads labels would tell the worlds apart by this alone: give the canary as a "
        f"frame of one row with a label of its own, like {shown(known)} (pandas.DataFrame([canary], index=[...])), or "
        "neighbours(data.reset_index(), ...), where labels are a column"
    )
