"""The first steps one after the other: is the noise of each enough for what a row moves in it?

Noise that is added in every other step only, or that shrinks, and a clip norm that grows, show in no first step. In
each of the first steps the recorded draws are played again and compared with the first (see
:mod:`coalmine.probing.beside`). Only rows and noise beside each other count: a learning rate or a clip norm that is
smaller in a later step makes both smaller. What changes after the last of these steps is not seen; what other random
draws decide is seen by :mod:`coalmine.probing.other_draws`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from coalmine.probing import beside, faults
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import TOLERANCE, Reading, rounding
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, Tried, with_row
from coalmine.probing.vectors import residual

STEPS = 8
_ROWS = 4
CALLS = 4
"""Calls for each step, where batches are gathered first."""


@dataclasses.dataclass
class _Step:
    """One step: its noise beside that of the first, and the noise multiplier that it has for the worst row."""

    number: int
    noise: float
    multiplier: float
    row: Tried


def measure(
    bench: Bench, reading: Reading, influence: Influence, samples: Sequence[Sample], *, level: float
) -> Measurement | None:
    """Noise and rows in the first steps; None where they cannot be compared even in one."""
    if not samples or reading.outside or reading.nonlinear or reading.coarse or not influence.tried:
        return None
    sizes = beside.sizes(reading, samples, level)
    if len(sizes) < len(reading.carriers):
        return None
    steps, stopped = _walked(bench, reading, influence, sizes)
    sigma = bench.subject.noise_multiplier
    details = {"noise_multipliers": {one.number: one.multiplier for one in steps}}
    short = [one for one in steps if one.multiplier < sigma * (1.0 - beside.SHORT)]
    first = _short_at_first(reading, influence, sizes, sigma)
    if short and not first:
        found = _finding(min(short, key=lambda one: one.multiplier), sigma)
        return Measurement(name="later steps", sentence=found.sentence, findings=(found,), details=details)
    last = max((one.number for one in steps), default=1)
    said = f"In steps 2 to {last} too, noise hides a row as well as promised." if last > 1 and not short else ""
    blind = ""
    if stopped:
        blind = f"the step does not run as often as it was called: {stopped}; so it was not seen over several steps"
    return Measurement(
        name="later steps",
        sentence=said or "Later steps were not compared with the first.",
        blind=blind,
        details=details,
    )


def _short_at_first(reading: Reading, influence: Influence, sizes: dict[str, float], sigma: float) -> bool:
    """Whether the first step itself has too little noise for its rows: then later ones say nothing new."""
    stds = np.array([sizes[one.name] for one in reading.carriers])
    worst = max(float(np.linalg.norm(one.moves / stds)) for one in influence.everywhere.tried)
    return worst * sigma * (1.0 - TOLERANCE) > 1.0


def _walked(bench: Bench, reading: Reading, influence: Influence, sizes: dict[str, float]) -> tuple[list[_Step], str]:
    """The steps after the first that release something and in which noise enters in proportion.

    Also the error that ended them before their time; empty where none did.
    """
    stopped = ""
    ranked = sorted(influence.tried, key=lambda one: -one.total)
    chosen = list(
        {id(one): one for one in (*ranked[: _ROWS - 1], *influence.witnesses(len(reading.carriers)))}.values()
    )
    found: list[_Step] = []
    bench.put_back()
    number = 1
    for call in range(STEPS * (CALLS if bench.behind else 1)):
        with bench.here():
            if call:
                silent = bench.silent(reading.base)
                if releases(bench, reading, silent):
                    number += 1
                    one = _compared(bench, reading, silent, chosen[:_ROWS], sizes, number)
                    if one is not None:
                        found.append(one)
                del silent  # room for the next step
            bench.put_back(generators=False)
            play = bench.tape.renew(slots=reading.base.slots, force=bench.force)
            shown = bench.run(reading.base.batch, play, fresh=False)
            goes_on, stopped = shown.whole(reading.plain), shown.error
            del shown
        if number >= STEPS or not goes_on:
            break
    bench.put_back()
    return found, stopped


def releases(bench: Bench, reading: Reading, silent: Observation) -> bool:
    """Whether this call releases the sum, or only gathers a batch."""
    if not silent.whole(reading.silent) or any(one.name not in silent for one in reading.carriers):
        return False
    if any(one.door for one in reading.carriers):
        return True
    before = bench.now()
    return any(name in before and bool((before[name] != silent[name]).any()) for name in _names(reading))


def _names(reading: Reading) -> list[str]:
    return [one.name for one in reading.carriers]


def _compared(
    bench: Bench,
    reading: Reading,
    silent: Observation,
    chosen: Sequence[Tried],
    sizes: dict[str, float],
    number: int,
) -> _Step | None:
    """The noise of the step that comes now, for the row that moves most in it; None where it is not comparable."""
    noise = _noise(bench, reading, silent, sizes)
    if noise is None:
        return None
    ratios, each = noise
    worst, row = 0.0, chosen[0]
    for tried in chosen:
        moved = beside.moves(reading, silent, bench.silent(with_row(bench, tried.row)))
        reach = float(np.linalg.norm(np.array(moved) / np.array(each)))
        if reach > worst:
            worst, row = reach, tried
    return _Step(number, min(ratios), 1.0 / worst, row) if worst > 0.0 else None


def _noise(
    bench: Bench, reading: Reading, silent: Observation, sizes: dict[str, float]
) -> tuple[list[float], list[float]] | None:
    """For each carrier, its noise now over that of the first step, and its standard deviation in units of the sum."""
    once, twice = bench.scaled(reading.base, 1.0), bench.scaled(reading.base, 2.0)
    ratios: list[float] = []
    each: list[float] = []
    for one in reading.carriers:
        if one.name not in once or one.name not in twice or not one.response:
            return None
        noise = once[one.name], silent[one.name]
        error = beside.ROUNDINGS * rounding(once[one.name])
        if residual(twice[one.name], silent[one.name], *noise, 2.0) > TOLERANCE * one.response + error:
            return None
        ratio, std = beside.noise_now(one, once, silent, sizes[one.name])
        ratios.append(ratio)
        each.append(std)
    return ratios, each


def _finding(worst: _Step, sigma: float) -> Finding:
    """Less noise than in the first step, or a row that moves more."""
    real = 0.0 if worst.multiplier < 1e-6 else worst.multiplier
    said = f"the noise multiplier of step {worst.number} is at most {real:.3g}, where {sigma:.3g} is promised"
    if worst.noise < 1.0 - beside.SHORT:
        fault = faults.NOISE_TOO_SMALL
        text = f"In step {worst.number} the same draws give ×{worst.noise:.3g} the noise of step 1: {said}."
    else:
        fault = faults.TOO_SENSITIVE
        text = f"In step {worst.number} one row moves the sum further than in step 1: {said}."
    witness = f"step {worst.number}, with one row more: {worst.row.describe()}"
    return faults.finding(fault, text, number=real, allowed=sigma, witness=witness)
