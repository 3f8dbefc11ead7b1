"""From what is tolerated to ε and σ: both calibrations, and that the exact one keeps its word."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.accounting import standard
from coalmine.errors import InvalidInputError
from coalmine.identifiability import advantage, choose
from coalmine.records import DpSgd
from coalmine.theory import curves


def test_belief_by_both_ways() -> None:
    found = choose.from_belief(0.9, delta=0.01)
    assert found.epsilon == pytest.approx(math.log(9))
    assert found.belief == pytest.approx(0.9)
    assert found.advantage == pytest.approx(0.2763, abs=1e-4)
    assert found.noise_multiplier["classical"] == pytest.approx(math.sqrt(2 * math.log(125)) / math.log(9))
    assert found.noise_multiplier["exact"] == pytest.approx(1 / curves.gaussian_mu(math.log(9), delta=0.01))
    assert any("up to 1 only" in note for note in found.assumptions)


def test_small_epsilon_carries_no_warning() -> None:
    found = choose.from_belief(0.6, delta=0.01)
    assert found.epsilon < 1
    assert not any("up to 1 only" in note for note in found.assumptions)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.51, 0.999), st.floats(1e-9, 0.2), st.integers(1, 10_000))
def test_exact_belief_noise_gives_the_epsilon(rho: float, delta: float, steps: int) -> None:
    found = choose.from_belief(rho, delta=delta, steps=steps)
    one = DpSgd(sample_rate=1.0, noise_multiplier=found.noise_multiplier["exact"], steps=steps)
    assert standard.epsilon(one, delta=delta).epsilon <= found.epsilon * (1 + 1e-9)
    assert standard.epsilon(one, delta=delta).epsilon >= found.epsilon * (1 - 1e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.001, 0.99), st.floats(1e-9, 0.2), st.integers(1, 10_000))
def test_exact_advantage_noise_keeps_the_advantage(rho: float, delta: float, steps: int) -> None:
    found = choose.from_advantage(rho, delta=delta, steps=steps)
    assert found.actual_advantage["exact"] <= rho
    assert found.actual_advantage["exact"] == pytest.approx(rho, rel=1e-9)
    assert found.noise_multiplier["classical"] == pytest.approx(found.noise_multiplier["exact"], rel=1e-9)


def test_sampling_saves_noise() -> None:
    full = choose.from_belief(0.9, delta=1e-3, steps=20)
    sampled = choose.from_belief(0.9, delta=1e-3, steps=20, sample_rate=0.1)
    assert sampled.noise_multiplier["exact"] < full.noise_multiplier["exact"]
    assert sampled.noise_multiplier["classical"] == full.noise_multiplier["classical"]  # blind to sampling
    one = DpSgd(sample_rate=0.1, noise_multiplier=sampled.noise_multiplier["exact"], steps=20)
    assert standard.epsilon(one, delta=1e-3).epsilon <= sampled.epsilon

    by_advantage = choose.from_advantage(0.2, delta=1e-3, steps=20, sample_rate=0.1)
    one = DpSgd(sample_rate=0.1, noise_multiplier=by_advantage.noise_multiplier["exact"], steps=20)
    assert 0.1999 <= advantage.of_mechanism(one) <= 0.2


def test_the_exact_belief_noise_exceeds_the_belief_more_often_than_delta() -> None:
    """(ε, δ)-DP does not bound the chance of a loss above ε by δ: the result shows how often it happens."""
    found = choose.from_belief(0.9, delta=0.01)
    assert found.belief_exceeded["classical"] < 0.01 < found.belief_exceeded["exact"]


def test_what_would_need_infinite_noise_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"belief = 0\.5"):
        choose.from_belief(0.5, delta=0.01)
    with pytest.raises(InvalidInputError, match="sample_rate = 0"):
        choose.from_advantage(0.5, delta=0.01, sample_rate=0.0)


def test_as_json_types() -> None:
    plain = choose.from_advantage(0.23, delta=0.001).to_dict()
    assert set(plain["noise_multiplier"]) == {"classical", "exact"}
    assert plain["epsilon"] == pytest.approx(2.2083, abs=1e-4)
