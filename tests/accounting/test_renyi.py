"""Rényi divergences where there is much noise: never below the truth in 60 digits, and not far above it."""

from __future__ import annotations

import logging

import mpmath
import pytest

from coalmine.accounting import _renyi, last_iterate, standard
from coalmine.records import DpSgd


def mechanism(q: float, sigma: float, steps: int) -> DpSgd:
    return DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps)


def moment(q: float, sigma: float, order: float) -> mpmath.mpf:
    """ln E_Q[(P/Q)^α] of one step: the integral for an order that is no whole number, else the binomial sum."""
    with mpmath.workdps(60):
        rate, s = mpmath.mpf(q), mpmath.mpf(sigma)
        if order == int(order):
            terms = (
                mpmath.binomial(int(order), k)
                * (1 - rate) ** (int(order) - k)
                * rate**k
                * mpmath.exp(mpmath.mpf(k * k - k) / (2 * s * s))
                for k in range(int(order) + 1)
            )
            return mpmath.log(mpmath.fsum(terms))
        inner = lambda z: (1 - rate + rate * mpmath.exp(z / s - 1 / (2 * s * s))) ** order * mpmath.npdf(z)  # noqa: E731
        return mpmath.log(mpmath.quad(inner, mpmath.linspace(-20, 20 + order / s, 30)))


def one_step_epsilon(q: float, sigma: float, delta: float) -> float:
    """ε(δ) of one step by bisection in 60 digits, the larger direction."""
    with mpmath.workdps(60):
        rate, s = mpmath.mpf(q), mpmath.mpf(sigma)

        def delta_at(epsilon: mpmath.mpf) -> mpmath.mpf:
            top = mpmath.exp(epsilon)
            x = mpmath.mpf(1) / 2 + s * s * mpmath.log((top - 1 + rate) / rate)
            found = (1 - rate - top) * mpmath.ncdf(-x / s) + rate * mpmath.ncdf((1 - x) / s)
            if 1 / top > 1 - rate:
                y = mpmath.mpf(1) / 2 + s * s * mpmath.log((1 / top - 1 + rate) / rate)
                other = mpmath.ncdf(y / s) - top * ((1 - rate) * mpmath.ncdf(y / s) + rate * mpmath.ncdf((y - 1) / s))
                found = max(found, other)
            return found

        low, high = mpmath.mpf(0), mpmath.mpf(1)
        while delta_at(high) > delta:
            high *= 2
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_at(middle) > delta else (low, middle)
        return float(low)


@pytest.mark.parametrize("order", [2, 3, 17, 64, 1024])
@pytest.mark.parametrize(
    ("q", "sigma"), [(0.001, 1e6), (1e-6, 1e5), (0.01, 1.1), (0.5, 0.7), (0.9, 40.0), (1e-12, 2.0)]
)
def test_moments_of_whole_orders(q: float, sigma: float, order: int) -> None:
    truth = moment(q, sigma, order)
    found = _renyi._log_moment(mechanism(q, sigma, 1), order)
    assert truth <= mpmath.mpf(found) <= truth * (1 + mpmath.mpf(10) ** -9)


def test_moments_of_large_orders_from_their_largest_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are left out are bounded: the same as with every term, and never less."""
    q, sigma, order = 0.01, 400.0, 100_000
    part = _renyi._log_moment(mechanism(q, sigma, 1), order)
    monkeypatch.setattr(_renyi, "_EVERY_TERM", order)
    whole = _renyi._log_moment(mechanism(q, sigma, 1), order)
    assert part == pytest.approx(whole, rel=1e-8)
    with mpmath.workdps(40):
        assert part >= mpmath.log1p(_binomial_mean(order, q, sigma))


def _binomial_mean(order: int, q: float, sigma: float) -> mpmath.mpf:
    """E[e^{K(K−1)/(2σ²)} − 1] over the k that matter, in 40 digits: a little less than the truth."""
    rate, total = mpmath.mpf(q), mpmath.mpf(0)
    term = mpmath.binomial(order, 800) * rate**800 * (1 - rate) ** (order - 800)
    for k in range(800, 1300):
        total += term * mpmath.expm1(mpmath.mpf(k * (k - 1)) / (2 * mpmath.mpf(sigma) ** 2))
        term *= rate / (1 - rate) * (order - k) / (k + 1)
    return total


@pytest.mark.parametrize(("q", "sigma"), [(0.001, 1e4), (0.01, 1.1), (0.1, 2.0), (1e-5, 3.0)])
def test_moments_between_whole_orders(q: float, sigma: float) -> None:
    found = dict(zip(_renyi._BETWEEN, _renyi._between(mechanism(q, sigma, 1)), strict=True))
    for order in (1.1, 2.5, 7.3):
        truth = float(moment(q, sigma, order))
        assert truth <= found[order] * (order - 1.0) <= truth * 2.0 + 2e-10


@pytest.mark.parametrize(
    ("q", "sigma", "delta"), [(0.001, 1e6, 1e-15), (0.1, 10.0, 1e-15), (1e-6, 1e6, 1e-50), (0.5, 2.0, 1e-30)]
)
@pytest.mark.parametrize("analysis", ["pld", "rdp"])
def test_one_step_is_never_below_the_truth(q: float, sigma: float, delta: float, analysis: str) -> None:
    truth = one_step_epsilon(q, sigma, delta)
    found = standard.epsilon(mechanism(q, sigma, 1), delta=delta, analysis=analysis)
    assert truth <= found.epsilon <= 1.6 * truth + 1e-10
    assert found.analysis in ("rdp", "no_amplification")


@pytest.mark.parametrize("delta", [1e-8, 1e-15, 1e-50])
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.001, 1e6, 10**7), (0.001, 1e6, 1000), (1e-4, 1e5, 10**6)])
def test_much_noise_is_never_below_the_last_iterate(
    q: float, sigma: float, steps: int, delta: float, caplog: pytest.LogCaptureFixture
) -> None:
    """The last iterate of a linear loss is one of all iterates: what it leaks is a true lower bound."""
    one = mechanism(q, sigma, steps)
    least = last_iterate.epsilon(one, delta=delta).epsilon
    for analysis in ("pld", "rdp"):
        with caplog.at_level(logging.WARNING):
            found = standard.epsilon(one, delta=delta, analysis=analysis).epsilon
        assert least <= found <= 5.0 * least + 1e-4 * (analysis == "pld")  # the grid of losses is coarse here
    assert not caplog.records


def test_delta_of_much_noise_is_not_zero() -> None:
    one = mechanism(0.001, 1e6, 10**7)
    found = standard.delta(one, epsilon=1e-5, analysis="rdp").delta
    assert last_iterate.delta(one, epsilon=1e-5).delta <= found < 1e-3
