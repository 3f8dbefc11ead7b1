"""Belief and advantage: the paper's table, inverses, the slips corrected, and the exact advantage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from coalmine.accounting import standard
from coalmine.identifiability import advantage, belief
from coalmine.records import DpSgd

# bernau-2021, Table 3: belief, δ, ε, advantage as printed (MNIST, Purchase-100, Adult).
TABLE_3 = [
    *[(b, 0.01, e, a) for b, e, a in ((0.52, 0.08, 0.01), (0.75, 1.1, 0.14), (0.9, 2.2, 0.28), (0.99, 4.6, 0.54))],
    *[(b, 0.001, e, a) for b, e, a in ((0.53, 0.12, 0.01), (0.75, 1.1, 0.12), (0.9, 2.2, 0.23), (0.99, 4.6, 0.46))],
    *[(b, 0.001, e, a) for b, e, a in ((0.53, 0.12, 0.01), (0.75, 1.1, 0.12), (0.9, 2.2, 0.23), (0.99, 4.6, 0.46))],
]


@pytest.mark.parametrize(("rho", "delta", "epsilon", "rho_alpha"), TABLE_3)
def test_table_3(rho: float, delta: float, epsilon: float, rho_alpha: float) -> None:
    found = belief.to_epsilon(rho)
    assert round(found, 2 if epsilon < 1 else 1) == epsilon
    assert round(advantage.from_epsilon(found, delta=delta), 2) == rho_alpha


@given(st.floats(1e-25, 30.0))
def test_belief_and_epsilon_are_inverse(epsilon: float) -> None:
    assert belief.to_epsilon(belief.from_epsilon(epsilon)) == pytest.approx(epsilon, rel=1e-2 if epsilon > 25 else 1e-6)


@given(st.floats(1e-25, 0.999), st.floats(1e-12, 0.5))
def test_advantage_and_epsilon_are_inverse(rho: float, delta: float) -> None:
    """Theorem 3 with eq. (6) as corrected; as printed (without the factor 2) this fails."""
    assert advantage.from_epsilon(advantage.to_epsilon(rho, delta=delta), delta=delta) == pytest.approx(rho, abs=1e-12)


def test_nothing_known() -> None:
    assert belief.from_epsilon(0.0) == 0.5
    assert belief.to_epsilon(0.5) == 0.0
    assert advantage.from_epsilon(0.0, delta=0.1) == 0.0
    assert advantage.to_epsilon(0.0, delta=0.1) == 0.0


def test_belief_for_a_large_epsilon_does_not_overflow() -> None:
    assert belief.from_epsilon(1e6) == 1.0


def test_advantage_is_that_of_the_classical_mechanism() -> None:
    """Theorem 3's ρα is the exact advantage of the Gaussian mechanism at the σ of eq. (1)."""
    sigma = advantage.classical_noise(0.7, delta=1e-4)
    exact = advantage.of_mechanism(DpSgd(sample_rate=1.0, noise_multiplier=sigma, steps=1))
    assert advantage.from_epsilon(0.7, delta=1e-4) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("order", [1.5, 2.0, 64.0])
def test_rdp_composition_gives_the_same_at_every_order(order: float) -> None:
    """k Gaussian steps: ε_RDP = k·α/(2σ²), and ρα is that of μ = √k/σ."""
    k, sigma = 30, 9.0
    exact = advantage.of_mechanism(DpSgd(sample_rate=1.0, noise_multiplier=sigma, steps=k))
    assert advantage.from_rdp(k * order / (2 * sigma**2), order=order) == pytest.approx(exact, rel=1e-12)


def test_exact_advantage_of_one_sampled_step_by_integration() -> None:
    """Total variation of N(0, σ²) and (1 − q)·N(0, σ²) + q·N(1, σ²) is q times that of the two Gaussians."""
    q, sigma = 0.3, 0.9
    grid = np.linspace(-9, 10, 400_001)
    apart = np.abs(stats.norm.pdf(grid, 0, sigma) - stats.norm.pdf(grid, 1, sigma))
    truth = 0.5 * q * float(np.trapezoid(apart, grid))
    found = advantage.of_mechanism(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=1))
    assert truth - 1e-10 <= found <= truth * 1.0005


def test_exact_advantage_of_two_sampled_steps_by_integration() -> None:
    q, sigma = 0.4, 1.2
    grid = np.linspace(-9, 10, 2501)
    without = stats.norm.pdf(grid, 0, sigma)
    included = (1 - q) * without + q * stats.norm.pdf(grid, 1, sigma)
    gap = np.abs(np.outer(without, without) - np.outer(included, included))
    truth = 0.5 * float(np.trapezoid(np.trapezoid(gap, grid), grid))
    found = advantage.of_mechanism(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=2))
    assert found == pytest.approx(truth, rel=1e-3)
    assert found >= truth - 1e-6


def test_generic_bound_is_above_the_exact_advantage() -> None:
    one = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=100)
    exact = advantage.of_mechanism(one)
    for delta in (1e-2, 1e-5):
        assert exact <= advantage.generic(standard.epsilon(one, delta=delta).epsilon, delta=delta)
    assert advantage.generic(0.0, delta=0.25) == 0.25
    assert advantage.generic(800.0, delta=0.0) == 1.0


def test_shuffled_batches_are_not_amplified() -> None:
    shuffled = DpSgd(sample_rate=0.1, noise_multiplier=2.0, steps=40, sampling="shuffle")  # type: ignore[arg-type]
    sampled = DpSgd(sample_rate=0.1, noise_multiplier=2.0, steps=40)
    assert advantage.of_mechanism(shuffled) == pytest.approx(2 * stats.norm.cdf(0.5) - 1)
    assert advantage.of_mechanism(shuffled) > advantage.of_mechanism(sampled)


def test_how_often_the_belief_is_exceeded() -> None:
    """Without sampling against simulation-free truth; with sampling the bound is above it and not wild."""
    mu, epsilon = 1.0, 2.0
    assert belief.exceedance(
        DpSgd(sample_rate=1.0, noise_multiplier=1 / mu, steps=1), epsilon=epsilon
    ) == pytest.approx(stats.norm.sf(epsilon / mu - mu / 2))
    q, sigma, epsilon = 0.3, 0.7, 1.0
    grid = np.linspace(-8, 9, 400_001)
    without = stats.norm.pdf(grid, 0, sigma)
    included = (1 - q) * without + q * stats.norm.pdf(grid, 1, sigma)
    over = included > math.exp(epsilon) * without
    truth = float(np.trapezoid(np.where(over, included, 0.0), grid))
    found = belief.exceedance(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=1), epsilon=epsilon)
    assert truth <= found <= 3 * truth
    assert belief.exceedance(DpSgd(sample_rate=0.0, noise_multiplier=sigma, steps=1), epsilon=epsilon) == 0.0
    assert belief.exceedance(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=1), epsilon=0.0) == 1.0


def test_noise_that_is_normal_never_gives_a_delta_of_0() -> None:
    """The true δ is 1.2e-4893 (mpmath): what is no number any more is rounded up."""
    mechanism = DpSgd(sample_rate=1.0, noise_multiplier=300.0, steps=1)
    assert 0.0 < standard.delta(mechanism, epsilon=0.5).delta < 1e-300
    assert 0.0 < belief.exceedance(mechanism, epsilon=0.5) < 1e-300
    nothing = DpSgd(sample_rate=0.0, noise_multiplier=300.0, steps=1)
    assert standard.delta(nothing, epsilon=0.5).delta == belief.exceedance(nothing, epsilon=0.5) == 0.0
