"""Crafter 4 of nasr-2021: a watermark on the parameters that moved least."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import _validate
from coalmine.adversaries.attack import Scene
from coalmine.training import AdaptiveGradient, StackState, parameter_count


class Movement:
    """Σ |private gradient| of each parameter over the first t₀ steps, and the 2n parameters where it is smallest.

    Crafter and distinguisher each keep one: both see the same private gradients, so both find the same parameters.
    """

    def __init__(self, *, pairs: int) -> None:
        self._pairs = pairs
        self._total: Tensor | None = None

    def add(self, gradient: Tensor) -> None:
        """One more step, ``[S, P]``."""
        self._total = gradient.abs() if self._total is None else self._total.add_(gradient.abs())

    def points(self) -> Tensor:
        """For each model the 2n parameters that moved least, least first, ``[S, 2n]``; ties go to the lower index."""
        assert self._total is not None
        return torch.sort(self._total, dim=1, stable=True).indices[:, : 2 * self._pairs].clone()


def signs(pairs: int) -> NDArray[np.float64]:
    """+1, −1, +1, …: one for each of the 2n parameters.

    >>> signs(2).tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    return np.tile([1.0, -1.0], pairs)


class Watermark(AdaptiveGradient):
    """An adaptive canary: nothing in the first t₀ steps, then ±C/√(2n) on the 2n parameters that moved least."""

    def __init__(self, *, clip: float, pairs: int, measure: int) -> None:
        self._pairs, self._measure = pairs, measure
        self._size = clip / math.sqrt(2 * pairs)
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._movement = Movement(pairs=self._pairs)
        self._gradient: Tensor | None = None

    def gradients(self, state: StackState) -> Tensor:
        """One gradient for each model, ``[S, P]``."""
        if state.step == 1:
            self._gradient = torch.zeros_like(state.parameters, memory_format=torch.contiguous_format)
        assert self._gradient is not None
        if 1 < state.step <= self._measure + 1:
            assert state.private_gradient is not None
            self._movement.add(state.private_gradient)
            if state.step == self._measure + 1:
                values = torch.as_tensor(self._size * signs(self._pairs)).to(self._gradient)
                points = self._movement.points()
                self._gradient.scatter_(1, points, values.expand(points.shape))
        return self._gradient


def check_size(scene: Scene, *, pairs: int) -> None:
    """The network must have 2n parameters to mark."""
    size = parameter_count(scene.network)
    if 2 * pairs > size:
        raise _validate.reject("pairs", pairs, f"at most {size // 2}: the network has {size} parameters")


def check_watermark(scene: Scene, *, pairs: int, measure: int) -> None:
    """A watermark of 2n parameters, chosen in t₀ steps, must fit the network and the training."""
    check_size(scene, pairs=pairs)
    if measure >= scene.training.steps:
        raise _validate.reject(
            "measure", measure, f"fewer steps than the training has, {scene.training.steps}: nothing would be marked"
        )
    scene.require_learning("the choice of parameters that move least")
