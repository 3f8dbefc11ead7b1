"""The encodings of last-iterate-2024, Appendix C, in exact arithmetic."""

import pytest

from coalmine.accounting import calibrate, encoding, last_iterate, standard
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd

# q, T, then σ for a standard ε of 8 at δ = 1e-5, what one bit a step leaks, and the heuristic.
VALUES = [
    (0.01, 10, 0.390, 7.48, 1.52),
    (0.01, 100, 0.465, 6.53, 1.22),
    (0.01, 1000, 0.586, 5.15, 2.43),
    (0.1, 10, 0.612, 6.46, 5.32),
    (0.1, 100, 0.936, 5.52, 5.87),
    (0.1, 1000, 2.051, 5.96, 7.53),
]


@pytest.mark.parametrize(("q", "steps", "sigma", "leaks", "heuristic"), VALUES)
def test_one_bit_a_step(q, steps, sigma, leaks, heuristic):
    noise = calibrate.noise_multiplier(sample_rate=q, steps=steps, epsilon=8.0, delta=1e-5).noise_multiplier
    assert noise == pytest.approx(sigma, abs=0.0006)
    mechanism = DpSgd(sample_rate=q, noise_multiplier=noise, steps=steps)
    found = encoding.one_bit(mechanism, delta=1e-5)
    assert found.epsilon == pytest.approx(leaks, abs=0.05)
    assert found.heuristic == pytest.approx(heuristic, abs=0.005)
    assert found.epsilon < found.standard <= 8.0
    assert found.refutes_heuristic == (leaks > heuristic)
    given = encoding.one_bit(mechanism, delta=1e-5, threshold=found.threshold)
    assert given.epsilon == found.epsilon


def test_linear_is_the_standard_analysis():
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=0.612, steps=10)
    found = encoding.linear(mechanism, delta=1e-5)
    assert found.epsilon == standard.epsilon_at_least(mechanism, delta=1e-5)
    assert found.standard * 0.999 < found.epsilon < found.standard == standard.epsilon(mechanism, delta=1e-5).epsilon
    assert found.heuristic == last_iterate.epsilon(mechanism, delta=1e-5).epsilon
    assert found.to_dict()["refutes_heuristic"]


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(0.1, 10.0, 1, 1e-15), (0.001, 1e5, 10_000_000, 1e-8), (0.01, 0.8, 1, 1e-5)]
)
def test_an_upper_bound_refutes_nothing(q, sigma, steps, delta):
    """After one step the heuristic is exact; and with much noise the bounds are far apart."""
    found = encoding.linear(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps), delta=delta)
    assert not found.refutes_heuristic
    assert found.epsilon <= found.standard
    if steps == 1:
        assert found.epsilon <= found.heuristic + 1e-9


def test_bad_input():
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=0.612, steps=10)
    with pytest.raises(InvalidInputError, match="delta = 0"):
        encoding.one_bit(mechanism, delta=0.0)
    with pytest.raises(InvalidInputError, match="step = 0"):
        encoding.one_bit(mechanism, delta=1e-5, step=0.0)
    with pytest.raises(InvalidInputError, match="threshold = nan"):
        encoding.one_bit(mechanism, delta=1e-5, threshold=float("nan"))
    with pytest.raises(UnsupportedError, match="replace"):
        encoding.linear(DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=3, relation="replace"), delta=1e-5)
