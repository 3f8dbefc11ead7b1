"""The largest influence of one row on what shows the noise, and the fault behind one that is too large."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from coalmine.integrations.jax import padding
from coalmine.integrations.jax.reading import Reading, Tried
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import SHARES, TOLERANCE, Sample
from coalmine.records import Relation

_REACHED = 0.9
"""Of the clip norm: rows that come this close show that they are clipped."""
_DIFFERENT, _SMALLEST = 1.2, 0.8
"""How much the noises of tensors differ, at least, to be weighed, and the least that the smallest of them may be."""
NAME = "sensitivity"


def effective(reading: Reading, samples: Sequence[Sample], level: float | None) -> float | None:
    """The noise multiplier 1/W of the worst row, W² = Σ ‖Δ‖²/s²; with a level, s is an upper limit for the noise.

    Replacing a row moves twice as far as adding one may, so where rows are only replaced it is 2/W.
    """
    if not samples or not reading.finite:
        return None
    share = 0.0 if level is None else level * SHARES["size"] / len(samples)
    stds = np.array([one.upper_std(share) if share else one.std for one in samples])
    worst = max(float(np.linalg.norm(one.moves(reading.carriers) / stds)) for one in reading.finite)
    return (1.0 if reading.bench.grows else 2.0) / worst if worst > 0.0 else None


def _weighed(reading: Reading, samples: Sequence[Sample], level: float) -> tuple[float, bool]:
    """How far a row moves the sum; where noises differ, each tensor counts in units in which its own is as promised.

    W·σ·C of :func:`effective`: what noise larger than promised hides in one tensor is no larger influence. Only where
    no tensor has too little noise, and the size of each is an upper limit at its share of the level.
    """
    wanted = reading.bench.subject.noise * reading.scale
    ratios = np.array([one.std for one in samples]) / wanted
    if len(samples) < 2 or ratios.max() < _DIFFERENT * ratios.min() or not _SMALLEST <= ratios.min() <= _DIFFERENT:
        return reading.largest, False
    share = level * SHARES["size"] / len(samples)
    units = np.array([max(one.upper_std(share), wanted) for one in samples]) / wanted
    names = [one.name for one in samples]
    return max(float(np.linalg.norm(one.moves(names) / units)) for one in reading.finite) / reading.scale, True


def measure(reading: Reading, samples: Sequence[Sample], known: Sequence[Finding], *, level: float) -> Measurement:
    """How far one row moves the sum, or the release beside its noise.

    Args:
        reading: the rows that were tried.
        samples: the noise.
        known: what rows do to each other, which may be the cause.
        level: of the whole probe.
    """
    subject, best = reading.bench.subject, reading.best
    if best is None:
        blind = "no row that was tried moves the release; hand over a batch whose rows do"
        if not reading.carriers:
            blind = f"{reading.no_carrier}, so there is nothing to hold a row against"
        return Measurement(name=NAME, sentence="The influence of a row was not measured.", blind=blind)
    real = effective(reading, samples, level)
    largest, allowed = reading.largest, reading.allowed
    details: dict[str, Any] = {"rows_tried": len(reading.tried), "effective_noise_multiplier": real}
    weighed = False
    if reading.absolute:
        largest, weighed = _weighed(reading, samples, level)
        details |= {"largest": largest, "allowed": allowed, "unit": "of the sum of clipped gradients"}
        if largest > allowed * (1.0 + TOLERANCE) + reading.floor(4.0) / reading.scale:
            said = f"One row moves the sum by {largest:.4g}, where {allowed:.4g} is allowed"
            said += _not_empty(reading)
            found = _named(reading, best, said, largest, allowed, known, bound=subject.clip_norm * reading.scale)
            return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
        clip = min(subject.clip_norm, allowed)
        reach = reading.largest / (clip if largest <= clip * (1.0 + TOLERANCE) or not reading.bench.grows else allowed)
    else:
        if real is None:
            return Measurement(
                name=NAME, sentence="There is no noise to compare a row with.", blind="hand over the divisor",
                details=details,
            )  # fmt: skip
        if real < subject.noise_multiplier * (1.0 - TOLERANCE):
            ratio = subject.noise_multiplier / real
            said = f"Beside its noise, one row moves the release {ratio:.3g} times as far as allowed"
            bound = min(one.std for one in samples) / subject.noise_multiplier
            found = _named(reading, best, said, ratio, 1.0, known, bound=bound)
            found = dataclasses.replace(found, level=level * SHARES["size"])
            return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
        reach = subject.noise_multiplier / (effective(reading, samples, None) or real)
    blind = ""
    if reach < _REACHED:
        blind = f"rows reach {reach:.2g} of what the noise would hide: hand over divisor and learning rate"
        if reading.absolute or real is None:
            blind = f"no row came closer to the clip norm than {reach:.2g} of it, so clipping was never needed"
    sentence = f"The step really has a noise multiplier of at most {real:.3g}." if real is not None else ""
    adding = reading.bench.grows or subject.relation is Relation.REPLACE
    if not adding:
        blind = blind or _ONLY_REPLACED
        sentence = ""
    if reading.absolute:
        what = "The largest influence of one row" if reading.bench.grows else "The most that replacing one row moves"
        units = ", each tensor in units of its own noise" if weighed else ""
        sentence = f"{what} is {largest:.4g}, where {allowed:.4g} is allowed{units}. {sentence}"
    return Measurement(name=NAME, sentence=sentence.strip(), blind=blind, details=details)


_ONLY_REPLACED = (
    "the step runs with one number of rows alone, so that rows were replaced, which moves the sum up to twice as far "
    "as adding one: whether adding one keeps to the clip norm was not seen; hand over `empty`, as many rows as in "
    "`batch`, all padding, so that rows can be added in its place"
)


def _not_empty(reading: Reading) -> str:
    """That padding counts as rows, where it does and the step shows it."""
    bench = reading.bench
    moved = 0.0
    if bench.padding is not None:
        moved = padding.contributes(bench, reading.carriers, reading.quiet) / reading.scale
    if moved <= 0.02 * reading.allowed:
        return ""
    return (
        f"; a row of `empty` itself moves it by {moved:.3g}, so `empty` is not all padding, or the step does not leave "
        "padding out"
    )


def _named(
    reading: Reading, best: Tried, said: str, number: float, limit: float, known: Sequence[Finding], *, bound: float
) -> Finding:
    """The fault behind an influence that is too large."""
    witness = rows.describe(best.row)
    causes = [one for one in known if one.fault in (faults.INTERACT.name, faults.DIVISOR.name)]
    if causes and number < 2.5 * limit:
        cause = faults.by_name(causes[0].fault) or faults.TOO_SENSITIVE
        return faults.finding(cause, f"{said}.", number=number, allowed=limit, witness=witness)
    grown = _growth(reading, best)
    if grown is not None:
        text = f"A row ten times as large moves the release {grown:.3g} times as far: nothing bounds it."
        return faults.finding(faults.NO_CLIPPING, text, number=number, allowed=limit, witness=witness)
    layers = _clipped_layers(reading, bound)
    if layers > 1:
        text = f"{said}: {layers} layers are each clipped to it by themselves."
        return faults.finding(faults.PER_LAYER, text, number=number, allowed=limit, witness=witness)
    totals = np.array([one.far(reading.carriers) for one in reading.finite])
    plateau = bool(np.mean(totals > 0.99 * totals.max()) >= 0.1)
    if number > 2.5 * limit and not plateau:
        text = f"{said}, and no two rows reach the same bound."
        return faults.finding(faults.NO_CLIPPING, text, number=number, allowed=limit, witness=witness)
    if not reading.absolute and plateau:
        return faults.finding(faults.NOISE_TOO_SMALL, f"{said}.", number=1.0 / number, allowed=1.0, witness=witness)
    return faults.finding(faults.TOO_SENSITIVE, f"{said}.", number=number, allowed=limit, witness=witness)


def _growth(reading: Reading, best: Tried) -> float | None:
    """How much more a row moves when its features are ten times as large; None where it is bounded."""
    if reading.bench.subject.bounds is not None:
        return None
    larger = reading.grown(best, 10.0)
    ratio = larger.far(reading.carriers) / best.far(reading.carriers) if larger.finite else float("inf")
    return ratio if ratio > 3.0 else None


def _clipped_layers(reading: Reading, bound: float) -> int:
    """How many tensors one row brings to the bound at once, while no row brings any beyond it."""
    moves = np.array([one.moves(reading.carriers) for one in reading.finite])
    slack = 0.03 * bound
    at_once = int(np.sum(np.abs(moves - bound) <= slack, axis=1).max())
    return at_once if moves.max() <= bound + slack else 1
