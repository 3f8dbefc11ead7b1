"""Every check: what it lets through, and that its message names the argument, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coalmine import _validate
from coalmine.errors import CoalmineError, InvalidInputError

NUMBERS: list[tuple[Callable[[str, object], float], list[object], list[object]]] = [
    (_validate.open_unit, [1e-300, 0.5, 1 - 1e-16, np.float32(0.25), Fraction(1, 3)], [0, 1, -0.1, 1.1]),
    (_validate.half_open_unit, [0, 0.0, 0.999], [1, -1e-300]),
    (_validate.unit, [0, 1, 0.5, np.int64(1)], [-1e-12, 1 + 1e-12]),
    (_validate.positive, [1e-30, 1e30, 3], [0, 0.0, -1, 1e-31, 1e31]),
    (_validate.non_negative, [0, 1e30], [-1e-300, -5, 1e31]),
]
NEVER = [None, "1", "", True, False, np.bool_(True), math.nan, math.inf, -math.inf, 10**400, [0.5], {}, 0.5j]


@pytest.mark.parametrize(("check", "good", "bad"), NUMBERS)
def test_numbers(check: Callable[[str, object], float], good: list[object], bad: list[object]) -> None:
    for value in good:
        assert check("x", value) == float(value)  # type: ignore[arg-type]
        assert type(check("x", value)) is float
    for value in [*bad, *NEVER]:
        with pytest.raises(InvalidInputError, match=r"^x = .* is not allowed: expected a .*(number|size)") as caught:
            check("x", value)
        assert _validate.shown(value) in str(caught.value)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, CoalmineError)


@given(st.floats(1e-100, 1.0, exclude_max=True))
def test_open_unit_takes_what_is_between_its_limits(value: float) -> None:
    assert _validate.open_unit("delta", value) == value


def test_between() -> None:
    assert _validate.between("x", 2, 1, 3) == 2.0
    for value in (1, 3, *NEVER):
        with pytest.raises(InvalidInputError, match="strictly between 1 and 3"):
            _validate.between("x", value, 1, 3)


def test_integers() -> None:
    assert _validate.integer("steps", np.int32(7), at_least=1) == 7
    assert type(_validate.integer("steps", np.int32(7), at_least=1)) is int
    for value in (0, -3, 1.0, 2.5, *NEVER[:-4], [1]):
        with pytest.raises(InvalidInputError, match=r"^steps = .* expected a whole number of at least 1"):
            _validate.integer("steps", value, at_least=1)
    with pytest.raises(InvalidInputError, match="at least 1 and at most 5"):
        _validate.integer("steps", 6, at_least=1, at_most=5)


def test_a_value_is_shown_whatever_it_is() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert _validate.shown(0.5) == "0.5"
    assert _validate.shown("a" * 1000) == "'" + "a" * 59 + "... (1000 characters)"
    assert _validate.shown(10**350).endswith("(351 characters)")
    assert _validate.shown(10**5000) == "a whole number of thousands of digits"
    assert _validate.shown(deep).startswith("<list object")


def test_limits_go_by_the_name() -> None:
    for name, (low, high) in _validate.LIMITS.items():
        assert 0 < low < high
        _validate.within(name, low)
        _validate.within(name, -high)
        _validate.within(name, 0)
        for value in (low / 2, high * 2, -high * 2):
            with pytest.raises(InvalidInputError, match=rf"^{name} = .* a size from"):
                _validate.within(name, value)
    assert _validate.integer("steps", 10**7, at_least=1) == 10**7
    with pytest.raises(InvalidInputError, match=r"^steps = 10000001 is .* at most 10000000$"):
        _validate.integer("steps", 10**7 + 1, at_least=1)
    with pytest.raises(InvalidInputError, match="at most 9223372036854775807"):
        _validate.integer("seed", 2**63, at_least=0)


def test_the_nearest_word() -> None:
    known = ["clipbkd", "static-poison", "adaptive-poison"]
    assert _validate.nearest("CLIPBKD", known) == "did you mean 'clipbkd'?"
    assert _validate.nearest("static_poisn", known).startswith("did you mean 'static-poison'")
    assert _validate.nearest("zzz", known) == "expected one of clipbkd, static-poison, adaptive-poison"
    assert _validate.nearest("a" * 10**6, known).startswith("expected one of")
    assert _validate.nearest("a", []) == "there is none"


def test_choices() -> None:
    assert _validate.choice("analysis", "pld", ["pld", "rdp"]) == "pld"
    for value in ("PLD", "", None, 3):
        with pytest.raises(InvalidInputError, match="expected one of pld, rdp"):
            _validate.choice("analysis", value, ["pld", "rdp"])


def test_instances() -> None:
    _validate.instance("x", 3, (int, str))
    with pytest.raises(InvalidInputError, match="of type int or str"):
        _validate.instance("x", 3.0, (int, str))
    with pytest.raises(InvalidInputError, match=r"of type int$"):
        _validate.instance("x", None, int)


def test_vectors() -> None:
    assert _validate.finite_vector("scores", [1, 2, 3]).dtype == np.float64
    for value, words in (
        ([], "scores is empty"),
        ([[1.0]], "2 dimensions"),
        (3.0, "0 dimensions"),
        ([1.0, math.nan, math.inf], r"scores\[1\] = nan .* \(2 such values\)"),
        (["a"], "list of numbers"),
        ([True], "list of numbers"),
        ([[1.0], [1.0, 2.0]], "list of numbers"),
        (None, "list of numbers"),
        ([10**400], "list of numbers"),
        (range(10**12), "at most 100000000"),
        (np.zeros(3, dtype=[("a", "f8")]), "list of numbers"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            _validate.finite_vector("scores", value)
