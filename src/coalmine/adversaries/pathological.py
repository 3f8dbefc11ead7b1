"""`pathological-regularizer`: a regularizer that files every step away (last-iterate-2024, Section 4.3)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries import _plain_sgd
from coalmine.adversaries.attack import Attack, DrawnScores, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Cells
from coalmine.roles import View
from coalmine.training import GivenWeights, Neighbours, Vector, ZeroGradients, log_mixture

_LARGEST = 1e300
"""v^T stays below this: the last cell holds v^(T−1) times what the first step did."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PathologicalRegularizer:
    """Eqs. (7) and (8): m − η∇r(m) moves every parameter one place on, times v; the canary pushes the first one.

    The final model then holds all T steps, with noise of variance σ²·(1 − v^(−2i))/(1 − v^(−2)) for the one i − 1
    steps back, so a large ``v`` makes the standard analysis tight. The default is 1000, or less where v^T would
    overflow.
    """

    v: float | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.FINAL_MODEL,
        access="parameters of the final model",
        modification="adds one row whose gradient is chosen",
        dataset="chosen: all other gradients zero; the regularizer is chosen too",
        summary="Lets the regularizer move each step's result out of the way, so that the final model holds them all.",
        paper="last-iterate-2024, Section 4.3, equations (7) and (8)",
    )

    def __post_init__(self) -> None:
        if self.v is not None and _validate.positive("v", self.v) <= 1.0:
            raise _validate.reject("v", self.v, "a number above 1")

    def craft(self, scene: Scene) -> Attack:
        """The regularizer, and the likelihood ratio of what the cells hold in the end."""
        training, steps = scene.training, scene.training.steps
        _plain_sgd.require_cells("pathological-regularizer", scene)
        largest = _LARGEST ** (1.0 / steps)
        v = min(1000.0, largest) if self.v is None else self.v
        if v > largest:
            raise _validate.reject("v", self.v, f"at most {largest:.4g}: v to the power of {steps} would overflow")
        law = ShiftedCells(steps=steps, sample_rate=scene.sample_rate, noise=training.noise_multiplier, v=v)
        return Attack(
            neighbours=Neighbours(ZeroGradients(rows=scene.base.rows), canary=_plain_sgd.dirac(scene, 0, steps)),
            distinguisher=Cells(law.score, cells=steps, unit=_plain_sgd.unit(scene)),
            network=Vector(steps),
            training=dataclasses.replace(
                training,
                regularizer=Shift(v, rate=training.learning_rate),
                initialization=GivenWeights(np.zeros(steps)),
                dtype="float64",
            ),
            shortcut=law,
            keeps_steps=True,
            notes=(
                f"v = {v:.4g}: noise in a cell is at most {1 / math.sqrt(1 - v**-2):.4f} times that of one step",
                "nothing is trained: the scores are drawn from the exact distribution of the final cells",
            ),
        )


class Shift:
    """∇r with m − η∇r(m) = (0, v·m_1, v·m_2, …)."""

    def __init__(self, v: float, *, rate: float) -> None:
        self._v, self._rate = v, rate

    def __call__(self, parameters: torch.Tensor) -> torch.Tensor:
        """For a whole stack."""
        moved = torch.zeros_like(parameters)
        moved[:, 1:] = self._v * parameters[:, :-1]
        return (parameters - moved) / self._rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShiftedCells(DrawnScores):
    """Eq. (8): v^(1−i)·m_{T,i} = A_{T−i+1} + N(0, s_i²), s_i² = σ²·(1 − v^(−2i))/(1 − v^(−2)), all independent."""

    steps: int
    sample_rate: float
    noise: float
    v: float

    @property
    def variances(self) -> NDArray[np.float64]:
        """s_i² for i = 1…T."""
        i = np.arange(1, self.steps + 1)
        return np.asarray(-(self.noise**2) * np.expm1(-2.0 * i * math.log(self.v)) / (1.0 - self.v**-2.0))

    def score(self, cells: NDArray[np.float64]) -> float:
        """The log-likelihood ratio of a final model's parameters, in uses of the canary."""
        return self._ratio(cells * np.exp(-np.arange(self.steps) * math.log(self.v)))

    def _ratio(self, values: NDArray[np.float64]) -> float:
        """Σ_i ln(1 − q + q·exp((z_i − ½)/s_i²))."""
        return float(log_mixture((values - 0.5) / self.variances, sample_rate=self.sample_rate).sum())

    def draw(self, stream: np.random.Generator, *, canary: bool) -> float:
        """The score of one trial, from eq. (8)."""
        cells = np.sqrt(self.variances) * stream.standard_normal(self.steps)
        if canary:
            cells += stream.random(self.steps) < self.sample_rate
        return self._ratio(cells)
