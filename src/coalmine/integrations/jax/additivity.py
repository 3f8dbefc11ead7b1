"""Whether rows change what other rows add, and whether they change the noise: asked of every row that was tried.

A step may look at its batch and then add less noise, or leave out its update: where a row is large, or has a certain
label, or raises the loss. One row of many may do that, so the noise is compared with each of them in the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.reading import Reading, Tried, largest_ratio, one_of
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement

_CHANGED = 0.01
"""Relative: how far noise, or what a row adds, may be off."""
_KEYS = 6
"""Keys under which noise of one number is compared again."""


@dataclasses.dataclass(frozen=True)
class _Noise:
    """The noise with a row in the batch, over that of the batch alone; how far other draws may put it off."""

    ratio: float
    slack: float
    still: bool
    """Whether nothing at all moved."""
    other: bool = False
    """Whether it is other noise, and not the same times a number."""
    single: bool = False
    """Whether it is so in a tensor of one number, where other noise is the same times some number, too."""
    drawn_anew: bool = False
    """Whether the row, in the place of another, makes the same key give other noise altogether."""

    @property
    def off(self) -> float:
        return 1.0 if self.drawn_anew else max(abs(self.ratio - 1.0) - self.slack, 0.0)


def measure(reading: Reading) -> Measurement:
    """Every row beside another one, and beside the noise."""
    bench, name = reading.bench, "additivity"
    if reading.best is None or len(reading.finite) < 2:
        return reading.unmeasured(name, "Whether rows add up")
    ordered = sorted(reading.finite, key=lambda one: -one.far(reading.carriers))
    first, second = ordered[0], ordered[len(ordered) // 2]
    noise = _noises(reading, ordered)
    number, other = _interaction(reading, ordered, second)
    count = bench.count
    shrinks = count / (count + 1)
    sizes = [_divided(reading, first, second), noise[0].ratio] if bench.grows else []
    changed = max(range(len(noise)), key=lambda one: noise[one].off)
    found: Finding | None = None
    if any(one is not None and abs(one - shrinks) < 0.1 * (1.0 - shrinks) for one in sizes):
        text = f"One row more rescales the release by {count}/{count + 1}: it is divided by the size of the batch."
        witness = rows.describe(first.row)
        found = faults.finding(faults.DIVISOR, text, number=shrinks, allowed=1.0, witness=witness)
    elif noise[changed].off > _CHANGED:
        found = _changed(reading, ordered[changed], noise[changed], sum(one.off > _CHANGED for one in noise))
    elif number > _CHANGED:
        text = f"Rows do not add up: what one adds changes by {number:.3g} of a row's largest influence with another."
        witness = rows.describe(other.row)
        found = faults.finding(faults.INTERACT, text, number=number, allowed=0.0, witness=witness)
    sentence = f"With {len(ordered)} rows in turn, neither the noise nor what other rows add depends on the row."
    return Measurement(
        name=name,
        sentence=found.sentence if found else sentence,
        findings=() if found is None else (found,),
        details={"rows": len(ordered), "noise": [one.ratio for one in noise]},
    )


def _changed(reading: Reading, one: Tried, noise: _Noise, many: int) -> Finding:
    """A row that changes the noise, or stops the step."""
    more = f" So do {many - 1} more of {len(reading.finite)}." if many > 1 else ""
    if noise.still:
        text = f"With one row more, the step changes nothing: its update is left out.{more}"
        fault = faults.LEFT_OUT
    elif noise.drawn_anew:
        text = f"With another row in the batch, the same key gives other noise: it is drawn by the data.{more}"
        fault = faults.NOISE_DEPENDS
    else:
        text = f"With one row more, the same key gives {noise.ratio:.4g} times the noise.{more}"
        fault = faults.NOISE_DEPENDS
    return faults.finding(fault, text, number=noise.ratio, allowed=1.0, witness=rows.describe(one.row))


def _noises(reading: Reading, tried: list[Tried]) -> list[_Noise]:
    """The noise with each of these rows in the batch."""
    bench, carriers = reading.bench, reading.carriers
    number, factor = reading.loud
    shown = bench.run([bench.batch(one.row) for one in tried], [number] * len(tried), [factor] * len(tried))
    before = [reading.noise[name] for name in carriers]
    found = []
    for place, one in enumerate(tried):
        loud = one_of(shown, place)
        quiet = {name: reading.silent[name] + one.moved[name] for name in carriers}
        found.append(_compared(reading, [loud[name] - quiet[name] for name in carriers], before, loud))
    alone = [place for place, one in enumerate(found) if one.single and one.off > _CHANGED]
    if alone and _by_size(reading, tried[alone[0]]):
        for place in alone:
            found[place] = _Noise(1.0, 0.0, found[place].still)
    other = [place for place, one in enumerate(found) if one.other]
    if other:  # a row more may change the draws by the shape of the batch alone; another row in its place may not
        found[other[0]] = dataclasses.replace(found[other[0]], drawn_anew=_drawn_anew(reading, tried[other[0]]))
    return found


def _by_size(reading: Reading, one: Tried) -> bool:
    """Whether a row more gives other noise to tensors of one number under every key, and in another's place does not.

    Under some keys together, other noise is no multiple of the noise before; the size of the batch alone makes it.
    """
    bench, keys = reading.bench, [reading.loud[0], *range(2, 2 + _KEYS)]
    if reading.outside:
        return False
    names = [name for name in reading.carriers if reading.noise[name].size == 1]

    def noise(batch: Any) -> NDArray[np.float64]:
        loud, quiet = (bench.run([batch] * len(keys), keys, [factor] * len(keys)) for factor in (1.0, 0.0))
        return np.array([(loud[name] - quiet[name]).ravel() for name in names])

    before, after, replaced = (noise(one) for one in (reading.base, bench.batch(one.row), bench.replaced({0: one.row})))
    ratios = np.sum(after * before, axis=1) / np.sum(np.square(before), axis=1)
    left = np.linalg.norm(after - ratios[:, None] * before, axis=1) / np.linalg.norm(before, axis=1)
    same = np.linalg.norm(replaced - before, axis=1) / np.linalg.norm(before, axis=1)
    return bool((left > 0.1).any() and (same <= _CHANGED).all())


def _drawn_anew(reading: Reading, one: Tried) -> bool:
    """Whether a row in the place of the first makes other noise of the same key."""
    bench = reading.bench
    both = (reading.quiet, reading.loud)
    batch = bench.replaced({0: one.row})
    shown = bench.run([batch] * 2, [number for number, _ in both], [factor for _, factor in both])
    after = [shown[name][1] - shown[name][0] for name in reading.carriers]
    before = [reading.noise[name] for name in reading.carriers]
    return _compared(reading, after, before, one_of(shown, 1)).other


def _compared(
    reading: Reading, after: list[NDArray[np.float64]], before: list[NDArray[np.float64]], loud: Any
) -> _Noise:
    """The tensor in which the noise changed most; where other draws are made, the sizes in all of them together."""
    still = all(np.array_equal(loud[name], reading.bench.start[name]) for name in reading.carriers)
    worst = _Noise(1.0, 0.0, still)
    for name, now, then in zip(reading.carriers, after, before, strict=True):
        size = float(np.linalg.norm(then))
        floor = 16.0 * reading.rounding(name, loud[name]) / size
        ratio = float(now @ then) / size**2
        if float(np.linalg.norm(now - ratio * then)) / size > _CHANGED + floor:
            a, b = (float(np.linalg.norm(np.concatenate(side))) for side in (after, before))
            numbers = sum(one.size for one in before)
            most = largest_ratio(numbers)
            return _Noise(a / b, most - 1.0 if a > b else 1.0 - 1.0 / most, still, other=True)
        if abs(ratio - 1.0) - floor > worst.off:
            worst = _Noise(ratio, floor, still, single=then.size == 1)
    return worst


def _interaction(reading: Reading, tried: list[Tried], second: Tried) -> tuple[float, Tried]:
    """What a row adds beside another one, less what it adds alone, over the largest influence; and which row."""
    bench, (number, factor) = reading.bench, reading.quiet
    # All of one size: both rows, each of them, and none, in the place of the first two of the batch.
    slots: list[dict[int, Any]] = [{1: second.row}]
    for one in tried:
        slots += [{0: one.row, 1: second.row}, {0: one.row}]
    shown = bench.run([bench.replaced(one) for one in slots], [number] * len(slots), [factor] * len(slots))
    squares = np.zeros(len(tried))
    error = 0.0
    for name in reading.carriers:
        value = shown[name]
        left = value[1::2] - value[2::2] - value[0] + reading.silent[name]
        squares += np.sum(np.square(left), axis=1)
        error += (8.0 * reading.rounding(name, reading.plain[name])) ** 2
    largest = max(one.far(reading.carriers) for one in tried)
    off = np.maximum(np.nan_to_num(np.sqrt(squares)) - np.sqrt(error), 0.0) / max(largest, 1e-30)
    return float(off.max()), tried[int(off.argmax())]


def _divided(reading: Reading, first: Tried, second: Tried) -> float | None:
    """How far one row in the place of another moves a batch with a row more, beside the batch itself."""
    bench, last, (number, factor) = reading.bench, reading.bench.count - 1, reading.quiet
    batches = [bench.replaced({last: one.row}) for one in (first, second)]
    small = bench.run(batches, [number] * 2, [factor] * 2)
    before, after = (
        float(np.linalg.norm(np.concatenate([a - b for a, b in pairs])))
        for pairs in (
            [small[name] for name in reading.carriers],
            [(first.moved[name], second.moved[name]) for name in reading.carriers],
        )
    )
    return after / before if before > 0.0 else None
