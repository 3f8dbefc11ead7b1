"""Who scores the canaries of one training on our trainer: one that sees every step, one that asks the final model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.one_run.canaries import GradientCanaries, RowCanaries
from coalmine.one_run.likelihood import Along, StepLikelihood
from coalmine.records import DpSgd
from coalmine.roles import Observer, View
from coalmine.training import Dataset

Array = NDArray[np.float64]


class _Scorer(Observer):
    """What both kinds share: the scores of every canary, and the accuracy of the model beside them."""

    def __init__(self, test: Dataset | None) -> None:
        self._test = test

    def _with_accuracy(self, models: Any, scores: Array) -> Array:
        """``[S, m + 1]``: the scores, then the accuracy (0 where there is no test data)."""
        accuracy = np.zeros(scores.shape[0])
        if self._test is not None:
            right = models.logits(self._test.x).argmax(axis=-1) == self._test.y
            accuracy = right.mean(axis=1)
        return np.concatenate([scores, accuracy[:, None]], axis=1)


class GradientScores(_Scorer):
    """White box: the private gradient of every step along each canary, weighed by what DP-SGD makes of it.

    ``knows_batches``: the attacker knows the other rows and which of them were drawn, and takes off what they add. The
    guarantee of DP-SGD covers that: it rests on the draws of the canary's own row.
    """

    view = View.ALL_ITERATES

    def __init__(
        self,
        canaries: GradientCanaries,
        *,
        mechanism: DpSgd,
        clip: float,
        batch: float,
        knows_batches: bool = True,
        test: Dataset | None = None,
    ) -> None:
        super().__init__(test)
        self._knows_batches = knows_batches
        self._mechanism = mechanism
        self._along = Along(canaries, scale=batch / clip)
        self._watch: list[StepLikelihood] = []

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins."""
        self._watch = [self._along.likelihood(self._mechanism) for _ in trials]

    def observe(self, iterate: Any) -> None:
        """One step."""
        released = iterate.private_gradient.cpu().numpy()
        shared = iterate.shared.cpu().numpy() if self._knows_batches and iterate.shared is not None else None
        for number, watch in enumerate(self._watch):
            watch.add(self._along.seen(released[number], None if shared is None else shared[number]))

    def finish(self, models: Any) -> Array:
        """Scores and accuracy."""
        odds = np.stack([self.log_odds(number) for number in range(len(self._watch))])
        return self._with_accuracy(models, odds)

    def log_odds(self, number: int) -> Array:
        """The score of every canary after the steps so far, of one model of the stack."""
        return self._along.log_odds(self._watch[number])


class OutputScores(_Scorer):
    """Black box: ln p/(1 − p) of the final model for each canary's label, which grows as its loss falls.

    Unlike the loss it does not flatten out where the model is sure (the logit scaling of Carlini et al. 2022).
    """

    view = View.BLACK_BOX

    def __init__(self, canaries: RowCanaries, *, test: Dataset | None = None) -> None:
        super().__init__(test)
        assert canaries.y is not None
        self._x, self._y = canaries.x, canaries.y

    def finish(self, models: Any) -> Array:
        """Scores and accuracy."""
        losses = models.losses(self._x, self._y)
        return self._with_accuracy(models, -losses - np.log(-np.expm1(-np.maximum(losses, 1e-300))))


class Movement(Observer):
    """How far each parameter moves: the sum of squared private gradients, ``[S, P]``."""

    view = View.ALL_ITERATES

    def __init__(self) -> None:
        self.moved: Array = np.zeros((0, 0))

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins."""
        self.moved = np.zeros((0, 0))

    def observe(self, iterate: Any) -> None:
        """One step."""
        square = iterate.private_gradient.double().square().cpu().numpy()
        self.moved = square if not self.moved.size else self.moved + square
