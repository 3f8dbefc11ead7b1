"""Rows with other numbers in a column that holds few of them: see :mod:`coalmine.probing.value_range`.

Where `empty` holds 0 in a column, and a row with 0 there moves nothing, the column marks padding: that was said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coalmine.integrations.jax.reading import Reading, Tried
from coalmine.probing import rows, value_range
from coalmine.probing.findings import Measurement
from coalmine.probing.noise import SHARES, TOLERANCE, Sample

_ORDINARY = 2
"""Rows of the batch itself that are tried, beside the one that moves most."""


def measure(reading: Reading, samples: Sequence[Sample], *, level: float) -> Measurement | None:
    """Whether a row with another number in such a column moves the sum too far; None where there is no such column."""
    best, bench = reading.best, reading.bench
    if best is None or not samples:
        return None
    largest = best.far(reading.carriers) / reading.scale
    usual = max(largest, reading.allowed) if reading.absolute else largest
    stds = np.array([one.upper_std(level * SHARES["size"] / len(samples)) for one in samples])

    def tried(values: value_range.Values) -> Tried:
        return reading.attempt([(values, best.size)])[0]

    def moves(values: value_range.Values) -> value_range.Moved | None:
        one = tried(values)
        if not one.finite:
            return None
        far = one.far(reading.carriers) / reading.scale
        too_far = far > value_range.FURTHER * usual
        if too_far and not reading.absolute:  # beside noise that is larger than promised it may be hidden well enough
            weighed = float(np.linalg.norm(one.moves([each.name for each in samples]) / stds))
            too_far = 1.0 / weighed < bench.subject.noise_multiplier * (1.0 - TOLERANCE)
        return value_range.Moved(far, usual, too_far)

    def masks(leaf: int) -> bool:
        if not rows.size(bench.empty) or rows.numbers(bench.empty)[leaf].any():
            return False
        values = [one.copy() for one in best.values]
        values[leaf] = np.zeros_like(values[leaf])
        return tried(values).far(reading.carriers) <= reading.floor(4.0)

    ordinary = [one.values for one in reading.finite if one.size == 1.0][:_ORDINARY]
    return value_range.measure(bench.base, [best.values, *ordinary], moves, masks=masks)
