"""What is asked of the noise of large tensors as runs go by: none of them is kept.

*The same noise twice.* Every number has two sums over the first runs, weighted at random. Numbers with the same noise,
up to its sign, have the same sums, up to their sign: one brings them side by side, the other leaves few pairs. These
are then watched in the runs that follow. That two independent numbers agree there in m runs has a chance of at most
about _ALIKE^m, or g^m where a tensor's numbers are so coarse that two of them are equal with chance g.

*Noise of few dimensions.* Of every run the mean of those before is taken off (Helmert's contrasts): what runs share,
such as the rounding of the value without noise, drops out, and contrasts of normal noise are independent. Let a and b
be two consecutive ones. If the numbers of b are independent, each with a symmetric law, then given a and the sizes of
b, a·b is a sum of terms ±|aᵢbᵢ| with independent fair signs. For T = (a·b)²/Σ aᵢ²bᵢ² therefore E[exp(t·T)] ≤ (1 −
2t)^(−1/2), as for χ² with one degree of freedom: exp(x²/2) is the mean of exp(g·x) over normal g, and Hoeffding's lemma
bounds the mean of that. This holds whatever the sizes are, and given all earlier contrasts. So the sum over K pairs
exceeds K·x, x > 1, with a chance of at most exp(−K·(x − 1 − log x)/2). Noise of r instead of n dimensions has T of
about n/r.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Twice = tuple[tuple[int, int], tuple[int, int], int]
"""Two places, each a tensor and a number in it, whose noise is the same up to its sign; and the sign."""


class Noise(Protocol):
    """The noise of one tensor in one run: an array, or what gives the numbers of one where it is asked for them."""

    @property
    def size(self) -> int:
        """How many numbers there are."""

    def __getitem__(self, where: Any, /) -> Any:
        """The numbers there."""


_FIRST, _CONFIRMED = 8, 8
"""Runs that the sums are taken over, and runs after them in which two numbers must agree."""
_ALIKE = 1e-3
"""In standard deviations: noise that is the same, but for rounding."""
_QUIET = 0.02
"""In standard deviations: a number with so little noise is like every other such number, and not looked at."""
_WATCHED = 1000, 0.05
"""Pairs that are watched: so many, or this share of the numbers; by chance fewer agree, and of more some are enough."""
_AT_ONCE = 1 << 16
"""Numbers that are worked on at a time."""


class Repeats:
    """Pairs of numbers, in any of several tensors, whose noise is the same up to its sign.

    >>> rng, twice, squares = np.random.default_rng(0), Repeats([5000]), np.zeros(5000)
    >>> for _ in range(20):
    ...     noise = rng.normal(size=5000)
    ...     noise[4000] = -noise[7]
    ...     squares += noise**2
    ...     twice.add([noise])
    ...     twice.choose([squares])
    >>> twice.found()
    ((0, 7), (0, 4000), -1)
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ends = np.cumsum(sizes)
        self._sums = np.zeros((2, int(self._ends[-1])), dtype=np.float32)
        self._weights = np.random.default_rng(0).uniform(0.5, 1.0, (2, _FIRST))
        self._stds = np.zeros(len(sizes))
        self._owners = self._numbers = np.zeros((2, 0), dtype=np.intp)
        self._signs = np.zeros(0)
        self._runs = 0

    def add(self, run: Sequence[Noise]) -> None:
        """The noise of one more run, for each tensor."""
        self._runs += 1
        if self._runs <= _FIRST:
            weights = self._weights[:, self._runs - 1]
            for end, noise in zip(self._ends, run, strict=True):
                for start in range(0, noise.size, _AT_ONCE):
                    part = noise[start : start + _AT_ONCE]
                    first = end - noise.size + start
                    self._sums[:, first : first + part.size] += weights[:, None] * part
        elif self._runs <= _FIRST + _CONFIRMED:
            self._watch(run)

    def choose(self, squares: Sequence[Array]) -> None:
        """After the first runs, the pairs to watch: neighbors in one of the sums that agree in the other.

        Args:
            squares: Σ noise² over the runs so far, for each tensor.
        """
        if self._runs != _FIRST:
            return
        self._stds = np.array([math.sqrt(float(one.mean()) / _FIRST) if one.size else 0.0 for one in squares])
        self._stds = np.maximum(self._stds, 1e-30)
        for end, one, std in zip(self._ends, squares, self._stds, strict=True):
            self._sums[:, end - one.size : end] /= np.float32(std)
        loud = np.concatenate(
            [one > _FIRST * (_QUIET * std) ** 2 for one, std in zip(squares, self._stds, strict=True)]
        )
        first, second = self._sums if loud.all() else self._sums[:, loud]
        self._sums = self._sums[:, :0].copy()
        flipped = first < 0.0
        np.negative(first, out=first, where=flipped)
        np.negative(second, out=second, where=flipped)
        order = np.argsort(first)
        del first
        near = np.float32(_ALIKE * self._weights[1].sum() * (1.0 + 1e-6))
        pairs = [np.zeros((2, 0), dtype=np.intp)]
        for start in range(0, order.size, _AT_ONCE):
            here = order[start : start + _AT_ONCE + 2]
            values = second[here]
            for away in (1, 2):
                close = np.flatnonzero(np.abs(values[away:] - values[:-away])[:_AT_ONCE] <= near)
                pairs.append(np.stack([here[close], here[close + away]]))
        chosen = np.concatenate(pairs, axis=1)[:, : max(_WATCHED[0], int(_WATCHED[1] * order.size))]
        self._signs = np.where(flipped[chosen[0]] == flipped[chosen[1]], 1.0, -1.0)
        places = np.flatnonzero(loud)[chosen]
        self._owners = np.searchsorted(self._ends, places, side="right")
        self._numbers = places - np.concatenate([[0], self._ends])[self._owners]

    def _watch(self, run: Sequence[Noise]) -> None:
        """Keep the pairs that agree in this run too."""
        values = np.zeros(self._numbers.shape)
        for owner, (noise, std) in enumerate(zip(run, self._stds, strict=True)):
            mine = self._owners == owner
            values[mine] = noise[self._numbers[mine]] / std
        same = np.abs(values[0] - self._signs * values[1]) <= _ALIKE
        self._owners, self._numbers, self._signs = self._owners[:, same], self._numbers[:, same], self._signs[same]

    def found(self) -> Twice | None:
        """The first of the pairs that agreed in every run; None where none did."""
        if self._runs < _FIRST + _CONFIRMED or not self._signs.size:
            return None
        (a, b), (x, y) = self._owners[:, 0].tolist(), self._numbers[:, 0].tolist()
        sign = int(self._signs[0])
        return ((a, x), (b, y), sign) if x <= y else ((b, y), (a, x), sign)


class Dimensions:
    """How many dimensions the noise of one tensor seems to have.

    >>> rng, full, few = np.random.default_rng(0), Dimensions(), Dimensions()
    >>> mixed = rng.normal(size=(100, 3000))
    >>> for _ in range(20):
    ...     full.add(rng.normal(size=3000))
    ...     few.add(rng.normal(size=100) @ mixed)
    >>> full.p() > 0.01, few.p() < 1e-9, 50 < few.estimate(3000) < 200
    (True, True, True)
    """

    def __init__(self) -> None:
        self._mean: NDArray[np.float32] | None = None
        self._last: NDArray[np.float32] | None = None
        self._runs = self._pairs = 0
        self._total = 0.0

    def add(self, noise: Noise) -> None:
        """The noise of one more run."""
        if self._mean is None or self._last is None:
            self._mean, self._last = (np.zeros(noise.size, dtype=np.float32) for _ in range(2))
        self._runs += 1
        inner = sizes = 0.0
        for start in range(0, noise.size, _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            contrast = noise[here] - self._mean[here]
            self._mean[here] += contrast / self._runs
            products = self._last[here] * contrast
            inner, sizes = inner + float(products.sum()), sizes + float(products @ products)
            if self._runs > 1:
                self._last[here] = contrast
        if sizes > 0.0:
            self._total, self._pairs = self._total + inner**2 / sizes, self._pairs + 1

    def p(self) -> float:
        """A bound on the chance of runs as much along each other, if all numbers are independent."""
        ratio = self._total / self._pairs if self._pairs else 0.0
        return math.exp(-0.5 * self._pairs * (ratio - 1.0 - math.log(ratio))) if ratio > 1.0 else 1.0

    def estimate(self, numbers: int) -> float:
        """About how many dimensions so many numbers have."""
        return numbers * self._pairs / max(self._total, self._pairs) if self._pairs else float(numbers)
