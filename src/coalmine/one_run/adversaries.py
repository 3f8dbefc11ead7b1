"""`one-run-black-box` and `one-run-white-box`: many canaries in one training, each with a coin of its own."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from coalmine import _validate
from coalmine.adversaries import ManyCanaries, Scene, ThreatModel
from coalmine.errors import UnsupportedError
from coalmine.one_run.canaries import Canaries
from coalmine.one_run.game import apart, attack_of, expected_attack, make_canaries, mechanism_of
from coalmine.one_run.guesses import AIMS
from coalmine.roles import View
from coalmine.training import GivenWeights, Glorot, TrainingConfig, glorot

ROWS = ("low_variance", "blank", "extreme", "mislabeled", "random_tokens")
GRADIENTS = ("dirac", "random_directions")
NO_SCORE = ("runs", "aim", "guess_in", "guess_out")
"""Options that say how canaries are pooled and guessed: they shape no score, so that runs can be used again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OneRun:
    """What both have in common: m ``canaries`` in each of ``runs`` trainings, and how guesses are chosen.

    ``aim`` "refute" chooses numbers of guesses that refute the smallest excess, "bound" those that prove the largest ε;
    ``guess_in`` and ``guess_out`` fix them by hand.
    """

    canaries: int = 1000
    runs: int = 1
    aim: str = "refute"
    guess_in: int | None = None
    guess_out: int | None = None

    def __post_init__(self) -> None:
        _validate.integer("canaries", self.canaries, at_least=2)
        _validate.integer("runs", self.runs, at_least=1)
        _validate.choice("aim", self.aim, AIMS)
        for name in ("guess_in", "guess_out"):
            if getattr(self, name) is not None:
                _validate.integer(name, getattr(self, name), at_least=0)

    @staticmethod
    def _check(scene: Scene) -> None:
        """Refuse a training that is not that of many rows."""
        if scene.training.noise_scale != "clip":
            raise UnsupportedError(
                "noise_scale = 'local' does not fit one run: it hides one row, and here are many; expected 'clip'"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRunBlackBox(_OneRun):
    """Rows that the data lacks, and how sure the final model is of each; at best 0.2 to 0.6 of ε in one training.

    ``kind`` says which rows: "low_variance" (of length ``scale``), "blank", "extreme" or "mislabeled"; "random_tokens"
    for text. ``references`` are trainings of the attacker's own, with coins of its own: the mean score of each canary
    in them is taken off. ``start`` "known" fixes the first model, which does not depend on the data and may be known;
    "drawn" draws it anew, which hides the canaries much better than the noise does.
    """

    kind: str = "low_variance"
    references: int = 16
    scale: float = 10.0
    start: str = "known"

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.BLACK_BOX,
        access="outputs of the final model",
        modification="adds many rows, each by a coin",
        dataset="known",
        summary="Puts many odd rows into one training by a coin each, and asks the final model which were there.",
        paper="Steinke, Nasr and Jagielski 2023; Mahloujifar, Melis and Chaudhuri 2025",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kind", _validate.choice("kind", str(self.kind).replace("-", "_"), ROWS))
        _validate.integer("references", self.references, at_least=0)
        _validate.positive("scale", self.scale)
        _validate.choice("start", self.start, ("known", "drawn"))

    def craft(self, scene: Scene) -> ManyCanaries:
        """Choose the rows, and the first model."""
        self._check(scene)
        scene.require_learning("one-run-black-box")
        training = scene.training
        if self.start == "known" and isinstance(training.initialization, Glorot):
            stream = scene.stream("one run, start")
            first = glorot(scene.network, scale=training.initialization.scale, generator=stream)
            training = dataclasses.replace(training, initialization=GivenWeights(first))
        chosen = make_canaries(
            self.kind,
            network=scene.network,
            base=scene.base,
            training=training,
            number=self.canaries,
            held_out=apart(self.kind, scene.held_out)[0],
            scale=self.scale,
            seed=scene.seed,
        )
        notes = [f"canaries: {chosen.note}", f"the first model is {self.start}"]
        if self.references:
            notes.append(f"scores are compared with {self.references} trainings of the attacker's own")
        return _attack(self, scene, training, chosen, references=self.references, notes=notes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneRunWhiteBox(_OneRun):
    """Gradients of the attacker's own, and the likelihood of every step; at best 0.5 to 0.7 of ε in one training.

    ``kind`` "dirac" puts the whole clipping norm on one parameter, those that the data moves least first, with
    ``per_coordinate`` canaries to a parameter; "random_directions" spreads it over ``support`` parameters.
    ``knows_batches``: the attacker knows which other rows each step drew, and takes off what they add.
    """

    kind: str = "dirac"
    per_coordinate: int = 1
    support: int = 64
    knows_batches: bool = True

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.ALL_ITERATES,
        access="intermediate models",
        modification="adds many gradients, each by a coin",
        dataset="known",
        summary="Puts many gradients into one training by a coin each, and looks for each of them in every step.",
        paper="Steinke, Nasr and Jagielski 2023; Keinan, Shenfeld and Ligett 2025",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kind", _validate.choice("kind", str(self.kind).replace("-", "_"), GRADIENTS))
        _validate.integer("per_coordinate", self.per_coordinate, at_least=1)
        _validate.integer("support", self.support, at_least=1)
        _validate.instance("knows_batches", self.knows_batches, bool)

    def craft(self, scene: Scene) -> ManyCanaries:
        """Choose the gradients."""
        self._check(scene)
        chosen = make_canaries(
            self.kind,
            network=scene.network,
            base=scene.base,
            training=scene.training,
            number=self.canaries,
            per_coordinate=self.per_coordinate,
            support=self.support,
            seed=scene.seed,
        )
        knows = "knows which other rows each step drew" if self.knows_batches else "sees the steps alone"
        notes = [f"canaries: {chosen.note}", f"the attacker {knows}"]
        return _attack(self, scene, scene.training, chosen, knows_batches=self.knows_batches, notes=notes)


def _attack(
    who: _OneRun,
    scene: Scene,
    training: TrainingConfig,
    chosen: Canaries,
    *,
    notes: list[str],
    references: int = 0,
    knows_batches: bool = True,
) -> ManyCanaries:
    """The attack with these canaries on this scene."""
    return attack_of(
        chosen,
        network=scene.network,
        base=scene.base,
        training=training,
        runs=who.runs,
        references=references,
        knows_batches=knows_batches,
        test=apart(chosen.kind, scene.held_out)[1],
        expected=expected_attack(chosen, mechanism=mechanism_of(training, rows=scene.base.rows)),
        aim=who.aim,
        guess_in=who.guess_in,
        guess_out=who.guess_out,
        notes=tuple(notes),
    )
