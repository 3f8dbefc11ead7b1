"""T bits, exactly: against brute force over all outcomes, and the values that are stated of the one-bit encoding."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from coalmine.theory import bits


def test_rates_are_those_of_the_noisy_cell():
    p0, p1 = bits.rates(0.8, sample_rate=0.2, noise_multiplier=0.6)
    alone, _ = integrate.quad(lambda x: stats.norm.pdf(x, 0.0, 0.6), 0.8, np.inf)
    moved, _ = integrate.quad(lambda x: stats.norm.pdf(x, 1.0, 0.6), 0.8, np.inf)
    assert p0 == pytest.approx(alone, abs=1e-10)
    assert p1 == pytest.approx(0.8 * alone + 0.2 * moved, abs=1e-10)


@pytest.mark.parametrize("value", [0.0, 0.3, 1.0, 2.5])
def test_delta_by_brute_force(value):
    p0, p1 = 0.13, 0.4
    world0, world1 = [], []
    for outcome in itertools.product((0, 1), repeat=6):
        ones = sum(outcome)
        world0.append(p0**ones * (1 - p0) ** (6 - ones))
        world1.append(p1**ones * (1 - p1) ** (6 - ones))
    a, b = np.array(world0), np.array(world1)
    brute = max(np.maximum(b - math.exp(value) * a, 0).sum(), np.maximum(a - math.exp(value) * b, 0).sum())
    assert bits.delta(value, p0=p0, p1=p1, bits=6) == pytest.approx(brute, abs=1e-14)


def test_epsilon_is_the_inverse_from_below():
    for p0, p1, count in ((0.01, 0.02, 1000), (0.3, 0.31, 10), (1e-9, 0.1, 5), (0.5, 0.5, 3)):
        value = bits.epsilon(1e-5, p0=p0, p1=p1, bits=count)
        if value == 0.0:
            assert bits.delta(0.0, p0=p0, p1=p1, bits=count) <= 1e-5
        else:
            assert bits.delta(value, p0=p0, p1=p1, bits=count) > 1e-5
            assert bits.delta(value * (1 + 1e-9), p0=p0, p1=p1, bits=count) <= 1e-5 * (1 + 1e-6)
    assert bits.epsilon(1e-5, p0=0.0, p1=0.1, bits=4) == math.inf


def test_a_finer_search_finds_no_less():
    coarse = bits.best_threshold(sample_rate=0.1, noise_multiplier=0.612, steps=10, delta=1e-5)
    fine = bits.best_threshold(sample_rate=0.1, noise_multiplier=0.612, steps=10, delta=1e-5, step=0.05)
    assert fine[1] >= coarse[1]
    assert fine[1] < coarse[1] + 0.1
