"""The examples of last-iterate-2024, Section 4, against mpmath and against each other."""

from __future__ import annotations

import itertools
import math

import last_iterate_oracle as oracle
import mpmath as mp
import numpy as np
import pytest

from coalmine.accounting import _shifted, counterexamples, last_iterate
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd


def mechanism(q: float, sigma: float, steps: int, **more: object) -> DpSgd:
    return DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("regularizer", "expected"), [(0, 2.222411), (1, 2.181694), (0.5, 2.274875)])
def test_published_values(regularizer: float, expected: float) -> None:
    found = counterexamples.regularized(mechanism(0.1, 1.0, 3), regularizer=regularizer, delta=1e-6)
    assert found.epsilon == pytest.approx(expected, abs=1e-6)
    assert found.method == "exact"


def test_the_half_regularizer_refutes_the_heuristic_at_every_t() -> None:
    found = counterexamples.regularized(mechanism(0.1, 1.0, 3), regularizer=0.5, delta=1e-6)
    assert found.refutes_heuristic
    assert found.refutes_worst
    assert found.to_dict()["refutes_worst"] is True


@pytest.mark.parametrize(("q", "sigma", "steps", "keep", "delta"), [(0.1, 1, 3, 0.5, 1e-6), (0.4, 0.3, 5, 0.8, 1e-9)])
def test_against_the_oracle(q: float, sigma: float, steps: int, keep: float, delta: float) -> None:
    found = counterexamples.regularized(mechanism(q, sigma, steps), regularizer=1 - keep, delta=delta).epsilon
    with mp.workdps(oracle.DIGITS):
        k, p = mp.mpf(keep), mp.mpf(q)
        draws = list(itertools.product((0, 1), repeat=steps))
        values = [mp.fsum(d * k**i for i, d in enumerate(draw)) for draw in draws]
        weights = [p ** sum(draw) * (1 - p) ** (steps - sum(draw)) for draw in draws]
        scale = mp.mpf(sigma) * mp.sqrt(mp.fsum(k ** (2 * i) for i in range(steps)))
        assert max(oracle.hockey_sticks(values, weights, scale, found + 1e-8)) <= delta
        assert max(oracle.hockey_sticks(values, weights, scale, found - 1e-8)) >= delta


def test_zeroing_is_one_step_and_refutes_where_more_steps_leak_less() -> None:
    one = mechanism(0.01, 0.5, 100)
    found = counterexamples.zeroing(one, delta=1e-6)
    assert found.epsilon == last_iterate.epsilon(one.with_steps(1), delta=1e-6).epsilon
    assert found.refutes_heuristic
    assert not found.refutes_worst


def test_closed_forms_meet_the_enumeration() -> None:
    """λ a hair off 0 and 1 takes the enumerating path and must land on the closed forms."""
    one = mechanism(0.2, 0.8, 6)
    for exact, near in ((0.0, 1e-9), (1.0, 1.0 - 1e-9)):
        a = counterexamples.regularized(one, regularizer=exact, delta=1e-5).epsilon
        b = counterexamples.regularized(one, regularizer=near, delta=1e-5).epsilon
        assert a == pytest.approx(b, abs=1e-6)


@pytest.mark.parametrize("regularizer", [0.1, 0.5, 0.9])
def test_rounding_up_is_an_upper_bound_and_close(regularizer: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both are possible: never below the exact value, and within 8 % (the paper expects 5 %)."""
    one = mechanism(0.1, 1.0, 12)
    exact = counterexamples.regularized(one, regularizer=regularizer, delta=1e-6)
    monkeypatch.setattr(counterexamples, "EXACT_STEPS", 4)
    rounded = counterexamples.regularized(one, regularizer=regularizer, delta=1e-6)
    assert (exact.method, rounded.method) == ("exact", "rounded_up")
    assert exact.epsilon <= rounded.epsilon <= 1.08 * exact.epsilon
    assert not rounded.refutes_heuristic  # an upper bound refutes nothing


def test_the_grid_alone_is_nearly_exact() -> None:
    q, keep, steps = 0.1, 0.7, 10
    values, weights = counterexamples._on_grid(q, keep, steps)
    exact_values, exact_weights = counterexamples._enumerate(q, keep, steps)
    assert float(weights.sum()) == pytest.approx(1.0, abs=1e-12)
    # Rounded up, by less than a cell for each step: the means differ by next to nothing, in the right direction.
    gap = float(np.dot(values, weights) - np.dot(exact_values, exact_weights))
    assert 0.0 <= gap < 1e-3
    kept = weights > 0
    scale = math.sqrt(counterexamples._geometric(keep**2, steps))
    log_delta = math.log(1e-6)
    upper = _shifted.epsilon(_shifted.FiniteShift(values[kept], np.log(weights[kept]), scale), log_delta=log_delta)
    exact = counterexamples.regularized(mechanism(q, 1.0, steps), regularizer=1 - keep, delta=1e-6).epsilon
    assert exact - 1e-9 <= upper <= exact + 1e-3


def test_many_steps_settle() -> None:
    """With λ = 0.5 only the last few steps count: 500 steps leak what 60 do, but for the rounding."""
    a = counterexamples.regularized(mechanism(0.1, 1.0, 60), regularizer=0.5, delta=1e-6)
    b = counterexamples.regularized(mechanism(0.1, 1.0, 500), regularizer=0.5, delta=1e-6)
    assert a.epsilon == pytest.approx(b.epsilon, rel=1e-3)


def test_other_games_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="poisson"):
        counterexamples.zeroing(mechanism(0.1, 1.0, 3, sampling="shuffle"), delta=1e-6)
    with pytest.raises(UnsupportedError, match="add_remove"):
        counterexamples.zeroing(mechanism(0.1, 1.0, 3, relation="replace"), delta=1e-6)


def test_nothing_sampled() -> None:
    found = counterexamples.regularized(mechanism(0.0, 1.0, 3), regularizer=0.5, delta=1e-6)
    assert found.epsilon == 0.0
    always = counterexamples.regularized(mechanism(1.0, 1.0, 3), regularizer=0.5, delta=1e-6)
    assert always.epsilon > 0.0
