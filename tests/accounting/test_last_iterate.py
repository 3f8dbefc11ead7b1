"""Theorem 1 of last-iterate-2024 against mpmath at 40 digits, at its edges, and its worst case over t."""

from __future__ import annotations

import math

import last_iterate_oracle as oracle
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coalmine.accounting import _shifted, last_iterate
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Heuristic
from coalmine.theory import curves


def mechanism(q: float, sigma: float, steps: int, **more: object) -> DpSgd:
    return DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "expected"),
    [
        (250 / 6000, 1.55, 576, 1e-5, 2.804435),
        (250 / 6000, 1.55, 576, 1e-6, 3.177829),
        (0.01, 1.1, 10_000, 1e-5, 4.000528),
        (0.001, 0.8, 100_000, 1e-5, 1.547118),
        (0.1, 1.0, 3, 1e-6, 2.222411),
    ],
)
def test_published_values(q: float, sigma: float, steps: int, delta: float, expected: float) -> None:
    assert last_iterate.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon == pytest.approx(expected, abs=1e-6)


# The edges of what is promised: σ from 0.05 to 1000, δ down to 1e-12, q near 0 and near 1, one step and many.
CASES = [
    (0.1, 1.0, 3, 1e-6),
    (0.5, 0.05, 1, 1e-12),
    (0.01, 0.3, 50, 1e-8),
    (0.9, 1000.0, 7, 1e-5),
    (1e-3, 0.05, 60, 1e-12),
    (0.3, 5.0, 120, 1e-10),
    (0.01, 0.5, 100, 1e-6),
    (0.01, 0.5, 1, 1e-6),
    (1e-5, 0.2, 40, 1e-9),
    (0.999, 0.7, 20, 1e-12),
    (0.25, 0.05, 30, 1e-3),
    (0.2, 2.0, 40, 0.1),
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), CASES)
def test_epsilon_is_right_to_nine_digits(q: float, sigma: float, steps: int, delta: float) -> None:
    """δ of the independent sum crosses the wanted δ within 1e-9 of our ε: no inversion of the oracle is needed."""
    found = last_iterate.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon
    margin = 1e-9 * max(1.0, found)
    assert oracle.delta(q, sigma, steps, found + margin) <= delta <= oracle.delta(q, sigma, steps, found - margin)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "window"),
    [
        # For many steps the oracle sums a window that holds all but 1e-40 of the binomial (mean ± 14 sd and more).
        (1e-6, 2.0, 10_000_000, 1e-9, (0, 150)),
        (2e-5, 1.0, 10_000_000, 1e-12, (50, 420)),
        (0.001, 0.8, 100_000, 1e-5, (0, 300)),
    ],
)
def test_many_steps(q: float, sigma: float, steps: int, delta: float, window: tuple[int, int]) -> None:
    found = last_iterate.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon
    margin = 1e-8
    assert oracle.delta(q, sigma, steps, found + margin, window) <= delta
    assert oracle.delta(q, sigma, steps, found - margin, window) >= delta


@pytest.mark.parametrize(("q", "sigma", "steps", "epsilon"), [(0.1, 1.0, 3, 2.2), (0.3, 0.8, 6, 1.0), (0.6, 2.0, 4, 0)])
def test_delta_against_plain_integration(q: float, sigma: float, steps: int, epsilon: float) -> None:
    expected = float(oracle.delta_by_integration(q, sigma, steps, epsilon))
    assert last_iterate.delta(mechanism(q, sigma, steps), epsilon=epsilon).delta == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon"),
    [(0.1, 1.0, 3, 0.2), (0.9, 0.7, 2, 0.5), (0.95, 0.5, 3, 3.0), (0.3, 0.2, 12, 2.0), (0.5, 40.0, 9, 0.01)],
)
def test_each_direction_on_its_own(q: float, sigma: float, steps: int, epsilon: float) -> None:
    """H(P, Q) is usually the larger one, so a wrong H(Q, P) could hide behind it."""
    values, weights = oracle.binomial_weights(q, steps)
    scale = sigma * math.sqrt(steps)
    forward, backward = oracle.hockey_sticks(values, weights, scale, epsilon)
    pair = last_iterate.BinomialShift(steps, q, scale, math.log(1e-15))
    for way, expected in ((True, forward), (False, backward)):
        found = float(np.exp(_shifted.one_way_log_deltas(pair, np.array([epsilon]), forward=way)[0]))
        assert found == pytest.approx(float(expected), rel=1e-9)
        assert _shifted.one_way_epsilon(pair, math.log(found), forward=way) == pytest.approx(epsilon, rel=1e-8)


def test_nothing_sampled_leaks_nothing() -> None:
    none = mechanism(0.0, 0.05, 10_000_000)
    assert last_iterate.epsilon(none, delta=1e-12).epsilon == 0.0
    assert last_iterate.delta(none, epsilon=0.0).delta == 0.0
    assert last_iterate.worst(none, delta=1e-12).epsilon == 0.0
    assert last_iterate.profile(none).deltas.tolist() == [0.0]


@pytest.mark.parametrize("sigma", [0.05, 1.0, 1000.0])
@pytest.mark.parametrize("steps", [1, 1000, 10_000_000])
def test_full_batches_are_the_gaussian_mechanism(sigma: float, steps: int) -> None:
    mu = math.sqrt(steps) / sigma
    found = last_iterate.epsilon(mechanism(1.0, sigma, steps), delta=1e-5).epsilon
    assert found == curves.gaussian_epsilon(mu, delta=1e-5)
    assert last_iterate.worst(mechanism(1.0, sigma, steps), delta=1e-5).epsilon == found


def test_nearly_full_batches_are_nearly_the_gaussian_mechanism() -> None:
    """The sum over k meets the closed form: another path through the code."""
    found = last_iterate.epsilon(mechanism(1.0 - 1e-12, 2.0, 9), delta=1e-5).epsilon
    assert found == pytest.approx(curves.gaussian_epsilon(1.5, delta=1e-5), abs=1e-9)


def test_replacing_a_row_without_sampling_counts_twice() -> None:
    replaced = mechanism(1.0, 4.0, 4, sampling="full", relation="replace")
    assert last_iterate.epsilon(replaced, delta=1e-5).epsilon == curves.gaussian_epsilon(1.0, delta=1e-5)


sigmas = st.floats(math.log(0.05), math.log(1000.0)).map(math.exp)
rates = st.one_of(st.floats(1e-7, 1.0 - 1e-7), st.floats(math.log(1e-7), math.log(0.9)).map(math.exp))
steps_up_to = st.floats(0.0, math.log(1e7)).map(lambda x: round(math.exp(x)))
deltas = st.floats(math.log(1e-12), math.log(0.5)).map(math.exp)


@settings(max_examples=150, deadline=None)
@given(q=rates, sigma=sigmas, steps=steps_up_to, delta=deltas)
@example(q=0.5, sigma=0.05, steps=10_000_000, delta=1e-12)
@example(q=1e-7, sigma=1000.0, steps=1, delta=1e-12)
@example(q=1e-7, sigma=1000.0, steps=10_000_000, delta=1e-12)
def test_epsilon_and_delta_are_inverse_everywhere(q: float, sigma: float, steps: int, delta: float) -> None:
    found = last_iterate.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon
    back = last_iterate.delta(mechanism(q, sigma, steps), epsilon=found).delta
    assert math.isfinite(found)
    # Never above the wanted δ but for rounding (the two take different paths to the same threshold) …
    assert back <= delta * (1.0 + 1e-5)
    # … and not far below it, unless ε = 0 already suffices.
    if found > 1e-6:
        assert back >= delta * (1.0 - 1e-4)


@settings(max_examples=60, deadline=None)
@given(q=rates, sigma=sigmas, steps=steps_up_to, delta=deltas, factor=st.floats(1.001, 3.0))
def test_more_noise_never_reveals_more(q: float, sigma: float, steps: int, delta: float, factor: float) -> None:
    less = last_iterate.epsilon(mechanism(q, sigma * factor, steps), delta=delta).epsilon
    assert less <= last_iterate.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon * (1.0 + 1e-9) + 1e-9


BRUTE_FORCE = [
    (0.01, 0.5, 2000, 1e-6),  # falls from t = 1, then rises
    (0.05, 0.44, 56, 2e-9),  # largest at t = 3, inside
    (0.03, 0.34, 134, 3.7e-8),  # largest at t = 3, inside
    (0.2, 2.0, 300, 1e-5),  # rises throughout
    (1e-3, 0.3, 700, 1e-5),
    (0.0001, 0.21, 39, 1.5e-4),
    (0.9, 0.3, 40, 1e-3),
    (0.5, 50.0, 100, 0.4),  # zero for every t
]


@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), BRUTE_FORCE)
def test_worst_over_t_against_brute_force(q: float, sigma: float, steps: int, delta: float) -> None:
    whole = mechanism(q, sigma, steps)
    every = max(last_iterate.epsilon(whole.with_steps(t), delta=delta).epsilon for t in range(1, steps + 1))
    assert last_iterate.worst(whole, delta=delta).epsilon == pytest.approx(every, abs=1.1e-7)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon"), [(0.01, 0.5, 500, 3.0), (0.05, 0.44, 56, 15.0), (0.2, 2, 90, 1)]
)
def test_worst_delta_over_t_against_brute_force(q: float, sigma: float, steps: int, epsilon: float) -> None:
    whole = mechanism(q, sigma, steps)
    every = max(last_iterate.delta(whole.with_steps(t), epsilon=epsilon).delta for t in range(1, steps + 1))
    assert last_iterate.worst_delta(whole, epsilon=epsilon).delta == pytest.approx(every, rel=1.1e-7)


def test_worst_with_ten_million_steps() -> None:
    whole = mechanism(0.001, 0.5, 10_000_000)
    worst = last_iterate.worst(whole, delta=1e-6)
    assert worst.epsilon >= last_iterate.epsilon(whole, delta=1e-6).epsilon
    assert worst.assumptions[-1].startswith("largest over all t ≤ 10000000 steps")


def test_profile_is_delta_on_a_grid() -> None:
    one = mechanism(0.05, 0.7, 200)
    profile = last_iterate.profile(one, points=40)
    single = [last_iterate.delta(one, epsilon=float(e)).delta for e in profile.epsilons]
    np.testing.assert_allclose(profile.deltas, single, rtol=1e-9)
    assert np.all(np.diff(profile.epsilons) > 0)
    assert profile.deltas[-1] == pytest.approx(1e-15, rel=1e-4)


def test_profile_curve_lies_under_the_true_trade_off() -> None:
    """At a threshold c the test {Y ≥ c} has α = Q, β = 1 − P: no curve may claim more than min over both directions."""
    q, sigma, steps = 0.1, 1.0, 30
    curve = last_iterate.profile(mechanism(q, sigma, steps)).curve()
    values, weights = oracle.binomial_weights(q, steps)
    scale = sigma * math.sqrt(steps)
    for c in np.linspace(-2 * scale, 3 + 3 * scale, 25):
        alpha = float(oracle.normal_cdf(-c / scale))
        beta = float(sum(w * oracle.normal_cdf((c - v) / scale) for v, w in zip(values, weights, strict=True)))
        assert float(curve(alpha)) <= beta + 1e-12  # one way to test
        assert float(curve(beta)) <= alpha + 1e-12  # and the other
        assert float(curve(alpha)) >= min(beta, 1.0) - 0.05  # and it is close


def test_it_is_a_heuristic_and_says_so() -> None:
    found = last_iterate.epsilon(mechanism(0.01, 1.0, 100), delta=1e-5)
    assert isinstance(found, Heuristic)
    assert any("not a guarantee" in assumption for assumption in found.assumptions)


@pytest.mark.parametrize("function", [last_iterate.epsilon, last_iterate.worst])
def test_what_the_theorem_does_not_cover_is_refused(function) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UnsupportedError, match="shuffle"):
        function(mechanism(0.1, 1.0, 10, sampling="shuffle"), delta=1e-5)
    with pytest.raises(UnsupportedError, match="replace"):
        function(mechanism(0.1, 1.0, 10, relation="replace"), delta=1e-5)
