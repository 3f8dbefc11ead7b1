"""Calibration: never above the target, and not more noise than needed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.accounting import calibrate, standard
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Guarantee, Heuristic, Relation, Sampling
from coalmine.theory import curves

CHEAP = [name for name in calibrate.ANALYSES if name not in ("standard", "rdp", "last_iterate_worst")]


@settings(max_examples=60, deadline=None)
@given(
    analysis=st.sampled_from(CHEAP),
    q=st.floats(math.log(1e-4), 0.0).map(math.exp),
    steps=st.integers(1, 20_000),
    target=st.floats(math.log(0.05), math.log(50.0)).map(math.exp),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
)
def test_never_above_the_target_and_the_smallest(
    analysis: str, q: float, steps: int, target: float, delta: float
) -> None:
    found = calibrate.noise_multiplier(sample_rate=q, steps=steps, epsilon=target, delta=delta, analysis=analysis)
    assert found.statement.epsilon <= target
    if found.noise_multiplier > 1.001 * calibrate.SMALLEST:
        less = DpSgd(sample_rate=q, noise_multiplier=found.noise_multiplier * (1 - 3e-6), steps=steps)
        assert calibrate._ANALYSES[analysis](less, delta).epsilon > target


@settings(max_examples=4, deadline=None)
@given(q=st.floats(0.01, 0.9), steps=st.integers(1, 60), target=st.floats(0.3, 9.0))
def test_the_proved_analyses_too(q: float, steps: int, target: float) -> None:
    for analysis in ("standard", "rdp"):
        found = calibrate.noise_multiplier(sample_rate=q, steps=steps, epsilon=target, delta=1e-5, analysis=analysis)
        assert isinstance(found.statement, Guarantee)
        assert 0.99999 * target <= found.statement.epsilon <= target


def test_worst_case_needs_at_least_as_much_noise() -> None:
    same = {"sample_rate": 0.01, "steps": 500, "epsilon": 2.0, "delta": 1e-6}
    last = calibrate.noise_multiplier(**same, analysis="last_iterate")
    worst = calibrate.noise_multiplier(**same, analysis="last_iterate_worst")
    assert isinstance(worst.statement, Heuristic)
    assert worst.noise_multiplier >= last.noise_multiplier
    assert worst.statement.epsilon <= 2.0


@pytest.mark.parametrize(("relation", "factor"), [(Relation.ADD_REMOVE, 1.0), (Relation.REPLACE, 2.0)])
def test_without_sampling_it_is_the_analytic_gaussian(relation: Relation, factor: float) -> None:
    found = calibrate.noise_multiplier(
        sample_rate=1.0, steps=9, epsilon=1.0, delta=1e-5, sampling=Sampling.FULL, relation=relation
    )
    assert found.noise_multiplier == pytest.approx(3 * factor / curves.gaussian_mu(1.0, delta=1e-5), rel=2e-6)


def test_shuffled_batches_get_the_guarantee_that_holds() -> None:
    found = calibrate.noise_multiplier(sample_rate=0.25, steps=16, epsilon=1.0, delta=1e-5, sampling=Sampling.SHUFFLE)
    assert found.statement.analysis == "shuffle_no_amplification"
    assert found.noise_multiplier == pytest.approx(2.0 / curves.gaussian_mu(1.0, delta=1e-5), rel=2e-6)


def test_replaced_rows_with_sampling() -> None:
    found = calibrate.noise_multiplier(sample_rate=0.1, steps=10, epsilon=1.0, delta=1e-5, relation=Relation.REPLACE)
    assert 0.99999 <= found.statement.epsilon <= 1.0


def test_replaced_rows_at_a_delta_that_the_pld_cannot_resolve() -> None:
    found = calibrate.noise_multiplier(sample_rate=0.5, steps=10**6, epsilon=1.0, delta=1e-9, relation=Relation.REPLACE)
    assert found.statement.analysis == "no_amplification"
    assert found.noise_multiplier == pytest.approx(2_000.0 / curves.gaussian_mu(1.0, delta=1e-9), rel=2e-6)


def test_what_no_noise_can_reach_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"epsilon = 1e-09 is not allowed: expected at least 0\.00"):
        calibrate.noise_multiplier(sample_rate=0.5, steps=100_000, epsilon=1e-9, delta=1e-15, analysis="last_iterate")


def test_a_target_that_any_noise_meets_gives_the_smallest_tried() -> None:
    found = calibrate.noise_multiplier(sample_rate=0.0, steps=10, epsilon=1.0, delta=1e-5)
    assert found.noise_multiplier == pytest.approx(calibrate.SMALLEST)
    assert found.statement.epsilon == 0.0


def test_for_advantage_keeps_the_total_variation() -> None:
    sigma = calibrate.for_advantage(sample_rate=0.1, steps=50, advantage=0.2)
    actual = standard.delta(DpSgd(sample_rate=0.1, noise_multiplier=sigma, steps=50), epsilon=0.0).delta
    assert 0.19999 <= actual <= 0.2
