"""The largest and the smallest batch: exact tests that see a cap on sizes, or a least size, that few batches reach.

A variance hardly changes where one batch in a hundred is cut. But T independent sizes are all at most m with chance
F(m)^T, where F is the law of one size, Binomial(N, q).
"""

from __future__ import annotations

import numpy as np

from coalmine.probing import laws
from coalmine.probing.sampler_counts import Check, Counted


def largest(counted: Counted, q: float) -> Check:
    """The largest of T sizes: P(all ≤ m) = F(m)^T.

    >>> sizes = [np.arange(size) for size in [3] * 100]
    >>> from coalmine.probing.batches import Draws
    >>> check = largest(Counted.of(Draws(rows=30, ranks=((tuple(sizes),),))), 0.1)
    >>> check.number, check.expected, check.p < 1e-15
    (3.0, 8.0, True)
    """
    most, steps = int(counted.sizes.max()), len(counted.steps)
    seen = min(most, counted.rows)
    alike = int((counted.sizes == most).sum())
    return Check(
        name="largest batch",
        sentence=f"the largest of {steps} batches has {most} rows, and {alike} have as many",
        p=laws.two_sided((_all_at_most(seen, counted, q), _some_at_least(seen, counted, q))),
        number=float(most),
        expected=float(_typical(counted, q)),
        witness=f"step {int(np.argmax(counted.sizes))}",
    )


def smallest(counted: Counted, q: float) -> Check:
    """The smallest of T sizes: as the largest number of rows that are not drawn."""
    least, steps = int(counted.sizes.min()), len(counted.steps)
    left = counted.rows - min(least, counted.rows)
    alike = int((counted.sizes == least).sum())
    return Check(
        name="smallest batch",
        sentence=f"the smallest of {steps} batches has {least} rows, and {alike} have as many",
        p=laws.two_sided((_all_at_most(left, counted, 1.0 - q), _some_at_least(left, counted, 1.0 - q))),
        number=float(least),
        expected=float(counted.rows - _typical(counted, 1.0 - q)),
        witness=f"step {int(np.argmin(counted.sizes))}",
    )


def _all_at_most(size: int, counted: Counted, q: float) -> float:
    """P(all T sizes ≤ ``size``), from the tail that is small where the chance is near 1."""
    lower, _ = laws.binomial_tails(size, counted.rows, q)
    _, beyond = laws.binomial_tails(size + 1, counted.rows, q) if size < counted.rows else (1.0, 0.0)
    steps = len(counted.steps)
    if beyond < 0.5:
        return float(np.exp(steps * np.log1p(-beyond)))
    return float(np.exp(steps * np.log(lower))) if lower > 0.0 else 0.0


def _some_at_least(size: int, counted: Counted, q: float) -> float:
    """P(at least one of T sizes ≥ ``size``)."""
    _, upper = laws.binomial_tails(size, counted.rows, q)
    return float(-np.expm1(len(counted.steps) * np.log1p(-upper))) if upper < 1.0 else 1.0


def _typical(counted: Counted, q: float) -> int:
    """The median of the largest of T sizes."""
    low, high = 0, counted.rows
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _all_at_most(middle, counted, q) >= 0.5 else (middle + 1, high)
    return low
