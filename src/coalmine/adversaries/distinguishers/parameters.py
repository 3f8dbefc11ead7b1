"""Distinguishers that read the final parameters: how far one coordinate moved, or what a row of cells holds."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coalmine.adversaries.distinguishers.queries import Loss
from coalmine.roles import Iterate, Models, View


class _FinalModel:
    """An observer that looks once, at the final parameters."""

    view = View.FINAL_MODEL

    def start(self, trials: NDArray[np.int64]) -> None:
        """Nothing to forget."""

    def observe(self, iterate: Iterate) -> None:
        """Never called: only the final model is seen."""


class Displacement(_FinalModel):
    """(θ_T − θ_0)_j / unit: the inner product with a canary that is not zero at coordinate j alone, up to scale.

    ``unit`` is what one use of the canary adds to the coordinate, sign included, so a use counts 1. With ``known``
    false the first model is not taken off: its random weights are then noise.
    """

    def __init__(self, coordinate: int, *, unit: float, known: bool = True) -> None:
        self._coordinate, self._unit, self._known = coordinate, unit, known

    def finish(self, models: Models) -> NDArray[np.float64]:
        """Scores of the stack."""
        column = slice(self._coordinate, self._coordinate + 1)
        moved = _float64(models.parameters[:, column])
        if self._known:
            moved = moved - _float64(models.initial_parameters[:, column])
        return moved[:, 0] / self._unit


class LogRatio(Protocol):
    """The log-likelihood ratio of what the cells of one model hold."""

    def score(self, cells: NDArray[np.float64]) -> float:
        """World 1 against world 0."""
        ...


class Cells(_FinalModel):
    """The log-likelihood ratio of the first T parameters, counted in uses of the canary."""

    def __init__(self, law: LogRatio, *, cells: int, unit: float) -> None:
        self._law, self._cells, self._unit = law, cells, unit

    def finish(self, models: Models) -> NDArray[np.float64]:
        """Scores of the stack, one model at a time: the order of sums is then the same in every stack."""
        values = _float64(models.parameters[:, : self._cells]) / self._unit
        return np.asarray([self._law.score(row) for row in values], dtype=np.float64)


class FinalLoss(Loss):
    """Minus the mean loss at the query points, asked of the final model by one who holds its parameters."""

    view = View.FINAL_MODEL


def _float64(tensor: Any) -> NDArray[np.float64]:
    """A copy of a tensor's values."""
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)
