"""What is still odd about a sampler once the sizes of its batches, or how often its rows come, are taken as they are.

Large batches share more rows, and rows that come often come again sooner. Neither says that the order is fixed or that
steps depend on each other. These are no tests: they only tell apart what tests have refuted already.
"""

from __future__ import annotations

import numpy as np

from coalmine.probing.sampler_counts import Counted

_CLEARLY = 6.0
"""Standard deviations of a count beyond which it is no chance."""
_TELLING = 5
"""Rows of a batch that, all the same again, are no chance."""


def order_is_kept(counted: Counted) -> bool:
    """Whether batches come again, or rows meet or keep their step more often than batches of these sizes make them."""
    rows = counted.rows
    telling = [batch.tobytes() for batch in counted.steps if batch.size >= _TELLING]
    if len(set(telling)) < len(telling):
        return True
    shared, usual = 0.0, 0.0
    for one, other in zip(counted.epochs, counted.epochs[1:], strict=False):
        for a, b in zip(one, other, strict=False):
            shared += np.intersect1d(a, b, assume_unique=True).size
            usual += a.size * b.size / rows
    if _many(shared, usual):
        return True
    half = rows // 2
    met, chance = 0.0, 0.0
    for batch in counted.steps:
        even = batch[(batch % 2 == 0) & (batch // 2 < half)]
        met += np.intersect1d(even + 1, batch, assume_unique=True).size
        chance += half * batch.size * (batch.size - 1.0) / (rows * max(rows - 1.0, 1.0))
    return _many(met, chance)


def steps_are_tied(counted: Counted) -> bool:
    """Whether two steps in a row share more rows than rows that come as often as these do by themselves."""
    steps = len(counted.steps)
    if steps < 2:
        return False
    couples = [(epoch[s], epoch[s + 1]) for epoch in counted.epochs for s in range(0, len(epoch) - 1, 2)]
    shared = float(sum(np.intersect1d(a, b, assume_unique=True).size for a, b in couples))
    counts = counted.counts.astype(float)
    alike = float((counts * (counts - 1.0)).sum()) / (steps * (steps - 1.0))
    return _many(shared, len(couples) * alike)


def _many(seen: float, expected: float) -> bool:
    return bool(seen > expected + _CLEARLY * np.sqrt(max(expected, 1.0)))
