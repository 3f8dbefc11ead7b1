"""`static-poison`, `intermediate-poison`, `adaptive-poison`: a crafted example (nasr-2021, Sections IV-B to IV-D)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.crafters import shadow
from coalmine.adversaries.crafters.adaptive import SIGNS, AdaptiveExamples
from coalmine.adversaries.distinguishers.final import Loss, planted
from coalmine.adversaries.distinguishers.trajectory import STATISTICS, LossOverSteps
from coalmine.training import ExampleCanary, Neighbours


@dataclasses.dataclass(frozen=True, kw_only=True)
class StaticPoison:
    """Crafter 2 and Distinguisher 1: one input that shadow models get wrong; the score is minus its final loss.

    ``shadows`` models are trained on ``shadow_data`` ("held_out" rows, or the "base" rows; without held-out rows, the
    base rows) for ``shadow_steps`` steps (default: as many as the trainer takes). The input then climbs their mean loss
    for ``ascent_steps`` steps, each ``ascent_rate`` times the mean norm of a row long.
    """

    shadows: int = 8
    shadow_data: str = "held_out"
    shadow_steps: int | None = None
    ascent_steps: int = 20
    ascent_rate: float = 0.05

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="final model (its loss at one point)",
        modification="malicious sample",
        dataset="not modified",
        summary="Adds one input that shadow models get wrong and asks the final model for its loss there.",
        paper="nasr-2021, Section IV-B: Crafter 2, Distinguisher 1",
        adds="chooses the row that the worlds differ in",
    )

    def __post_init__(self) -> None:
        _validate.integer("shadows", self.shadows, at_least=1, at_most=10_000)
        _validate.choice("shadow_data", self.shadow_data, shadow.SOURCES)
        if self.shadow_steps is not None:
            _validate.integer("shadow_steps", self.shadow_steps, at_least=1)
        _validate.integer("ascent_steps", self.ascent_steps, at_least=0)
        _validate.positive("ascent_rate", self.ascent_rate)

    def query(self, scene: Scene) -> shadow.Query:
        """The crafted input."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(StaticPoison)}
        return shadow.query(scene, **options)

    def craft(self, scene: Scene) -> Attack:
        """Craft the input; world 1 has it on top of the data."""
        query = self.query(scene)
        return planted(scene.base, query.x, query.y, *query.notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IntermediatePoison(StaticPoison):
    """Crafter 2 and Distinguisher 2: the same input; the score is minus its mean (or largest) loss over all steps.

    The paper takes the better of the two for each ε. Here ``statistic`` ("mean" or "max") is fixed beforehand; with
    "both" the same trainings are read both ways, as two attacks that share the level.
    """

    statistic: str = "mean"

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=LossOverSteps.view,
        access="intermediate models",
        modification="malicious sample",
        dataset="not modified",
        summary="Adds one input that shadow models get wrong and follows its loss through every model.",
        paper="nasr-2021, Section IV-C: Crafter 2, Distinguisher 2",
        adds="sees the model after every step",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.choice("statistic", self.statistic, STATISTICS)

    def craft(self, scene: Scene) -> Attack:
        """Craft the input; world 1 has it on top of the data."""
        query = self.query(scene)
        return Attack(
            neighbours=Neighbours(scene.base, canary=ExampleCanary(query.x, query.y)),
            distinguisher=LossOverSteps(scene.network, query.x, query.y, statistic=self.statistic),
            notes=(*query.notes, f"the score is minus {_words(self.statistic)} of its loss over the steps"),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptivePoison(IntermediatePoison):
    """Crafter 3 and Distinguisher 2: at each step another example, the one that moves the query's loss most.

    The query comes from Crafter 2. ``sign`` says which way its loss is pushed ("lower" or "raise"). At each step the
    example is found by ``poison_steps`` steps of ascent, each ``poison_rate`` times the mean norm of a row long.
    """

    sign: str = "lower"
    poison_steps: int = 2
    poison_rate: float = 0.05

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=LossOverSteps.view,
        access="intermediate models",
        modification="adaptive sample",
        dataset="not modified",
        summary="Adds at each step the example that moves the loss of a crafted query most, and follows that loss.",
        paper="nasr-2021, Section IV-D: Crafter 3, Distinguisher 2",
        adds="chooses the row anew at every step",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.choice("sign", self.sign, tuple(SIGNS))
        _validate.integer("poison_steps", self.poison_steps, at_least=0)
        _validate.positive("poison_rate", self.poison_rate)

    def craft(self, scene: Scene) -> Attack:
        """Craft the query; world 1 has an example on top of the data that is found anew at each step."""
        query = self.query(scene)
        training = scene.training
        canary = AdaptiveExamples(
            scene.network,
            query=(query.x, query.y),
            data=scene.base,
            clip=training.clip,
            rate=training.learning_rate / training.expected_batch(scene.base.rows),
            sign=self.sign,
            steps=self.poison_steps,
            step_rate=self.poison_rate,
        )
        way = "plus" if self.sign == "raise" else "minus"
        return Attack(
            neighbours=Neighbours(scene.base, canary=canary),
            distinguisher=LossOverSteps(
                scene.network, query.x, query.y, statistic=self.statistic, raised=self.sign == "raise"
            ),
            notes=(
                *query.notes,
                f"each step's example is chosen to {self.sign} the query's loss; the score is {way} "
                f"{_words(self.statistic)} of that loss over the steps",
            ),
        )


def _words(statistic: str) -> str:
    """A statistic in words."""
    return "the mean (or, by score = max, the largest)" if statistic == "both" else f"the {statistic}"
