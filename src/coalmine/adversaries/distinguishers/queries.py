"""Distinguishers that only ask the final model: its loss, or its output, at chosen inputs."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.roles import Iterate, Queries, View


class _Final:
    """An observer that looks once, at the end, through queries alone."""

    view = View.BLACK_BOX

    def start(self, trials: NDArray[np.int64]) -> None:
        """Nothing to forget."""

    def observe(self, iterate: Iterate) -> None:
        """Never called: the view is a black box."""


class Loss(_Final):
    """Minus the mean loss at the query points: a model that trained on them has a smaller loss there.

    Distinguisher 1 of nasr-2021; the statistic of Yeom et al. 2018 (Appendix D of jagielski-2020).
    """

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        self._x = np.asarray(x)
        self._y = np.asarray(y)

    def finish(self, models: Queries) -> NDArray[np.float64]:
        """Scores of the stack."""
        return np.asarray(-models.losses(self._x, self._y).mean(axis=1))


class OutputShift(_Final):
    """(f(x_p) − f(0))·y_p: how far the poison moved the output for its label (Algorithm 4 of jagielski-2020).

    f is the vector of logits with its mean over the classes taken off: a softmax does not see that mean, and it
    carries noise but no signal.
    """

    def __init__(self, x: ArrayLike, label: int) -> None:
        point = np.asarray(x)
        self._pair = np.stack([point, np.zeros_like(point)])
        self._label = label

    def finish(self, models: Queries) -> NDArray[np.float64]:
        """Scores of the stack."""
        logits = np.asarray(models.logits(self._pair), dtype=np.float64)
        centred = logits[:, :, self._label] - logits.mean(axis=2)
        return np.asarray(centred[:, 0] - centred[:, 1])
