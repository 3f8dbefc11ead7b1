"""The first steps one after the other: is the noise of each enough for what a row moves in it?

Noise that is left out or shrinks in a later step, and a clip norm that grows, show in no first step. Each later state
is given the keys of the first, so that the same noise is drawn: with cₜ its size over that of the first step in tensor
t, sₜ the noise of the first step and Δₜ what a row moves now, the noise multiplier is 1/W, W² = Σₜ ‖Δₜ‖²/(cₜ·sₜ)². A
learning rate that is smaller in a later step makes both smaller. What changes after the last of these steps is not
seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import stats

from coalmine.integrations.jax.bench import Step
from coalmine.integrations.jax.reading import Reading, Tried, Vectors, one_of
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import SHARES, TOLERANCE, Sample

_SHORT = 0.02
"""Relative: what rounding may take from a noise multiplier."""
_HARDLY = 1e-9
"""The chance of so little noise in one tensor of one step."""
_ROWS = 24
NAME = "later steps"


@dataclasses.dataclass(frozen=True)
class _Step:
    """One step: its noise beside that of the first, and the noise multiplier that it has for the worst row."""

    number: int
    noise: float
    multiplier: float
    row: Tried


def measure(reading: Reading, samples: Sequence[Sample], walked: Sequence[Step], *, level: float) -> Measurement:
    """Noise and rows in the steps after the first."""
    tried = reading.telling(_ROWS)
    if not samples or not tried:
        return reading.unmeasured(NAME, "Noise and rows in later steps")
    share = level * SHARES["size"] / len(samples)
    stds = {one.name: one.upper_std(share) for one in samples}
    sigma = reading.bench.subject.noise_multiplier * (1.0 if reading.bench.grows else 0.5)
    first = 1.0 / max(float(np.linalg.norm([one.moves([n])[0] / stds[n] for n in stds])) for one in tried)
    steps = [
        one for number, step in enumerate(walked) if number for one in _compared(reading, step, tried, stds, number + 1)
    ]
    details = {"noise_multipliers": {one.number: one.multiplier for one in steps}}
    short = [one for one in steps if one.multiplier < sigma * (1.0 - _SHORT)]
    if short and first >= sigma * (1.0 - TOLERANCE):
        found = _finding(min(short, key=lambda one: one.multiplier), sigma)
        return Measurement(name=NAME, sentence=found.sentence, findings=(found,), details=details)
    said = "Later steps were not compared with the first, in which noise and rows are not as promised."
    if not short:
        last = max((one.number for one in steps), default=1)
        said = f"In steps 2 to {last} too, noise hides a row as well as promised."
        if last == 1:
            said = "The loop has keys for one step only: later ones were not measured."
    return Measurement(name=NAME, sentence=said, details=details)


def _compared(reading: Reading, step: Step, tried: Sequence[Tried], stds: dict[str, float], number: int) -> list[_Step]:
    """The step for the row that moves most in it; nothing where no row moves anything."""
    bench = reading.bench
    state = bench.with_first_keys(step.state)
    both = (reading.quiet, reading.loud)
    shown = bench.run([reading.base] * 2, [one for one, _ in both], [one for _, one in both], state=state)
    quiet, loud = one_of(shown, 0), one_of(shown, 1)
    sizes = [_noise(reading, name, quiet, loud, std) for name, std in stds.items()]
    count = len(tried)
    key, factor = reading.quiet
    larger = bench.run([bench.batch(one.row) for one in tried], [key] * count, [factor] * count, state=state)
    reach = np.zeros(count)
    for name, (_, size) in zip(stds, sizes, strict=True):
        moved = np.linalg.norm(larger[name] - quiet[name], axis=1) - 8.0 * reading.rounding(name, quiet[name])
        reach += np.square(np.maximum(np.nan_to_num(moved), 0.0) / size)
    worst = int(reach.argmax())
    if reach[worst] == 0.0:
        return []
    return [_Step(number, min(ratio for ratio, _ in sizes), 1.0 / float(np.sqrt(reach[worst])), tried[worst])]


def _noise(reading: Reading, name: str, quiet: Vectors, loud: Vectors, std: float) -> tuple[float, float]:
    """The noise of a carrier over that of the first step, and its standard deviation."""
    now, then = loud[name] - quiet[name], reading.noise[name]
    floor = 8.0 * reading.rounding(name, loud[name])
    size = float(then @ then)
    ratio = abs(float(now @ then)) / size
    if (
        min(float(np.linalg.norm(now - sign * ratio * then)) for sign in (1.0, -1.0))
        <= TOLERANCE * np.sqrt(size) + floor
    ):
        return ratio, max(ratio, 1e-12) * std
    # Other draws than in the first step: their standard deviation is hardly ever more than this.
    other = float(np.linalg.norm(now)) / np.sqrt(2.0 if reading.outside else 1.0)
    most = other / float(np.sqrt(stats.chi2.ppf(_HARDLY, now.size)))
    return most / std, max(most, 1e-12 * std)


def _finding(worst: _Step, sigma: float) -> Finding:
    """Less noise than in the first step, or a row that moves more."""
    real = 0.0 if worst.multiplier < 1e-6 else worst.multiplier
    said = f"the noise multiplier of step {worst.number} is at most {real:.3g}, where {sigma:.3g} is promised"
    if worst.noise < 1.0 - _SHORT:
        fault = faults.NOISE_TOO_SMALL
        text = f"In step {worst.number} the same draws give ×{worst.noise:.3g} the noise of step 1: {said}."
    else:
        fault = faults.TOO_SENSITIVE
        text = f"In step {worst.number} one row moves the sum further than in step 1: {said}."
    witness = f"step {worst.number}, with one row more: {rows.describe(worst.row.row)}"
    return faults.finding(fault, text, number=real, allowed=sigma, witness=witness)
