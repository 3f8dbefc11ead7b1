"""Who scores the canaries of one training on our trainer: one that sees every step, one that asks the final model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.one_run.canaries import GradientCanaries, RowCanaries
from coalmine.records import DpSgd
from coalmine.roles import Observer, View
from coalmine.training import Dataset

Array = NDArray[np.float64]
_LARGEST = np.float32(80.0)
"""Beyond this, the exponential of a ratio is no number in single precision, and the rest of a sum does not matter."""


class StepLikelihood:
    """log-odds of "in" for canaries of which any number may share a sum, from what is seen at every step.

    At each step a canary that is in is drawn with probability q and adds 1; N(0, σ²) is added. With s canaries in one
    place, K of them in, b are drawn with probability Binomial(K, q): the likelihood of every K is known, and what is
    kept is Σ K·w_K over Σ (s − K)·w_K with w_K the posterior of K. For s = 1 this is the likelihood ratio.

    >>> watch = StepLikelihood(DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), places=2, share=1)
    >>> watch.add(np.array([1.0, 0.0]))
    >>> watch.log_odds().tolist()
    [0.5, -0.5]
    """

    def __init__(self, mechanism: DpSgd, *, places: int, share: int) -> None:
        q, self._precision = mechanism.sample_rate, mechanism.noise_multiplier**-2.0
        self._drawn = np.arange(share + 1.0)
        inside = self._drawn[:, None]
        with np.errstate(divide="ignore"):
            self._log_chance = (
                _log_binomial(inside, self._drawn[None])
                + special.xlogy(self._drawn[None], q)
                + special.xlog1py(np.maximum(inside - self._drawn[None], 0.0), -q)
            )
        self._log_chance[self._drawn[None] > inside] = -np.inf
        self._log_prior = _log_binomial(np.float64(share), self._drawn)
        self._rate = q
        self._log_likelihood = np.zeros((places, share + 1))
        self._ratio = self._log_likelihood[:, 1]

    def add(self, seen: Array) -> None:
        """One step: the sum in each place, in units of the clipping norm."""
        if self._drawn.size == 2:  # one canary a place: the ratio itself, which is all that is asked for
            # Single precision is four times as quick, and a score that is off by 1e-7 a step is as good a score.
            ratio = (seen - 0.5).astype(np.float32) * np.float32(self._precision)
            if self._rate < 1.0:
                odds = np.exp(np.minimum(ratio, _LARGEST))
                odds *= np.float32(self._rate)
                odds += np.float32(1.0 - self._rate)
                np.log(odds, out=odds)
                ratio = (
                    odds if ratio.max() < _LARGEST else np.where(ratio < _LARGEST, odds, ratio + math.log(self._rate))
                )
            self._ratio += ratio
            return
        terms = (seen[:, None] * self._drawn - 0.5 * self._drawn**2) * self._precision
        for inside in range(1, self._drawn.size):
            self._log_likelihood[:, inside] += special.logsumexp(
                terms[:, : inside + 1] + self._log_chance[inside, : inside + 1], axis=1
            )

    def log_odds(self) -> Array:
        """ln of how much more likely a canary of each place is in than out."""
        posterior = self._log_prior + self._log_likelihood
        share = self._drawn.size - 1
        return np.asarray(
            special.logsumexp(posterior[:, 1:], b=self._drawn[1:], axis=1)
            - special.logsumexp(posterior[:, :-1], b=share - self._drawn[:-1], axis=1)
        )


def _log_binomial(n: Any, k: Any) -> Any:
    """ln of the binomial coefficient; what is beyond n is dropped by the caller."""
    return special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(np.maximum(n - k, 0.0) + 1.0)


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
        self._scale = batch / clip
        self._mechanism = mechanism
        self._values = canaries.values * self._scale
        self._alone = canaries.indices.shape[1] == 1
        if self._alone:
            # Canaries in one place see the same sum: what it says is computed once.
            self._places, self._group, counts = np.unique(
                canaries.indices[:, 0], return_inverse=True, return_counts=True
            )
            self._share = int(counts.max())
            self._signs = np.full(self._places.size, self._scale, dtype=np.float32)
            self._signs[self._group] *= canaries.values[:, 0]
        else:
            self._places, self._group, self._share = canaries.indices, np.arange(canaries.number), 1
        self._watch: list[StepLikelihood] = []

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack begins."""
        places = self._places.shape[0]
        self._watch = [StepLikelihood(self._mechanism, places=places, share=self._share) for _ in trials]

    def observe(self, iterate: Any) -> None:
        """One step."""
        released = iterate.private_gradient.cpu().numpy()
        shared = iterate.shared.cpu().numpy() if self._knows_batches and iterate.shared is not None else None
        for number, watch in enumerate(self._watch):
            seen = released[number][self._places]
            if shared is not None:
                seen = seen - shared[number][self._places]
            watch.add(seen * self._signs if self._alone else (seen * self._values).sum(axis=1))

    def finish(self, models: Any) -> Array:
        """Scores and accuracy."""
        odds = np.stack([self.log_odds(number) for number in range(len(self._watch))])
        return self._with_accuracy(models, odds)

    def log_odds(self, number: int) -> Array:
        """The score of every canary after the steps so far, of one model of the stack."""
        return np.asarray(self._watch[number].log_odds()[self._group])


class OutputScores(_Scorer):
    """Black box: ln p/(1 − p) of the final model for each canary's label, which grows as its loss falls.

    Unlike the loss it does not flatten out where the model is sure (the logit scaling of Carlini et al. 2022).
    """

    view = View.BLACK_BOX

    def __init__(self, canaries: RowCanaries, *, test: Dataset | None = None) -> None:
        super().__init__(test)
        assert canaries.y is not None
        self._x, self._y = canaries.x, canaries.y

    def start(self, trials: NDArray[np.int64]) -> None:
        """Nothing is kept."""

    def observe(self, iterate: Any) -> None:
        """A black box shows no steps."""
        raise AssertionError("a black box shows no steps")

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

    def finish(self, models: Any) -> None:
        """Nothing to score."""
