"""Generated bad values thrown at every public function: a ValueError that names the argument, and nothing else."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.accounting import calibrate, counterexamples, full_batch, last_iterate, standard
from coalmine.errors import CoalmineError
from coalmine.identifiability import advantage, belief, choose
from coalmine.records import DpSgd

GOOD = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=4)

never_a_number = st.sampled_from([None, "0.5", "", True, False, math.nan, math.inf, -math.inf, [], {}, object(), 1j])
negative = st.floats(max_value=-1e-300, allow_nan=False, allow_infinity=False)
above_one = st.floats(min_value=1.0 + 1e-12, allow_nan=False, allow_infinity=False)
outside_open_unit = st.one_of(never_a_number, negative, above_one, st.sampled_from([0, 1, 0.0, 1.0, -0.0]))
not_whole = st.floats(min_value=0.01, max_value=0.99)

# For each argument name: values that no function may accept under that name.
BAD: dict[str, st.SearchStrategy[Any]] = {
    "mechanism": st.one_of(never_a_number, st.floats()),
    "delta": outside_open_unit,
    "epsilon": st.one_of(never_a_number, negative),
    "sample_rate": st.one_of(never_a_number, negative, above_one),
    "noise_multiplier": st.one_of(never_a_number, negative, st.just(0.0)),
    "steps": st.one_of(never_a_number, st.integers(max_value=0), not_whole, st.just(3.0)),
    "regularizer": st.one_of(never_a_number, negative, above_one),
    "belief": st.one_of(never_a_number, negative, above_one, st.floats(0.0, 0.4999), st.just(1.0)),
    "advantage": st.one_of(never_a_number, negative, above_one, st.just(1.0)),
    "rdp_epsilon": st.one_of(never_a_number, negative),
    "order": st.one_of(never_a_number, negative, st.floats(0.0, 1.0)),
    "analysis": st.one_of(never_a_number, st.sampled_from(["PLD", "moments", "none"])),
    "sampling": st.one_of(never_a_number, st.just("uniform")),
    "relation": st.one_of(never_a_number, st.just("zero_out")),
    "points": st.one_of(never_a_number, st.integers(max_value=1), not_whole),
    "delta_floor": outside_open_unit,
    "added": st.sampled_from([None, 0, 1, "yes", 0.5, [], object()]),
    "coarser": st.one_of(never_a_number, negative, st.just(0.0)),
}

FINE: dict[str, Any] = {
    "added": False,
    "mechanism": GOOD,
    "delta": 1e-3,
    "epsilon": 1.0,
    "sample_rate": 1.0,
    "noise_multiplier": 1.0,
    "steps": 2,
    "regularizer": 0.5,
    "belief": 0.8,
    "advantage": 0.2,
    "rdp_epsilon": 1.0,
    "order": 2.0,
}


def public_functions(module: ModuleType) -> list[Callable[..., Any]]:
    """All functions a module defines and does not hide."""
    return [
        function
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_") and function.__module__ == module.__name__
    ]


MODULES = (standard, last_iterate, full_batch, counterexamples, calibrate, belief, advantage, choose)
TARGETS = [
    (function, argument)
    for module in MODULES
    for function in [*public_functions(module), *([DpSgd] if module is standard else [])]
    for argument in inspect.signature(function).parameters
    if function is not belief.half_to_one  # a checker itself: its first argument is a name
]


def test_every_public_argument_is_under_test() -> None:
    assert len({function for function, _ in TARGETS}) >= 30
    assert {argument for _, argument in TARGETS} <= set(BAD)


@pytest.mark.parametrize(
    ("function", "argument"), TARGETS, ids=[f"{f.__module__.rsplit('.', 1)[-1]}.{f.__name__}-{a}" for f, a in TARGETS]
)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_bad_values_are_named(function: Callable[..., Any], argument: str, data: st.DataObject) -> None:
    value = data.draw(BAD[argument])
    if function is advantage.generic and argument == "delta" and value == 0:
        return  # ε-DP: δ = 0 has a meaning there
    parameters = inspect.signature(function).parameters
    given_arguments = {
        name: FINE[name] for name, parameter in parameters.items() if parameter.default is inspect.Parameter.empty
    }
    given_arguments[argument] = value
    first = next(iter(parameters.values()))
    positional = [] if first.kind is inspect.Parameter.KEYWORD_ONLY else [given_arguments.pop(first.name)]
    with pytest.raises(ValueError, match=rf"^{argument} (= |is )") as caught:
        function(*positional, **given_arguments)
    assert isinstance(caught.value, CoalmineError)
    assert "expected" in str(caught.value)
