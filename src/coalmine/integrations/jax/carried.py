"""What a step keeps beside what it released: rows (raw momentum, batches that share one noise), or its noise.

After a step, everything that was released is set to what it would be without a row. Only what nobody outside sees still
knows the row, and of that only what does not follow from the release: a kept tensor with the noise and the rows of a
released one, times a constant, does. If later steps, with the same keys, still show a difference, it was carried over.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.bench import numbers
from coalmine.integrations.jax.reading import Reading, Tried
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import TOLERANCE

_FROM, _AFTER = 3, 2
"""Steps whose row is looked for, and steps after each in which it is."""
_CARRIED = 0.02
NAME = "carried over"


def measure(reading: Reading) -> Measurement | None:
    """A row, or the noise, of one step in the releases of the next ones; None where nothing is kept."""
    bench, best = reading.bench, reading.best
    if not bench.kept or best is None:
        return None
    state = bench.subject.state
    for step in range(min(_FROM, bench.steps - 1)):
        for known in _known(reading, best, state, step):
            without, with_it = known.without, known.with_it
            for later in range(step + 1, min(step + 1 + _AFTER, bench.steps)):
                share, without, with_it = _shows(reading, without, with_it, later)
                if share > _CARRIED:
                    found = _finding(known, best, share, step + 1, later + 1)
                    return Measurement(name=NAME, sentence=found.sentence, findings=(found,))
        outputs = bench.outputs([reading.base], [0], [1.0], state=state, step=step)
        state = bench.next_state([one[0] for one in outputs])
    said = "What is kept knows rows and noise only through what was released, or never shows them."
    return Measurement(name=NAME, sentence=said, details={"kept": [name for _, name in bench.kept]})


@dataclasses.dataclass(frozen=True)
class _Known:
    """Two states after a step that differ in what is kept alone: by a row, or by the noise; and what is kept."""

    names: list[str]
    without: Any
    with_it: Any
    noise: bool


def _known(reading: Reading, one: Tried, state: Any, step: int) -> list[_Known]:
    """What a step keeps that does not follow from its release."""
    bench = reading.bench
    given = [reading.quiet, reading.loud, (reading.quiet[0], 2.0), (0, 1.0)]
    keys, factors = [number for number, _ in given], [factor for _, factor in given]
    without = bench.outputs([reading.base] * 4, keys, factors, state=state, step=step)
    with_it = bench.outputs([bench.batch(one.row)] * 4, keys, factors, state=state, step=step)
    pairs = _released(reading, without, with_it)
    by_row, by_noise = [], []
    for place, name in bench.kept:
        before, after = numbers(without[place]), numbers(with_it[place])
        moved, noise = after[0] - before[0], before[1] - before[0]
        least = 1e-6 * float(np.linalg.norm(before[0]))
        follows = any(_multiple(noise, moved, *pair) for pair in pairs) or not _proportional(reading, before)
        if float(np.linalg.norm(moved)) > least and not follows:
            by_row.append((place, name))
        elif float(np.linalg.norm(noise)) > least and not follows and without[place].dtype.kind == "f":
            by_noise.append((place, name))
    found = []
    for kept, other, noise_alone in ((by_row, with_it, False), (by_noise, without, True)):
        changed = [value[3] for value in without]
        for place, _ in kept:
            changed[place] = other[place][2 if noise_alone else 3]
        if kept:
            after_a = bench.next_state([value[3] for value in without])
            found.append(_Known([name for _, name in kept], after_a, bench.next_state(changed), noise_alone))
    return found


def _released(
    reading: Reading, without: list[NDArray[Any]], with_it: list[NDArray[Any]]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Noise and row in each tensor that is released, and in all carriers one after the other."""
    shown, more = reading.bench.shown(without), reading.bench.shown(with_it)
    pairs = {name: (shown[name][1] - shown[name][0], more[name][0] - shown[name][0]) for name in shown}
    whole = tuple(np.concatenate([pairs[name][side] for name in reading.carriers]) for side in (0, 1))
    return [*pairs.values(), (whole[0], whole[1])]


def _multiple(
    noise: NDArray[np.float64], moved: NDArray[np.float64], other: NDArray[np.float64], by: NDArray[np.float64]
) -> bool:
    """Whether noise and row are those of another tensor, times one constant."""
    if noise.shape != other.shape or not other.any() or not noise.any():
        return False
    factor = float(noise @ other / (other @ other))
    return all(
        float(np.linalg.norm(a - factor * b)) <= 0.01 * float(np.linalg.norm(a))
        for a, b in ((noise, other), (moved, by))
    )


def _proportional(reading: Reading, shown: NDArray[np.float64]) -> bool:
    """Whether noise enters in proportion, or not at all: what is computed from released numbers by a curve does not."""
    if reading.outside:
        return not np.any(shown[1] - shown[0])
    once, twice = shown[1] - shown[0], shown[2] - shown[0]
    floor = 1e-6 * float(np.linalg.norm(shown[2]))
    return float(np.linalg.norm(twice - 2.0 * once)) <= TOLERANCE * float(np.linalg.norm(once)) + floor


def _shows(reading: Reading, without: Any, with_it: Any, step: int) -> tuple[float, Any, Any]:
    """How far the release of a step differs between two states, over the largest influence; and the states after it."""
    bench, (number, factor) = reading.bench, reading.quiet
    sides = []
    for state in (without, with_it):
        given = {"state": state, "step": step}
        outputs = bench.outputs([reading.base] * 2, [number, 0], [factor, 1.0], **given)
        sides.append((outputs, bench.shown(outputs)))
    (first, a), (second, b) = sides
    apart = [np.linalg.norm(b[name][0] - a[name][0]) for name in reading.carriers]
    floor = reading.floor(16.0)
    share = max(float(np.linalg.norm(apart)) - floor, 0.0) / (reading.largest * reading.scale)
    after = bench.next_state([one[1] for one in first])
    mixed = jax.tree.leaves(bench.next_state([one[1] for one in second]))
    leaves, shape = jax.tree.flatten(after)
    hidden = {place for place, _ in bench.kept}
    both = [mixed[place] if place in hidden else leaves[place] for place in range(len(leaves))]
    return share, after, jax.tree.unflatten(shape, both)


def _finding(known: _Known, one: Tried, share: float, step: int, later: int) -> Finding:
    names = ", ".join(known.names)
    if known.noise:
        text = (
            f"The noise of step {step} comes again in the release of step {later} by way of {known.names[0]}: noise "
            "that goes together over steps needs an accounting of its own."
        )
        witness = f"{names}; steps {step} and {later}"
        return faults.finding(faults.SAME_NOISE, text, number=share, allowed=0.0, witness=witness)
    return faults.finding(
        faults.CARRIED_OVER,
        f"A row of step {step} moves the release of step {later} by way of {known.names[0]}, {share:.3g} times as far "
        "as a row moves its own, although all that was released is the same.",
        number=share,
        allowed=0.0,
        witness=f"{names}; step {step}, with one row more: {rows.describe(one.row)}",
    )
