"""The whole batch that was handed over: a row beyond the first twelve moves the sum no further than any other.

All else is measured with the first rows only, which is quick. A step may treat later rows in another way: a second part
of a batch that was split to fit into memory, for instance. So rows are also added at places behind the twelfth, with
all others there. And what a row adds, and the noise, must be the same in the whole batch, in parts of it and in its
first twelve rows (see :mod:`coalmine.probing.batch_sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coalmine.probing import batch_noise, batch_sizes, beside, faults, rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, Tried

_ROWS, _ROWS_OF_LARGE = 128, 32
"""Rows of the batch that are there at once, at most; of a large step fewer, as all their gradients are held."""
_PLACES, _TRIED = 8, 2
_TOSS = 999_331
NAME = "whole batch"


def measure(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    samples: Sequence[Sample],
    *,
    level: float,
    known: Sequence[Finding] = (),
) -> Measurement | None:
    """Rows at late places of the whole batch; None where the rest has seen all of it.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        samples: the noise in each carrier.
        level: of the whole probe.
        known: what rows do to each other and to the noise; it is not counted again.
    """
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
        stds = beside.sizes(reading, samples, level)
        found, largest, problem = _tried(bench, reading, influence, full, stds, whole, compare=not known)
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
        sentence=f"With {whole} at once, a row behind the first {bench.count} is clipped and hidden by noise as well"
        f"{'' if known else ', and adds the same'}. "
        f"All else was measured with the first {bench.count}.",
        details=details,
    )


def _tried(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    full: Any,
    stds: dict[str, float],
    whole: str,
    *,
    compare: bool,
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
        found = None if worst is None else _finding(bench, worst[0], worst[1], whole)
        other = _changed(bench, reading, influence, full, chosen, silent) if compare else None
        if other is not None and (found is None or other.fault == faults.DIVISOR.name):
            found = other  # a divisor is the cause of what else is seen
    finally:
        bench.force = force
    return found, largest, ""


def _changed(
    bench: Bench, reading: Reading, influence: Influence, full: Any, chosen: Sequence[Tried], whole: Observation
) -> Finding | None:
    """A row that adds something else, or noise that is another, than with the first rows.

    Parts of the whole batch are tried too: where rows are clipped in groups, the last one may be empty in one of them.
    """
    count = rows.size(full)

    def of(size: int) -> World:
        return World(rows.take(full, range(size)), tuple(range(size)))

    def with_one(size: int) -> Callable[[Tried], World]:
        return lambda one: World(rows.join([of(size).batch, one.row]), (*range(size), count))

    known = batch_sizes.added(bench, reading, chosen, bench.silent(of(bench.count)), with_one(bench.count))
    others: list[batch_sizes.Other] = []
    noise: list[batch_noise.Ratio] = []
    for size in sorted({count, count - 1, (bench.count + count) // 2} - {bench.count}, reverse=True):
        silent = whole if size == count else bench.silent(of(size))
        if not beside.runs(reading, silent):
            continue
        ratios = batch_noise.ratios(bench, reading, of(size), f"{size} rows", silent=silent, law=size == count)
        noise += ratios
        times = ratios[0].size if ratios else 1.0
        others += batch_sizes.compared(bench, reading, known, silent, with_one(size), count=size, noise=times)
    return batch_sizes.finding(bench, reading, influence, others, "a batch of {} rows".format) or _other_noise(
        bench, noise
    )


def _other_noise(bench: Bench, ratios: Sequence[batch_noise.Ratio]) -> Finding | None:
    """Noise that more rows change, though what they add stays the same."""
    changed = [one for one in ratios if abs(one.number - 1.0) > TOLERANCE or one.other > TOLERANCE]
    if not changed:
        return None
    worst = max(changed, key=lambda one: abs(one.size - 1.0))
    name = worst.name.removeprefix("gradient of ")
    return faults.finding(
        faults.NOISE_DEPENDS,
        f"With {worst.what} of the batch at once, noise in {name} is {worst.size:.4g} times as large as with "
        f"{bench.count}.",
        number=worst.size,
        allowed=1.0,
        witness=f"{name}; {worst.what}",
    )


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
