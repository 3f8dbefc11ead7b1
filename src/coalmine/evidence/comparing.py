"""Where two values differ: every place by its name, numbers to the bit or to a tolerance."""

from __future__ import annotations

import math
from typing import Any

from coalmine import _validate

DIGITS = 1e-6
"""How far a number of a result may be off, relatively, where other versions or instruction sets computed it."""
ROUNDING = 1e-9
"""The same where all is alike: the number of threads decides in which order sums are taken."""


def differences(said: Any, found: Any, *, within: float, place: str = "") -> list[str]:
    """What differs between what a bundle says and what is found here, as "place: 1 in the bundle, 2 here".

    Numbers may be off by ``within``, relatively.

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
            )
        ]
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        return [
            line
            for at, (one, other) in enumerate(zip(said, found, strict=True))
            for line in differences(one, other, within=within, place=f"{place}[{at}]")
        ]
    if _same(said, found, within=within):
        return []
    return [f"{place}: {_shown(said)} in the bundle, {_shown(found)} here"]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _same(said: Any, found: Any, *, within: float) -> bool:
    if within and isinstance(said, float) and isinstance(found, float):
        return math.isclose(said, found, rel_tol=within, abs_tol=1e-12)
    return type(said) is type(found) and bool(said == found)


def _shown(value: Any) -> str:
    return _validate.shown(value)
