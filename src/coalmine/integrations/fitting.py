"""Whether a canary fits a data set: what every way to build neighbours asks first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import Relation

_LONGEST = 60


class MissesCanaryError(InvalidInputError):
    """What a training asked of a data set would miss the canary.

    It is no ``AttributeError``: a training that asks with ``hasattr`` would go another way, and that way be judged.
    """


def check_place(rows: int, *, relation: Relation, copies: int, row: int) -> None:
    """A replaced row is one that is there, once."""
    if relation is Relation.REPLACE:
        if copies != 1:
            raise _validate.reject("copies", copies, "1 with relation 'replace'")
        if not -rows <= _validate.integer("row", row, at_least=-rows) < rows:
            raise _validate.reject("row", row, f"the number of a row, at most {rows - 1}")


def values_of(columns: Iterable[Any], canary: Any, *, more: str = "") -> list[Any]:
    """The canary's value for each column; ``more`` is said where it does not fit.

    >>> values_of(["age", "name"], {"name": "a", "age": 3})
    [3, 'a']
    """
    names = list(columns)
    expected = f"expected a value for each of {_in_short(names)}{more}"
    if not isinstance(canary, Mapping):
        raise InvalidInputError(
            f"canary = {shown(canary)} does not fit the data set: {expected}, as a mapping from columns to values"
        )
    absent, beside = [one for one in names if one not in canary], [one for one in canary if one not in names]
    if absent or beside:
        said = [f"no value for {_in_short(absent)}"] * bool(absent) + [f"one for {_in_short(beside)}"] * bool(beside)
        raise InvalidInputError(f"canary does not fit the data set, it has {' and '.join(said)}: {expected}")
    return [canary[name] for name in names]


def check_kept(kept: Any, canary: Any, kind: Any) -> None:
    """Refuse a canary that its data set cannot hold: 0.9 among whole numbers would become 0, another row."""
    given = canary.detach().cpu().double().numpy() if hasattr(canary, "detach") else np.asarray(canary)
    stored = np.asarray(kept)
    if given.dtype.kind in "biuf" and stored.dtype.kind in "biuf":
        close = np.allclose(stored.ravel().astype(float), given.ravel().astype(float), rtol=1e-2, equal_nan=True)
    else:
        close = bool(np.all(stored.ravel() == given.ravel()))
    if not close:
        raise InvalidInputError(
            f"canary = {shown(canary)} becomes {stored.tolist()!r} among rows of {kind}: expected a row that the data "
            "set can hold, or a data set of another type (data.astype(float))"
        )


def shown(value: Any) -> str:
    """A value for people, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _in_short(names: list[Any]) -> str:
    """Some names of many."""
    return repr(names) if len(names) <= 20 else f"{names[:20]!r} and {len(names) - 20} more"
