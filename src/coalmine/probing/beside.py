"""A run beside the first one: how large is its noise, and is that enough for what a row moves in it?

Where the draws of the noise are those of the first run, what they add now over what they added then gives its size
without any chance. With cₜ that ratio in tensor t, sₜ the noise of the first run and Δₜ what a row moves now, the noise
multiplier is 1/W, W² = Σₜ ‖Δₜ‖²/(cₜ·sₜ)².
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

from coalmine.probing.additivity import carrier_error
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Carrier, Reading, rounding
from coalmine.probing.noise import SHARES, Sample
from coalmine.probing.release import Observation
from coalmine.probing.resolution import with_rounding
from coalmine.probing.search import Influence, Tried
from coalmine.probing.vectors import distance, inner, residual

SHORT = 0.02
"""Relative: what rounding may take from a noise multiplier."""
ROUNDINGS = 8.0
_HARDLY = 1e-9
"""The chance of so little noise in one tensor of one run."""
_CLIPPED = 0.9
"""Of the largest influence: rows that come this close are clipped, so that they show where nothing is."""


@dataclasses.dataclass(eq=False)
class Seen:
    """What one run showed with a row more."""

    noise: float
    """The smallest ratio of its noise to that of the first run, over the tensors that the row moves."""
    moved: float
    """How far the row moves all carriers together."""
    multiplier: float
    row: Tried


def sizes(reading: Reading, samples: Sequence[Sample], level: float) -> dict[str, float]:
    """The noise of the first run in each carrier that has any, in units of the sum, as large as it may be."""
    by_name = {one.name: one.upper_std(level * SHARES["size"] / len(samples)) for one in samples}
    return {one.name: by_name[one.name] / (one.scale or 1.0) for one in reading.carriers if one.name in by_name}


def noise_now(one: Carrier, once: Observation, silent: Observation, size: float | None) -> tuple[float, float]:
    """The noise of a carrier over that of the first run, and its standard deviation in units of the sum.

    Args:
        one: the carrier, as it was in the first run.
        once: this run.
        silent: this run without noise.
        size: the standard deviation in the first run; None where it had none.
    """
    noise, response = (once[one.name], silent[one.name]), one.response
    if size is not None and response > 0.0:
        ratio = abs(inner(*noise, one.plain, one.silent)) / response**2
        error = ROUNDINGS * rounding(once[one.name])
        if residual(*noise, one.plain, one.silent, ratio) <= TOLERANCE * response + error:
            return ratio, max(ratio, 1e-12) * size
    # Other draws than in the first run: their standard deviation is hardly ever more than this.
    std = distance(*noise) / math.sqrt(stats.chi2.ppf(_HARDLY, one.numbers)) / (one.scale or 1.0)
    usual = size or std or 1.0
    return std / usual, max(std, 1e-12 * usual)


def noise_of_step(
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
        error = ROUNDINGS * rounding(once[one.name])
        if residual(twice[one.name], silent[one.name], *noise, 2.0) > TOLERANCE * one.response + error:
            return None
        ratio, std = noise_now(one, once, silent, sizes[one.name])
        ratios.append(ratio)
        each.append(std)
    return ratios, each


def moves(reading: Reading, silent: Observation, shown: Observation) -> list[float]:
    """How far a row moves each carrier, beyond rounding; not at all where the step does not run with it."""
    if not shown.whole(silent) or any(one.name not in shown for one in reading.carriers):
        return [0.0] * len(reading.carriers)
    return [
        max(distance(shown[c.name], silent[c.name]) - ROUNDINGS * rounding(shown[c.name]), 0.0) / (c.scale or 1.0)
        for c in reading.carriers
    ]


def runs(reading: Reading, *shown: Observation) -> bool:
    """Whether these runs can be compared with the first."""
    return all(run.whole(reading.plain) and all(one.name in run for one in reading.carriers) for run in shown)


def seen(
    bench: Bench, reading: Reading, noise: Sequence[tuple[float, float]], silent: Observation, world: World, row: Tried
) -> Seen | None:
    """A world with a row more beside the same one without it; None where the row moves nothing.

    Args:
        bench: the step.
        reading: its carriers.
        noise: what :func:`noise_now` says of each carrier.
        silent: the batch alone, without noise.
        world: the batch with the row.
        row: the row.
    """
    moved = moves(reading, silent, bench.silent(world))
    reach = float(np.linalg.norm([one / std for one, (_, std) in zip(moved, noise, strict=True)]))
    if reach == 0.0:
        return None
    ratios = [ratio for one, (ratio, _) in zip(moved, noise, strict=True) if one > 0.0]
    return Seen(min(ratios), float(np.linalg.norm(moved)), 1.0 / reach, row)


def limit(bench: Bench, reading: Reading) -> float | None:
    """How far a row may move the sum, with what rounding adds; None where the unit of the sum is not known."""
    if not reading.absolute:
        return None
    numbers = sum(one.numbers for one in reading.carriers)
    return with_rounding(bench.allowed * (1.0 + TOLERANCE), carrier_error(reading.silent, reading), numbers)


def too_far(one: Seen, most: float | None) -> bool:
    """Whether a row moves the sum further than allowed, where the unit is that of the first run: so the noise says."""
    return most is not None and one.moved > most and abs(one.noise - 1.0) <= SHORT


def telling(influence: Influence, count: int) -> list[Tried]:
    """Rows that show where nothing is clipped: of those that move the sum most, the largest, and the very best."""
    best = influence.best
    far = [one for one in influence.tried if one.total >= _CLIPPED * best.total]
    ranked = sorted(far, key=lambda one: -one.size)[: count - 1]
    return list({id(one): one for one in (*ranked, best)}.values())
