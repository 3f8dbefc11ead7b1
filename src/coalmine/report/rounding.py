"""Numbers as a reader sees them: what is promised is rounded up, what is proved is rounded down, so none flatters."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

_NEAR_ALL = "more than 99.9%"
_LEAST = 1e-5
_LARGE = 1e15
"""Numbers from here on have so many digits before the point that nobody counts them."""


def down(value: float, digits: int = 2) -> str:
    """A number rounded down: for what is proved to be at least so large.

    >>> down(0.5199)
    '0.51'
    """
    return _rounded(value, digits, ROUND_FLOOR)


def up(value: float, digits: int = 2) -> str:
    """A number rounded up: for what is promised to be at most so large.

    >>> up(3.991), up(3614.201), up(1.2341e27), up(float("inf"))
    ('4.00', '3,614.21', '1.24e+27', '∞')
    """
    return _rounded(value, digits, ROUND_CEILING)


def near(value: float, digits: int = 2) -> str:
    """A number rounded to the nearest: for what is a prediction or an estimate anyway.

    >>> near(3.046)
    '3.05'
    """
    return _rounded(value, digits, ROUND_HALF_EVEN)


def up_percent(value: float, digits: int = 1) -> str:
    """A share in per cent, rounded up: a hundred times the very number, which its product may be just above.

    >>> up_percent(0.55), up_percent(0.9002), up_percent(0.55000001, 2)
    ('55.0', '90.1', '55.01')
    """
    return f"{(100 * Decimal(repr(float(value)))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING):f}"


def percent(chance: float) -> str:
    """A chance in per cent, rounded up to two digits that count.

    >>> percent(2.59e-5), percent(0.588), percent(1.0)
    ('0.0026%', '59%', '100%')
    """
    exact = 100 * Decimal(repr(float(chance)))
    if exact == 0:
        return "0%"
    shown = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_CEILING)
    return f"{shown.normalize():f}%" if shown >= Decimal("1e-6") else f"{float(shown):g}%"


def _rounded(value: float, digits: int, how: str) -> str:
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    exact = Decimal(repr(float(value)))
    if abs(value) >= _LARGE:
        return f"{exact.quantize(Decimal(1).scaleb(exact.adjusted() - digits), rounding=how):.{digits}e}"
    return f"{exact.quantize(Decimal(1).scaleb(-digits), rounding=how):,}"


def share(text: str) -> str:
    """A rounded percentage as it is printed; certainty is never claimed by rounding.

    >>> share("100.0"), share("98.2")
    ('more than 99.9%', '98.2%')
    """
    return _NEAR_ALL if text == "100.0" else f"{text}%"


def limit(text: str, *, within: str, beyond: str) -> str:
    """A sentence about a limit in per cent: ``within`` it, or ``beyond`` what can be told from no limit at all.

    >>> limit("98.2", within="is at most {} sure", beyond="may be {} sure")
    'is at most 98.2% sure'
    >>> limit("100.0", within="is at most {} sure", beyond="may be {} sure")
    'may be more than 99.9% sure'
    """
    shown = share(text)
    return (beyond if shown == _NEAR_ALL else within).format(shown)


def worth_saying(proved: float) -> bool:
    """Whether a lower bound on ε is anything: what five decimals do not show is not said to be proved."""
    return proved >= _LEAST


def least(proved: float) -> str:
    """A lower bound on ε as a number: with two decimals, or five where two say nothing.

    >>> least(0.429), least(0.0031299), least(3e-7)
    ('0.42', '0.00312', '0')
    """
    if not worth_saying(proved):
        return "0"
    return down(proved) if proved >= 0.01 else down(proved, 5)


def small(value: float) -> str:
    """A small probability as a power of ten.

    >>> small(1e-5), small(2.5e-6), small(0.01)
    ('10⁻⁵', '2.5·10⁻⁶', '0.01')
    """
    if value >= 0.001:
        return f"{value:g}"
    mantissa, _, power = f"{value:.3e}".partition("e")
    return _power(mantissa.rstrip("0").rstrip("."), int(power))


def small_up(value: float) -> str:
    """The same rounded up to two digits: for a probability that is at most so large.

    >>> small_up(5.31e-5), small_up(1e-5), small_up(9.91e-6)
    ('5.4·10⁻⁵', '10⁻⁵', '10⁻⁵')
    """
    exact = Decimal(repr(value))
    if exact == 0:
        return "0"
    return small(float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 1), rounding=ROUND_CEILING)))


def _power(mantissa: str, power: int) -> str:
    digits = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}" if mantissa == "1" else f"{mantissa}·10{digits}"


def confidence(value: float) -> str:
    """A confidence in percent, rounded down.

    >>> confidence(0.99), confidence(0.9966666)
    ('99%', '99.66%')
    """
    # The tiny push undoes 1 − (1 − 0.99) = 0.98999…; it is far below the last digit that is printed.
    return down(100.0 * value + 1e-9).rstrip("0").rstrip(".") + "%"
