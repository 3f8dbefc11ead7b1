"""Distinguisher 2 of nasr-2021: the query's loss over all the steps of a training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.roles import Distinguisher, Iterate, View
from coalmine.training import Network, losses

STATISTICS = ("mean", "max", "both")


class LossOverSteps(Distinguisher):
    """Minus the mean, or minus the largest, of the query's loss over the models after each step.

    Training on what lowers the query's loss makes both smaller. With ``raised`` the canary pushes the loss up instead,
    and the score is the mean or the largest loss itself. Which of the two statistics is used is fixed beforehand; with
    "both" each is a score by itself.
    """

    view = View.ALL_ITERATES

    def __init__(
        self, network: Network, x: NDArray[Any], y: int, *, statistic: str = "mean", raised: bool = False
    ) -> None:
        self._network, self._x, self._y = network, np.asarray(x)[None], np.asarray([y])
        self._statistic, self._direction = statistic, 1.0 if raised else -1.0
        if statistic == "both":
            self.several = ("mean", "max")
            self.columns = self.several[1:]
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._seen = 0
        self._sum, self._largest = np.zeros(len(trials)), np.full(len(trials), -np.inf)

    def observe(self, iterate: Iterate) -> None:
        """The loss of every model after this step."""
        now = losses(self._network, iterate.parameters, x=self._x, y=self._y)[:, 0]
        self._sum, self._largest = self._sum + now, np.maximum(self._largest, now)
        self._seen += 1

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Scores of the stack."""
        found = {"mean": self._direction * self._sum / self._seen, "max": self._direction * self._largest}
        chosen = np.stack([found[name] for name in self.several or (self._statistic,)], axis=1)
        return chosen if self.several else chosen[:, 0]
