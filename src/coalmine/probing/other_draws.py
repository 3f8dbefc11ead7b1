"""Random draws beside the noise, made anew: whatever they decide, rows are clipped and noise is added.

All else that is measured holds them as they were recorded, so that a row and its absence can be compared. But a draw
may decide whether a step clips, or adds noise at all. Here they are drawn anew many times, in the first step and in
those after it, with the noise of the first recording, and each time a row's influence and the noise are compared with
the first run. What the draws decide with probability p stays unseen in the first step with probability (1 − p)⁴⁴: for
p = 0.2 never, for p = 0.05 once in ten times.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

from coalmine.probing import beside, faults, later_steps, rows
from coalmine.probing.bench import SPARE, Bench, World
from coalmine.probing.beside import Seen
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, Tried, with_row
from coalmine.probing.vectors import distance

_TOSSES, _LATER = 44, 4
"""How often other draws are made anew: in the first step, and in each of those after it."""
_LEAST = 20
"""Runs in which a row moved the sum, or it was not tested what the draws decide."""
_ROWS = 4
_FORCED = (0.0, 1.0 - 1e-6)
"""What a row's own draws are set to where it was not sampled."""
_NAMED = 2
NAME = "other draws"


@dataclasses.dataclass
class _Runs:
    """What was seen in runs with other draws."""

    first: list[Seen]
    later: list[Seen]
    steps: int
    """The last step in which draws were made anew."""
    unclear: int = 0
    """Runs whose noise may have been drawn elsewhere, where it is known by its place only."""


def measure(
    bench: Bench, reading: Reading, influence: Influence, samples: Sequence[Sample], *, level: float, seed: int
) -> Measurement | None:
    """Rows and noise with other draws made anew; None where the step has no other draws."""
    sites = bench.tape.others()
    if not sites:
        return None
    named = _named(bench)
    tested = samples and influence.tried and reading.carriers
    if not tested or reading.outside or reading.nonlinear or reading.coarse:
        return _blind(
            f"the step draws other random numbers ({named}), which may decide whether rows are clipped and "
            "noise is added; they were not drawn anew, as the noise could not be measured"
        )
    stds = beside.sizes(reading, samples, level)
    with _tossing(bench):
        found = _walked(bench, reading, influence, stds, seed)
    finding = _finding(bench, reading, found, named)
    details = {"draws": [bench.tape.describe(one) for one in sites], "runs": len(found.first) + len(found.later)}
    if finding is not None:
        return Measurement(name=NAME, sentence=finding.sentence, findings=(finding,), details=details)
    if found.unclear or len(found.first) < _LEAST:
        return _blind(
            f"the step draws other random numbers ({named}), which may decide whether rows are clipped and noise is "
            f"added; made anew {_TOSSES} times, in {len(found.first)} a row could be compared with the noise"
        )
    steps = f" and in steps 2 to {found.steps}" if found.steps > 1 else ""
    return Measurement(
        name=NAME,
        sentence=f"The step draws other random numbers ({named}). Made anew {details['runs']} times in the first "
        f"step{steps}, they never changed that rows are clipped and hidden by noise.",
        details=details,
    )


def without_noise(bench: Bench, reading: Reading, noised: Measurement, *, seed: int) -> Measurement:
    """The noise of a step that had none, where other draws decide whether there is any: in words that say so."""
    missing = [one for one in noised.findings if one.fault == faults.NO_NOISE.name]
    if not missing or not bench.tape.others():
        return noised
    named, known = _named(bench), bench.tape.noise
    bench.tape.noise = None
    there = 0
    with _tossing(bench):
        for number in range(_TOSSES):
            _toss(bench, reading, number, seed)
            silent, once = bench.silent(reading.base), bench.scaled(reading.base, 1.0)
            there += any(
                one.name in silent and one.name in once and distance(once[one.name], silent[one.name]) > 0.0
                for one in reading.carriers
            )
    bench.tape.noise = known
    if not there:
        return noised
    found = dataclasses.replace(
        missing[0],
        sentence=f"In {_TOSSES - there} of {_TOSSES} runs with other random draws ({named}), nothing that the step "
        "releases carries noise.",
        witness="the same release whatever the noise, where these draws leave it out",
    )
    return dataclasses.replace(noised, sentence=found.sentence, findings=(found,))


@contextlib.contextmanager
def _tossing(bench: Bench) -> Iterator[None]:
    """Afterwards the first recording is there again, and the state."""
    try:
        yield
    finally:
        bench.tape.take_back()
        bench.put_back()


def _blind(why: str) -> Measurement:
    return Measurement(name=NAME, sentence="What other random draws decide was not tested.", blind=why)


def _named(bench: Bench) -> str:
    """The places that draw, for people."""
    names = list(dict.fromkeys(bench.tape.describe(one) for one in bench.tape.others()))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _toss(bench: Bench, reading: Reading, number: int, seed: int) -> None:
    """Record anew, with as many rows as the first recording had."""
    large = reading.base
    if bench.grows:
        large = bench.world({slot: rows.take(bench.base, [slot]) for slot in range(SPARE)})
    bench.toss(seed * 1_000_003 + number, large, fewer=reading.base if bench.grows else None)


def _walked(bench: Bench, reading: Reading, influence: Influence, stds: dict[str, float], seed: int) -> _Runs:
    """The first steps, in each of which other draws are made anew."""
    chosen = beside.telling(influence, _ROWS)
    known = set(bench.tape.normal_sites())
    found = _Runs([], [], 1)
    number, tossed = 1, 0
    bench.put_back()
    for call in range(later_steps.STEPS * (later_steps.CALLS if bench.behind else 1)):
        with bench.here():
            silent = bench.silent(reading.base) if call else None
            if silent is None or later_steps.releases(bench, reading, silent):
                number += bool(call)
                for _ in range(_LATER if call else _TOSSES):
                    _toss(bench, reading, tossed, seed)
                    seen = _compared(bench, reading, chosen[tossed % len(chosen)], stds)
                    tossed += 1
                    if seen is not None and bench.tape.noise is not None and seen.noise < 1.0 - beside.SHORT:
                        elsewhere = set(bench.tape.normal_sites()) - known
                        found.unclear += bool(elsewhere)
                        seen = None if elsewhere else seen
                    if seen is not None:
                        (found.later if call else found.first).append(seen)
                        found.steps = number
            del silent  # room for the next step
            bench.put_back(generators=False)
            goes_on = bench.run(reading.base.batch, contextlib.nullcontext(), fresh=False).whole(reading.plain)
        if number >= later_steps.STEPS or not goes_on:
            break
    return found


def _compared(bench: Bench, reading: Reading, row: Tried, stds: dict[str, float]) -> Seen | None:
    """The step with the draws that it has now; None where it cannot be compared."""
    silent, once = bench.silent(reading.base), bench.scaled(reading.base, 1.0)
    if not beside.runs(reading, silent, once):
        return None
    noise = [beside.noise_now(one, once, silent, stds.get(one.name)) for one in reading.carriers]
    world = with_row(bench, row.row)
    seen = beside.seen(bench, reading, noise, silent, world, row)
    if seen is None and bench.grows and not bench.force:
        seen = _forced(bench, reading, noise, silent, world, row)
    return seen


def _forced(
    bench: Bench, reading: Reading, noise: list[tuple[float, float]], silent: Observation, world: World, row: Tried
) -> Seen | None:
    """The same, with the row sampled for sure where the step samples its rows."""
    for value in _FORCED:
        bench.force = {bench.count: value}
        try:
            seen = beside.seen(bench, reading, noise, silent, world, row)
        finally:
            bench.force = {}
        if seen is not None:
            return seen
    return None


def _finding(bench: Bench, reading: Reading, found: _Runs, named: str) -> Finding | None:
    """Noise that other draws take away, or a row that they let through."""
    sigma, most = bench.subject.noise_multiplier, beside.limit(bench, reading)
    least = sigma * (1.0 - beside.SHORT)
    bad = [one for one in found.first if one.multiplier < least or beside.too_far(one, most)]
    bad += [one for one in found.later if one.multiplier < least]  # the unit may have changed since the first step
    if not bad:
        return None
    runs = f"In {len(bad)} of {len(found.first) + len(found.later)} runs with other random draws ({named})"
    worst = min(bad, key=lambda one: one.multiplier)
    real = 0.0 if worst.multiplier < 1e-6 else worst.multiplier
    left = f"the noise multiplier is at most {real:.3g}, where {sigma:.3g} is promised"
    witness = f"one row more: {worst.row.describe()}"
    if worst.noise < 1.0 - beside.SHORT:
        size = "no noise is added" if real == 0.0 else f"the same draws give ×{worst.noise:.3g} the noise of the first"
        return faults.finding(
            faults.NOISE_TOO_SMALL, f"{runs} {size}: {left}.", number=real, allowed=sigma, witness=witness
        )
    if most is None:
        return faults.finding(
            faults.TOO_SENSITIVE,
            f"{runs} one row moves the release further than in the first: {left}.",
            number=real,
            allowed=sigma,
            witness=witness,
        )
    worst = max(bad, key=lambda one: one.moved)
    allowed = bench.subject.allowed
    return faults.finding(
        faults.TOO_SENSITIVE,
        f"{runs} one row moves the sum too far, by up to {worst.moved:.4g}, where {allowed:.4g} is allowed: what they "
        "decide undoes the clipping.",
        number=worst.moved,
        allowed=allowed,
        witness=f"one row more: {worst.row.describe()}",
    )
