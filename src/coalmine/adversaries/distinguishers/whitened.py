"""The log-likelihood ratio of a known row or gradient, step by step, against noise and the other rows' unknown batch.

Given the model before a step, G = Σ_i∈batch g_i + b·g + σC·Z, where g is the canary's clipped gradient and b says
whether it was drawn. With the others' part taken as normal with mean m and covariance Σ − σ²C²·I (see
:mod:`coalmine.adversaries.crafters.rows`), the ratio of the densities with and without the canary is

    LLR = ln((1 − q) + q·exp(wᵀ(G − m) − ½·wᵀg)),     w = Σ⁻¹ g,

and the steps add up. Of k such rows, each drawn on its own, j are drawn with the chance of Binomial(k, q), and the
exponent is then j·wᵀ(G − m) − ½j²·wᵀg (:func:`coalmine.training.log_mixture`). With full batches the others' part is m
itself, and the ratio is exact.

m takes all rows, so it is not computed at every model. Held until the next look it is behind the models by a little
that adds up over the steps. One who has all models may as well draw a line from look to look: with Δ = m' − m between
two of them, the share f of the way at a step, and w at both ends,

    wᵀm ≈ wᵀ(m of the look before) + f·((1 − f)·w₀ᵀΔ + f·w₁ᵀΔ),

for which w need not be kept for every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.adversaries.crafters.background import Background, OwnBackground
from coalmine.adversaries.crafters.rows import Candidates
from coalmine.roles import Distinguisher, Iterate, View
from coalmine.training import Dataset, Network, TrainingConfig, clipped_sums, dots, log_mixture


class _Step(NamedTuple):
    """A step whose ratio waits for the next look: its number, and for each model wᵀ(G − m) − ½·wᵀg and ½·wᵀg."""

    number: int
    exponents: NDArray[np.float64]
    half: NDArray[np.float64]


class _Look(NamedTuple):
    """What the other rows add in the mean at the models before a step, and w there if it will be asked for again."""

    step: int
    mean: Tensor
    white: Tensor | None


class WhitenedRatio(Distinguisher):
    """Σ over steps of the log-likelihood ratio of the canary, whitened by the background.

    The adversary knows the base data and sees every model, so it knows g and m = q·Σ_i clip_C(∇ℓ_i): g is computed at
    every ``refresh``-th model, m at every ``every``-th; of several rows the best is chosen at every ``rechoose``-th.
    The background's directions are those of shadow models or the watched models' own; then m is computed when they are.
    Between two looks m is held, or, if ``interpolated``, drawn as a line.
    """

    view = View.ALL_ITERATES

    def __init__(
        self,
        canary: Candidates | NDArray[np.float64],
        *,
        base: Dataset,
        network: Network,
        training: TrainingConfig,
        background: Background | OwnBackground,
        copies: int = 1,
        every: int,
        refresh: int = 1,
        rechoose: int = 1,
        interpolated: bool = False,
    ) -> None:
        """``canary``: rows, of which the best counts at each model, or the clipped gradient; ``copies`` of it."""
        self._canary, self._base, self._network, self._training = canary, base, network, training
        self._background, self._every, self._refresh, self._rechoose = background, every, refresh, rechoose
        self._copies, self._interpolated = copies, interpolated
        self._look: _Look | None = None
        self._white: Tensor | None = None
        self._half: Tensor | None = None
        self._batch = training.expected_batch(base.rows)
        self._rate = training.rate(base.rows)
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._forget()
        self._places: Tensor | None = None
        self._waiting: list[_Step] = []
        self._total = np.zeros(len(trials))

    def _forget(self) -> None:
        """Drop what is as large as the stack, or larger."""
        self._background.forget()
        if isinstance(self._canary, Candidates):
            self._canary.forget()
        self._look = self._white = self._half = None

    def observe(self, iterate: Iterate) -> None:
        """One more step."""
        models, step = iterate.previous, iterate.step
        self._background.renew(step, models)
        due = self._look is None or self._looks(step)
        mean = self._rate * self._others(models) if due else None
        if mean is not None and self._look is not None:
            self._arrive(self._look, step, mean)
        if self._white is None or self._due(step):
            self._white, self._half = self._test(models, step)
        if mean is not None:
            self._look = _Look(step, mean, self._white if self._interpolated else None)
        assert self._look is not None
        assert self._half is not None
        rest = iterate.private_gradient.double() * self._batch - self._look.mean
        exponents = (dots(self._white.expand_as(rest), rest) - self._half).cpu().numpy()
        self._waiting.append(_Step(step, exponents, self._half.cpu().numpy()))
        if not self._interpolated:
            self._add_up()

    def _looks(self, step: int) -> bool:
        """Whether what the other rows add in the mean is computed at this step's models."""
        if isinstance(self._background, OwnBackground):
            return self._background.renews(step)
        return (step - 1) % self._every == 0

    def _others(self, models: Tensor) -> Tensor:
        """Σ_i clip_C(∇ℓ_i) at these models."""
        if isinstance(self._background, OwnBackground):
            return self._background.total
        return clipped_sums(self._network, models, dataset=self._base, config=self._training).double()

    def _arrive(self, before: _Look, step: int, mean: Tensor) -> None:
        """Another look: the steps since the one before, by the line between the two."""
        if before.white is None or self._white is None:  # m is held, and no step waits
            return
        change = mean - before.mean
        first, last = (dots(w.expand_as(change), change).cpu().numpy() for w in (before.white, self._white))
        ways = [(one.number - before.step) / (step - before.step) for one in self._waiting]
        self._add_up([way * ((1.0 - way) * first + way * last) for way in ways])

    def _add_up(self, changes: Sequence[NDArray[np.float64] | float] | None = None) -> None:
        """The ratios of the steps that wait; ``changes``: of wᵀm since the look, for each of them."""
        for one, change in zip(self._waiting, changes or [0.0] * len(self._waiting), strict=True):
            self._total += log_mixture(
                one.exponents - change, sample_rate=self._rate, copies=self._copies, half=one.half
            )
        self._waiting.clear()

    def _due(self, step: int) -> bool:
        """Whether the row, its gradient or its background is looked at anew."""
        if self._background.renews(step):
            return True
        if not isinstance(self._canary, Candidates):
            return False
        several = len(self._canary.rows) > 1
        return (step - 1) % self._refresh == 0 or (several and (step - 1) % self._rechoose == 0)

    def _test(self, models: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """w and ½·wᵀg for every model."""
        if isinstance(self._canary, Candidates):
            if self._places is None or (step - 1) % self._rechoose == 0:
                gradient, self._places = self._canary.gradients(models)
            else:
                gradient = self._canary.chosen(models, self._places)
        else:
            gradient = torch.as_tensor(self._canary, device=models.device)[None]
            if isinstance(self._background, OwnBackground):
                gradient = gradient.expand_as(models)
        white = self._background.whiten(gradient)
        return white, 0.5 * dots(white, gradient)

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Scores of the stack; after the last look m is held."""
        self._add_up()
        self._forget()
        return self._total.copy()
