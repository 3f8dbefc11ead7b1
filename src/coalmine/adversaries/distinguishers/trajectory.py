"""Distinguisher 2 of nasr-2021: the query's loss over all the steps of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.roles import Iterate, View
from coalmine.training import BlackBox, Network
from coalmine.training.stack import make_engine

STATISTICS = ("mean", "max")


class LossOverSteps:
    """Minus the mean, or minus the largest, of the query's loss over the models after each step.

    Training on what lowers the query's loss makes both smaller. With ``raised`` the canary pushes the loss up instead,
    and the score is the mean or the largest loss itself. Which of the two statistics is used is fixed beforehand.
    """

    view = View.ALL_ITERATES

    def __init__(
        self, network: Network, x: NDArray[Any], y: int, *, statistic: str = "mean", raised: bool = False
    ) -> None:
        self._network, self._x, self._y = network, np.asarray(x)[None], np.asarray([y])
        self._statistic, self._direction = statistic, 1.0 if raised else -1.0
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._engine: Any = None
        self._seen = 0
        self._kept = np.zeros(len(trials)) if self._statistic == "mean" else np.full(len(trials), -np.inf)

    def observe(self, iterate: Iterate) -> None:
        """The loss of every model after this step."""
        models = iterate.parameters
        if self._engine is None:
            self._engine = make_engine(self._network, device=models.device, dtype=models.dtype)
        losses = BlackBox(self._engine, models, iterate.trials, self._network).losses(self._x, self._y)[:, 0]
        self._kept = self._kept + losses if self._statistic == "mean" else np.maximum(self._kept, losses)
        self._seen += 1

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Scores of the stack."""
        self._engine = None
        divisor = self._seen if self._statistic == "mean" else 1
        return np.asarray(self._direction * self._kept / divisor)
