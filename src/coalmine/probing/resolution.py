"""How finely a tensor shows a change: the spacing of its numbers, in its own type, at their own values.

A parameter p that is moved by u shows u only to the spacing of floating-point numbers near p: in single precision 6e-8
for p between 0.5 and 1. Where u is not much larger, the difference of two releases is rounding, not the update, and
says nothing about noise or rows.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine.probing.vectors import distance, slices

FINE = 8.0
"""Noise of this many spacings is shown well enough for every test; smaller noise is not measured."""
_OFTEN = 6.0
"""Standard deviations that rounding, added up over many numbers, does not exceed in any of the rows that are tried."""


def spacing(value: torch.Tensor) -> NDArray[np.float64]:
    """The distance of neighboring numbers of the tensor's type at each of its values; 0 for whole numbers.

    >>> spacing(torch.tensor([0.75, 1.5])).tolist() == [2.0**-24, 2.0**-23]
    True
    """
    if not value.is_floating_point():
        return np.zeros(value.numel())
    kind = torch.finfo(value.dtype)
    _, exponent = np.frexp(value.detach().double().reshape(-1).cpu().numpy())
    return np.asarray(kind.eps * np.exp2(np.maximum(exponent - 1.0, np.log2(kind.tiny))))


def coarse(before: torch.Tensor, after: torch.Tensor, promised: float = 0.0) -> NDArray[np.bool_]:
    """Which numbers of a tensor show noise of its size no better than their spacing.

    Args:
        before: the tensor without noise.
        after: with it.
        promised: its promised standard deviation, 0 where that is not known. Noise that is smaller than promised is a
            fault, not a matter of spacing.
    """
    size = max(distance(after, before) / math.sqrt(max(after.numel(), 1)), promised)
    grains = (np.minimum(spacing(one), spacing(other)) for one, other in slices(before, after))
    return np.concatenate([(grain > 0.0) & (size < FINE * grain) for grain in grains])


def with_rounding(length: float, error: float, numbers: int) -> float:
    """The length that a vector of at most ``length`` may show when rounding adds errors of norm ``error`` at most.

    Errors of single numbers are independent of the vector: they add up in squares, and along it by error/√numbers.

    >>> round(with_rounding(1.0, 0.1, 100), 3)
    1.08
    """
    return math.hypot(length, 2.0 * error) + _OFTEN * error / math.sqrt(max(numbers, 1))
