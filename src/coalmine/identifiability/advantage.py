"""Membership advantage ρα: how much better than random guessing the worlds are told apart (bernau-2021, 4.3).

Advantage = 2·Pr[right guess] − 1 at even odds = total variation distance = true-positive rate − false-positive rate at
best. 0 is random guessing, 1 is certainty.
"""

from __future__ import annotations

import math

from scipy import special

from coalmine import _validate
from coalmine.accounting import standard
from coalmine.records import DpSgd, Sampling


def classical_noise(epsilon: float, *, delta: float) -> float:
    """σ = √(2·ln(1.25/δ))/ε, the classical Gaussian calibration per unit of sensitivity (bernau-2021, eq. 1).

    Proved to give (ε, δ)-DP for ε ≤ 1 only (Dwork and Roth 2014, Theorem A.1).

    >>> round(classical_noise(1.0, delta=1e-5), 4)
    4.8448
    """
    epsilon = _validate.positive("epsilon", epsilon)
    return math.sqrt(2.0 * math.log(1.25 / _validate.open_unit("delta", delta))) / epsilon


def from_epsilon(epsilon: float, *, delta: float) -> float:
    """ρα = 2·Φ(ε/(2·√(2·ln(1.25/δ)))) − 1 (bernau-2021, Theorem 3): of the classically calibrated Gaussian mechanism.

    It is that mechanism's exact advantage, not a bound for every (ε, δ)-DP mechanism: :func:`generic` is.

    >>> round(from_epsilon(2.2, delta=0.01), 2)
    0.28
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    root = math.sqrt(2.0 * math.log(1.25 / _validate.open_unit("delta", delta)))
    return _of_mu(epsilon / root)


def to_epsilon(advantage: float, *, delta: float) -> float:
    """ε = 2·√(2·ln(1.25/δ))·Φ⁻¹((ρα + 1)/2): Theorem 3 inverted (bernau-2021, eq. 6, which lacks the factor 2).

    >>> round(to_epsilon(0.23, delta=0.001), 2)
    2.21
    """
    advantage = _validate.half_open_unit("advantage", advantage)
    return mu_for(advantage) * math.sqrt(2.0 * math.log(1.25 / _validate.open_unit("delta", delta)))


def mu_for(advantage: float) -> float:
    """The μ at which the Gaussian mechanism has this advantage: 2·Φ⁻¹((ρα + 1)/2).

    >>> round(mu_for(0.382925), 5)
    1.0
    """
    advantage = _validate.half_open_unit("advantage", advantage)
    return 2.0 * math.sqrt(2.0) * float(special.erfinv(advantage))


def from_rdp(rdp_epsilon: float, *, order: float) -> float:
    """ρα = 2·Φ(√(ε_RDP/(2α))) − 1 from the Rényi divergence of order α of all steps (bernau-2021, Section 4.4).

    For k Gaussian steps ε_RDP = k·α·Δ²/(2σ²), at every order α the same ρα.

    >>> round(from_rdp(100 * 8 / (2 * 10.0**2), order=8), 6)
    0.382925
    """
    rdp_epsilon = _validate.non_negative("rdp_epsilon", rdp_epsilon)
    order = _validate.positive("order", order)
    if order <= 1.0:
        raise _validate.reject("order", order, "a finite number above 1")
    return _of_mu(math.sqrt(2.0 * rdp_epsilon / order))


def generic(epsilon: float, *, delta: float) -> float:
    """(e^ε − 1 + 2δ)/(e^ε + 1): the most that (ε, δ)-DP alone allows, whatever the mechanism (Kairouz et al. 2015).

    >>> round(generic(1.0, delta=0.0), 6)
    0.462117
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    delta = _validate.half_open_unit("delta", delta)
    half = math.tanh(epsilon / 2.0)
    return min(1.0, half + delta * (1.0 - half))


def of_mechanism(mechanism: DpSgd) -> float:
    """The exact advantage against DP-SGD with every iterate seen: total variation = δ at ε = 0 of its privacy profile.

    With sampling it comes from the PLD, rounded up; without, it is 2·Φ(μ/2) − 1. This goes past bernau-2021, which has
    full batches only.

    >>> round(of_mechanism(DpSgd(sample_rate=1.0, noise_multiplier=10.0, steps=100)), 6)
    0.382925
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE:
        return standard.shuffle_delta(mechanism, epsilon=0.0).delta
    return standard.delta(mechanism, epsilon=0.0).delta


def _of_mu(mu: float) -> float:
    """2·Φ(μ/2) − 1."""
    return float(special.erf(mu / (2.0 * math.sqrt(2.0))))
