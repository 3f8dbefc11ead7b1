"""Every place of the batch: a row moves the sum no further at one than at another, and noise is the same.

All else is measured with the first rows, and with a row behind them. A step may treat the first row, or a second part
of the batch, in another way. So a row that is clipped, and the same ten times as large, take the place of each row in
turn (of many in a large batch), beside a row that moves hardly anything at that place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coalmine.integrations.jax.reading import Reading, Tried
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement

_ROWS, _ALL = 128, 64
"""Rows of the batch that are there at once, and how many places are all tried."""
_MORE = 0.02
"""Relative: how much further a row may move the sum at another place."""
NAME = "places"


def measure(reading: Reading) -> Measurement:
    """A row at each place of the batch, as far as it was handed over."""
    bench, best = reading.bench, reading.best
    if best is None:
        return reading.unmeasured(NAME, "A row at other places of the batch")
    given = rows.size(bench.whole_batch)
    count = given if bench.padding is not None else min(given, _ROWS)
    whole = rows.take(bench.whole_batch, range(count))
    which = f"all {count} rows" if count == given else f"the first {count} of {given} rows"
    failure = bench.failure(whole)
    if failure:
        said = f"the step does not run with {which}: {failure.rstrip('.')}"
        return Measurement(name=NAME, sentence=f"{said}.", blind=said)
    places = _places(count)
    weakest = min(reading.finite, key=lambda one: one.far(reading.carriers))
    larger = reading.grown(best, 10.0)
    strong = [best, *([larger] if larger.finite else [])]
    worst = _worst(reading, whole, places, strong, weakest)
    details = {"rows": count, "given": given, "places": len(places), "ratio": worst[0]}
    if worst[0] > 1.0 + _MORE:
        found = _finding(*worst, which)
        return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
    at = "each place" if len(places) == count else f"{len(places)} places"
    sentence = f"With {which} at once, a row moves the sum at {at} no further than at the end."
    return Measurement(name=NAME, sentence=sentence, details=details)


def _places(count: int) -> list[int]:
    """All, or the first and the last ones, powers of two and their neighbors, and places evenly between."""
    if count <= _ALL:
        return list(range(count))
    powers = [2**one + shift for one in range(count.bit_length()) for shift in (-1, 0)]
    even = np.linspace(0, count - 1, _ALL // 2).astype(int).tolist()
    return sorted({one for one in [*powers, *even, count - 2] if 0 <= one < count})


def _worst(
    reading: Reading, whole: Any, places: list[int], strong: list[Tried], weakest: Tried
) -> tuple[float, int, Tried, float]:
    """How much further a row moves the sum beside its noise than in the first runs; where, which row; the noise."""
    bench, carriers, (number, factor) = reading.bench, reading.carriers, reading.quiet
    noise = _noise(reading, whole)
    found = (0.0, 0, strong[0], noise)
    slots = range(rows.size(whole))

    def put(place: int, one: Tried) -> Any:
        parts = [rows.take(whole, slots[:place]), one.row, rows.take(whole, slots[place + 1 :])]
        return rows.join([part for part in parts if rows.size(part)])

    without = bench.run([put(one, weakest) for one in places], [number] * len(places), [factor] * len(places))
    floor = reading.floor(16.0)
    most = reading.largest * reading.scale
    if reading.absolute:
        most = max(most, reading.bench.subject.allowed * reading.scale)
    if reading.by_draws and not reading.outside:  # other draws decide what a row, and the weakest, add at each place
        most *= 2.0
    for one in strong:
        with_it = bench.run([put(place, one) for place in places], [number] * len(places), [factor] * len(places))
        moved = np.sqrt(sum(np.sum(np.square(with_it[name] - without[name]), axis=1) for name in carriers))
        usual = float(np.linalg.norm(np.concatenate([one.moved[name] - weakest.moved[name] for name in carriers])))
        ratios = (np.nan_to_num(moved, nan=0.0, posinf=np.inf) - floor) / max(usual, most) / max(noise, 1e-12)
        place = int(ratios.argmax())
        if ratios[place] > found[0]:
            found = (float(ratios[place]), places[place], one, noise)
    return found


def _noise(reading: Reading, whole: Any) -> float:
    """The noise with all rows there over that of the first few; 1 where other draws are made."""
    both = (reading.quiet, reading.loud)
    shown = reading.bench.run([whole] * 2, [one for one, _ in both], [one for _, one in both])
    ratios = []
    for name in reading.carriers:
        now, then = shown[name][1] - shown[name][0], reading.noise[name]
        ratio = float(now @ then) / float(then @ then)
        same = np.linalg.norm(now - ratio * then) <= 0.01 * np.linalg.norm(then) + reading.floor(16.0)
        ratios.append(ratio if same else 1.0)
    return min(ratios)


def _finding(ratio: float, place: int, one: Tried, noise: float, which: str) -> Finding:
    """Too little noise for the whole batch, or a place at which rows are not clipped."""
    fault = faults.TOO_SENSITIVE
    said = f"With {which} at once, a row at place {place + 1} moves the sum {ratio:.3g} times as far as at the end."
    if noise < 1.0 - _MORE:
        fault = faults.NOISE_TOO_SMALL
        said = f"With {which} at once, the same draws give ×{noise:.3g} the noise that they give with fewer."
    witness = f"place {place + 1} of the batch: {rows.describe(one.row)}"
    return faults.finding(fault, said, number=ratio, allowed=1.0, witness=witness)
