"""Whether the noise of every step of a training is there, at the places of gradient canaries.

A score sums up all steps, so one step without noise hides among the others. Who puts the canaries in knows what every
step added beside the noise, and can look at the noise alone.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]
_RARE = 1e-6
"""A right training is doubted by each of the looks with this probability, shared among steps or places."""
_KEPT, _LOOKED_AT = 50, 4096
"""Steps that are compared with each other, and at how many places: enough, and small to keep."""
_FEW = 20
"""Places below which angles between steps say too little to be compared with their law."""
_SHARED = 1e-9
"""The level at which noise is called shared: the law of the sum is an approximation, so far out of it."""


class StepNoise:
    """The noise of each step, in units of the claimed one, at n places.

    Σ z² over the places of a step, and over the steps of a place, is chi-squared where noise is as claimed, and larger
    where there is more: a step, or a place, far below it has too little. With every place in units of its own spread,
    n·cos² of the angle between two steps is 1 on average where each place has noise of its own, and g where g share it.

    >>> watch = StepNoise()
    >>> rng = np.random.default_rng(0)
    >>> for step in range(20):
    ...     watch.add(rng.normal(size=100) * (step != 7))
    >>> print(watch.doubt())  # doctest: +ELLIPSIS
    step 8 varies too little ...
    """

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._places: Array = np.zeros(0)
        self._kept: list[Array] = []

    def add(self, noise: Array) -> None:
        """One step: what it released beyond the rows and canaries that it drew, over σ·C."""
        squares = np.asarray(noise, dtype=np.float64) ** 2
        self._places = squares if not self._places.size else self._places + squares
        self._steps.append(float(squares.sum()))
        if len(self._kept) < _KEPT:
            self._kept.append(np.array(noise[:: -(-squares.size // _LOOKED_AT)], dtype=np.float64))

    def doubt(self) -> str | None:
        """What is wrong with the noise, in words; None for noise as it is claimed, or more of it."""
        sums, number = np.array(self._steps), self._places.size
        if not sums.size or not number:
            return None
        times = self._shared()
        if times is not None:
            return (
                f"the noise of {len(self._kept)} steps is {times:.1f} times as much alike as noise of its own for each "
                "parameter makes it: look for noise that parameters share, or that comes again"
            )
        least = int(sums.argmin())
        if special.gammainc(number / 2.0, sums[least] / 2.0) < _RARE / sums.size:
            return (
                f"step {least + 1} varies too little at the {number} places of the canaries: "
                f"{math.sqrt(sums[least] / number):.2g} of the claimed noise is there (chance below {_RARE:g})"
            )
        quiet = special.gammainc(sums.size / 2.0, self._places / 2.0) < _RARE / number
        if quiet.any():
            return (
                f"{int(quiet.sum())} of {number} places of the canaries vary too little over {sums.size} steps for the "
                f"claimed noise (chance below {_RARE:g}): look for parameters without noise (coalmine probe)"
            )
        return None

    def _shared(self) -> float | None:
        """The mean of n·cos² over all pairs of steps, where it is far too large."""
        steps = np.array([one for one in self._kept if one.any()])
        if len(steps) < 2 or steps.shape[1] < _FEW:
            return None
        # A place with more noise than the others, which is right, would count for more of the angle than they do. Its
        # spread is measured in these very steps, each in units of its own size; that makes n·cos² smaller, by T/(T + 2)
        # on average: the safe side.
        steps /= np.linalg.norm(steps, axis=1, keepdims=True)
        spread = np.sqrt((steps**2).mean(axis=0))
        steps = steps[:, spread > 0.0] / spread[spread > 0.0]
        steps /= np.linalg.norm(steps, axis=1, keepdims=True)
        pairs = (steps @ steps.T)[np.triu_indices(len(steps), 1)] ** 2 * steps.shape[1]
        # Angles of any two pairs are independent, and n·cos² is chi-squared of one degree for many places.
        return float(pairs.mean()) if special.gammaincc(pairs.size / 2.0, pairs.sum() / 2.0) < _SHARED else None


class StepScores(np.ndarray):
    """Scores with what the steps themselves gave reason to doubt; a plain array in all else."""

    doubt: str | None = None


def with_doubt(scores: Array, doubt: str | None) -> Array:
    """The scores, which carry the doubt to the judge.

    >>> with_doubt(np.zeros(2), "step 1 varies too little").doubt
    'step 1 varies too little'
    """
    found = scores.view(StepScores)
    found.doubt = doubt
    return found
