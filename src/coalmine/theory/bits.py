"""What T independent bits reveal, exactly: the arithmetic of the one-bit encoding (last-iterate-2024, Appendix C).

Each step is kept as one bit, [A_t + N(0, σ²) ≥ τ], where A_t ~ Bernoulli(q) with the canary and 0 without it. Only the
number of ones matters, so the adversary has to tell Binomial(T, p₁) from Binomial(T, p₀):

    p₀ = Φ(−τ/σ),   p₁ = (1 − q)·Φ(−τ/σ) + q·Φ((1 − τ)/σ).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.theory.curves import largest_true

Array = NDArray[np.float64]

TENTHS = 0.1
"""The step of the thresholds that :func:`best_threshold` tries."""


def rates(threshold: float, *, sample_rate: float, noise_multiplier: float) -> tuple[float, float]:
    """p₀ and p₁: how likely a bit is set without and with the canary.

    >>> p0, p1 = rates(0.5, sample_rate=1.0, noise_multiplier=0.5)
    >>> round(p0, 4), round(p1, 4)
    (0.1587, 0.8413)
    """
    p0 = float(special.ndtr(-threshold / noise_multiplier))
    return p0, (1.0 - sample_rate) * p0 + sample_rate * float(special.ndtr((1.0 - threshold) / noise_multiplier))


def delta(epsilon: float, *, p0: float, p1: float, bits: int) -> float:
    """max over both orders of Σ_k (P(k) − e^ε·Q(k))₊ for Binomial(T, p₁) and Binomial(T, p₀).

    >>> round(delta(0.0, p0=0.25, p1=0.75, bits=1), 6)
    0.5
    """
    return _delta(epsilon, _log_weights(bits, p0), _log_weights(bits, p1))


def epsilon(delta: float, *, p0: float, p1: float, bits: int) -> float:
    """The smallest ε at which T such bits are (ε, δ)-indistinguishable, never rounded up; ∞ where there is none.

    >>> round(epsilon(1e-5, p0=0.25, p1=0.75, bits=1), 4)
    1.0986
    """
    delta = _validate.open_unit("delta", delta)
    log_p0, log_p1 = _log_weights(bits, p0), _log_weights(bits, p1)
    if _delta(0.0, log_p0, log_p1) <= delta:
        return 0.0
    top = 1.0
    while _delta(top, log_p0, log_p1) > delta:
        top *= 2.0
        if top > 1e6:
            return math.inf
    return float(largest_true(lambda value: _delta(value, log_p0, log_p1) > delta, 0.0, top))


def best_threshold(
    *, sample_rate: float, noise_multiplier: float, steps: int, delta: float, step: float = TENTHS
) -> tuple[float, float]:
    """The threshold among the multiples of ``step`` from 0 to 1 + 6σ that reveals most, and its ε at δ.

    ε jumps with the threshold (the number of ones that decides changes), so a finer step finds a little more.

    >>> best_threshold(sample_rate=0.01, noise_multiplier=0.390005, steps=10, delta=1e-5)[0]
    2.3
    """
    best = (0.0, -1.0)
    for place in range(math.ceil((1.0 + 6.0 * noise_multiplier) / step) + 1):
        threshold = round(place * step, 10)
        p0, p1 = rates(threshold, sample_rate=sample_rate, noise_multiplier=noise_multiplier)
        value = epsilon(delta, p0=p0, p1=p1, bits=steps)
        if value > best[1]:
            best = (threshold, value)
    return best


def _log_weights(bits: int, p: float) -> Array:
    """ln of the probabilities of Binomial(T, p) at 0 … T."""
    k = np.arange(bits + 1, dtype=np.float64)
    ways = special.gammaln(bits + 1.0) - special.gammaln(k + 1.0) - special.gammaln(bits - k + 1.0)
    return np.asarray(ways + special.xlogy(k, p) + special.xlog1py(bits - k, -p))


def _delta(value: float, log_p0: Array, log_p1: Array) -> float:
    """Both orders; each term is P·(1 − e^{ε + log Q − log P}), so that nothing cancels or overflows."""
    with np.errstate(invalid="ignore"):
        gaps = log_p0 - log_p1
    gaps = np.where(np.isnan(gaps), 0.0, gaps)  # both 0: no weight either way
    sides = []
    for log_p, gap in ((log_p1, gaps), (log_p0, -gaps)):
        part = np.exp(log_p) * -np.expm1(np.minimum(value + gap, 0.0))
        sides.append(math.fsum(part))
    return max(sides)
