"""The rows in which two data sets differ: a claim about one row says nothing of worlds that differ in more."""

from __future__ import annotations

import collections
import functools
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coalmine.errors import InvalidInputError
from coalmine.integrations.content import NoContentError, content_hash, library
from coalmine.integrations.worlds import Worlds
from coalmine.records import Relation

Row = bytes | str | tuple["Row", ...]
_MOST_ROWS = 5_000_000
"""Beyond it the comparison, some microseconds a row, would be felt."""


def check_neighbours(worlds: Worlds) -> bool:
    """Refuse worlds that are no neighbours under their relation, as far as their rows can be told.

    Gives whether world 1 is known to be world 0 with rows added: then a claim is tested in this order alone.

    >>> check_neighbours(Worlds(world0=[1, 2], world1=[1, 2, 9])), check_neighbours(Worlds(world0=[1, 2], world1=[1]))
    (True, False)
    >>> check_neighbours(Worlds(world0=[1, 2], world1=[7, 8, 9]))
    Traceback (most recent call last):
    coalmine.errors.InvalidInputError: worlds are no neighbours by 'add_remove': 2 rows are only in world 0 and 3 rows \
only in world 1, expected at most 1 row more or less; preparation that looks at all rows belongs into train
    """
    both = worlds.world0, worlds.world1
    # Where the rows of both are just numbered, the numbers say nothing of them: without a row all others move up.
    labels = any(map(_has_labels, both))
    by_parts = functools.partial(_by_parts, labels=labels)
    found = [_difference(*map(read, both)) for read in (by_parts, _by_items)]
    known = [pair for pair in found if pair is not None]
    allowed = [pair for pair in known if _allowed(*pair, relation=worlds.relation, copies=worlds.copies)]
    if allowed and all(pair == (0, 0) for pair in known):
        raise InvalidInputError(
            "both worlds hold the same rows, so there is nothing to tell apart and no training could be refuted: "
            "expected the canary in one of them alone (coalmine.neighbours builds such worlds)"
        )
    rows = [_rows(*pair, relation=worlds.relation) for pair in allowed]
    if rows and worlds.copies not in rows:
        raise InvalidInputError(
            f"copies = {worlds.copies} is not allowed for worlds that differ in {_count(min(rows), verb=False)}: "
            f"expected copies={min(rows)}; a claim for {worlds.copies} rows allows far more"
        )
    if allowed or not known:
        return bool(allowed) and all(first == 0 < second for first, second in allowed)
    first, second = min(known, key=sum)
    advice = _advice(first, second, worlds)
    bare = _difference(*map(_by_parts, both))
    if labels and bare and _allowed(*bare, relation=worlds.relation, copies=worlds.copies):
        advice = (
            "they differ in their indexes, which a training may read: keep each row's label in both worlds, or number "
            "the rows of both (reset_index(drop=True))"
        )
    many = "1 row" if worlds.copies == 1 else f"{worlds.copies} rows (copies)"
    raise InvalidInputError(
        f"worlds are no neighbours by {worlds.relation.value!r}: {_count(first)} only in world 0 and "
        f"{_count(second, verb=False)} only in world 1, expected at most {many} "
        f"{'more or less' if worlds.relation is Relation.ADD_REMOVE else 'replaced'}; "
        f"{_how_read(*both) or advice}"
    )


def _allowed(first: int, second: int, *, relation: Relation, copies: int) -> bool:
    """Whether worlds that differ so are neighbours."""
    return _rows(first, second, relation=relation) <= copies and (relation is Relation.ADD_REMOVE or first == second)


def _rows(first: int, second: int, *, relation: Relation) -> int:
    """In how many rows worlds differ by a relation."""
    return first + second if relation is Relation.ADD_REMOVE else max(first, second)


def _count(rows: int, *, verb: bool = True) -> str:
    return f"{rows:,} {'row' if rows == 1 else 'rows'}" + ((" is" if rows == 1 else " are") if verb else "")


def _advice(first: int, second: int, worlds: Worlds) -> str:
    if worlds.relation is Relation.ADD_REMOVE and first == second == 1:
        return "a row that is replaced is coalmine.Worlds(..., relation='replace')"
    if 0 in (first, second) and worlds.relation is Relation.ADD_REMOVE:
        return f"a group of {max(first, second)} rows is coalmine.Worlds(..., copies={max(first, second)})"
    return "preparation that looks at all rows belongs into train"


def _how_read(first: Any, second: Any) -> str | None:
    """How worlds were read, and what to give instead, where they cannot be what they were read as."""
    if isinstance(first, Mapping) and isinstance(second, Mapping) and first.keys() != second.keys():
        return (
            "a mapping is read as columns with as many rows each: where each entry is one unit, such as a user, give a "
            "list of them as each world, list(data.items())"
        )
    if isinstance(first, tuple) and isinstance(second, tuple) and _by_parts(first) is None:
        return (
            f"tuples of {len(first)} and {len(second)} parts are read as so many rows: columns must be arrays with as "
            "many rows each (np.array(...)); what is the same for all rows belongs into train"
        )
    return None


def _difference(first: Sequence[Row] | None, second: Sequence[Row] | None) -> tuple[int, int] | None:
    """How many rows only one of them has, or None where either has none."""
    if first is None or second is None:
        return None
    ours, theirs = collections.Counter(first), collections.Counter(second)
    return (ours - theirs).total(), (theirs - ours).total()


def _by_items(data: Any) -> Sequence[Row] | None:
    """The items of a list, or of a data set, as its rows."""
    if not isinstance(data, (list, tuple)) and not library("torch.utils.data", data, "Dataset"):
        return None
    try:
        return [content_hash(data[index]) for index in range(len(data))]
    except (NoContentError, TypeError):
        return None


def _has_labels(data: Any) -> bool:
    """Whether a pandas frame in it has another index than the numbers of its rows."""
    if isinstance(data, (list, tuple, Mapping)):
        return any(map(_has_labels, data.values() if isinstance(data, Mapping) else data))
    if not library("pandas", data, "DataFrame"):
        return False
    index = data.index
    return not (library("pandas", index, "RangeIndex") and index.start == 0 and index.step == 1)


def _by_parts(data: Any, *, labels: bool = False) -> Sequence[Row] | None:
    """The rows of an array, or of several with as many rows each: a tuple, a list, a mapping, columns; of a pandas
    frame with their ``labels`` in the index, where these can be told.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    if isinstance(data, (list, tuple)):
        return _together(data, functools.partial(_by_parts, labels=labels))
    if isinstance(data, Mapping):
        parts = [data[key] for key in sorted(data, key=str)]
        return _together(parts, functools.partial(_by_parts, labels=labels))
    if library("datasets", data, "Dataset"):
        plain = data.with_format(None)
        return _together([list(plain[name]) for name in sorted(plain.column_names)], _by_items)
    if library("pandas", data, "DataFrame") or library("polars", data, "DataFrame"):
        columns = [data[name].to_numpy() for name in data.columns]
        named = _index_columns(data.index) if labels and library("pandas", data, "DataFrame") else []
        return _together([*columns, *named], _column)
    if library("torch", data, "Tensor"):
        data = data.detach().cpu()
        data = (data.float() if str(data.dtype) == "torch.bfloat16" else data).numpy()
    elif library("jax", data, "Array"):
        data = np.asarray(data)
    return _column(data) if isinstance(data, np.ndarray) else None


def _index_columns(index: Any) -> list[np.ndarray]:
    """The labels of an index, level by level; none of a level whose labels have no content."""
    columns = [index.get_level_values(level).to_numpy() for level in range(index.nlevels)]
    return [one for one in columns if _column(one) is not None]


def _column(values: np.ndarray) -> Sequence[Row] | None:
    """The rows of one array. Numbers count by value: appending 0.5 to whole numbers changes the kind of all of them."""
    if not values.ndim or len(values) > _MOST_ROWS:
        return None
    if values.dtype.hasobject:
        return _by_items(values.tolist())
    kind = np.float64 if values.dtype.kind in "biuf" else values.dtype
    return [hashlib.blake2b(row.astype(kind).tobytes(), digest_size=16).digest() for row in values]


def _together(parts: Iterable[Any], read: Callable[[Any], Sequence[Row] | None]) -> Sequence[Row] | None:
    """The rows of several parts side by side, where each has as many."""
    found = [read(one) for one in parts]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found) or len({len(one) for one in known}) > 1:
        return None
    return list(zip(*known, strict=True))
