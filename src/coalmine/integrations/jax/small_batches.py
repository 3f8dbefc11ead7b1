"""Batches with fewer rows: a row adds the same to each, and noise hides it as well.

Poisson sampling draws batches of every size, and a step may treat some in another way: a row that is alone, or few of
them. Where rows add up, what one adds is the same vector whatever the number of the others, and so is the noise. Padded
batches are tried with every number of rows; others with the smallest ones alone, because JAX compiles each size.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.reading import Reading, Tried, largest_ratio
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement
from coalmine.records import Sampling

NAME = "batch sizes"
_FEW = 4
"""Rows of the largest batch that is tried where each size is compiled."""
_KEYS = 10
"""Keys under which noise is compared."""
_SHORT = 0.02
"""Relative: how far noise, or what a row adds, may be off."""
_ROUNDINGS = 16.0


@dataclasses.dataclass(eq=False)
class _Other:
    """What a row adds to a batch of so many others, beside what it adds to the batch itself."""

    count: int
    row: Tried
    moved: float
    apart: float
    """How far the two are apart, beyond rounding."""
    factor: float
    """What the first is of the second, where it is a multiple of it."""
    left: float
    """How far it is from that multiple, beyond rounding."""


def measure(reading: Reading) -> Measurement | None:
    """Every batch that is smaller, as far as it is tried; None where the step runs with one number of rows alone."""
    bench, best = reading.bench, reading.best
    if not bench.grows:
        return None
    if best is None:
        return reading.unmeasured(NAME, "What rows add to smaller batches")
    counts = range(bench.count if bench.padding is not None else min(bench.count, _FEW))
    chosen, weakest = _chosen(reading, best), min(reading.finite, key=lambda one: one.far(reading.carriers))
    # Where the step itself draws rows, it draws others of another number of them.
    adding = bench.padding is not None or reading.outside or not reading.by_draws
    others: list[_Other] = []
    ratios: dict[int, tuple[str, float]] = {}
    failed: list[tuple[int, str]] = []
    for count in counts:
        nobody = bench.empty if not count else bench.smaller(count)
        failure, without = bench.failure(nobody), None
        if failure:
            failed += [(count, failure)] if count else []  # whether it runs without rows is asked elsewhere
        else:
            without = bench.run([nobody], [reading.quiet[0]], [reading.quiet[1]])
            ratios[count] = _noise(reading, nobody)
        failure = bench.failure(bench.smaller(count, best.row))
        if failure:
            failed.append((count + 1, failure))
        elif adding:
            others += _compared(reading, chosen, weakest, count, without)
    found = _finding(reading, others, ratios) or _noise_finding(ratios)
    details = {"sizes": sorted({one.count + 1 for one in others})}
    if found is not None:
        return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
    if failed and bench.subject.sampling is Sampling.POISSON:
        count, error = failed[0]
        why = f"the step does not run with {_named(count)} ({error.rstrip('.')}): if batches are padded, hand over "
        why += "`empty`, as many rows as in `batch`, all padding"
        return Measurement(name=NAME, sentence=f"{why[0].upper()}{why[1:]}.", blind=why, details=details)
    largest = counts[-1] + 1
    said = f"In batches of 1 to {largest} rows, a row adds the same, and so does noise."
    if not adding:
        said = (
            f"In batches of up to {largest} rows, noise is the same; rows were not compared, for the step draws some."
        )
    return Measurement(name=NAME, sentence=said, details=details)


def _chosen(reading: Reading, best: Tried) -> list[Tried]:
    """A row that is clipped and one ten times as large, which show where nothing is, and an ordinary one."""
    larger = reading.grown(best, 10.0)
    ordinary = sorted((one for one in reading.finite if one.size == 1.0), key=lambda one: -one.far(reading.carriers))
    found = [best, *([larger] if larger.finite else []), *ordinary[:1]]
    return [one for one in found if one.far(reading.carriers) > 0.0]


def _compared(
    reading: Reading,
    chosen: Sequence[Tried],
    weakest: Tried,
    count: int,
    without: dict[str, NDArray[np.float64]] | None,
) -> list[_Other]:
    """What rows add to so many others; beside a row that moves hardly anything, where the step needs one."""
    bench, carriers, (number, factor) = reading.bench, reading.carriers, reading.quiet
    tried = [*chosen, weakest]
    shown = bench.run([bench.smaller(count, one.row) for one in tried], [number] * len(tried), [factor] * len(tried))
    before = {name: shown[name][-1] if without is None else without[name][0] for name in carriers}
    unit = reading.largest * reading.scale
    found = []
    for place, one in enumerate(tried if without is not None else chosen):
        now = np.concatenate([shown[name][place] - before[name] for name in carriers])
        if not np.isfinite(now).all():
            continue
        wanted = [one.moved[name] - (0.0 if without is not None else weakest.moved[name]) for name in carriers]
        then = np.concatenate(wanted)
        error = float(
            np.linalg.norm([reading.rounding(name, shown[name][place]) for name in carriers])
            + np.linalg.norm([reading.rounding(name, reading.plain[name]) for name in carriers])
        )
        size = float(then @ then)
        times = float(now @ then) / size if size > (_SHORT * unit) ** 2 else 1.0
        apart, left = (max(float(np.linalg.norm(now - by * then)) - _ROUNDINGS * error, 0.0) for by in (1.0, times))
        found.append(_Other(count, one, float(np.linalg.norm(now)), apart, times, left))
    return found


def _noise(reading: Reading, other: Any) -> tuple[str, float]:
    """The tensor whose noise is most changed in this batch, and what it is of that in the batch itself."""
    before, after = (_draws(reading, batch) for batch in (reading.base, other))
    worst = (reading.carriers[0], 1.0)
    for name in reading.carriers:
        then, now = before[name].ravel(), after[name].ravel()
        size = float(then @ then)
        if size == 0.0 or not np.isfinite(now).all():
            continue
        ratio = float(now @ then) / size
        floor = _ROUNDINGS * reading.rounding(name, reading.plain[name]) * np.sqrt(_KEYS / size)
        if float(np.linalg.norm(now - ratio * then)) > (_SHORT + floor) * np.sqrt(size):  # other draws
            ratio, floor = float(np.linalg.norm(now)) / np.sqrt(size), 0.0
            most = largest_ratio(then.size)
            if 1.0 / most <= ratio <= most:
                continue
        if abs(ratio - 1.0) > max(abs(worst[1] - 1.0), floor):
            worst = (name, ratio)
    return worst


def _draws(reading: Reading, batch: Any) -> dict[str, NDArray[np.float64]]:
    """The noise of a batch under some keys: with it and without, or where it cannot be silenced, of two keys."""
    bench, first = reading.bench, reading.quiet[0]
    keys = [first, *(2 + one for one in range(_KEYS - 1))]
    others = [one + 1000 for one in keys] if reading.outside else keys
    factor = reading.quiet[1]
    shown = bench.run([batch] * 2 * _KEYS, [*keys, *others], [factor] * _KEYS + [1.0] * _KEYS)
    return {name: shown[name][_KEYS:] - shown[name][:_KEYS] for name in reading.carriers}


def _finding(reading: Reading, others: Sequence[_Other], ratios: Mapping[int, tuple[str, float]]) -> Finding | None:
    """The fault behind a row that adds something else to a smaller batch; None where none does."""
    unit = reading.largest * reading.scale
    changed = [one for one in others if one.apart > _SHORT * unit]
    if not changed:
        return None
    allowed = max(reading.allowed * reading.scale if reading.absolute else 0.0, unit)
    large = [one for one in changed if one.moved > allowed * (1.0 + _SHORT)]
    worst = max(large or changed, key=lambda one: one.moved if large else one.apart)
    where, bench = f"In {_named(worst.count)}", reading.bench
    divided = _divided(changed, unit)
    if divided is not None and large:  # the noise is divided, too, or a row is too large beside it
        noise = ratios.get(divided.count, ("", divided.factor))[1]
        divided = divided if abs(noise / divided.factor - 1.0) <= 10.0 * _SHORT else None
    if divided is not None:
        worst = divided
        where = f"In {_named(worst.count)}"
        text = (
            f"{where}, a row adds ×{worst.factor:.3g} of what it adds to {bench.count} rows: what it is divided by "
            "follows the number of rows."
        )
        return faults.finding(faults.DIVISOR, text, number=worst.factor, allowed=1.0, witness=_witness(worst))
    if large:
        text = (
            f"{where}, one row more moves the sum by {worst.moved / reading.scale:.4g}, where "
            f"{allowed / reading.scale:.4g} is allowed; with {bench.count} rows it is clipped."
        )
        number, most = worst.moved / reading.scale, allowed / reading.scale
        return faults.finding(faults.TOO_SENSITIVE, text, number=number, allowed=most, witness=_witness(worst))
    text = (
        f"{where}, a row adds something else than to {bench.count} rows: it changes by {worst.apart / unit:.3g} of a "
        "row's largest influence."
    )
    return faults.finding(faults.INTERACT, text, number=worst.apart / unit, allowed=0.0, witness=_witness(worst))


def _divided(changed: Sequence[_Other], unit: float) -> _Other | None:
    """A batch in which every row adds one and the same multiple of what it adds to the batch itself."""
    for count in {one.count for one in changed}:
        here = [one for one in changed if one.count == count]
        factors = [one.factor for one in here]
        alike = max(factors) - min(factors) <= _SHORT * max(factors) and min(factors) > _SHORT
        if alike and len(here) > 1 and all(one.left <= _SHORT * unit for one in here):
            return here[0]
    return None


def _noise_finding(ratios: Mapping[int, tuple[str, float]]) -> Finding | None:
    """Noise that another number of rows changes."""
    changed = {count: one for count, one in ratios.items() if abs(one[1] - 1.0) > _SHORT}
    if not changed:
        return None
    count, (name, ratio) = max(changed.items(), key=lambda one: abs(one[1][1] - 1.0))
    what = _named(count) if count else "an empty batch"
    witness = f"{name}; {what}"
    if abs(ratio) < 1e-6:
        fault = faults.LEFT_OUT if count else faults.EMPTY_BATCH
        return faults.finding(fault, f"For {what}, the step adds no noise.", number=0.0, allowed=1.0, witness=witness)
    said = f"For {what}, the step gives ×{ratio:.4g} the noise in {name}."
    return faults.finding(faults.NOISE_DEPENDS, said, number=ratio, allowed=1.0, witness=witness)


def _named(count: int) -> str:
    if not count:
        return "a batch without another row"
    return f"a batch of {count} row{'' if count == 1 else 's'}"


def _witness(one: _Other) -> str:
    return f"{_named(one.count)}, with one row more: {rows.describe(one.row.row)}"
