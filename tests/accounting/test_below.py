"""ε of DP-SGD from below: never above the truth, and hardly below it. The truth never shares a line with it."""

from __future__ import annotations

import math

import composition_oracle
import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.accounting import _below, standard
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd
from coalmine.theory import curves


def mechanism(q: float, sigma: float, steps: int, **more: object) -> DpSgd:
    return DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"),
    [
        # In the first three the accountant that rounds up is 5 %, 4 % and 1 % above the truth.
        (0.1, 1.0, 1000, 1e-12),
        (0.01, 1.0, 100_000, 1e-10),
        (0.001, 1.0, 1_000_000, 2.5e-9),
        (0.1, 1.0, 1000, 1e-100),
        (0.01, 1.1, 10_000, 1e-5),
        (250 / 6000, 1.55, 576, 1e-5),
        (0.3, 1000.0, 10_000, 1e-3),
        (0.001, 2.0, 10_000_000, 1e-5),
    ],
)
def test_against_a_contour_integral(q: float, sigma: float, steps: int, delta: float) -> None:
    """At our ε the true δ is above the wanted one, so the true ε is above ours; 0.2 % further it is below."""
    found = standard.epsilon_at_least(mechanism(q, sigma, steps), delta=delta)
    assert composition_oracle.delta(q, sigma, steps, found) > delta
    assert composition_oracle.delta(q, sigma, steps, found * 1.002) < delta


@pytest.mark.parametrize("steps", [1, 100, 1_000_000])
@pytest.mark.parametrize("delta", [1e-3, 1e-12, 1e-60])
def test_against_the_gaussian_mechanism(steps: int, delta: float) -> None:
    """With q a hair under 1 the truth is below that of the Gaussian mechanism by less than that hair."""
    found = standard.epsilon_at_least(mechanism(1.0 - 1e-9, math.sqrt(steps), steps), delta=delta)
    truth = curves.gaussian_epsilon(1.0, delta=delta)
    assert 0.998 * truth < found < truth * (1.0 + 1e-7)
    exact = standard.epsilon_at_least(mechanism(1.0, math.sqrt(steps), steps), delta=delta)
    assert exact < truth == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize(("q", "sigma", "delta"), [(0.1, 1.0, 1e-3), (0.5, 0.8, 1e-6), (0.01, 0.6, 1e-5)])
def test_one_step_against_integration(q: float, sigma: float, delta: float, relation: str) -> None:
    found = standard.epsilon_at_least(mechanism(q, sigma, 1, relation=relation), delta=delta)
    grid = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 400_001)
    drawn = (1 - q) * stats.norm.pdf(grid, 0, sigma) + q * stats.norm.pdf(grid, 1, sigma)
    other = -1.0 if relation == "replace" else 0.0
    without = (1 - q) * stats.norm.pdf(grid, 0, sigma) + q * stats.norm.pdf(grid, other, sigma)

    def truth(epsilon: float) -> float:
        return float(integrate.trapezoid(np.maximum(drawn - math.exp(epsilon) * without, 0), grid))

    assert truth(found * 1.002) < delta < truth(found)


def test_never_above_the_accountant_that_rounds_up() -> None:
    """Any setting at all; where the other one is at its best, both agree to three digits."""
    rng = np.random.default_rng(3)
    ratios = []
    for _ in range(15):
        one = mechanism(
            float(10 ** rng.uniform(-3, -0.01)),
            float(2 ** rng.uniform(-3, 8)),
            int(10 ** rng.uniform(0, 2.5)),
            relation=str(rng.choice(["add_remove", "replace"])),
        )
        delta = float(10 ** rng.uniform(-10, -1))
        low, high = standard.epsilon_at_least(one, delta=delta), standard.epsilon(one, delta=delta).epsilon
        assert low <= high * (1 + 1e-12), (one, delta)
        if high > 0.01:
            ratios.append(low / high)
    assert min(ratios) > 0.98
    assert np.median(ratios) > 0.999


def test_finer_cells_find_a_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging outputs only loses: the value grows as cells shrink, in proportion to their square."""
    one = mechanism(0.05, 1.0, 200)
    found = []
    for cells in (12.5, 25.0, 50.0):
        monkeypatch.setattr(_below, "_CELLS_TO_AN_E", cells)
        found.append(_below.epsilon(one, delta=1e-6))
    assert found[0] < found[1] < found[2]
    assert found[2] - found[1] < 0.5 * (found[1] - found[0])


def test_the_noise_bound_takes_its_epsilon_from_here() -> None:
    family = DpSgdNoise(mechanism=mechanism(0.1, 1.0, 1000), delta=1e-12)
    theta = next(theta for theta in range(1, family.size) if family.sigma(theta) <= 1.0)
    assert composition_oracle.delta(0.1, family.sigma(theta), 1000, family.epsilon(theta)) > 1e-12


def test_far_corners_neither_fail_nor_hang() -> None:
    for q, sigma, steps in ((1e-9, 1.0, 1000), (0.5, 0.02, 100_000), (1e-5, 0.3, 3), (0.999, 4000.0, 1)):
        one = mechanism(q, sigma, steps)
        assert 0.0 <= standard.epsilon_at_least(one, delta=1e-9) <= standard.epsilon(one, delta=1e-9).epsilon
    assert standard.epsilon_at_least(mechanism(0.0, 1.0, 5), delta=1e-9) == 0.0
    with pytest.raises(UnsupportedError, match="shuffle"):
        standard.epsilon_at_least(mechanism(0.1, 1.0, 5, sampling="shuffle"), delta=1e-5)


def test_losses_that_doubles_do_not_tell_apart_leak_nothing() -> None:
    assert _below.epsilon(mechanism(1e-12, 1e6, 10_000_000), delta=0.999999) == 0.0
