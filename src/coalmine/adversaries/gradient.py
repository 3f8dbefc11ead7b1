"""`gradient` and `malicious-dataset`: a watermark among the gradients (nasr-2021, Sections IV-E and IV-F)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.crafters.watermark import Watermark, check_size, check_watermark, signs
from coalmine.adversaries.distinguishers.watermark import WatermarkRatio
from coalmine.records import Sampling
from coalmine.training import GaussianSteps, Glorot, GradientCanary, Neighbours, Sgd, Vector, ZeroGradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gradient:
    """Crafter 4 and Distinguisher 3: ±C/√(2n) on the 2n parameters that moved least in the first t₀ steps.

    ``pairs`` is n. ``measure`` is t₀ (default: a twentieth of the steps). The score is the log-likelihood ratio of the
    watermark, summed over the steps after t₀. What the base rows add along the watermark is not zero: the adversary,
    who knows those rows and sees every model, computes its mean at every ``every``-th model (default: once an epoch)
    and takes it off; ``every`` = 0 takes it to be zero, as the paper does.
    """

    pairs: int = 10
    measure: int | None = None
    every: int | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=WatermarkRatio.view,
        access="intermediate models",
        modification="malicious gradient",
        dataset="not modified",
        summary="Adds a gradient of its own, a watermark on parameters that hardly move, and looks for it.",
        paper="nasr-2021, Section IV-E: Crafter 4, Distinguisher 3",
        adds="gives a gradient instead of a row",
    )

    def __post_init__(self) -> None:
        _validate.integer("pairs", self.pairs, at_least=1)
        if self.measure is not None:
            _validate.integer("measure", self.measure, at_least=1)
        if self.every is not None:
            _validate.integer("every", self.every, at_least=0)

    def craft(self, scene: Scene) -> Attack:
        """Prepare the watermark; each model gets its own."""
        training = scene.training
        measure = self.measure if self.measure is not None else max(1, training.steps // 20)
        check_watermark(scene, pairs=self.pairs, measure=measure)
        every = self.every if self.every is not None else max(1, math.ceil(1.0 / max(scene.sample_rate, 1e-9)))
        taken = f"computed at every {every}th model and taken off" if every else "taken to be zero"
        return Attack(
            neighbours=Neighbours(scene.base, canary=Watermark(clip=training.clip, pairs=self.pairs, measure=measure)),
            distinguisher=WatermarkRatio(
                scene.base, scene.network, training, pairs=self.pairs, measure=measure, every=every
            ),
            notes=(
                f"the watermark is on the {2 * self.pairs} parameters that moved least in the first {measure} steps; "
                f"what the other rows add along it is {taken}",
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaliciousDataset:
    """Crafter 5 and Distinguisher 3: rows without gradients, learning rate 0, and the watermark on ``pairs`` = n pairs.

    Rows that the first model labels perfectly have no gradient, and at learning rate 0 every model is the first one.
    What is left of the training is the watermark and the noise, which is the pair of worlds that the analysis of
    DP-SGD has in mind; clipping norm, noise, sampling rate and steps are those of the scene. No gradient is computed,
    and the scores come from the law of the steps themselves.
    """

    pairs: int = 1

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=WatermarkRatio.view,
        access="intermediate models",
        modification="malicious gradient",
        dataset="malicious",
        summary="Chooses rows without gradients and learning rate 0, so that its watermark meets noise alone.",
        paper="nasr-2021, Section IV-F: Crafter 5, Distinguisher 3",
        adds="chooses all other rows and the learning rate",
    )

    def __post_init__(self) -> None:
        _validate.integer("pairs", self.pairs, at_least=1)

    def craft(self, scene: Scene) -> Attack:
        """The worst case that the guarantee allows for."""
        given = scene.training
        check_size(scene, pairs=self.pairs)
        training = dataclasses.replace(
            given, learning_rate=0.0, regularizer=0.0, optimizer=Sgd(), initialization=Glorot()
        )
        base, network = ZeroGradients(rows=scene.base.rows), Vector(2 * self.pairs)
        watermark = training.clip / math.sqrt(2 * self.pairs) * signs(self.pairs)
        return Attack(
            neighbours=Neighbours(base, canary=GradientCanary(watermark)),
            distinguisher=WatermarkRatio(base, network, training, pairs=self.pairs),
            notes=(
                f"{base.rows:,} rows that the first model labels perfectly (no gradient), learning rate 0, watermark "
                f"on {2 * self.pairs:,} parameters: the worst case that the guarantee allows for, and no ordinary "
                "training",
            ),
            network=network,
            training=training,
            # Shuffled batches use the canary once an epoch: no law of independent draws fits them, so they are trained.
            shortcut=None
            if training.sampling is Sampling.SHUFFLE
            else GaussianSteps(sample_rate=scene.sample_rate, sigma=training.noise_multiplier, steps=training.steps),
        )
