"""The one place that checks arguments. Every message: the name, the value given, what is allowed.

The name of an argument is the name of its command-line option with underscores, so that both speak alike:
``sample_rate`` in Python is ``--sample-rate`` on the command line, and :mod:`coalmine.cli` rewrites the name. The name
also says how small and how large a value may be: see :data:`LIMITS`.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Sized
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.errors import InvalidInputError

LIMITS: dict[str, tuple[float, float]] = {
    "amplification": (1e-9, 1e9),
    "clip": (1e-12, 1e12),
    "confidence": (0.01, 1.0),
    "copies": (1, 10**4),
    "delta": (1e-100, 1.0),
    "epochs": (1e-9, 1e6),
    "hidden": (1, 10**6),
    "initialization": (1e-12, 1e6),
    "learning_rate": (1e-12, 1e6),
    "noise_multiplier": (1e-12, 1e6),
    "norm": (1e-12, 1e12),
    "points": (1, 10**4),
    "norms": (1e-12, 1e12),
    "power": (0.01, 1.0),
    "regularizer": (1e-12, 1e6),
    "sample_rate": (1e-12, 1.0),
    "steps": (1, 10**7),
    "timeout": (1e-3, 1e7),
    "trials": (1, 10**7),
    "workers": (1, 4096),
}
"""How small and how large a value other than 0 may be, by the name of the argument, wherever that name is used.

Nobody trains or audits with such numbers, and all arithmetic holds within them: an overflow, an endless computation or
an audit larger than the memory is refused at the door. docs/limits.md is the same table for people.
"""
REAL = (1e-30, 1e30)
"""The same for every other real number; their squares and quotients are still floating-point numbers."""
WHOLE = (0, 2**63 - 1)
"""The same for every other whole number: what an array, a store and a seed can hold."""
PROBABILITY = (1e-300, 1.0)
"""The same for every other number between 0 and 1."""
MOST_NUMBERS = 10**8
"""The longest list of numbers."""

_SHOWN = 100
"""A value is shown in a message up to this many characters."""


def shown(value: object) -> str:
    """A value as a message shows it: its repr, cut short where it is long. Never fails.

    >>> shown("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (1000 characters)"
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more than 4300 digits; a list in a list in a list ...
        return "a whole number of thousands of digits" if isinstance(value, int) else object.__repr__(value)
    if len(text) <= _SHOWN:
        return text
    return f"{text[:60]}... ({len(value if isinstance(value, str) else text)} characters)"  # of a text without quotes


def reject(name: str, value: object, allowed: str) -> InvalidInputError:
    """The error for a value that is not allowed (returned, so that the caller's ``raise`` is visible)."""
    return InvalidInputError(f"{name} = {shown(value)} is not allowed: expected {allowed}")


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, or all of them.

    >>> nearest("clipbdk", ["membership", "clipbkd"])
    "did you mean 'clipbkd'?"
    >>> nearest("x", ["membership", "clipbkd"])
    'expected one of membership, clipbkd'
    """
    names = {name.lower().replace("_", "-"): name for name in known}
    alike = 0.6 if len(names) <= 20 else 0.5  # of many names even a far one says more than all of them
    close = difflib.get_close_matches(word[:_SHOWN].lower().replace("_", "-"), names, n=1, cutoff=alike)
    if close:
        return f"did you mean {names[close[0]]!r}?"
    return "expected one of " + ", ".join(names.values()) if names else "there is none"


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


def within(name: str, value: float, *, default: tuple[float, float] = REAL) -> None:
    """Refuse a number other than 0 that is smaller or larger in size than its name allows.

    >>> within("steps", 10**8)
    Traceback (most recent call last):
    coalmine.errors.InvalidInputError: steps = 100000000 is not allowed: expected a size from 1 to 1e+07
    """
    low, high = LIMITS.get(name, default)
    if value != 0 and not low <= abs(value) <= high:
        raise reject(name, value, f"a size from {low:g} to {high:g}")


def _checked(
    name: str,
    value: object,
    allowed: str,
    fits: Callable[[float], bool],
    default: tuple[float, float] = REAL,
) -> float:
    """A number that fits, and within the limits of its name."""
    number = _number(name, value, allowed)
    if not fits(number):
        raise reject(name, value, allowed)
    within(name, number, default=default)
    return number


def open_unit(name: str, value: object) -> float:
    """A number strictly between 0 and 1 (a δ, a confidence).

    >>> open_unit("delta", 1e-5)
    1e-05
    """
    return _checked(name, value, "a number strictly between 0 and 1", lambda x: 0.0 < x < 1.0, PROBABILITY)


def half_open_unit(name: str, value: object) -> float:
    """A number in [0, 1) (a δ that may be 0)."""
    return _checked(name, value, "a number from 0 up to, not including, 1", lambda x: 0.0 <= x < 1.0, PROBABILITY)


def unit(name: str, value: object) -> float:
    """A number in [0, 1] (a sampling rate, a probability)."""
    return _checked(name, value, "a number from 0 to 1", lambda x: 0.0 <= x <= 1.0, PROBABILITY)


def positive(name: str, value: object) -> float:
    """A finite number above 0."""
    return _checked(name, value, "a finite number above 0", lambda x: x > 0.0)


def non_negative(name: str, value: object) -> float:
    """A finite number of at least 0."""
    return _checked(name, value, "a finite number of at least 0", lambda x: x >= 0.0)


def at_most(name: str, value: float, limit: float) -> float:
    """A number that was checked already, and is not beyond ``limit``."""
    if value > limit:
        raise reject(name, value, f"a number of at most {limit:g}")
    return value


def between(name: str, value: object, low: float, high: float) -> float:
    """A number strictly between ``low`` and ``high``."""
    allowed = f"a number strictly between {low:g} and {high:g}"
    number = _number(name, value, allowed)
    if not low < number < high:
        raise reject(name, value, allowed)
    return number


def integer(name: str, value: object, *, at_least: int, at_most: int | None = None) -> int:
    """A whole number of at least ``at_least`` (and at most ``at_most``)."""
    most = int(LIMITS.get(name, WHOLE)[1]) if at_most is None else at_most
    if type(value) is int and at_least <= value <= most:
        return value  # by far the most common case, asked millions of times in a large audit
    allowed = f"a whole number of at least {at_least}"
    if at_most is not None or (isinstance(value, numbers.Integral) and int(value) > most):
        allowed += f" and at most {most}"
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise reject(name, value, allowed)
    number = int(value)
    if not at_least <= number <= most:
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


def assign(record: object, **values: object) -> None:
    """Set fields of a frozen record that is being made, once they are checked."""
    for name, value in values.items():
        object.__setattr__(record, name, value)


def label(name: str, value: object) -> str:
    """A short text for people: 1 to 120 characters of one line.

    >>> label("name", " before the fix ")
    'before the fix'
    """
    text = value.strip() if isinstance(value, str) else ""
    if not 1 <= len(text) <= 120 or not text.isprintable():
        raise reject(name, value, "1 to 120 characters that can be printed")
    return text


def labels(name: str, values: object) -> tuple[str, ...]:
    """Several short texts, each once."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise reject(name, values, "a list of texts")
    return tuple(dict.fromkeys(label(name, one) for one in values))


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON (``object_pairs_hook``); an error for a key that stands twice, of which one would be lost.

    >>> once([("a", 1), ("a", 2)])
    Traceback (most recent call last):
        ...
    ValueError: a key stands twice in one object: 'a'
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(
            f"a key stands twice in one object: {shown(next(one for one in names if names.count(one) > 1))}"
        )
    return found


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun, for a message.

    >>> counted(1, "step"), counted(2500, "step"), counted(3, "canary", "canaries")
    ('1 step', '2,500 steps', '3 canaries')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def rounded_up(value: float, digits: int = 6) -> str:
    """An upper bound for a message, with so many digits that count: never rounded down.

    >>> rounded_up(4.3771771), rounded_up(0.5), rounded_up(math.inf)
    ('4.37718', '0.5', 'inf')
    """
    return _to_digits(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 6) -> str:
    """A lower bound for a message, with so many digits that count: never rounded up.

    >>> rounded_down(1.2399, 3), rounded_down(0.0)
    ('1.23', '0')
    """
    return _to_digits(value, digits, ROUND_FLOOR)


def _to_digits(value: float, digits: int, how: str) -> str:
    exact = Decimal(repr(float(value)))
    if exact and exact.is_finite():
        exact = exact.quantize(Decimal(1).scaleb(exact.adjusted() + 1 - digits), rounding=how)
    return f"{float(exact):.{digits}g}"


def finite_vector(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """A non-empty one-dimensional array of finite numbers, as float64; the message names the first bad position."""
    array = numeric_array(name, values)
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


def numeric_array(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """An array of real numbers of any shape, as float64."""
    if isinstance(values, Sized) and not isinstance(values, np.ndarray) and len(values) > MOST_NUMBERS:
        raise InvalidInputError(f"{name} has {len(values)} entries: expected at most {MOST_NUMBERS}")
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiu":
            raise TypeError
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} is not allowed: expected a list of numbers") from None
