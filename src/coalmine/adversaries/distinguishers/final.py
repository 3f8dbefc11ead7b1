"""Distinguishers that look once, at the end: they ask the final model, or read its parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.adversaries.attack import Attack
from coalmine.roles import Distinguisher, Models, Queries, View
from coalmine.training import Dataset, ExampleCanary, Neighbours


class Loss(Distinguisher):
    """Minus the mean loss at the query points: a model that trained on them has a smaller loss there.

    Distinguisher 1 of nasr-2021; the statistic of Yeom et al. 2018 (Appendix D of jagielski-2020).
    """

    view = View.BLACK_BOX

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        self._x = np.asarray(x)
        self._y = np.asarray(y)

    def finish(self, models: Queries) -> NDArray[np.float64]:
        """Scores of the stack."""
        return np.asarray(-models.losses(self._x, self._y).mean(axis=1))


class FinalLoss(Loss):
    """Minus the mean loss at the query points, asked of the final model by one who holds its parameters."""

    view = View.FINAL_MODEL


def planted(base: Dataset, x: NDArray[Any], y: int, *notes: str, seen: type[Loss] = Loss) -> Attack:
    """World 1 has one example more, and the score is minus its loss, seen as ``seen`` says."""
    canary = ExampleCanary(x, y)
    return Attack(neighbours=Neighbours(base, canary=canary), distinguisher=seen(x[None], [y]), notes=notes)


class OutputShift(Distinguisher):
    """(f(x_p) − f(0))·y_p: how far the poison moved the output for its label (Algorithm 4 of jagielski-2020).

    f is the vector of logits with its mean over the classes taken off: a softmax does not see that mean, and it
    carries noise but no signal.
    """

    view = View.BLACK_BOX

    def __init__(self, x: ArrayLike, label: int) -> None:
        point = np.asarray(x)
        self._pair = np.stack([point, np.zeros_like(point)])
        self._label = label

    def finish(self, models: Queries) -> NDArray[np.float64]:
        """Scores of the stack."""
        logits = np.asarray(models.logits(self._pair), dtype=np.float64)
        centred = logits[:, :, self._label] - logits.mean(axis=2)
        return np.asarray(centred[:, 0] - centred[:, 1])


class Displacement(Distinguisher):
    """(θ_T − θ_0)_j / unit: the inner product with a canary that is not zero at coordinate j alone, up to scale.

    ``unit`` is what one use of the canary adds to the coordinate, sign included, so a use counts 1. With ``known``
    false the first model is not taken off: its random weights are then noise.
    """

    view = View.FINAL_MODEL

    def __init__(self, coordinate: int, *, unit: float, known: bool = True) -> None:
        self._coordinate, self._unit, self._known = coordinate, unit, known

    def finish(self, models: Models) -> NDArray[np.float64]:
        """Scores of the stack."""
        column = slice(self._coordinate, self._coordinate + 1)
        moved = _float64(models.parameters[:, column])
        if self._known:
            moved = moved - _float64(models.initial_parameters[:, column])
        return moved[:, 0] / self._unit


class Cells(Distinguisher):
    """The log-likelihood ratio of the first T parameters, counted in uses of the canary."""

    view = View.FINAL_MODEL

    def __init__(self, score: Callable[[NDArray[np.float64]], float], *, cells: int, unit: float) -> None:
        self._score, self._cells, self._unit = score, cells, unit

    def finish(self, models: Models) -> NDArray[np.float64]:
        """Scores of the stack, one model at a time: the order of sums is then the same in every stack."""
        values = _float64(models.parameters[:, : self._cells]) / self._unit
        return np.asarray([self._score(row) for row in values], dtype=np.float64)


def _float64(tensor: Any) -> NDArray[np.float64]:
    """A copy of a tensor's values."""
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)
