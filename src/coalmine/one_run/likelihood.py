"""What the sums of a training say about each gradient canary: the likelihood of every step.

NumPy alone, so that it serves any training that can show its sums (:mod:`coalmine.one_run.hooks` for Opacus,
:mod:`coalmine.integrations.jax.canaries` for JAX).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.one_run.canaries import GradientCanaries
from coalmine.records import DpSgd

Array = NDArray[np.float64]
_LARGEST = np.float32(80.0)
"""Beyond this, the exponential of a ratio is no number in single precision, and the rest of a sum does not matter."""


class StepLikelihood:
    """log-odds of "in" for canaries of which any number may share a sum, from what is seen at every step.

    At each step a canary that is in is drawn with probability q and adds 1; N(0, σ²) is added. With s canaries in one
    place, K of them in, b are drawn with probability Binomial(K, q): the likelihood of every K is known, and what is
    kept is Σ K·w_K over Σ (s − K)·w_K with w_K the posterior of K. For s = 1 this is the likelihood ratio.

    >>> watch = StepLikelihood(DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), places=2, share=1)
    >>> watch.add(np.array([1.0, 0.0]))
    >>> watch.log_odds().tolist()
    [0.5, -0.5]
    """

    def __init__(self, mechanism: DpSgd, *, places: int, share: int) -> None:
        q, self._precision = mechanism.sample_rate, mechanism.noise_multiplier**-2.0
        self._drawn = np.arange(share + 1.0)
        inside = self._drawn[:, None]
        with np.errstate(divide="ignore"):
            self._log_chance = (
                _log_binomial(inside, self._drawn[None])
                + special.xlogy(self._drawn[None], q)
                + special.xlog1py(np.maximum(inside - self._drawn[None], 0.0), -q)
            )
        self._log_chance[self._drawn[None] > inside] = -np.inf
        self._log_prior = _log_binomial(np.float64(share), self._drawn)
        self._rate = q
        self._log_likelihood = np.zeros((places, share + 1))
        self._ratio = self._log_likelihood[:, 1]

    def add(self, seen: Array) -> None:
        """One step: the sum in each place, in units of the clipping norm."""
        if self._drawn.size == 2:  # one canary a place: the ratio itself, which is all that is asked for
            # Single precision is four times as quick, and a score that is off by 1e-7 a step is as good a score.
            ratio = (seen - 0.5).astype(np.float32) * np.float32(self._precision)
            if self._rate < 1.0:
                odds = np.exp(np.minimum(ratio, _LARGEST))
                odds *= np.float32(self._rate)
                odds += np.float32(1.0 - self._rate)
                np.log(odds, out=odds)
                ratio = (
                    odds if ratio.max() < _LARGEST else np.where(ratio < _LARGEST, odds, ratio + math.log(self._rate))
                )
            self._ratio += ratio
            return
        terms = (seen[:, None] * self._drawn - 0.5 * self._drawn**2) * self._precision
        for inside in range(1, self._drawn.size):
            self._log_likelihood[:, inside] += special.logsumexp(
                terms[:, : inside + 1] + self._log_chance[inside, : inside + 1], axis=1
            )

    def log_odds(self) -> Array:
        """ln of how much more likely a canary of each place is in than out."""
        posterior = self._log_prior + self._log_likelihood
        share = self._drawn.size - 1
        return np.asarray(
            special.logsumexp(posterior[:, 1:], b=self._drawn[1:], axis=1)
            - special.logsumexp(posterior[:, :-1], b=share - self._drawn[:-1], axis=1)
        )


def _log_binomial(n: Any, k: Any) -> Any:
    """ln of the binomial coefficient; what is beyond n is dropped by the caller."""
    return special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(np.maximum(n - k, 0.0) + 1.0)


class Along:
    """Where each canary shows in a gradient, and what all steps together say about it.

    Canaries of one entry that share a parameter see the same sum: what it says is computed once.

    >>> from coalmine.one_run.canaries import dirac
    >>> one = dirac(parameters=3, canaries=1)
    >>> gradient = np.zeros(3)
    >>> gradient[one.indices[0, 0]] = 0.25 * one.values[0, 0]
    >>> Along(one, scale=4.0).seen(gradient).tolist()
    [1.0]

    Args:
        canaries: Those that are scored.
        scale: One over what a row of norm C adds to a gradient as it is shown: 1/C for a sum, divisor/C for a mean.
    """

    def __init__(self, canaries: GradientCanaries, *, scale: float) -> None:
        self._values = canaries.values * scale
        self._alone = canaries.indices.shape[1] == 1
        if self._alone:
            self._places, self._group, counts = np.unique(
                canaries.indices[:, 0], return_inverse=True, return_counts=True
            )
            self._share = int(counts.max())
            self._signs = np.full(self._places.size, scale, dtype=np.float32)
            self._signs[self._group] *= canaries.values[:, 0]
        else:
            self._places, self._group, self._share = canaries.indices, np.arange(canaries.number), 1

    @property
    def places(self) -> int:
        """Sums that are looked at in each step."""
        return int(self._places.shape[0])

    def seen(self, gradient: Any, shared: Any = None) -> Any:
        """The part of a gradient (NumPy or JAX, flat) in each place, in units of a row of norm C.

        What the other rows add (``shared``) is taken off where it is known.
        """
        found = gradient[self._places] if shared is None else gradient[self._places] - shared[self._places]
        return found * self._signs if self._alone else (found * self._values).sum(axis=1)

    def likelihood(self, mechanism: DpSgd) -> StepLikelihood:
        """No step seen yet."""
        return StepLikelihood(mechanism, places=self.places, share=self._share)

    def log_odds(self, likelihood: StepLikelihood) -> Array:
        """The score of every canary after the steps so far."""
        return np.asarray(likelihood.log_odds()[self._group])
