"""Batches of other sizes: a row adds the same to each, and noise hides it as well.

Poisson sampling draws batches of every size, and a step may treat some in another way: a row that is alone, rows that
one matrix holds no longer, a sum that is divided by the number of parts that a batch was split into. Where rows add up,
what one adds is the same vector whatever the number of the others, and so is the noise. Both are compared with the
batch itself: here for every smaller batch, in :mod:`coalmine.probing.whole_batch` for larger ones.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from coalmine.probing import batch_noise, beside, faults, order
from coalmine.probing.additivity import carrier_error
from coalmine.probing.batch_noise import Ratio
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Carrier, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, Tried
from coalmine.probing.vectors import distance, inner, residual
from coalmine.records import Sampling

NAME = "batch sizes"
_TINY = 4
"""Batches of fewer rows than this are tried with one row more: most that goes wrong with few rows goes wrong there."""
_BY_LAW = 2
"""The batch in which noise of other draws is compared too, which takes many runs."""
_ROUNDINGS = 4.0
_GROWN = 3.0
"""How much further a row ten times as large moves the sum, where nothing clips it."""

Observations = Mapping[str, torch.Tensor]


@dataclasses.dataclass(eq=False)
class Other:
    """What a row adds to a batch of another size, beside what it adds to the batch itself."""

    count: int
    """Rows of the batch without it."""
    row: Tried
    moved: float
    apart: float
    """How far the two are apart, beyond rounding."""
    factor: float
    """What the first is of the second, where it is a multiple of it."""
    left: float
    """How far it is from that multiple."""
    noise: float
    """What the same draws add to this batch, over what they add to the batch itself."""


@dataclasses.dataclass
class Added:
    """A row, and the batch itself without it and with it."""

    row: Tried
    without: Observations
    shown: Observations


def added(bench: Bench, reading: Reading, chosen: Sequence[Tried], silent: Observation, world: _Worlds) -> list[Added]:
    """What rows add to the batch that others are compared with; without those that move nothing there.

    Args:
        bench: the step.
        reading: its carriers.
        chosen: the rows.
        silent: the batch without them.
        world: makes a batch with one of them.
    """
    found = []
    for row in chosen:
        shown = bench.quiet(world(row))
        if shown.whole(reading.silent) and all(one.name in shown for one in reading.carriers):
            one = Added(row, _carried(silent, reading), _carried(shown, reading))
            if _length(reading.carriers, one.shown, one.without) > 0.0:
                found.append(one)
    return found


_Worlds = Callable[[Tried], World]


def _carried(shown: Observation, reading: Reading) -> Observations:
    return {one.name: shown[one.name] for one in reading.carriers}


def _length(carriers: Sequence[Carrier], a: Observations, b: Observations) -> float:
    return float(np.linalg.norm([distance(a[one.name], b[one.name]) / (one.scale or 1.0) for one in carriers]))


def compared(
    bench: Bench,
    reading: Reading,
    rows: Sequence[Added],
    silent: Observation,
    world: _Worlds,
    *,
    count: int,
    noise: float = 1.0,
) -> list[Other]:
    """What rows add to a batch of another size; without those with which the step does not run.

    Args:
        bench: the step.
        reading: its carriers.
        rows: the rows, with what they add to the batch itself.
        silent: the other batch without them.
        world: makes the other batch with one of them.
        count: its rows.
        noise: what :class:`Other` says of its noise.
    """
    found = []
    for one in rows:
        shown = bench.quiet(world(one.row))
        if not shown.whole(reading.silent) or any(each.name not in shown for each in reading.carriers):
            continue
        here = [(each, shown[each.name], silent[each.name]) for each in reading.carriers]
        error = _ROUNDINGS * max(carrier_error(shown, reading), carrier_error(reading.silent, reading))
        size = _length(reading.carriers, one.shown, one.without)
        factor = sum(inner(a, b, *_pair(one, each)) / (each.scale or 1.0) ** 2 for each, a, b in here) / size**2
        apart, left = (
            float(
                np.linalg.norm([residual(a, b, *_pair(one, each), times) / (each.scale or 1.0) for each, a, b in here])
            )
            for times in (1.0, factor)
        )
        moved = _length(reading.carriers, shown.gradients | shown.released, silent.gradients | silent.released)
        found.append(Other(count, one.row, moved, max(apart - error, 0.0), factor, max(left - error, 0.0), noise))
    return found


def _pair(one: Added, carrier: Carrier) -> tuple[torch.Tensor, torch.Tensor]:
    return one.shown[carrier.name], one.without[carrier.name]


def finding(
    bench: Bench, reading: Reading, influence: Influence, others: Sequence[Other], what: Callable[[int], str]
) -> Finding | None:
    """The fault behind a row that adds something else to a batch of another size; None where none does.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        others: what rows add to other batches.
        what: a batch of so many rows, in words.
    """
    unit = influence.best.total
    changed = [one for one in others if one.apart > beside.SHORT * unit]
    if not changed:
        return None
    most = beside.limit(bench, reading) or unit * (1.0 + beside.SHORT)
    worst = max(changed, key=lambda one: (one.moved > most, one.moved if one.moved > most else one.apart))
    where = f"In {what(worst.count)}"
    witness = f"{what(worst.count)}, with one row more: {worst.row.describe()}"
    if worst.moved > most and abs(worst.noise - 1.0) <= beside.SHORT:
        allowed = bench.allowed if reading.absolute else unit
        return faults.finding(
            faults.TOO_SENSITIVE,
            f"{where}, one row more moves the sum by {worst.moved:.4g}, where {allowed:.4g} is allowed; with "
            f"{bench.count} rows it is clipped.",
            number=worst.moved,
            allowed=allowed,
            witness=witness,
        )
    divided = _divided(changed, unit)
    if divided is not None:
        worst = divided
        where, witness = f"In {what(worst.count)}", f"{what(worst.count)}, with one row more: {worst.row.describe()}"
        noised = ", and so does the same noise" if abs(worst.noise / worst.factor - 1.0) <= beside.SHORT else ""
        return faults.finding(
            faults.DIVISOR,
            f"{where}, a row adds ×{worst.factor:.3g} of what it adds to {bench.count} rows{noised}: what it is "
            "divided by follows the number of rows.",
            number=worst.factor,
            allowed=1.0,
            witness=witness,
        )
    return faults.finding(
        faults.INTERACT,
        f"{where}, a row adds something else than to {bench.count} rows: it changes by {worst.apart / unit:.3g} of a "
        "row's largest influence.",
        number=worst.apart / unit,
        allowed=0.0,
        witness=witness,
    )


def _divided(changed: Sequence[Other], unit: float) -> Other | None:
    """A batch in which every row adds one and the same multiple of what it adds to the batch itself."""
    for count in {one.count for one in changed}:
        here = [one for one in changed if one.count == count]
        factors = [one.factor for one in here]
        alike = max(factors) - min(factors) <= beside.SHORT and min(factors) > beside.SHORT
        if alike and all(one.left <= beside.SHORT * unit for one in here):
            return here[0]
    return None


def measure(bench: Bench, reading: Reading, influence: Influence) -> Measurement | None:
    """Every batch that is smaller than the one that was given; None where they cannot be compared."""
    if not bench.grows or not influence.tried or not reading.carriers or reading.nonlinear or reading.coarse:
        return None
    chosen = _chosen(influence)
    known = added(bench, reading, chosen, reading.silent, lambda one: bench.world({0: one.row}))
    if not known:
        return None
    others: list[Other] = []
    ratios: list[tuple[int, Ratio]] = []
    failed: list[tuple[int, str]] = []
    for count in range(bench.count):
        base = bench.world(keep=range(count))
        silent = bench.quiet(base)
        if not silent.whole(reading.silent) or any(one.name not in silent for one in reading.carriers):
            failed.append((count, silent.error))
            continue
        noise = 1.0
        if count and reading.noise and not reading.outside:
            found = batch_noise.ratios(bench, reading, base, "", silent=silent, law=count == _BY_LAW)
            ratios += [(count, one) for one in found]
            noise = found[0].size if found else 1.0
        rows = known if count < _TINY else known[:2]
        others += compared(bench, reading, rows, silent, _joined(bench, count), count=count, noise=noise)
    found_one = finding(bench, reading, influence, others, _named) or _noise_finding(ratios)
    details = {
        "sizes": sorted({one.count + 1 for one in others}),
        "largest": max((x.moved for x in others), default=0.0),
    }
    if found_one is not None:
        named = _unclipped(bench, reading, found_one, others)
        return Measurement(name=NAME, sentence=named.sentence, findings=(named,), details=details)
    tried = [one for one in failed if one[0]]  # that no row breaks the step is asked of an empty batch elsewhere
    if tried and bench.subject.sampling is Sampling.POISSON:
        count, error = tried[0]
        why = f"the step does not run with {_named(count)}: {error}" if error else _nothing(count)
        return Measurement(name=NAME, sentence=f"{why}.", blind=why, details=details)
    return Measurement(
        name=NAME,
        sentence=f"In batches of 1 to {bench.count} rows, a row adds the same, and so does noise.",
        details=details,
    )


def _joined(bench: Bench, count: int) -> _Worlds:
    return lambda one: bench.world({0: one.row}, keep=range(count))


def _chosen(influence: Influence) -> list[Tried]:
    """Rows that are clipped, so that they show where nothing is; the last one is ordinary, for the smallest batches."""
    found = beside.telling(influence, 2)
    ordinary = sorted((one for one in influence.tried if one.size == 1.0), key=lambda one: -one.total)
    return list({id(one): one for one in (*found, *ordinary[:1])}.values())


def _named(count: int) -> str:
    if not count:
        return "a batch without another row"
    return f"a batch of {count} row{'' if count == 1 else 's'}"


def _nothing(count: int) -> str:
    """Why a batch cannot be compared with which the step runs to its end."""
    return f"with {_named(count)} the step changes nothing of what shows the private sum, or releases no finite numbers"


def _unclipped(bench: Bench, reading: Reading, found: Finding, others: Sequence[Other]) -> Finding:
    """A row that moves too much, and ten times as far when it is ten times as large, is not clipped at all."""
    if found.fault != faults.TOO_SENSITIVE.name or bench.subject.bounds is not None:
        return found
    worst = max(others, key=lambda one: one.moved)
    larger = dataclasses.replace(worst.row, row=order.times(worst.row.row, 10.0))
    base = bench.world(keep=range(worst.count))
    shown, silent = bench.quiet(_joined(bench, worst.count)(larger)), bench.quiet(base)
    if not beside.runs(reading, shown, silent):
        return found
    grown = math.hypot(*beside.moves(reading, silent, shown)) / worst.moved
    if grown <= _GROWN:
        return found
    sentence = f"{found.sentence.removesuffix('.')}: ten times as large, it moves it {grown:.3g} times as far."
    return faults.finding(
        faults.NO_CLIPPING, sentence, number=found.number, allowed=found.allowed, witness=found.witness
    )


def _noise_finding(ratios: Sequence[tuple[int, Ratio]]) -> Finding | None:
    """Noise that another number of rows changes."""
    changed = [pair for pair in ratios if abs(pair[1].number - 1.0) > TOLERANCE or pair[1].other > TOLERANCE]
    if not changed:
        return None
    count, worst = max(changed, key=lambda pair: abs(pair[1].size - 1.0))
    name = worst.name.removeprefix("gradient of ")
    witness = f"{name}; {_named(count)}"
    if worst.size == 0.0:
        said = f"For {_named(count)}, the step adds no noise."
        return faults.finding(faults.LEFT_OUT, said, number=0.0, allowed=1.0, witness=witness)
    said = f"For {_named(count)}, the same draws give ×{worst.size:.4g} the noise in {name}."
    return faults.finding(faults.NOISE_DEPENDS, said, number=worst.size, allowed=1.0, witness=witness)
