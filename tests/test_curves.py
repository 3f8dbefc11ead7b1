"""The Gaussian mechanism against mpmath, and trade-off curves against their definitions."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.errors import InvalidInputError
from coalmine.theory import curves


def true_delta(mu: float, epsilon: float) -> mp.mpf:
    """Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) at 60 digits."""
    with mp.workdps(60):
        m, e = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 60.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 3.0, 40.0])
def test_gaussian_delta_against_sixty_digits(mu: float, epsilon: float) -> None:
    truth = true_delta(mu, epsilon)
    if truth < mp.mpf(10) ** -290:
        assert curves.gaussian_delta(mu, epsilon=epsilon) <= 1e-280
    else:
        assert curves.gaussian_delta(mu, epsilon=epsilon) == pytest.approx(float(truth), rel=1e-9)


@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-12, 1e-100])
@pytest.mark.parametrize("mu", [0.01, 1.0, 30.0])
def test_gaussian_epsilon_holds_and_is_tight(mu: float, delta: float) -> None:
    found = curves.gaussian_epsilon(mu, delta=delta)
    assert true_delta(mu, found) <= delta * (1 + 1e-9)
    if found > 0:
        assert true_delta(mu, found * (1 - 1e-8)) >= delta * (1 - 1e-12)


@settings(max_examples=80, deadline=None)
@given(epsilon=st.floats(1e-3, 60.0), delta=st.floats(-25.0, -0.5).map(math.exp))
def test_gaussian_mu_inverts_epsilon(epsilon: float, delta: float) -> None:
    mu = curves.gaussian_mu(epsilon, delta=delta)
    assert curves.gaussian_epsilon(mu, delta=delta) <= epsilon * (1 + 1e-9)
    assert curves.gaussian_epsilon(mu, delta=delta) == pytest.approx(epsilon, rel=1e-6)


def test_no_signal() -> None:
    assert curves.gaussian_delta(0.0, epsilon=0.0) == 0.0
    assert curves.gaussian_epsilon(0.0, delta=1e-9) == 0.0


@given(st.floats(0.01, 1e6))
def test_searches_return_what_satisfies(root: float) -> None:
    def enough(x: float) -> bool:
        return x * x >= root

    found = curves.smallest_true(enough, 0.0, root + 1.0)
    assert enough(found)
    assert found == pytest.approx(math.sqrt(root), rel=1e-12)

    def few(x: float) -> bool:
        return x * x <= root

    found = curves.largest_true(few, 0.0, root + 1.0)
    assert few(found)
    assert found == pytest.approx(math.sqrt(root), rel=1e-12)


ALPHAS = np.concatenate([[0.0], np.logspace(-12, -0.001, 80), np.linspace(0.01, 1.0, 80)])


@pytest.mark.parametrize(
    "curve",
    [
        curves.EpsilonDeltaCurve(epsilon=1.0, delta=0.05),
        curves.GaussianCurve(mu=1.3),
        curves.ProfileCurve([0.0, 1.0, 3.0], [0.4, 0.2, 0.01]),
    ],
)
def test_a_trade_off_curve_is_one(curve: curves.TradeOff) -> None:
    """Non-increasing, convex, at most 1 − α, and its own inverse: f(f(α)) ≤ α."""
    grid = np.linspace(0.0, 1.0, 2001)
    beta = curve(grid)
    assert np.all(np.diff(beta) <= 1e-12)
    assert np.all(np.diff(beta, 2) >= -1e-9)
    assert np.all(beta <= 1.0 - grid + 1e-12)
    assert np.all(curve(beta) <= grid + 1e-9)


@settings(max_examples=100, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0.0, 40.0), st.floats(0.0, 1.0)), min_size=1, max_size=40),
)
def test_profile_curve_is_the_maximum_of_its_points(points: list[tuple[float, float]]) -> None:
    epsilons, deltas = zip(*points, strict=True)
    curve = curves.ProfileCurve(epsilons, deltas)(ALPHAS)
    brute = np.max([curves.EpsilonDeltaCurve(epsilon=e, delta=d)(ALPHAS) for e, d in points], axis=0)
    np.testing.assert_allclose(curve, brute, rtol=1e-9, atol=1e-12)
    assert np.all(curve <= brute + 1e-15)


def test_profile_curve_of_the_gaussian_approaches_it_from_below() -> None:
    mu = 1.0
    for points, gap in ((20, 0.02), (400, 1e-4)):
        epsilons = np.linspace(0.0, 12.0, points)
        deltas = [curves.gaussian_delta(mu, epsilon=float(e)) for e in epsilons]
        ours, truth = curves.ProfileCurve(epsilons, deltas)(ALPHAS), curves.GaussianCurve(mu=mu)(ALPHAS)
        assert np.all(ours <= truth + 1e-12)
        assert float(np.max(truth - ours)) < gap


def test_profile_curve_leaves_out_what_floating_point_cannot_hold() -> None:
    assert curves.ProfileCurve([5000.0], [0.0])([0.0, 0.5]).tolist() == [0.0, 0.0]
    scalar = curves.ProfileCurve([1.0], [0.1])(0.1)
    assert scalar.shape == ()


@pytest.mark.parametrize(
    ("epsilons", "deltas", "words"),
    [
        ([], [], "epsilons is empty"),
        ([1.0], [0.1, 0.2], "deltas has 2 entries"),
        ([-1.0], [0.1], r"epsilons\[0\] = -1"),
        ([1.0, 2.0], [0.1, 1.5], r"deltas\[1\] = 1.5"),
        ([math.nan], [0.1], r"epsilons\[0\]"),
        (["a"], [0.1], "epsilons"),
    ],
)
def test_profile_curve_names_what_is_wrong(epsilons: list[object], deltas: list[float], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        curves.ProfileCurve(epsilons, deltas)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [None, "1", True, math.nan, math.inf, -1.0])
def test_gaussian_functions_name_what_is_wrong(bad: object) -> None:
    for function, first, name in (
        (curves.gaussian_delta, "mu", "epsilon"),
        (curves.gaussian_log_delta, "mu", "epsilon"),
        (curves.gaussian_epsilon, "mu", "delta"),
        (curves.gaussian_mu, "epsilon", "delta"),
    ):
        with pytest.raises(ValueError, match=f"^{first} = "):
            function(bad, **{name: 0.5})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"^{name} = "):
            function(1.0, **{name: bad})  # type: ignore[arg-type]
