"""Where two values differ: every place by its name, numbers to the bit or to a tolerance."""

from __future__ import annotations

import math
from typing import Any

from coalmine import _validate

DIGITS = 1e-6
"""How far a number of a result may be off, relatively, where other versions or instruction sets computed it."""


def differences(said: Any, found: Any, *, exact: bool, place: str = "") -> list[str]:
    """What differs between what a bundle says and what is found here, as "place: 1 in the bundle, 2 here".

    >>> differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}, exact=True)
    ['a[1]: 2.0 in the bundle, 2.5 here']
    """
    if isinstance(said, dict) and isinstance(found, dict):
        return [
            line
            for key in [*said, *(key for key in found if key not in said)]
            for line in differences(
                said.get(key, _NOTHING),
                found.get(key, _NOTHING),
                exact=exact,
                place=f"{place}.{key}" if place else str(key),
            )
        ]
    if isinstance(said, list) and isinstance(found, list) and len(said) == len(found):
        return [
            line
            for at, (one, other) in enumerate(zip(said, found, strict=True))
            for line in differences(one, other, exact=exact, place=f"{place}[{at}]")
        ]
    if _same(said, found, exact=exact):
        return []
    return [f"{place}: {_shown(said)} in the bundle, {_shown(found)} here"]


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


_NOTHING = _Nothing()


def _same(said: Any, found: Any, *, exact: bool) -> bool:
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (said, found))
    if numbers and not exact:
        return math.isclose(said, found, rel_tol=DIGITS, abs_tol=1e-12)
    return type(said) is type(found) and bool(said == found)


def _shown(value: Any) -> str:
    return _validate.shown(value)
