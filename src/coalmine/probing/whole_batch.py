"""The whole batch that was handed over: a row beyond the first twelve moves the sum no further than any other.

All else is measured with the first rows only, which is quick. A step may treat later rows in another way: a second part
of a batch that was split to fit into memory, for instance. So rows are also added at places behind the twelfth, with
all others there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coalmine.probing import beside, faults, rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.search import Influence

_ROWS, _ROWS_OF_LARGE = 128, 32
"""Rows of the batch that are there at once, at most; of a large step fewer, as all their gradients are held."""
_PLACES, _TRIED = 8, 2
_TOSS = 999_331
NAME = "whole batch"


def measure(
    bench: Bench, reading: Reading, influence: Influence, samples: Sequence[Sample], *, level: float
) -> Measurement | None:
    """Rows at late places of the whole batch; None where the rest has seen all of it."""
    given = rows.size(bench.subject.batch)
    if given <= bench.count:
        return None
    count = min(given, _ROWS if bench.small else _ROWS_OF_LARGE)
    which = f"{'all' if count == given else 'the first'} {count} rows"
    whole = f"{which} of the batch" if count == given else f"{which} of the {given} in the batch"
    tested = samples and influence.tried and reading.carriers and bench.grows
    if not tested or reading.outside or reading.nonlinear or reading.coarse:
        return Measurement(
            name=NAME,
            sentence=f"Only the first {bench.count} of {given} rows of the batch were used.",
            details={"rows": bench.count, "given": given},
        )
    full = rows.take(bench.subject.batch, range(count))
    try:
        found, largest, problem = _tried(bench, reading, influence, full, beside.sizes(reading, samples, level), whole)
    finally:
        bench.tape.take_back()
        bench.put_back()
    details = {"rows": count, "given": given, "largest": largest}
    if problem:
        return Measurement(name=NAME, sentence=f"{problem}.", blind=problem, details=details)
    if found is not None:
        return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
    return Measurement(
        name=NAME,
        sentence=f"With {whole} at once, a row behind the first {bench.count} is clipped and hidden by noise as well. "
        f"All else was measured with the first {bench.count}.",
        details=details,
    )


def _tried(
    bench: Bench, reading: Reading, influence: Influence, full: Any, stds: dict[str, float], whole: str
) -> tuple[Finding | None, float, str]:
    """A finding, the largest influence, and why nothing could be compared."""
    count = rows.size(full)
    chosen = beside.telling(influence, _TRIED)
    base = World(full, tuple(range(count)))
    bench.toss(_TOSS, _with(full, chosen[0].row, count), fewer=base)
    silent, once = bench.silent(base), bench.scaled(base, 1.0)
    if not beside.runs(reading, silent, once):
        why = f": {silent.error or once.error}" if silent.error or once.error else ""
        return None, 0.0, f"the step does not run with {whole}{why}"
    noise = [beside.noise_now(one, once, silent, stds.get(one.name)) for one in reading.carriers]
    sigma, most = bench.subject.noise_multiplier, beside.limit(bench, reading)
    largest, worst, force = 0.0, None, bench.force
    places = np.unique(np.linspace(bench.count, count, _PLACES).round().astype(int))
    bench.force = dict.fromkeys([count], next(iter(force.values()))) if force else {}
    try:
        for place in places.tolist():
            for row in chosen:
                seen = beside.seen(bench, reading, noise, silent, _with(full, row.row, place), row)
                if seen is None:
                    continue
                largest = max(largest, seen.moved)
                bad = seen.multiplier < sigma * (1.0 - beside.SHORT) or beside.too_far(seen, most)
                if bad and (worst is None or seen.multiplier < worst[0].multiplier):
                    worst = seen, place
    finally:
        bench.force = force
    return None if worst is None else _finding(bench, worst[0], worst[1], whole), largest, ""


def _with(full: Any, row: Any, place: int) -> World:
    """The whole batch with a row more, after so many of its own."""
    count = rows.size(full)
    before, after = list(range(place)), list(range(place, count))
    parts = [rows.take(full, before), row, *([rows.take(full, after)] if after else [])]
    return World(rows.join(parts), (*before, count, *after))


def _finding(bench: Bench, worst: beside.Seen, place: int, whole: str) -> Finding:
    """Too little noise for the whole batch, or a late row that moves too much."""
    sigma = bench.subject.noise_multiplier
    real = 0.0 if worst.multiplier < 1e-6 else worst.multiplier
    left = f"the noise multiplier is at most {real:.3g}, where {sigma:.3g} is promised"
    fault = faults.TOO_SENSITIVE
    said = f"a row after the first {place} moves the sum by {worst.moved:.4g}"
    if worst.noise < 1.0 - beside.SHORT:
        fault = faults.NOISE_TOO_SMALL
        said = f"the same draws give ×{worst.noise:.3g} the noise that they give with {bench.count} rows"
    return faults.finding(
        fault,
        f"With {whole} at once, {said}: {left}.",
        number=real,
        allowed=sigma,
        witness=f"place {place} of the batch, one row more: {worst.row.describe()}",
    )
