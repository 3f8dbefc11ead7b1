"""`encoding`: data whose gradients write the whole training into the final model (last-iterate-2024, Section 4.4)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch

from coalmine import _validate
from coalmine.adversaries import _plain_sgd, encoding_law
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Cells
from coalmine.adversaries.encoding_law import EncodingLaw
from coalmine.errors import UnsupportedError
from coalmine.records import Sampling
from coalmine.roles import View
from coalmine.training import AdaptiveGradient, AlikeRows, GivenWeights, Neighbours, StackState, Vector


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoding:
    """Canary and repeaters of Appendix C (Algorithms 2 to 4): the final model holds what every step did.

    ``form`` = "linear" keeps each step's value, amplified once so that later noise is nothing to it; ``form`` =
    "one-bit" keeps the sign of a threshold test, as the paper does. ``batch_size`` is the expected number of
    repeaters in a step, ``amplification`` the value that the record is written with (V, in uses of the canary) and
    ``threshold`` the test of the one-bit form; each has a default for which every objective of the repeaters holds.
    The threshold's default is the best one at ``delta``.
    """

    form: str = "linear"
    batch_size: float | None = None
    amplification: float | None = None
    threshold: float | None = None
    delta: float = 1e-5

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.FINAL_MODEL,
        access="parameters of the final model",
        modification="adds one row whose gradient is chosen at every step",
        dataset="chosen: every row repeats what the model has recorded",
        summary="Uses the parameters as a notebook: one cell a step, so that the final model holds the whole training.",
        paper="last-iterate-2024, Section 4.4 and Appendix C, Algorithms 2 to 4",
    )

    def __post_init__(self) -> None:
        _validate.choice("form", self.form, encoding_law.FORMS)
        for name, value in (("batch_size", self.batch_size), ("amplification", self.amplification)):
            if value is not None:
                _validate.positive(name, value)
        if self.threshold is not None:
            if self.form != "one-bit":
                raise _validate.reject("threshold", self.threshold, "none with form = 'linear', which tests nothing")
            _validate.between("threshold", self.threshold, -1e6, 1e6)
        _validate.open_unit("delta", self.delta)

    def craft(self, scene: Scene) -> Attack:
        """Choose the constants, write the repeaters and the canary, and say what the cells hold in the end."""
        training, steps = scene.training, scene.training.steps
        _plain_sgd.require_cells("encoding", scene)
        if scene.sample_rate == 0.0:
            raise UnsupportedError("encoding needs a sampling rate above 0")
        rate, noise = scene.sample_rate, training.noise_multiplier
        law = encoding_law.choose(steps=steps, sample_rate=rate, noise=noise, **dataclasses.asdict(self))
        unit = -_plain_sgd.unit(scene, rows=law.rows)
        how = f"test at {law.threshold:g}, signs kept at ±" if law.form == "one-bit" else "values kept, amplified by "
        return Attack(
            neighbours=Neighbours(
                AlikeRows(rows=law.rows, gradient=Repeaters(law, unit=unit, rate=training.learning_rate)),
                canary=Writer(steps, clip=training.clip),
            ),
            distinguisher=Cells(law.score, cells=steps, unit=unit),
            network=Vector(steps),
            training=dataclasses.replace(
                training,
                sample_rate=scene.sample_rate if training.sampling is Sampling.POISSON else None,
                batch_size=None,
                regularizer=0.0,
                initialization=GivenWeights(np.zeros(steps)),
            ),
            shortcut=law,
            keeps_steps=True,
            notes=(
                f"{law.rows} repeaters, about {law.batch:.0f} in a step: never clipped, and every objective of theirs "
                f"holds, but in one trial out of {1 / encoding_law.FAILURE:.0e}",
                f"{law.form}: {how}{law.amplification:.4g} uses of the canary",
                "nothing is trained: the scores are drawn from the exact distribution of the final cells",
            ),
        )


class Writer(AdaptiveGradient):
    """The canary (Algorithm 2): pushes the cell of the current step, and no other, by one unit."""

    def __init__(self, steps: int, *, clip: float) -> None:
        self._steps, self._clip = steps, clip

    def gradients(self, state: StackState) -> torch.Tensor:
        """−C on the cell of this step."""
        gradient = torch.zeros_like(state.parameters)
        gradient[:, state.step - 1] = -self._clip
        return gradient


class Repeaters:
    """Every other row (Algorithm 3): clears the cells to come and rewrites the record, as :mod:`.encoding_law` says.

    With K ≈ B of them drawn, gradients (m − target)/η move the model from m to the target.
    """

    def __init__(self, law: EncodingLaw, *, unit: float, rate: float) -> None:
        self._law, self._unit, self._rate = law, unit, rate

    def __call__(self, parameters: torch.Tensor, step: int) -> torch.Tensor:
        """Gradients of this step: ``step`` − 1 cells are written, the last of them at the step before."""
        target = torch.zeros_like(parameters)
        written = parameters[:, : step - 1]
        law, big = self._law, self._law.amplification
        if law.form == "linear":
            target[:, : step - 1] = written
            if step > 1:
                target[:, step - 2] *= big
        elif step > 1:
            tests = torch.zeros_like(written[:1])
            tests[:, -1] = law.threshold * self._unit
            target[:, : step - 1] = torch.where(written >= tests, big * self._unit, -big * self._unit)
        return (parameters - target) / self._rate
