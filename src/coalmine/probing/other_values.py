"""Rows with other numbers in a column that holds few of them: see :mod:`.value_range`."""

from __future__ import annotations

from collections.abc import Sequence

from coalmine.probing import rows, value_range
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Measurement
from coalmine.probing.hiding import effective
from coalmine.probing.noise import SHARES, Sample
from coalmine.probing.search import Influence, attempt

_ORDINARY = 2
"""Rows of the batch itself that are tried, beside the one that moves most."""


def measure(
    bench: Bench, reading: Reading, influence: Influence, samples: Sequence[Sample], *, level: float
) -> Measurement | None:
    """Whether a row with another number in such a column moves the sum too far; None where there is no such column."""
    if not influence.tried or not reading.carriers or reading.coarse:
        return None
    best, template = influence.best, rows.take(bench.base, [0])
    usual = max(best.total, bench.allowed) if reading.absolute else best.total
    share = level * SHARES["size"]

    def moves(values: value_range.Values) -> value_range.Moved | None:
        one = attempt(bench, reading, rows.changed(template, values), best.size)
        if one.shown:
            return None
        too_far = one.total > value_range.FURTHER * usual
        if too_far and not reading.absolute:  # beside noise that is larger than promised it may be hidden well enough
            real = effective(reading, one, samples, 0.0, level=share)
            too_far = real is not None and real < bench.subject.noise_multiplier * (1.0 - TOLERANCE)
        return value_range.Moved(one.total, usual, too_far)

    ordinary = [one.row for one in influence.tried if one.size == 1.0][:_ORDINARY]
    return value_range.measure(bench.base, [rows.numbers(row) for row in (best.row, *ordinary)], moves)
