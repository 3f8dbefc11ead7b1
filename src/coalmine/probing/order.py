"""Noise that does not enter the release in proportion: was it clipped with the rows, or only changed after the sum?

What comes after the noised sum is harmless, clipping it once more too. Two things tell that the rows were not clipped
before the noise:

- a larger row leaves less room for the noise, although clipped rows beyond the clip norm are all alike;
- noise, however large, ends at the bound where single rows end, and without noise two rows of that bound do not add up
  to the direction between them: the one with the larger raw gradient wins, which clipping would have taken from it.
"""

from __future__ import annotations

import collections
import itertools
import math
from typing import Any

import numpy as np
import torch

from coalmine.probing import faults, noise, rows
from coalmine.probing.additivity import carrier_offset, carrier_vector
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.search import Influence, scaled, with_row
from coalmine.probing.vectors import distance

_SINGLE_ROWS, _PAIRS = 16, 8
_LESS_ROOM = 3.0
"""How much noise a row must push out: one that is clipped turns the sum, but is never much of it."""
_STILL, _LITTLE = 0.5, 1e-3
"""Noise so small, without any row, that ends at half the bound: the release has one length, whatever is in it."""
_ASIDE = 0.02
"""The sine of an angle that rounding does not explain."""


def measure(bench: Bench, reading: Reading, influence: Influence) -> Measurement:
    """Tell clipping after the noise from what may come after it."""
    parts = _parts(bench) if reading.for_each_row else 0
    if parts:
        found: Finding | None = faults.finding(
            faults.NOISE_DEPENDS,
            f"Noise is drawn {parts} times for {bench.count} rows, once for each part of the batch, and later parts "
            "see what earlier ones did: how much noise there is follows the number of rows.",
            number=float(parts),
            allowed=1.0,
            witness=reading.nonlinear[0],
        )
    elif reading.for_each_row:
        found = faults.finding(
            faults.NOISE_BEFORE_CLIPPING,
            "Noise is drawn for each row and does not enter the sum in proportion: it is clipped with the rows.",
            witness=reading.nonlinear[0],
        )
    elif _ends_by_number(bench, reading):
        found = None
    else:
        found = _less_room(bench, reading, influence) or _at_the_bound(bench, reading, influence)
    if found is not None:
        return Measurement(name="sensitivity", sentence=found.sentence, findings=(found,))
    return Measurement(
        name="sensitivity",
        sentence="Noise does not enter in proportion.",
        blind=noise.NOT_THE_SUM.format(name=reading.nonlinear[0].removeprefix("gradient of "))
        + ("" if reading.silent.gradients else "; hand over the optimizer as state, where there is one"),
    )


def _parts(bench: Bench) -> int:
    """How often the noise of all tensors is drawn for the batch: more than once, but not for each row; else 0."""
    drawn = [(site, tuple(bench.tape.draw((site, number)).value.shape)) for site, number in bench.tape.noise_keys()]
    parts = math.gcd(*collections.Counter(drawn).values())
    by_row = any(shape and shape[0] == bench.count for _, shape in drawn)
    return parts if 1 < parts < bench.count and not by_row else 0


def _ends_by_number(bench: Bench, reading: Reading) -> bool:
    """Whether much noise brings most numbers to one size: a sign or a limit for each of them, after the noise.

    Then neither test says anything: both are about a bound on the norm of all numbers together.
    """
    far = bench.scaled(reading.base, 100.0)
    if far.error or any(one.name not in far for one in reading.carriers):
        return False
    sizes = (carrier_vector(far, reading) - carrier_offset(bench, reading)).abs()
    ended = sizes >= (1.0 - TOLERANCE) * sizes.max()
    return int(ended.sum()) > max(1, len(sizes) // 2)


def times(row: Any, factor: float) -> Any:
    """The row with its features times a factor."""
    return rows.changed(row, scaled(rows.numbers(row), factor))


def _less_room(bench: Bench, reading: Reading, influence: Influence) -> Finding | None:
    """The noise that is left beside a row, and beside the same row ten and a thousand times as large."""
    usual = [one for one in influence.tried if one.size <= 100.0]
    best = max(usual, key=lambda one: one.total, default=influence.best)
    sizes = []
    for factor in (1.0, 10.0, 1e3):
        world = with_row(bench, times(best.row, factor))
        plain, silent = bench.scaled(world, 1.0), bench.silent(world)
        if plain.whole(reading.plain) and silent.whole(reading.silent):
            apart = [distance(plain[one.name], silent[one.name]) for one in reading.carriers]
            sizes.append(float(np.linalg.norm(apart)))
    far = bench.scaled(reading.base, 100.0)
    once = np.linalg.norm([one.response for one in reading.carriers])
    much = np.linalg.norm([distance(far[one.name], reading.silent[one.name]) for one in reading.carriers])
    spread = max(sizes) / max(min(sizes), 1e-30) if sizes else 1.0
    if spread <= _LESS_ROOM or much >= 50.0 * once:
        return None
    return faults.finding(
        faults.NOISE_BEFORE_CLIPPING,
        f"A hundred times the noise moves the release only {much / once:.3g} times as far, and a larger row pushes "
        f"the noise out (by a factor of {spread:.3g}).",
        number=float(much / once),
        allowed=100.0,
        witness=rows.describe(best.row),
    )


def _at_the_bound(bench: Bench, reading: Reading, influence: Influence) -> Finding | None:
    """Large noise ends where single rows end, and two such rows add up as if they had never been clipped."""
    if not bench.grows:
        return None
    usual = [one.row for one in influence.tried if one.size <= 100.0][:_SINGLE_ROWS]
    alone = [(row, vector) for row in usual if (vector := _silent(bench, reading, row)) is not None]
    if not alone:
        return None
    bound = max(float(vector.norm()) for _, vector in alone)
    offset = carrier_offset(bench, reading)
    far = float((carrier_vector(bench.scaled(reading.base, 100.0), reading) - offset).norm())
    full = [(row, vector) for row, vector in alone if float(vector.norm()) >= (1.0 - TOLERANCE) * bound]
    if abs(far / bound - 1.0) > 10.0 * TOLERANCE:
        return None
    nothing = bench.scaled(World(rows.take(bench.base, []), ()), _LITTLE)
    there = nothing.whole(reading.plain) and all(one.name in nothing for one in reading.carriers)
    if there and float((carrier_vector(nothing, reading) - offset).norm()) > _STILL * bound:
        return None  # every batch ends at the bound, so that a row does tells nothing
    for (a, first), (b, second) in itertools.islice(itertools.combinations(full, 2), _PAIRS):
        both = _silent(bench, reading, rows.join([a, b]))
        middle = first + second
        if both is None or float(middle.norm()) < 0.1 * bound:
            continue
        unit = middle / middle.norm()
        aside = float((both - (both @ unit) * unit).norm()) / max(float(both.norm()), 1e-30)
        if aside > _ASIDE:
            return faults.finding(
                faults.NOISE_BEFORE_CLIPPING,
                f"However large the noise, the release ends at the bound of a single row ({bound:.4g}), and two rows "
                f"of that bound do not share it evenly (sine {aside:.2g}): the sum is clipped after the noise, and "
                "rows never were.",
                number=aside,
                allowed=0.0,
                witness=f"{rows.describe(a)} | {rows.describe(b)}",
            )
    return None


def _silent(bench: Bench, reading: Reading, batch: Any) -> torch.Tensor | None:
    """What these rows alone release without noise; None where the step failed."""
    shown = bench.silent(World(batch, tuple(range(rows.size(batch)))))
    if not shown.whole(reading.silent) or any(one.name not in shown for one in reading.carriers):
        return None
    return carrier_vector(shown, reading) - carrier_offset(bench, reading)
