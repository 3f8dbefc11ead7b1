"""Batches and rows at the edge: no row at all, rows that are not finite, rows that make the step fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coalmine.probing import batch_noise, faults, rows
from coalmine.probing.additivity import carrier_error
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading, rounding
from coalmine.probing.crafter import Crafter
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.release import Observation
from coalmine.probing.resolution import with_rounding
from coalmine.probing.search import Influence, Tried, attempt, with_row
from coalmine.probing.vectors import distance
from coalmine.records import Sampling

_NOISES = (1.0, -1.0, 3.0, -3.0)
"""Of the recorded noise: what a step may undo, to both sides."""
_LARGE, _LARGEST = 10.0, 10
"""Rows of this size, beside those of the batch, that are tried with them, and how many."""
_ALONE = 12
"""Rows that are tried alone, where no other one makes up for a loss that is too large."""
_SURELY = 100.0
"""Roundings that a parameter must move by, or it may stay where it is by rounding alone."""
_OTHER = 1e-2
"""Relative: noise of an empty batch that is another."""


def empty_batch(bench: Bench, reading: Reading, *, known: Sequence[Finding] = ()) -> Measurement | None:
    """An empty batch is noise alone: it runs, and its noise is that of any other batch.

    Args:
        bench: the step.
        reading: its carriers.
        known: what rows do to the noise; where they change it anyway, an empty batch says nothing new.
    """
    if bench.subject.sampling is not Sampling.POISSON or not reading.noise:
        return None
    world = World(rows.take(bench.base, []), ())
    plain = bench.scaled(world, 1.0)
    name = "empty batch"
    if plain.error:
        text = f"The step fails on an empty batch: {plain.error}."
        return Measurement(
            name=name, sentence=text, findings=(faults.finding(faults.EMPTY_BATCH, text, witness="no row"),)
        )
    if not plain.whole(reading.plain):
        text = "On an empty batch the step releases values that are not finite."
        return Measurement(
            name=name, sentence=text, findings=(faults.finding(faults.EMPTY_BATCH, text, witness="no row"),)
        )
    if reading.outside or reading.nonlinear or known:
        return Measurement(name=name, sentence="The step runs on an empty batch.")
    ratios = batch_noise.ratios(bench, reading, world, "no row")
    worst = max(ratios, key=lambda one: abs(one.size - 1.0), default=None)
    if worst is not None and abs(worst.size - 1.0) > _OTHER:
        text = f"On an empty batch the same draws give {worst.size:.3g} times the noise."
        if worst.draws is not None:
            here, there = worst.draws
            text = f"On an empty batch noise is {worst.size:.3g} times as large: a sum of {there} draws, not of {here}."
        found = faults.finding(
            faults.EMPTY_BATCH, text, number=worst.size, allowed=1.0, witness=f"no row; {worst.name}"
        )
        return Measurement(name=name, sentence=text, findings=(found,))
    return Measurement(name=name, sentence="An empty batch gets the same noise as any other.")


def failing_rows(bench: Bench, reading: Reading, influence: Influence) -> Measurement:
    """Rows that break the step, or make it leave out its update: success itself tells that they were there."""
    findings = _of(influence.failed)
    if not any(one.fault == faults.LEFT_OUT.name for one in findings):
        findings += _undone(bench, reading, influence) or _alone(bench, reading, influence)
    broken: list[str] = []
    for name, row in Crafter(bench.base, bounds=bench.subject.bounds).broken():
        tried = [attempt(bench, reading, row, 1.0, place=place) for place in (None, 0)]
        failed = [one for one in tried if one.shown]
        if failed:
            broken.append(name)
            if bench.subject.nonfinite_rows and not any(f.fault == _fault(failed[0]).name for f in findings):
                findings += _of(failed[:1])
        elif bench.subject.nonfinite_rows and not any(f.fault == faults.TOO_SENSITIVE.name for f in findings):
            findings += _too_far(bench, reading, max(tried, key=lambda one: one.total), name)
            if not any(f.fault == faults.NOISE_DEPENDS.name for f in findings):
                findings += _other_noise(bench, reading, row, name)
    if findings:
        sentence = findings[0].sentence
    else:
        sentence = f"None of {len(influence.tried) + len(influence.failed)} finite rows breaks the step."
    if broken and not bench.subject.nonfinite_rows:
        sentence += (
            f" A row that holds {' or '.join(broken)} does; it is promised that no such row gets here, so it does not "
            "count (nonfinite_rows=True counts it)."
        )
    return Measurement(
        name="failing rows",
        sentence=sentence,
        findings=tuple(findings),
        details={"breaks_on": broken, "counted": bench.subject.nonfinite_rows},
    )


def _undone(bench: Bench, reading: Reading, influence: Influence) -> list[Finding]:
    """A row with which some noise makes the step undo itself: parameters stay exactly, where the same noise moved them.

    Whether a loss got worse follows from row and noise together, so several noises are tried, with the rows that move
    most and with the largest.
    """
    names = _moved(bench, reading)
    if not names or not influence.tried:
        return []
    large = [one for one in influence.tried if one.size >= _LARGE]
    spread = _spread(sorted(large, key=lambda one: -one.total), _LARGEST)
    rows_tried = {id(one): one for one in (influence.best, *spread)}
    for factor in _NOISES:
        usual = bench.scaled(reading.base, factor)
        if usual.error or not all(_clearly(bench, usual, name) for name in names):
            continue  # the noise alone does it, or rounding may
        for one in rows_tried.values():
            if _still(bench, bench.scaled(with_row(bench, one.row), factor), names):
                text = "One row makes the step leave out its update, with some noise."
                witness = f"the recorded noise times {factor:g}, and one row more: {one.describe()}"
                return [faults.finding(faults.LEFT_OUT, text, witness=witness)]
    return []


def _moved(bench: Bench, reading: Reading) -> list[str]:
    """The parameters that noise moves, where it can be told whether it did."""
    if reading.outside or reading.coarse:
        return []
    return [name for name in bench.release.names.values() if name in reading.noisy and name in bench.start]


def _alone(bench: Bench, reading: Reading, influence: Influence) -> list[Finding]:
    """A row that makes the step undo itself, or stop, where it is the whole batch: a guard on the loss of the batch."""
    names = _moved(bench, reading)
    if not names or not bench.grows or bench.subject.sampling is not Sampling.POISSON:
        return []
    usual = bench.scaled(World(rows.take(bench.base, []), ()), 1.0)
    if usual.error or not all(_clearly(bench, usual, name) for name in names):
        return []  # it treats an empty batch in another way too, which is said elsewhere
    ranked = sorted(influence.tried, key=lambda one: one.total)
    large = [one for one in ranked if one.size >= _LARGE]
    for one in (*_spread(large, _ALONE // 2), *_spread(ranked, _ALONE - min(len(large), _ALONE // 2))):
        if _still(bench, bench.scaled(bench.world({0: one.row}, keep=[]), 1.0), names):
            text = "One row alone makes the step leave out its update: nothing moves, where noise alone moves all."
            return [faults.finding(faults.LEFT_OUT, text, witness=f"a batch of this row alone: {one.describe()}")]
    return []


def _spread(ranked: Sequence[Tried], count: int) -> Sequence[Tried]:
    """So many of them at most, from the first on."""
    return ranked[:: max(-(-len(ranked) // count), 1)]


def _clearly(bench: Bench, shown: Observation, name: str) -> bool:
    """Whether a run moved a parameter so far that rounding cannot hide a move of about that size."""
    return name in shown and distance(shown[name], bench.start[name]) > _SURELY * rounding(bench.start[name])


def _still(bench: Bench, shown: Observation, names: Sequence[str]) -> bool:
    """Whether a run ended with every parameter where it was."""
    there = [name for name in names if name in shown]
    return not shown.error and bool(there) and all(torch.equal(shown[name], bench.start[name]) for name in there)


def _too_far(bench: Bench, reading: Reading, one: Tried, name: str) -> list[Finding]:
    """A row that is not finite must not move the sum further than any other; it may take others with it."""
    allowed = bench.allowed
    numbers = sum(carrier.numbers for carrier in reading.carriers)
    most = with_rounding(allowed * (1.0 + TOLERANCE), carrier_error(reading.silent, reading), numbers)
    if not reading.absolute or one.total <= most:
        return []
    text = f"A row that holds {name} moves the sum by {one.total:.4g}, where {allowed:.4g} is allowed."
    return [faults.finding(faults.TOO_SENSITIVE, text, number=one.total, allowed=allowed, witness=one.describe())]


def _other_noise(bench: Bench, reading: Reading, row: Any, name: str) -> list[Finding]:
    """A row that is not finite, and that is left out, must leave the noise as it was: it may be in the divisor."""
    if reading.outside or reading.nonlinear or not reading.noise:
        return []
    ratios = batch_noise.ratios(bench, reading, with_row(bench, row), name)
    worst = max(ratios, key=lambda one: abs(one.size - 1.0), default=None)
    if worst is None or (abs(worst.number - 1.0) <= TOLERANCE and worst.other <= TOLERANCE):
        return []
    text = f"With a row that holds {name}, the same draws give ×{worst.size:.4g} the noise in {worst.name}."
    witness = f"{worst.name}; the batch with one row more, which holds {name}"
    return [faults.finding(faults.NOISE_DEPENDS, text, number=worst.size, allowed=1.0, witness=witness)]


def _fault(one: Tried) -> faults.Fault:
    return {"not finite": faults.NOT_FINITE, "left out": faults.LEFT_OUT}.get(one.shown, faults.FAILS)


def _of(failed: list[Tried]) -> list[Finding]:
    """One finding for each way in which a row breaks the step."""
    found: dict[str, Finding] = {}
    for one in failed:
        fault = _fault(one)
        if fault.name not in found:
            text = {
                "not finite": "One row makes the release not finite.",
                "left out": "One row makes the step leave out its update.",
            }.get(one.shown, f"One row makes the step fail: {one.shown}.")
            found[fault.name] = faults.finding(fault, text, witness=f"one row more: {one.describe()}")
    return list(found.values())
