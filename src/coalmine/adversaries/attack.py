"""What an adversary is made of: a threat model in words, and an attack ready to be played."""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate, seeds
from coalmine.errors import InvalidInputError
from coalmine.roles import Distinguisher, Observer, View
from coalmine.training import Dataset, ExampleCanary, GradientRows, Neighbours, Network, TrainingConfig

LATER = {"later": True}
"""Metadata of an option that an adversary got later: where it has its default, trials of before are still its own.

Likewise where it has the value that ``before`` names beside it, which says how it was done before.
"""

_ROUNDING = 1e-9
"""How far, relatively, two numbers may be apart that are meant to be one: a batch size over rows is a rate, rounded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """What the adversary may see and do, in words, as in Table I of nasr-2021.

    ``adds`` says what it has that the rung below it on the ladder has not; it is empty where there is no such rung.
    """

    view: View
    access: str
    modification: str
    dataset: str
    summary: str
    paper: str
    adds: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What every adversary knows before the game: the data, the network, the training with all its numbers.

    ``base`` has the rows in the shape that the network takes; ``picture`` is the shape of a row as a picture (channels,
    where there are any, first), if the rows are pictures. ``held_out`` are rows of the same distribution that are not
    trained on (None where there are none). Everything random in an attack comes from ``seed``.
    """

    base: Dataset
    classes: int
    network: Network
    training: TrainingConfig
    picture: tuple[int, ...] | None = None
    held_out: Dataset | None = None
    seed: int = 0

    @property
    def sample_rate(self) -> float:
        """q of the training."""
        return self.training.rate(self.base.rows)

    def stream(self, purpose: str) -> np.random.Generator:
        """Random numbers for one choice of an adversary: the same whenever the same scene is attacked."""
        return seeds.generator(str(self.seed), purpose=purpose, trial=0)

    def check_row(self, name: str, row: int) -> None:
        """A row of the data must be there."""
        if row >= self.base.rows:
            raise _validate.reject(name, row, f"a row of the data, at most {self.base.rows - 1}")

    def check_promise(self, training: TrainingConfig, *, rows: int) -> None:
        """Refuse a training of an adversary's own, on ``rows`` rows, with another promise than the scene's.

        What an attack proves is held against the promise of the scene's clipping norm, noise, sampling and steps: a
        training with less noise would refute a claim that is right.
        """
        mine = self.training
        words = {name: (getattr(training, name), getattr(mine, name)) for name in ("sampling", "noise_scale")}
        numbers = {
            name: (getattr(training, name), getattr(mine, name)) for name in ("clip", "noise_multiplier", "steps")
        }
        numbers["sample_rate"] = (training.rate(rows), self.sample_rate)
        other = {name: pair for name, pair in words.items() if pair[0] != pair[1]}
        other |= {name: pair for name, pair in numbers.items() if not math.isclose(*pair, rel_tol=_ROUNDING)}
        if other:
            found = " and ".join(f"{name} = {theirs} instead of {ours}" for name, (theirs, ours) in other.items())
            raise InvalidInputError(
                f"the attack's own training has {found}: expected the scene's, whose promise is tested; "
                "dataclasses.replace(scene.training, ...) keeps all that it is not told to change"
            )

    def require_learning(self, who: str) -> None:
        """Refuse a training that learns nothing."""
        if self.training.learning_rate == 0.0:
            raise _validate.reject(
                "learning_rate", 0.0, f"a number above 0: {who} looks at what was learnt (malicious-dataset does not)"
            )


class Shortcut(Protocol):
    """Scores without training, for worlds so simple that their distribution is known: the same law, a shorter road.

    An attack with a shortcut still has its neighbours and its distinguisher, and a test holds the two roads against
    each other.
    """

    def scores(
        self, trials: NDArray[np.int64], *, worlds: NDArray[np.int8], fingerprint: str, device: str
    ) -> NDArray[np.float64]:
        """One score a trial, a function of (fingerprint, trial, world) alone, whatever trials are asked together."""


class DrawnScores(abc.ABC):
    """A shortcut that draws each trial's score on its own, from the law of the final model."""

    @abc.abstractmethod
    def draw(self, stream: np.random.Generator, *, canary: bool) -> float:
        """The score of one trial in world 1 (``canary``) or 0."""

    def scores(
        self, trials: NDArray[np.int64], *, worlds: NDArray[np.int8], fingerprint: str, device: str
    ) -> NDArray[np.float64]:
        """As :class:`Shortcut` says."""
        return np.asarray(
            [
                self.draw(seeds.generator(fingerprint, purpose="scores", trial=trial), canary=world == 1)
                for trial, world in zip(trials.tolist(), worlds.tolist(), strict=True)
            ],
            dtype=np.float64,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """Two worlds and the one who tells them apart. ``notes`` are sentences for the report.

    An adversary that chooses the data set, or what is learnt from it, gives the ``network`` and the ``training`` that
    stand in for the scene's; clipping norm, noise, sampling rate and steps must stay those of the scene, because it is
    their promise that is audited. ``keeps_steps``: the final model holds what single steps did, so its scores are those
    of one who saw them all, and no bound may read them as the last iterate of linear losses.
    """

    neighbours: Neighbours
    distinguisher: Distinguisher
    notes: tuple[str, ...] = ()
    network: Network | None = None
    training: TrainingConfig | None = None
    shortcut: Shortcut | None = None
    keeps_steps: bool = False

    @property
    def evidence(self) -> View:
        """Whose evidence the scores are: the view under which bounds may read them."""
        return View.ALL_ITERATES if self.keeps_steps else self.distinguisher.view


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ManyCanaries:
    """One training instead of two worlds: m canaries, each in or out by a fair coin of its own, and a score for each.

    ``scorer`` watches the training within its view and gives ``[S, m + 1]`` numbers: the score of every canary, in or
    out, then the model's accuracy. ``runs`` trainings are pooled. ``references`` are trainings of the attacker's own
    with coins of its own, whose mean score of each canary is taken off; ``groups`` are canaries that a model as a whole
    favours or disfavours together (those of one label, say): within each, the scores of one training are brought to
    median 0 and interquartile range 1. ``training`` stands in for the scene's, as in :class:`Attack`.

    How guesses are chosen for the claim: ``expected`` is μ of the attack (None: the best there is),
    ``aim`` is "refute" or "bound", and ``guess_in`` and ``guess_out`` are numbers that are fixed by hand.
    """

    canaries: ExampleCanary | GradientRows
    scorer: Observer
    runs: int = 1
    references: int = 0
    groups: NDArray[np.int64] | None = None
    training: TrainingConfig | None = None
    expected: float | None = None
    aim: str = "refute"
    guess_in: int | None = None
    guess_out: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """m: how many canaries."""
        return self.canaries.copies

    def taken(self, included: NDArray[np.bool_]) -> ExampleCanary | GradientRows | None:
        """The canaries that the coins put into the training; None if there are none."""
        if not included.any():
            return None
        if isinstance(self.canaries, GradientRows):
            return GradientRows(self.canaries.indices[included], self.canaries.values[included])
        return ExampleCanary(self.canaries.x[included], self.canaries.y[included])


@runtime_checkable
class Settles(Protocol):
    """An adversary with options that go by the training's numbers; a control keeps what was chosen for its audit."""

    def settled(self, scene: Scene) -> Adversary:
        """The same adversary with every option chosen."""


@runtime_checkable
class Adversary(Protocol):
    """A frozen dataclass whose fields are the adversary's options."""

    threat: ClassVar[ThreatModel]

    def craft(self, scene: Scene) -> Attack | ManyCanaries:
        """Choose the worlds for this scene and prepare the test that tells them apart; or choose many canaries."""
