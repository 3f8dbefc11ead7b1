"""The first steps one after the other: is the noise of each enough for what a row moves in it?

Noise that is added in every other step only, or that shrinks, and a clip norm that grows, show in no first step. In
each of the first steps the recorded draws are played again and compared with the first (see
:mod:`coalmine.probing.beside`), for rows that are new there and for rows that all earlier steps have seen: what a step
remembers of a row (its norm, its clip factor) may let it move a later sum further. Only rows and noise beside each
other count: a learning rate or a clip norm that is smaller in a later step makes both smaller. What changes after the
last of these steps is not seen; what other random draws decide is seen by :mod:`coalmine.probing.other_draws`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from coalmine.probing import beside, faults, rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, Tried, with_row

STEPS = 8
_ROWS = 4
_AGAIN, _ALL_AGAIN = 1, 6
"""Rows of the batch of which it is asked how far they move the sum again: others in each step, and after the first."""
_FAR = 10.0
"""Times its noise, a first step moves the model far away. Whatever noise may give, the next step must bound a row."""
CALLS = 4
"""Calls for each step, where batches are gathered first."""


@dataclasses.dataclass
class _Step:
    """One step: its noise beside that of the first, and the noise multiplier that it has for the worst row."""

    number: int
    noise: float
    multiplier: float
    row: Tried
    again: bool = False
    """Whether earlier steps have seen the row too."""


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
    steps += [] if stopped or bench.behind else _once_more(bench, reading, influence, sizes)
    sigma = bench.subject.noise_multiplier
    details = {"noise_multipliers": {one.number: one.multiplier for one in reversed(steps)}}
    short = [one for one in steps if one.multiplier < sigma * (1.0 - beside.SHORT)]
    first = _short_at_first(reading, influence, sizes, sigma)
    if short and not first:
        found = _finding(min(short, key=lambda one: one.multiplier), sigma)
        return Measurement(name="later steps", sentence=found.sentence, findings=(found,), details=details)
    last = max((one.number for one in steps), default=1)
    said = f"In steps 2 to {last} too, noise hides a row as well as promised." if last > 1 and not short else ""
    if said and bench.grows:
        said += " Rows that earlier steps have seen were tried too."
    blind = ""
    if stopped:
        blind = f"the step does not run as often as it was called: {stopped}; so it was not seen over several steps"
    because = "" if said or blind or not first else "noise or rows in the first step"
    return Measurement(
        name="later steps",
        sentence=said or f"Later steps were not compared with the first{', which is wrong itself' * bool(because)}.",
        blind=blind,
        details=details,
        because=because,
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
    noise = beside.noise_of_step(bench, reading, silent, sizes)
    if noise is None:
        return None
    ratios, each = noise
    new = _worst(reading, silent, each, [(one, with_row(bench, one.row)) for one in chosen], bench)
    first = _AGAIN * (number - 2)
    again = _worst(reading, silent, each, _left(bench, range(first, first + _AGAIN)), bench)
    worst, row = max((new, again), key=lambda one: one[0])
    return _Step(number, min(ratios), 1.0 / worst, row, again=worst > new[0]) if worst > 0.0 else None


def _left(bench: Bench, numbers: Sequence[int]) -> list[tuple[Tried, World]]:
    """Rows of the batch, counted round, each with the batch without it."""
    if not bench.grows:
        return []
    slots = list(dict.fromkeys(number % bench.count for number in numbers))
    nothing = np.zeros(0)
    return [
        (
            Tried(rows.take(bench.base, [slot]), nothing, nothing, 1.0),
            bench.world(keep=[one for one in range(bench.count) if one != slot]),
        )
        for slot in slots
    ]


def _worst(
    reading: Reading, silent: Observation, each: Sequence[float], tried: Sequence[tuple[Tried, World]], bench: Bench
) -> tuple[float, Tried]:
    """How far a row moves the step that comes now, in standard deviations of its noise, and the row that does most."""
    reach = [
        float(np.linalg.norm(np.array(beside.moves(reading, silent, bench.silent(world))) / np.array(each)))
        for _, world in tried
    ]
    return max(zip(reach, (one for one, _ in tried), strict=True), key=lambda one: one[0], default=(0.0, _nobody()))


def _nobody() -> Tried:
    return Tried(None, np.zeros(0), np.zeros(0), 1.0)


def _once_more(bench: Bench, reading: Reading, influence: Influence, sizes: dict[str, float]) -> list[_Step]:
    """The second step with rows that were in the first, after which the model is near or far."""
    if not bench.grows:
        return []
    moving = [one for one in influence.tried if one.total > 0.0 and one.size <= 1.0]
    least = min(moving, key=lambda one: one.total, default=influence.best)
    chosen = list({id(one): one for one in (least, influence.best)}.values())
    both = bench.world({slot: one.row for slot, one in enumerate(chosen)})
    found: list[_Step] = []
    for factor in (1.0, _FAR):
        bench.put_back()
        shown = bench.run(both.batch, bench.tape.scale(factor, slots=both.slots, force=bench.force), fresh=False)
        if not shown.whole(reading.plain):
            continue
        with bench.here():
            silent = bench.silent(reading.base)
            noise = beside.noise_of_step(bench, reading, silent, sizes) if silent.whole(reading.silent) else None
            if noise is not None:
                ratios, each = noise
                worlds = [(one, bench.world({slot: one.row})) for slot, one in enumerate(chosen)]
                worst, row = _worst(reading, silent, each, [*worlds, *_left(bench, range(_ALL_AGAIN))], bench)
                found += [_Step(2, min(ratios), 1.0 / worst, row, again=True)] if worst > 0.0 else []
    bench.put_back()
    return found


def _finding(worst: _Step, sigma: float) -> Finding:
    """Less noise than in the first step, or a row that moves more."""
    real = 0.0 if worst.multiplier < 1e-6 else worst.multiplier
    said = f"the noise multiplier of step {worst.number} is at most {real:.3g}, where {sigma:.3g} is promised"
    if worst.noise < 1.0 - beside.SHORT:
        fault = faults.NOISE_TOO_SMALL
        text = f"In step {worst.number} the same draws give ×{worst.noise:.3g} the noise of step 1: {said}."
    elif worst.again:
        fault = faults.TOO_SENSITIVE
        text = (
            f"In step {worst.number} a row that was in an earlier step too moves the sum further than it may: {said}. "
            "What the step keeps of a row decides how it is clipped when it comes again."
        )
    else:
        fault = faults.TOO_SENSITIVE
        text = f"In step {worst.number} one row moves the sum further than in step 1: {said}."
    more = "with a row that was in an earlier step too" if worst.again else "with one row more"
    witness = f"step {worst.number}, {more}: {worst.row.describe()}"
    return faults.finding(fault, text, number=real, allowed=sigma, witness=witness)
