"""Exact laws against independent truths: scipy's distributions, enumeration, and long simulations from both sides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from coalmine.probing import laws


@pytest.mark.parametrize(("count", "trials", "rate"), [(0, 10, 0.3), (10, 10, 0.3), (4, 10, 0.3), (700, 60_000, 0.01)])
def test_binomial_tails_are_those_of_scipy(count, trials, rate):
    lower, upper = laws.binomial_tails(count, trials, rate)
    assert lower == pytest.approx(stats.binom.cdf(count, trials, rate), rel=1e-9)
    assert upper == pytest.approx(stats.binom.sf(count - 1, trials, rate), rel=1e-9)


def test_binomial_tails_at_rates_zero_and_one():
    assert laws.binomial_tails(0, 5, 0.0) == (1.0, 1.0)
    assert laws.binomial_tails(1, 5, 0.0) == (1.0, 0.0)
    assert laws.binomial_tails(5, 5, 1.0) == (1.0, 1.0)


def test_sum_of_binomials_is_the_convolution():
    parts = [(7, 0.2), (5, 0.6), (4, 0.2)]
    law = np.ones(1)
    for n, p in parts:
        law = np.convolve(law, stats.binom.pmf(np.arange(n + 1), n, p))
    for count in range(17):
        lower, upper = laws.sum_of_binomials_tails(count, parts)
        assert lower == pytest.approx(law[: count + 1].sum(), abs=1e-8)
        assert upper == pytest.approx(law[count:].sum(), abs=1e-8)


def test_sum_tails_by_enumeration():
    law = np.array([0.5, 0.0, 0.3, 0.2])
    exact = np.zeros(10)
    for outcome in itertools.product(range(4), repeat=3):
        exact[sum(outcome)] += law[list(outcome)].prod()
    for seen in range(10):
        lower, upper = laws.sum_tails(seen, law, 3)
        assert lower == pytest.approx(exact[: seen + 1].sum(), abs=1e-8)
        assert upper == pytest.approx(exact[seen:].sum(), abs=1e-8)


def test_a_window_of_a_long_sum_agrees_with_the_whole_law():
    law = np.zeros(400)
    law[[0, 1, 4, 9, 399]] = [0.5, 0.3, 0.15, 0.04999, 1e-5]
    whole = law.copy()
    for _ in range(9):  # 512 terms by doubling, on the full support
        whole = np.maximum(np.fft.irfft(np.fft.rfft(whole, 2 * whole.size - 1) ** 2, 2 * whole.size - 1), 0.0)
    for seen in (300, 600, 700, 900, 1500):
        lower, upper = laws.sum_tails(seen, law, 512)
        assert lower == pytest.approx(whole[: seen + 1].sum(), abs=1e-6)
        assert upper == pytest.approx(whole[seen:].sum(), abs=1e-6)


@pytest.mark.parametrize(("size", "trials", "rate"), [(50, 100, 0.1), (300, 40, 0.02), (30, 60_000, 0.01)])
def test_spread_tails_agree_with_simulation(size, trials, rate):
    # 4000 simulations: each tail differs from its true value by less than 5.5 standard errors but once in 2.6e7 tries.
    rng = np.random.default_rng(5)
    unit = max(1, int((trials * rate * (1 - rate)) ** 0.5 / 16))
    spread = ((np.abs(rng.binomial(trials, rate, (4000, size)) - round(trials * rate)) // unit) ** 2).sum(axis=1)
    for counts in rng.binomial(trials, rate, (6, size)):
        own = int(((np.abs(counts - round(trials * rate)) // unit) ** 2).sum())
        lower, upper = laws.spread_tails(counts, trials, rate)
        for tail, share in ((lower, (spread <= own).mean()), (upper, (spread >= own).mean())):
            assert abs(tail - share) < 5.5 * (max(tail * (1 - tail), 1e-4) / 4000) ** 0.5
