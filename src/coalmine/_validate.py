"""The one place that checks arguments. Every message: the name, the value given, what is allowed.

The name of an argument is the name of its command-line option with underscores, so that both speak alike:
``sample_rate`` in Python is ``--sample-rate`` on the command line, and :mod:`coalmine.cli` rewrites the name.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Collection

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InvalidInputError


def reject(name: str, value: object, allowed: str) -> InvalidInputError:
    """The error for a value that is not allowed (returned, so that the caller's ``raise`` is visible)."""
    return InvalidInputError(f"{name} = {value!r} is not allowed: expected {allowed}")


def _number(name: str, value: object, allowed: str) -> float:
    """A real, finite number that is not a bool."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise reject(name, value, allowed)
    try:
        number = float(value)
    except OverflowError:
        raise reject(name, value, allowed) from None
    if not math.isfinite(number):
        raise reject(name, value, allowed)
    return number


def open_unit(name: str, value: object) -> float:
    """A number strictly between 0 and 1 (a δ, a confidence).

    >>> open_unit("delta", 1e-5)
    1e-05
    """
    allowed = "a number strictly between 0 and 1"
    number = _number(name, value, allowed)
    if not 0.0 < number < 1.0:
        raise reject(name, value, allowed)
    return number


def half_open_unit(name: str, value: object) -> float:
    """A number in [0, 1) (a δ that may be 0)."""
    allowed = "a number from 0 up to, not including, 1"
    number = _number(name, value, allowed)
    if not 0.0 <= number < 1.0:
        raise reject(name, value, allowed)
    return number


def unit(name: str, value: object) -> float:
    """A number in [0, 1] (a sampling rate, a probability)."""
    allowed = "a number from 0 to 1"
    number = _number(name, value, allowed)
    if not 0.0 <= number <= 1.0:
        raise reject(name, value, allowed)
    return number


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    allowed = "a finite number above 0"
    number = _number(name, value, allowed)
    if not number > 0.0:
        raise reject(name, value, allowed)
    return number


def non_negative(name: str, value: object) -> float:
    """A finite number of at least 0."""
    allowed = "a finite number of at least 0"
    number = _number(name, value, allowed)
    if not number >= 0.0:
        raise reject(name, value, allowed)
    return number


def between(name: str, value: object, low: float, high: float) -> float:
    """A number strictly between ``low`` and ``high``."""
    allowed = f"a number strictly between {low:g} and {high:g}"
    number = _number(name, value, allowed)
    if not low < number < high:
        raise reject(name, value, allowed)
    return number


def integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """A whole number of at least ``at_least`` (and at most ``at_most``)."""
    if type(value) is int and value >= at_least and at_most is None:
        return value  # by far the most common case, asked millions of times in a large audit
    allowed = f"a whole number of at least {at_least}"
    if at_most is not None:
        allowed += f" and at most {at_most}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise reject(name, value, allowed)
    number = int(value)
    if number < at_least or (at_most is not None and number > at_most):
        raise reject(name, value, allowed)
    return number


def choice(name: str, value: object, allowed: Collection[str]) -> str:
    """One of a few names."""
    if not isinstance(value, str) or value not in allowed:
        raise reject(name, value, "one of " + ", ".join(allowed))
    return str(value)


def instance(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """An object of one of the given types."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise reject(name, value, "an object of type " + " or ".join(k.__name__ for k in kinds))


def finite_vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A non-empty one-dimensional array of finite numbers, as float64; the message names the first bad position."""
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError
        array = array.astype(np.float64, copy=False)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} is not allowed: expected a list of numbers") from None
    if array.ndim != 1:
        raise InvalidInputError(f"{name} has {array.ndim} dimensions: expected one (a plain list of numbers)")
    if array.size == 0:
        raise InvalidInputError(f"{name} is empty: expected at least one number")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise InvalidInputError(
            f"{name}[{bad[0]}] = {array[bad[0]]} is not allowed: expected a finite number ({bad.size} such values)"
        )
    return array
