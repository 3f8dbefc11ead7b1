"""The distinguisher that differential privacy assumes: it knows both data sets and weighs them by exact likelihoods."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Sampling
from coalmine.roles import DISTANCE, LOSS, Distinguisher, Iterate, Models, View
from coalmine.training import TrainingConfig, dots, log_mixture

SENSITIVITY = "sensitivity"
"""The columns with LS_t of single steps, such as ``sensitivity_1``, in units of a clipped gradient."""
MOST_STEPS = 32
"""Of longer trainings, as many steps in equal distances keep their sensitivity."""


class Belief(Distinguisher):
    """ln(β/(1 − β)): the log-odds of world 1 after all steps, from even odds (A_DI,Gau, Algorithm 1 of bernau-2021).

    With S the clipped sum of the drawn rows that both worlds share, g₁ the clipped gradient of the canary, g₀ that of
    the row it replaces (none with ``add_remove``), s the noise's standard deviation and G the noisy sum,

        a_i = (⟨G − S, g_i⟩ − ‖g_i‖²/2)/s²        ln N(G; S + g_i, s²) − ln N(G; S, s²)
        log-odds = Σ_steps ln(1 − q + q·e^(a₁)) − ln(1 − q + q·e^(a₀))

    Full batches are q = 1: the log-odds are Σ (a₁ − a₀), as in the paper. With Poisson batches the adversary is granted
    the batch of the shared rows, as the analysis grants it, and weighs both outcomes of the one draw it does not know.
    """

    view = View.ALL_ITERATES
    knows_both_worlds = True
    log_odds = True

    def __init__(self, x: ArrayLike, y: int, *, training: TrainingConfig, rows: int) -> None:
        """``x``, ``y``: the canary. ``rows``: how many rows the base data has."""
        if training.sampling is Sampling.SHUFFLE:
            raise UnsupportedError(
                "the belief is exact for Poisson and full batches: shuffled batches are not independent"
            )
        if training.noise_multiplier == 0.0:
            raise InvalidInputError(
                "noise_multiplier = 0 is not allowed with the adversary identifiability: expected a number above 0 "
                "(without noise the belief is 0 or 1 as soon as the two gradients differ)"
            )
        self._x, self._y = np.asarray(x)[None], [y]
        self._rate = training.rate(rows)
        self._batch = training.expected_batch(rows)
        self._local = training.noise_scale == "local"
        self._sigma = training.noise_multiplier
        self._noise = training.noise_multiplier * training.clip / self._batch
        self._kept = kept_steps(training.steps)
        self.columns = (LOSS, DISTANCE, *(f"{SENSITIVITY}_{step}" for step in self._kept))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Even odds, and nothing seen yet."""
        self._log_odds = np.zeros(trials.size)
        self._squares = np.zeros(trials.size)
        self._sensitivities: list[NDArray[np.float64]] = []

    def observe(self, iterate: Iterate) -> None:
        """Bayes' rule for one step, for every model of the stack."""
        pair = iterate.pair
        assert pair is not None
        canary = _wide(pair.canary)
        replaced = None if pair.replaced is None else _wide(pair.replaced)
        apart = canary if replaced is None else canary - replaced
        length = dots(apart, apart).sqrt()
        # A step in which the gradients agree says nothing, with whatever noise.
        noise = self._sigma * length if self._local else torch.full_like(length, self._noise)
        variance = torch.where(noise > 0.0, noise * noise, 1.0)
        rest = _wide(iterate.private_gradient) - _wide(pair.shared)
        if self._rate == 1.0:
            middle = rest - 0.5 * canary if replaced is None else rest - 0.5 * (canary + replaced)
            self._log_odds += (dots(middle, apart) / variance).cpu().numpy()
        else:
            exponents = dots(rest - 0.5 * canary, canary) / variance
            self._log_odds += log_mixture(exponents.cpu().numpy(), sample_rate=self._rate)
            if replaced is not None:
                exponents = dots(rest - 0.5 * replaced, replaced) / variance
                self._log_odds -= log_mixture(exponents.cpu().numpy(), sample_rate=self._rate)
        self._squares += (length * length / variance).cpu().numpy()
        if iterate.step in self._kept:
            self._sensitivities.append((length * self._batch).cpu().numpy())

    def finish(self, models: Models) -> NDArray[np.float64]:
        """Log-odds, loss at the canary, distance, and the sensitivities kept: ``[S, 1 + columns]``."""
        losses = models.losses(self._x, self._y)[:, 0]
        return np.stack([self._log_odds, -losses, np.sqrt(self._squares), *self._sensitivities], axis=1)


def kept_steps(steps: int) -> tuple[int, ...]:
    """The steps whose sensitivity is kept: all, or :data:`MOST_STEPS` in equal distances from first to last.

    >>> kept_steps(3), kept_steps(1000)[:3], len(kept_steps(1000))
    ((1, 2, 3), (1, 33, 65), 32)
    """
    count = min(_validate.integer("steps", steps, at_least=1), MOST_STEPS)
    return tuple(dict.fromkeys(int(step) for step in np.linspace(1, steps, count).round()))


def _wide(tensor: Any) -> Tensor:
    """In float64: what is summed here must not be rounded to the training's precision."""
    wide: Tensor = tensor.double()
    return wide
