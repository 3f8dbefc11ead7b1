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
from coalmine.probing.noise import TOLERANCE

_CLOSE = 0.02
"""Relative: how well the factors of rows and noise agree, beside the chance in the noise."""
_CHANCE = 5.0
"""Standard deviations of a measured size of noise."""
_APART = 0.05
"""Relative: a factor that is closer to one than this is no other divisor."""
_EXPLAINED = (faults.NOISE_TOO_SMALL.name, faults.TOO_SENSITIVE.name, faults.NO_CLIPPING.name, faults.PER_LAYER.name)


def measured(
    measurements: Sequence[Measurement], *, noise_multiplier: float, by_buffers: bool = False
) -> list[Measurement]:
    """The same measurements; where one factor explains both rows and noise, that is the finding.

    Args:
        measurements: of the probe.
        noise_multiplier: σ, which rows and noise beside each other must have.
        by_buffers: the step moves its parameters by way of buffers of its own (momentum), which may have the factor:
            then it is no fault, if rows and noise beside each other are as promised.
    """
    by_name = {one.name: one for one in measurements}
    moving, noised = by_name.get("sensitivity"), by_name.get("noise")
    factor = None if moving is None or noised is None else _factor(moving, noised)
    if factor is None or moving is None:
        return list(measurements)
    real = moving.details.get("effective_noise_multiplier")
    if by_buffers and real is not None and real >= noise_multiplier * (1.0 - TOLERANCE):
        said = (
            f"Rows and noise are both ×{factor:.3g} of what is promised, as momentum may do; beside each other they "
            f"give a noise multiplier of at most {real:.3g}."
        )
        left = [_without(one, None) for one in measurements]
        return [dataclasses.replace(one, sentence=said, blind="") if one.name == moving.name else one for one in left]
    found = faults.finding(
        faults.UNIT,
        f"Rows and noise are both ×{factor:.3g} of what is promised: check divisor or learning_rate.",
        number=factor,
        allowed=1.0,
        witness=f"one row moves the sum by {moving.details['largest']:.4g}, noise is ×{factor:.3g} in every tensor",
    )
    left = [_without(one, found if one is moving else None) for one in measurements]
    return [
        dataclasses.replace(one, because=faults.UNIT.name) if before.findings and not one.findings else one
        for before, one in zip(measurements, left, strict=True)
    ]


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
    chances = [_CLOSE + _CHANCE / math.sqrt(2.0 * runs * row["numbers"]) for row in tensors]
    if all(abs(row["ratio"] - 1.0) <= chance for row, chance in zip(tensors, chances, strict=True)):
        return None  # the noise is as promised, so the unit is right
    if any(abs(row["ratio"] / factor - 1.0) > chance for row, chance in zip(tensors, chances, strict=True)):
        return None
    return factor
