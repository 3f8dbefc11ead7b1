"""Do rows add up? And does the noise stay the same whatever the rows are?

Second difference: release(D + a + b) − release(D + a) − release(D + b) + release(D) = 0 for every pair of rows, or rows
reach each other: batch normalization, microbatches, statistics of the batch, a divisor that follows the batch. Only a
sum of terms of one row each has the sensitivity of one clipped row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from coalmine.probing import after_noise, batch_noise, faults, half_precision, rows
from coalmine.probing.batch_noise import Ratio
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.release import Observation
from coalmine.probing.resolution import spacing
from coalmine.probing.search import Influence, Tried, scaled, with_row
from coalmine.probing.vectors import norm, pieces, slices

_ROUNDINGS, _HIDDEN = 4.0, 0.5
"""A second difference is off by so many roundings at most; where that is half of a row's influence, it is not shown."""
_SMALL, _SHRINK = 0.7, 0.8
"""Of the largest influence: rows that are surely not clipped; and by how much a copy of one is smaller."""
_ROUNDED = 0.01
"""Of a row's influence: what sums in half precision may be off by."""
_ALIKE = 0.02
"""Relative: copies of a row that add up to the same."""


@dataclasses.dataclass
class Interplay:
    """The largest second difference that was found."""

    number: float
    """In the units of a row's largest influence."""
    witness: str
    rescaled: float
    """What is left of it when every release is multiplied by its number of rows."""


def carrier_vector(shown: Observation, reading: Reading) -> torch.Tensor:
    """All carriers as one vector, in units of the sum where these are known."""
    return torch.cat([shown[one.name].double().reshape(-1).cpu() / (one.scale or 1.0) for one in reading.carriers])


def carrier_offset(bench: Bench, reading: Reading) -> torch.Tensor:
    """What the carriers would be if nothing was released: zero at an optimizer's door, else the first state."""
    parts = [
        torch.zeros(one.numbers, dtype=torch.float64)
        if one.door or one.name not in bench.start
        else bench.start[one.name].double().reshape(-1).cpu() / (one.scale or 1.0)
        for one in reading.carriers
    ]
    return torch.cat(parts)


def carrier_error(shown: Observation, reading: Reading) -> float:
    """What rounding may do to the carriers together."""
    errors = [
        np.linalg.norm([np.linalg.norm(spacing(part)) for (part,) in slices(shown[one.name])]) / (one.scale or 1.0)
        for one in reading.carriers
    ]
    return float(np.linalg.norm(errors))


def interplay(bench: Bench, reading: Reading, influence: Influence) -> Interplay | None:
    """Second differences for several pairs of rows and several sizes of the batch."""
    unit = influence.best.total
    if unit == 0.0:
        return None
    best: Interplay | None = None
    for batch in _bases(bench, influence):
        seen: dict[tuple[int | None, int | None], _Corner | None] = {}
        pairs = _pairs(influence)
        for number, (a, b) in enumerate(pairs, start=1):
            found = _apart(reading, [_corner(bench, reading, batch, one, other, seen) for one, other in _corners(a, b)])
            later = {_key(*corner) for pair in pairs[number:] for corner in _corners(*pair)}
            seen = {key: one for key, one in seen.items() if key in later}
            if found is None:
                continue
            apart, left, floor = found
            if apart > TOLERANCE * unit + floor and (best is None or apart / unit > best.number):
                text = f"{len(batch.slots)} rows with two more: {rows.describe(a.row)} | {rows.describe(b.row)}"
                best = Interplay(apart / unit, text, left / apart)
    return best


def _corners(a: Tried, b: Tried) -> list[tuple[Tried | None, Tried | None]]:
    """Both rows, each of them, and neither."""
    return [(a, b), (a, None), (None, b), (None, None)]


def _key(a: Tried | None, b: Tried | None) -> tuple[int | None, int | None]:
    return None if a is None else id(a), None if b is None else id(b)


@dataclasses.dataclass
class _Corner:
    """What the carriers show with some rows, and what rounding may do to it."""

    rows: int
    parts: list[torch.Tensor]
    error: float


def _apart(reading: Reading, corners: Sequence[_Corner | None]) -> tuple[float, float, float] | None:
    """The second difference; what is left of it as means over rows; what rounding may do. None where a run failed."""
    whole = [one for one in corners if one is not None]
    if len(whole) < len(corners):
        return None
    sizes = [one.rows for one in whole]
    apart = norm(_second_difference(reading, whole, (1, 1, 1, 1)))
    left = norm(_second_difference(reading, whole, sizes)) / max(sizes)
    return apart, left, _ROUNDINGS * max(one.error for one in whole)


def _second_difference(reading: Reading, corners: Sequence[_Corner], weights: Sequence[int]) -> Iterator[torch.Tensor]:
    """w₀·v₀ − w₁·v₁ − w₂·v₂ + w₃·v₃, in pieces, in units of the sum where these are known."""
    for carrier, *parts in zip(reading.carriers, *(one.parts for one in corners), strict=True):
        for vectors in pieces(*parts):
            both, one, other, neither = (part.div_(carrier.scale or 1.0) for part in vectors)
            found = both.mul_(weights[0]).sub_(one, alpha=weights[1]).sub_(other, alpha=weights[2])
            yield found.add_(neither, alpha=weights[3])


def _bases(bench: Bench, influence: Influence) -> list[World]:
    """Batches of several sizes, as whether two rows share a microbatch depends on it, and one of rows that move little.

    What follows the norms of a batch, such as their median, may show only where few of them are clipped.
    """
    if not bench.grows:
        return [bench.world()]
    found = [bench.world(keep=range(size)) for size in range(bench.count, max(bench.count - 4, 0), -1)]
    small = [one.row for one in influence.tried if 0.0 < one.total < _SMALL * influence.best.total]
    if small:  # each of its own size, or a median would stay where it is
        chosen = [(small[slot % len(small)], _SHRINK ** (slot // len(small))) for slot in range(bench.count)]
        made = [rows.changed(row, scaled(rows.numbers(row), factor)) for row, factor in chosen]
        found.append(bench.replaced(dict(enumerate(made))))
    return found


def _pairs(influence: Influence) -> list[tuple[Tried, Tried]]:
    """The row that moves most with an ordinary one and with its own copy, and two ordinary ones.

    Copies have the same label: what follows the counts of labels shows in them.
    """
    ordinary = [one for one in influence.tried if one.size == 1.0] or influence.tried
    return [(influence.best, ordinary[0]), (influence.best, influence.best), (ordinary[0], ordinary[-1])]


def _corner(
    bench: Bench,
    reading: Reading,
    batch: World,
    a: Tried | None,
    b: Tried | None,
    seen: dict[tuple[int | None, int | None], _Corner | None],
) -> _Corner | None:
    """The batch with both rows, with one of them, or with neither; each is run once. None where it failed."""
    key = _key(a, b)
    if key not in seen:
        if bench.grows:
            extra = {bench.count + slot: one.row for slot, one in enumerate((a, b)) if one is not None}
            world = World(rows.join([batch.batch, *extra.values()]), (*batch.slots, *extra))
        else:
            last = bench.count - 1
            world = bench.replaced({slot: one.row for slot, one in ((last - 1, a), (last, b)) if one is not None})
        shown = bench.quiet(world)
        right = shown.whole(reading.silent) and all(one.name in shown for one in reading.carriers)
        parts = [shown[one.name] for one in reading.carriers] if right else []
        seen[key] = _Corner(len(world.slots), parts, carrier_error(shown, reading)) if right else None
    return seen[key]


def groups(bench: Bench, reading: Reading, influence: Influence) -> int | None:
    """How many rows are clipped together: k copies of one clipped row add up to k times the row, in groups of g only
    to ⌈k/g⌉ times.

    Returns:
        the size of a group (that of the batch, where all of it is one group), or None where rows are not in groups.
    """
    row, offset = influence.best.row, carrier_offset(bench, reading)
    sums = []
    for copies in range(1, bench.count + 1) if bench.grows else (bench.count,):
        world = World(rows.take(row, [0] * copies), tuple(range(copies)))
        shown = bench.quiet(world)
        if not shown.whole(reading.silent) or any(one.name not in shown for one in reading.carriers):
            return None
        sums.append(carrier_vector(shown, reading) - offset)
    if not bench.grows:  # batches of one size only: the clip norm is what one group adds
        added = float(sums[0].norm()) / bench.subject.clip_norm if reading.absolute else 0.0
        size = round(bench.count / added) if added else 0
        return size if size > 1 and abs(bench.count / size - added) <= _ALIKE * added else None
    once = float(sums[0].norm())
    for size in range(2, bench.count + 1):
        expected = [-(-copies // size) * sums[0] for copies in range(1, bench.count + 1)]
        if all(float((a - b).norm()) <= _ALIKE * once for a, b in zip(sums, expected, strict=True)):
            return size
    return None


def batch_norm(bench: Bench) -> str:
    """The name of a layer that mixes rows, where the step can reach one in training mode."""
    kinds = (torch.nn.modules.batchnorm._BatchNorm,)
    found = [type(one).__name__ for one in bench.modules if isinstance(one, kinds) and one.training]
    return found[0] if found else ""


def measure(bench: Bench, reading: Reading, influence: Influence) -> Measurement:
    """Rows add up, and noise does not depend on them."""
    findings: list[Finding] = []
    if reading.nonlinear:
        return Measurement(name="additivity", sentence="Rows were not compared: noise does not enter in proportion.")
    ratios = [] if reading.outside or not reading.noise else _ratios(bench, reading, influence)
    changed = [one for one in ratios if abs(one.number - 1.0) > TOLERANCE or one.other > TOLERANCE]
    found = interplay(bench, reading, influence)
    divided = bool(found and found.rescaled < 0.05)
    if changed:
        findings.append(_noise_finding(changed))
    if divided and not any(one.fault == faults.DIVISOR.name for one in findings):
        assert found is not None
        findings.append(
            faults.finding(
                faults.DIVISOR,
                "Every release is divided by its own number of rows: the sums agree, the means do not.",
                number=found.number,
                allowed=0.0,
                witness=found.witness,
            )
        )
    elif found and not any(one.fault == faults.DIVISOR.name for one in findings):
        findings.append(_interplay_finding(bench, reading, influence, found))
    error = _ROUNDINGS * carrier_error(reading.silent, reading)
    blind = ""
    kind = after_noise.grid(reading.plain, [one.name for one in reading.carriers]) if found else ""
    if found and kind and found.number <= _ROUNDED and [one.fault for one in findings] == [faults.INTERACT.name]:
        blind = f"what is released is rounded to {kind}, to which rows add up; add up and release in single precision"
        return Measurement(
            name="additivity",
            sentence=f"Rows add up to {found.number:.3g} of a row's largest influence, as {kind} does.",
            blind=blind,
            details={"second_difference": found.number},
        )
    if not findings and error > _HIDDEN * influence.best.total > 0.0:
        blind = "rows move the release too little to compare them: at this learning rate rounding is as large"
    if findings:
        sentence = findings[0].sentence
    elif influence.best.total == 0.0:
        return Measurement(name="additivity", sentence="Rows were not compared.", blind="no row moved the release")
    else:
        sentence = "Rows add up: no row changes what another one adds, nor the noise."
    return Measurement(
        name="additivity",
        sentence=sentence,
        findings=tuple(findings),
        blind=blind,
        details={
            "second_difference": found.number if found else 0.0,
            "noise_ratio": float(max((abs(one.number - 1.0) for one in ratios), default=0.0)),
        },
    )


def _ratios(bench: Bench, reading: Reading, influence: Influence) -> list[Ratio]:
    """With an ordinary row more, with the one that moves most, and with one row of the batch alone."""
    ordinary = [one for one in influence.tried if one.size == 1.0][:1]
    worlds = [
        (with_row(bench, one.row), f"one row more: {rows.describe(one.row)}")
        for one in (*ordinary, *influence.witnesses(0))
    ]
    if bench.grows:
        worlds.append((bench.world(keep=[0]), "its first row alone"))
    return [ratio for world, what in worlds for ratio in batch_noise.ratios(bench, reading, world, what)]


def _noise_finding(changed: list[Ratio]) -> Finding:
    """A divisor scales noise alike whatever the row is; anything else makes noise depend on the row."""
    worst = max(changed, key=lambda one: (abs(one.number - 1.0) + one.other, one.draws is not None))
    name = worst.name.removeprefix("gradient of ")
    witness = f"{name}; the batch with {worst.what}"
    if worst.number == 0.0:
        return faults.finding(
            faults.LEFT_OUT,
            f"For the batch with {worst.what.partition(':')[0]}, the step adds no noise.",
            number=0.0,
            allowed=1.0,
            witness=witness,
        )
    added = [one for one in changed if one.name == worst.name and one.what.startswith("one row more")]
    ratios = [one.number for one in added]
    same_draws = worst.draws is None or worst.draws[0] == worst.draws[1]
    if same_draws and worst.other <= TOLERANCE and added and max(ratios) - min(ratios) <= TOLERANCE:
        return faults.finding(
            faults.DIVISOR,
            f"With one row more, the same noise in {name} is {ratios[0]:.4g} times as large: it is divided by a number "
            "that follows the rows.",
            number=ratios[0],
            allowed=1.0,
            witness=f"{name}; the batch with {added[0].what}",
        )
    said = f"the same draws give other noise in {name} ({worst.number:.4g} times as large)"
    if worst.draws is not None and not same_draws:
        here, there = worst.draws
        said = (
            f"the noise in {name} is the sum of {there} draw{'' if there == 1 else 's'} instead of {here}, which makes "
            f"it {worst.number:.4g} times as large"
        )
    return faults.finding(
        faults.NOISE_DEPENDS,
        f"For the batch with {worst.what.partition(':')[0]}, {said}.",
        number=worst.number,
        allowed=1.0,
        witness=witness,
    )


def _interplay_finding(bench: Bench, reading: Reading, influence: Influence, found: Interplay) -> Finding:
    """Which kind of interplay it is."""
    layer = batch_norm(bench)
    if layer:
        return faults.finding(
            faults.INTERACT,
            f"Rows do not add up (by {found.number:.3g} of a row's largest influence): {layer} mixes them.",
            number=found.number,
            allowed=0.0,
            witness=found.witness,
        )
    together = groups(bench, reading, influence)
    if together is not None and together > 1:
        return faults.finding(
            faults.MICROBATCH,
            f"Rows are clipped in groups of about {together}: copies of one row in a group add no more than one.",
            number=float(together),
            allowed=1.0,
            witness=found.witness,
        )
    rounded = " So little may be rounding: add up in single or double precision."
    if found.number > _ROUNDED:
        rounded = half_precision.word(bench, reading.base, found.number)
    return faults.finding(
        faults.INTERACT,
        f"Rows do not add up: what one adds changes by {found.number:.3g} of a row's largest influence with another."
        f"{rounded}",
        number=found.number,
        allowed=0.0,
        witness=found.witness,
        first=half_precision.LOOK_AT if rounded else "",
    )
