"""Distinguisher 3 of nasr-2021: the log-likelihood ratio of a watermark, step by step.

Derivation. The canary's gradient is C·w with ‖w‖ = 1. Of a private gradient g̃ = (Σ clipped + σC·Z)/B take the
projection in units of C,

    s = ⟨g̃, w⟩·B/C = a + b + σ·z,     z ~ N(0, 1),  b = 0 in world 0,  b ~ Bernoulli(q) in world 1,

where a = Σ_i∈batch ⟨clip_C(∇ℓ_i), w⟩/C is what the base rows add. Directions orthogonal to w have the same law in both
worlds, so s is all that matters. With a replaced by its mean (0 where the base rows have no gradient) the densities are
φ_σ(s − a) and (1 − q)·φ_σ(s − a) + q·φ_σ(s − a − 1), and the normalisers cancel:

    LLR = ln((1 − q) + q·exp((s − a − ½)/σ²)).

Given the past, the steps are independent in both worlds, so the ratios of the steps multiply and their logarithms add
up; by Neyman and Pearson no test is better where a is known. Eq. (6) of the paper is the density of the second
component alone, with its symbols mixed up; a density is no ratio, and it leaves the sampling out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.adversaries.crafters.watermark import Movement, signs
from coalmine.roles import Distinguisher, Iterate, View
from coalmine.training import Dataset, Network, TrainingConfig, ZeroGradients, clipped_sums, log_ratio


class WatermarkRatio(Distinguisher):
    """Σ over steps of the log-likelihood ratio of the watermark.

    With ``measure`` = t₀ > 0 the 2n parameters are those that moved least in the first t₀ steps, and only later steps
    count; with 0 they are the first 2n. With ``every`` = k the adversary, who knows the base data and sees every
    model, computes what the base rows add in the mean, q·Σ_i ⟨clip_C(∇ℓ(m, x_i)), w⟩/C over all rows, at every k-th
    model and takes it off; with 0 it takes that to be 0, as the paper does.
    """

    view = View.ALL_ITERATES

    def __init__(
        self,
        base: Dataset | ZeroGradients,
        network: Network,
        training: TrainingConfig,
        *,
        pairs: int,
        measure: int = 0,
        every: int = 0,
    ) -> None:
        """``base``, ``network``, ``training``: what the adversary knows of the training."""
        self._base, self._network, self._training = base, network, training
        self._pairs, self._measure, self._every = pairs, measure, every
        self._scale = training.expected_batch(base.rows) / training.clip
        self._rate = training.rate(base.rows)
        self._signs = signs(pairs) / math.sqrt(2 * pairs)
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._movement = Movement(pairs=self._pairs)
        self._points: Tensor | None = None
        self._drift = np.zeros(len(trials))
        self._total = np.zeros(len(trials))

    def observe(self, iterate: Iterate) -> None:
        """One more step: measured up to t₀, judged after it."""
        gradient: Tensor = iterate.private_gradient
        if iterate.step <= self._measure:
            self._movement.add(gradient)
            return
        if self._points is None:
            first = torch.arange(2 * self._pairs, device=gradient.device).expand(gradient.shape[0], -1)
            self._points = self._movement.points() if self._measure else first
        if self._every and (iterate.step - self._measure - 1) % self._every == 0:
            self._drift = self._expected(iterate.previous)
        projection = self._scale * self._project(gradient, self._points) - self._drift
        self._total += log_ratio(projection, sample_rate=self._rate, sigma=self._training.noise_multiplier)

    def _project(self, vectors: Tensor, points: Tensor) -> NDArray[np.float64]:
        """⟨vector, w⟩ for each model."""
        chosen = vectors.gather(1, points).double().cpu().numpy()
        return np.asarray((chosen * self._signs).sum(axis=1))

    def _expected(self, models: Tensor) -> NDArray[np.float64]:
        """What the base rows add in the mean, in units of C."""
        assert self._points is not None
        assert isinstance(self._base, Dataset)
        sums = clipped_sums(self._network, models, dataset=self._base, config=self._training)
        return self._rate / self._training.clip * self._project(sums, self._points)

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Scores of the stack."""
        return self._total.copy()
