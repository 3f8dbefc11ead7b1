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

import dataclasses
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.adversaries.crafters.watermark import Movement, signs
from coalmine.roles import Iterate, View
from coalmine.training import Dataset, Neighbours, Network, TrainingConfig, ZeroGradients
from coalmine.training.batching import FullBatcher, width
from coalmine.training.clipping import parameter_views
from coalmine.training.layers import Run, Scratch
from coalmine.training.models import padded
from coalmine.training.networks import example_floats
from coalmine.training.stack import make_engine, make_table

LEAST_SIGMA = 0.05
"""Without noise the ratio is 0 or infinite; scores then use this σ, which keeps them finite and in the same order."""


def log_ratio(projection: NDArray[np.float64], *, sample_rate: float, sigma: float) -> NDArray[np.float64]:
    """ln((1 − q) + q·exp((s − ½)/σ²)) for projections s in units of C, in log space.

    >>> log_ratio(np.array([0.5, 100.0]), sample_rate=0.01, sigma=1.0).round(4).tolist()
    [0.0, 94.8948]
    """
    sigma = max(sigma, LEAST_SIGMA)
    exponent = (np.asarray(projection, dtype=np.float64) - 0.5) / sigma**2
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(np.log1p(-sample_rate), np.log(sample_rate) + exponent))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mechanism:
    """What the adversary knows of the training: base rows, network, and every number."""

    base: Dataset | ZeroGradients
    network: Network
    training: TrainingConfig

    @property
    def sample_rate(self) -> float:
        """q."""
        return self.training.rate(self.base.rows)


class WatermarkRatio:
    """Σ over steps of the log-likelihood ratio of the watermark.

    With ``measure`` = t₀ > 0 the 2n parameters are those that moved least in the first t₀ steps, and only later steps
    count; with 0 they are the first 2n. With ``every`` = k the adversary, who knows the base data and sees every
    model, computes what the base rows add in the mean, q·Σ_i ⟨clip_C(∇ℓ(m, x_i)), w⟩/C over all rows, at every k-th
    model and takes it off; with 0 it takes that to be 0, as the paper does.
    """

    view = View.ALL_ITERATES

    def __init__(self, mechanism: Mechanism, *, pairs: int, measure: int = 0, every: int = 0) -> None:
        self._mechanism, self._pairs, self._measure, self._every = mechanism, pairs, measure, every
        training = mechanism.training
        self._scale = training.expected_batch(mechanism.base.rows) / training.clip
        self._signs = signs(pairs) / math.sqrt(2 * pairs)
        self.start(np.zeros(0, dtype=np.int64))

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._movement = Movement(pairs=self._pairs)
        self._points: Tensor | None = None
        self._mean: _MeanGradient | None = None
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
        training = self._mechanism.training
        self._total += log_ratio(projection, sample_rate=self._mechanism.sample_rate, sigma=training.noise_multiplier)

    def _project(self, vectors: Tensor, points: Tensor) -> NDArray[np.float64]:
        """⟨vector, w⟩ for each model."""
        chosen = vectors.gather(1, points).double().cpu().numpy()
        return np.asarray((chosen * self._signs).sum(axis=1))

    def _expected(self, models: Tensor) -> NDArray[np.float64]:
        """What the base rows add in the mean, in units of C."""
        assert self._points is not None
        if self._mean is None:
            self._mean = _MeanGradient(self._mechanism, models)
        return (
            self._mechanism.sample_rate
            / self._mechanism.training.clip
            * self._project(self._mean(models), self._points)
        )

    def finish(self, models: Any) -> NDArray[np.float64]:
        """Scores of the stack."""
        self._mean = None
        return self._total.copy()


class _MeanGradient:
    """Σ_i clip_C(∇ℓ(m, x_i)) over all base rows, for every model of the stack."""

    def __init__(self, mechanism: Mechanism, models: Tensor) -> None:
        network, training = mechanism.network, mechanism.training
        neighbours = Neighbours(mechanism.base)
        table = make_table(network, neighbours, training, device=models.device)
        assert table is not None
        self._clip = training.clip
        rows = mechanism.base.rows
        self._batches = FullBatcher(
            table,
            neighbours,
            worlds=[0] * models.shape[0],
            width=width(training, rows=rows, example_floats=example_floats(network)),
            divisor=1.0,
        )
        self._engine = make_engine(network, device=models.device, dtype=models.dtype)
        self._scratch = Scratch(device=models.device, dtype=models.dtype)
        # Every model's vector starts on a cache line, as in the trainer: then its place does not touch its last bits.
        stack, size = models.shape
        room = torch.zeros((2, stack, padded(size)), dtype=models.dtype, device=models.device)
        self._models, self._sums = room[0, :, :size], room[1, :, :size]

    def __call__(self, models: Tensor) -> Tensor:
        self._models.copy_(models)
        layers = self._engine.layers
        for number, batch in enumerate(self._batches.passes(examples=None)):
            self._engine.clipped_sums(
                parameter_views(self._models, layers),
                parameter_views(self._sums, layers),
                x=batch.x,
                targets=batch.targets,
                weights=batch.weights,
                clip=self._clip,
                run=Run(self._scratch, batch.counts, input_squares=batch.squares),
                accumulate=number > 0,
            )
        return self._sums
