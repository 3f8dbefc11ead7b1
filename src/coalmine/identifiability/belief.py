"""Posterior belief ρβ: how sure an adversary can become that one person's record was used (bernau-2021, Section 4.1).

The adversary knows everything but that one record and starts at even odds. Under (ε, δ)-DP its belief stays within
ρβ = 1/(1 + e^−ε), except on outcomes that are rare: see :func:`exceedance` for how rare exactly.
"""

from __future__ import annotations

import math
import numbers

import numpy as np
from scipy import special

from coalmine import _validate
from coalmine.accounting import standard
from coalmine.records import DpSgd, Sampling


def from_epsilon(epsilon: float) -> float:
    """ρβ = 1/(1 + e^−ε) (bernau-2021, Theorem 2).

    >>> round(from_epsilon(2.2), 4)
    0.9002
    """
    return float(special.expit(_validate.non_negative("epsilon", epsilon)))


def to_epsilon(belief: float) -> float:
    """ε = ln(ρβ/(1 − ρβ)) (bernau-2021, eq. 5); the belief is at least 1/2, where one knows nothing.

    >>> round(to_epsilon(0.9), 6)
    2.197225
    """
    return float(special.logit(half_to_one("belief", belief)))


def half_to_one(name: str, value: object) -> float:
    """A belief: from 1/2 (knows nothing) up to, not including, 1 (is certain)."""
    real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    if not (real and 0.5 <= value < 1.0):  # type: ignore[operator]
        raise _validate.reject(name, value, "a number from 0.5 up to, not including, 1")
    return float(value)  # type: ignore[arg-type]


def exceedance(mechanism: DpSgd, *, epsilon: float) -> float:
    """The probability that the belief ends above ρβ = 1/(1 + e^−ε), that is, that the privacy loss exceeds ε.

    The paper takes it to be at most δ. That is so for the classical calibration; (ε, δ)-DP alone allows more, since δ
    weighs each outcome by how far it exceeds. Without sampling it is Φ(μ/2 − ε/μ) exactly. With sampling this is an
    upper bound: Pr[L > ε] ≤ δ(ε − t)/(1 − e^−t) for every t in (0, ε], and the best of a few t is taken. It is about
    twice the truth where we simulated it.

    >>> mechanism = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
    >>> round(exceedance(mechanism, epsilon=2.0), 6)
    0.066807
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    epsilon = _validate.non_negative("epsilon", epsilon)
    if mechanism.sample_rate == 0.0:
        return 0.0
    if mechanism.sample_rate == 1.0 and mechanism.sampling is not Sampling.SHUFFLE:
        mu = standard.gdp_mu(mechanism)
        return max(standard.LEAST_POSITIVE, float(special.ndtr(mu / 2.0 - epsilon / mu)))
    delta_at = standard.shuffle_delta if mechanism.sampling is Sampling.SHUFFLE else standard.delta
    steps = [epsilon * share for share in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0) if epsilon > 0.0]
    return min([1.0, *(delta_at(mechanism, epsilon=epsilon - t).delta / -math.expm1(-t) for t in steps)])
