"""A unit that was promised wrongly: rows and noise are both off by the same factor.

Beside each other they are then as promised, and neither is a fault of the step: it divides by another number, or has
another learning rate, than was said.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from coalmine.probing import faults
from coalmine.probing.findings import Finding, Measurement

_CLOSE = 0.02
"""Relative: how well the factors of rows and noise agree, beside the chance in the noise."""
_CHANCE = 5.0
"""Standard deviations of a measured size of noise."""
_APART = 0.05
"""Relative: a factor that is closer to one than this is no other divisor."""
_EXPLAINED = (faults.NOISE_TOO_SMALL.name, faults.TOO_SENSITIVE.name, faults.NO_CLIPPING.name, faults.PER_LAYER.name)


def measured(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The same measurements; where one factor explains both rows and noise, that is the finding."""
    by_name = {one.name: one for one in measurements}
    moving, noised = by_name.get("sensitivity"), by_name.get("noise")
    factor = None if moving is None or noised is None else _factor(moving, noised)
    if factor is None or moving is None:
        return list(measurements)
    found = faults.finding(
        faults.UNIT,
        f"Rows and noise are both ×{factor:.3g} of what is promised: check divisor or learning_rate.",
        number=factor,
        allowed=1.0,
        witness=f"one row moves the sum by {moving.details['largest']:.4g}, noise is ×{factor:.3g} in every tensor",
    )
    return [_without(one, found if one is moving else None) for one in measurements]


def _without(one: Measurement, more: Finding | None) -> Measurement:
    """A measurement without what the factor explains."""
    left = tuple(each for each in one.findings if each.fault not in _EXPLAINED)
    if more is not None:
        return dataclasses.replace(one, findings=(more, *left), sentence=more.sentence)
    return dataclasses.replace(one, findings=left) if left != one.findings else one


def _factor(moving: Measurement, noised: Measurement) -> float | None:
    """The factor that rows and the noise of every tensor share; None where there is none, or it is one."""
    details = moving.details
    tensors = [row for row in noised.details.get("tensors", ()) if "ratio" in row]
    if not tensors or "largest" not in details or not details.get("allowed"):
        return None
    factor = float(details["largest"] / details["allowed"])
    if abs(factor - 1.0) <= _APART or not any(one.fault in _EXPLAINED for one in (*moving.findings, *noised.findings)):
        return None
    runs = noised.details["runs"]
    for row in tensors:
        chance = _CHANCE / math.sqrt(2.0 * runs * row["numbers"])
        if abs(row["ratio"] / factor - 1.0) > _CLOSE + chance:
            return None
    return factor
