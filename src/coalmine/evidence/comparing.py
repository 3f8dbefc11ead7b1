"""Where two values differ: every place by its name, numbers to the bit or to a tolerance."""

from __future__ import annotations

import math
from typing import Any

from coalmine import _validate

DIGITS = 1e-6
"""How far a number of a result may be off, relatively, where other versions or instruction sets computed it."""
ROUNDING = 1e-9
"""The same where all is alike: the number of threads decides in which order sums are taken."""


def differences(
    said: Any, found: Any, *, within: float, place: str = "", who: tuple[str, str] = ("in the bundle", "here")
) -> list[str]:
    """What differs between what a bundle says and what is found here, as "place: 1 in the bundle, 2 here".

    Numbers may be off by ``within``, relatively. ``who`` says the one and the other.

    >>> differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}, within=0.0)
    ['a[1]: 2.0 in the bundle, 2.5 here']
    """
    if isinstance(said, dict) and isinstance(found, dict):
        return [
            line
            for key in [*said, *(key for key in found if key not in said)]
            for line in differences(
                said.get(key, _NOTHING),
                found.get(key, _NOTHING),
                within=within,
                place=f"{place}.{key}" if place else str(key),
                who=who,
            )
        ]
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        return [
            line
            for at, (one, other) in enumerate(zip(said, found, strict=True))
            for line in differences(one, other, within=within, place=f"{place}[{at}]", who=who)
        ]
    if _same(said, found, within=within):
        return []
    one, other = _apart(said, found)
    return [f"{place}: {one} {who[0]}, {other} {who[1]}"]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _same(said: Any, found: Any, *, within: float) -> bool:
    if within and isinstance(said, float) and isinstance(found, float):
        return math.isclose(said, found, rel_tol=within, abs_tol=1e-12)
    return type(said) is type(found) and bool(said == found)


def _apart(said: Any, found: Any) -> tuple[str, str]:
    """Two values as they are shown; long texts from a little before they differ on, so that one sees that they do.

    >>> _apart(200 * "x" + "yes", 200 * "x" + "no")
    ("...'xxxxxxxxxxxxxxxxxxxxyes'", "...'xxxxxxxxxxxxxxxxxxxxno'")
    """
    if not isinstance(said, str) or not isinstance(found, str):
        return _validate.shown(said), _validate.shown(found)
    same = next((at for at, (a, b) in enumerate(zip(said, found, strict=False)) if a != b), min(len(said), len(found)))
    start = max(0, same - _BEFORE) if same > _FAR else 0
    dots = "..." if start else ""
    return dots + _validate.shown(said[start:]), dots + _validate.shown(found[start:])


_FAR, _BEFORE = 40, 20
"""Texts that are alike for more than the first are shown from the second before where they differ."""
