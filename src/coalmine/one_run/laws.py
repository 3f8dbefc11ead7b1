"""How the scores of canaries that do not disturb each other are distributed: what guesses about them would be worth."""

from __future__ import annotations

import dataclasses
import functools
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.records import Claim, DpSgd, EpsilonClaim
from coalmine.theory.curves import gaussian_mu

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianLaw:
    """N(0, 1) without the canary and N(μ, 1) with it; half of the canaries are in.

    >>> round(float(GaussianLaw(mu=1.0).right_in(np.array([0.02]))[0]), 3)
    0.933
    """

    mu: float

    @property
    def separation(self) -> float:
        """μ = √2·Φ⁻¹(A), A the chance that a canary that is in scores above one that is out."""
        return self.mu

    def right_in(self, tail: Array, /) -> Array:
        """How often a guess IN is right for the ``tail`` share of canaries with the highest scores."""
        share = np.clip(np.asarray(tail, dtype=np.float64), 1e-12, 1.0)
        low = np.full(share.shape, -9.0)
        high = np.full(share.shape, 9.0 + self.mu)
        for _ in range(60):
            middle = 0.5 * (low + high)
            above = special.ndtr(-middle) + special.ndtr(self.mu - middle) > 2.0 * share
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        inside, outside = special.ndtr(self.mu - high), special.ndtr(-high)
        return np.asarray(inside / (inside + outside))

    def right_out(self, tail: Array, /) -> Array:
        """How often a guess OUT is right for the lowest scores: the same, by symmetry."""
        return self.right_in(tail)


@dataclasses.dataclass(frozen=True, eq=False)
class LossLaw:
    """The privacy loss of DP-SGD as score; with rarely drawn canaries, low scores say little.

    >>> law = loss_law(DpSgd(sample_rate=0.01, noise_multiplier=0.6, steps=100))
    >>> tail = np.array([0.01])
    >>> round(float(law.right_in(tail)[0]), 2), round(float(law.right_out(tail)[0]), 2)
    (0.82, 0.63)
    >>> round(law.separation, 2)
    0.3
    """

    inside: Array
    outside: Array

    @property
    def separation(self) -> float:
        """See :class:`GaussianLaw`."""
        below = np.cumsum(self.outside) - 0.5 * self.outside  # a tie counts half
        return float(np.sqrt(2.0) * special.ndtri(min(float(self.inside @ below), 1.0 - 1e-16)))

    def right_in(self, tail: Array, /) -> Array:
        """See :class:`GaussianLaw`."""
        return _right(self.inside[::-1], self.outside[::-1], tail)

    def right_out(self, tail: Array, /) -> Array:
        """See :class:`GaussianLaw`."""
        return _right(self.outside, self.inside, tail)


Law: TypeAlias = GaussianLaw | LossLaw
"""The best score of one canary, in and out."""


def _right(mine: Array, other: Array, tail: Array) -> Array:
    """Of the first ``tail`` share of scores, how many are of the first kind."""
    kind = np.concatenate([[0.0], np.cumsum(mine)])
    both = 0.5 * (kind + np.concatenate([[0.0], np.cumsum(other)]))
    share = np.clip(np.asarray(tail, dtype=np.float64), 1e-12, 1.0)
    return np.asarray(np.clip(np.interp(share, both, kind) / (2.0 * share), 0.0, 1.0))


@functools.lru_cache(maxsize=64)
def loss_law(mechanism: DpSgd) -> LossLaw:
    """The law of the best score of this DP-SGD."""
    from coalmine.accounting.loss_law import loss_law as law

    _, inside, outside = law(mechanism)
    return LossLaw(inside, outside)


@functools.lru_cache(maxsize=256)
def leaking(claim: Claim, *, noise: float = 1.0) -> Law:
    """A training that leaks as much as the claim allows, with ``noise`` times the noise of that.

    For a mechanism it is the mechanism itself, for (ε, δ) the Gaussian mechanism that just keeps the claim.

    >>> round(leaking(EpsilonClaim(epsilon=4.377178, delta=1e-5), noise=0.5).mu, 4)
    2.0
    """
    scale = _validate.positive("noise", noise)
    if isinstance(claim, EpsilonClaim):
        return GaussianLaw(mu=gaussian_mu(claim.epsilon, delta=claim.delta) / scale)
    mechanism = claim.mechanism.with_share(scale)
    if mechanism.sample_rate == 1.0:
        return GaussianLaw(mu=mechanism.steps**0.5 / mechanism.noise_multiplier)
    return loss_law(mechanism)
