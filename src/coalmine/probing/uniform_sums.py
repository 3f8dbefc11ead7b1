"""Noise that is a sum of uniform draws: close to normal to the eye, but it ends at a bound.

Twelve uniform numbers added up have the tails of a normal one up to three standard deviations, and no test of some
thousand numbers tells them apart. The tape does: if all uniform draws move a quarter, and then half, of their way to
their mean, a sum of them moves in proportion. Normal noise made of uniform draws (Box and Muller's, or the inverse of
the distribution function) follows a curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coalmine.probing import faults
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import TOLERANCE, Reading, rounding
from coalmine.probing.findings import Finding
from coalmine.probing.noise import Sample
from coalmine.probing.vectors import distance, residual

_UNIFORM = {"rand", "rand_like", "uniform", "uniform_", "random", "random_sample"}
_PART = 0.25
_MOST = 0.5
"""The part of a tensor's noise that uniform draws must make up to be what it is made of."""


def finding(bench: Bench, reading: Reading, samples: Sequence[Sample]) -> Finding | None:
    """The first tensor whose noise is such a sum; None where there is none."""
    keys = [key for key in bench.tape.noise_keys() if str(key[0][0]).rpartition(".")[2] in _UNIFORM]
    drawn = {key: bench.tape.draw(key).value.double() for key in keys}
    if not drawn:
        return None
    inwards = {key: (value.mean() - value) * _PART for key, value in drawn.items()}
    before = bench.shifted(reading.base, {})
    once = bench.shifted(reading.base, inwards)
    twice = bench.shifted(reading.base, {key: 2.0 * shift for key, shift in inwards.items()})
    for one in samples:
        if any(shown.error or one.name not in shown for shown in (before, once, twice)):
            continue
        still, first, second = before[one.name], once[one.name], twice[one.name]
        size = distance(first, still)
        proportional = residual(second, still, first, still, 2.0) <= TOLERANCE * size + 8.0 * rounding(still)
        if proportional and size / _PART > _MOST * one.std * math.sqrt(still.numel()):
            name = one.name.removeprefix("gradient of ")
            return faults.finding(
                faults.NOT_NORMAL,
                f"The noise in {name} is a sum of uniform draws, which ends at a bound: it is not normal.",
                witness=f"{name}; {bench.tape.describe(keys[0][0])}",
            )
    return None
