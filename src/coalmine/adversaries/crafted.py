"""`crafted-row`, `crafted-row-steps`, `adaptive-row`, `crafted-gradient`: the strongest of each view.

The row, or the gradient, is chosen by what it can prove (:mod:`coalmine.adversaries.crafters.rows`; for the final model
:mod:`coalmine.adversaries.crafters.steady`), and the score is the best test that the view has: the loss of the final
model, or the whitened log-likelihood ratio of every step. With ``copies`` = k the worlds differ in k rows that are all
this one. A group stands out further from the noise, by more than the way back to one row costs (group privacy), so as
many trials prove more: as long as the group is not so far from the noise that single errors decide. By default k is
chosen by the training's numbers alone, so that k·μ is about 1.7, where μ is the distance of one row in all steps.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries.attack import LATER, Attack, Scene, ThreatModel
from coalmine.adversaries.crafters import rows
from coalmine.adversaries.crafters.background import Background, OwnBackground, Row
from coalmine.adversaries.crafters.steady import steadiest
from coalmine.adversaries.distinguishers.final import Loss
from coalmine.adversaries.distinguishers.whitened import WhitenedRatio
from coalmine.errors import InvalidInputError
from coalmine.records import Sampling
from coalmine.training import ChosenExample, ExampleCanary, Glorot, GradientCanary, Mlp, Neighbours, StackState

MOST_COPIES = 1000
"""Rows that are all the same; a step's ratio has a term for each."""
_ALL_COPIES = 1.7
"""How far all copies together should be from the noise: there some hundred trials measure a distance best."""
_MOST_CHOSEN = 8
BACKGROUNDS = ("shadows", "own")
MEANS = ("held", "interpolated")
_SOURCE = "the row by its signal against the covariance of the other rows' gradients"


def copies_for(scene: Scene) -> int:
    """k with k·μ about 1.7, from 1 to 8, where μ is how far one row of length C in every step is from the noise.

    μ = √T/σ where every step uses the row (with shuffled batches once an epoch), and q·√(T·(e^{1/σ²} − 1)) with Poisson
    batches (Bu et al. 2020, the central limit). One copy where the noise is set by the two data sets themselves.
    """
    training, rate = scene.training, scene.sample_rate
    sigma, steps = training.noise_multiplier, training.steps
    if sigma < 0.1 or training.noise_scale == "local":
        return 1
    if training.sampling is Sampling.POISSON:
        mu = rate * math.sqrt(steps * math.expm1(1.0 / sigma**2))
    else:
        mu = math.sqrt(steps * rate) / sigma
    return max(1, min(_MOST_CHOSEN, round(_ALL_COPIES / max(mu, 1e-9))))


def background_for(scene: Scene) -> str:
    """The models' "own" where each starts from weights of its own and is no perceptron; else that of "shadows".

    A row along a direction in which the inputs do not vary has weights of a perceptron's first layer almost to itself,
    whatever the start. A convolution's weights belong to all rows, and what these do to one model says nothing of a
    model from another start. With full batches the other rows hide nothing.
    """
    training = scene.training
    starts = isinstance(training.initialization, Glorot) and not training.initialization.fixed
    apart = isinstance(scene.network, Mlp) or training.sampling is Sampling.FULL
    return "own" if starts and not apart else "shadows"


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Crafted:
    """Candidate rows, and what is known of them from shadow trainings.

    Rows along the least varying direction of the inputs, ``norms`` times as long as the mean row, and a blank row are
    tried with the ``labels`` least likely labels each, in ``shadows`` trainings of the adversary's own for each, of
    ``shadow_steps`` steps (default: as many as the trainer takes). In world 1 the chosen one is there ``copies`` times
    (default: :func:`copies_for` the training).
    """

    copies: int | None = None
    norms: tuple[float, ...] = (1.0, 2.5, 5.0)
    labels: int = 2
    shadows: int = 2
    shadow_steps: int | None = dataclasses.field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if self.copies is not None:
            _validate.integer("copies", self.copies, at_least=1, at_most=MOST_COPIES)
        if not isinstance(self.norms, (list, tuple)) or not 1 <= len(self.norms) <= 100:
            raise InvalidInputError(
                f"norms = {self.norms!r} is not allowed: expected a list of 1 to 100 numbers above 0"
            )
        object.__setattr__(self, "norms", tuple(_validate.positive("norms", norm) for norm in self.norms))
        _validate.integer("labels", self.labels, at_least=1, at_most=1000)
        _validate.integer("shadows", self.shadows, at_least=1, at_most=10_000)
        if self.shadow_steps is not None:
            _validate.integer("shadow_steps", self.shadow_steps, at_least=1)

    def found(self, scene: Scene) -> rows.Found:
        """The candidates, strongest first."""
        return rows.strongest(
            scene, norms=self.norms, labels=self.labels, shadows=self.shadows, steps=self.shadow_steps
        )

    def settled(self, scene: Scene) -> Self:
        """The same adversary with its number of copies."""
        return dataclasses.replace(self, copies=self._number(scene))

    def _number(self, scene: Scene) -> int:
        return self.copies if self.copies is not None else copies_for(scene)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CraftedRow(_Crafted):
    """A row chosen for what it leaves in the final model; the score is minus its loss there.

    Of the candidates and ``tried`` further rows, the one is taken that keeps its gradient's direction at the models of
    shadow trainings.
    """

    tried: int = 256

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="black box (its loss at one point)",
        modification="malicious samples",
        dataset="not modified",
        summary="Adds copies of the row that stands out most and asks the final model for its loss there.",
        paper=f"jagielski-2020, Algorithm 4, and {_SOURCE}",
        adds="chooses the row that the worlds differ in",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer("tried", self.tried, at_least=0, at_most=1_000_000)

    def steady(self, scene: Scene) -> Row:
        """The row for the final model."""
        return steadiest(scene, found=self.found(scene), norms=self.norms, tried=self.tried)

    def craft(self, scene: Scene) -> Attack:
        """Choose the row; world 1 has it on top of the data."""
        best = self.steady(scene)
        return Attack(
            neighbours=Neighbours(scene.base, canary=ExampleCanary(best.x, best.y, copies=self._number(scene))),
            distinguisher=Loss(best.x[None], [best.y]),
            notes=(_final_words(best),),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CraftedRowSteps(_Crafted):
    """The row that stands out most in a step; the score is the whitened log-likelihood ratio of all steps.

    What the other rows add in the mean is computed at every ``every``-th model (default: once an epoch), because it
    changes slowly; the gradient of the row, which does not, at every ``refresh``-th. ``background`` says whose other
    rows' gradients whiten: those at the models of "shadows", or at the models that are watched, their "own" (default:
    :func:`background_for` the training). Between two looks the mean is "held" or "interpolated" (default: interpolated
    where the background is the models' own).
    """

    every: int | None = None
    refresh: int = 1
    background: str | None = dataclasses.field(default=None, metadata=LATER | {"before": "shadows"})
    mean: str | None = dataclasses.field(default=None, metadata=LATER | {"before": "held"})

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=WhitenedRatio.view,
        access="intermediate models",
        modification="malicious samples",
        dataset="not modified",
        summary="Adds copies of the row that stands out most and looks for their gradient in every step.",
        paper=f"nasr-2021, Section IV-C; {_SOURCE}",
        adds="sees the model after every step",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None:
            _validate.integer("every", self.every, at_least=1)
        _validate.integer("refresh", self.refresh, at_least=1)
        if self.background is not None:
            _validate.choice("background", self.background, BACKGROUNDS)
        if self.mean is not None:
            _validate.choice("mean", self.mean, MEANS)

    def craft(self, scene: Scene) -> Attack:
        """Choose the row; world 1 has it on top of the data."""
        found = self.found(scene)
        best = found.rows[0]
        candidates = self._candidates(scene, found, found.rows[:1])
        return Attack(
            neighbours=Neighbours(scene.base, canary=ExampleCanary(best.x, best.y, copies=self._number(scene))),
            distinguisher=self._ratio(scene, candidates.background, candidates),
            notes=(_words(best), *self._notes(scene)),
        )

    def settled(self, scene: Scene) -> Self:
        """The same adversary with its number of copies, its background, and what it does between looks."""
        mean = "interpolated" if self._interpolates(scene) else "held"
        return dataclasses.replace(super().settled(scene), background=self._whose(scene), mean=mean)

    def _whose(self, scene: Scene) -> str:
        return self.background if self.background is not None else background_for(scene)

    def _interpolates(self, scene: Scene) -> bool:
        return self.mean == "interpolated" if self.mean is not None else self._whose(scene) == "own"

    def _every(self, scene: Scene) -> int:
        return self.every if self.every is not None else max(1, math.ceil(1.0 / max(scene.sample_rate, 1e-9)))

    def _notes(self, scene: Scene) -> tuple[str, ...]:
        every, own = self._every(scene), self._whose(scene) == "own"
        between = "interpolated" if self._interpolates(scene) else "held"
        when = f"every {every} steps{' and at steps 2, 4, 8, … before' if own else ''}, and {between} between"
        if every == 1 or scene.training.steps == 1:
            when = "at every model"
        elif every >= scene.training.steps and not own:
            when = "at the first model, and held"
        directions = "; with it the directions that they hide in that model (its own)" if own else ""
        return (f"what the other rows add in the mean is computed {when}{directions}",)

    def _met(self, scene: Scene, found: rows.Found) -> Background | OwnBackground:
        """What hides the canary."""
        if self._whose(scene) != "own":
            return found.background
        return OwnBackground(
            scene.base,
            network=scene.network,
            training=scene.training,
            noise=found.background.noise,
            every=self._every(scene),
            stream=scene.stream("parts of the other rows"),
            last=scene.training.steps if self._interpolates(scene) else None,
        )

    def _ratio(
        self,
        scene: Scene,
        background: Background | OwnBackground,
        canary: rows.Candidates | NDArray[np.float64],
        *,
        rechoose: int = 1,
    ) -> WhitenedRatio:
        """The test of every step, for rows or for a gradient."""
        return WhitenedRatio(
            canary,
            base=scene.base,
            network=scene.network,
            training=scene.training,
            background=background,
            copies=self._number(scene),
            every=self._every(scene),
            refresh=self.refresh,
            rechoose=rechoose,
            interpolated=self._interpolates(scene),
        )

    def _candidates(self, scene: Scene, found: rows.Found, chosen: Sequence[Row]) -> rows.Candidates:
        return rows.Candidates(
            chosen, network=scene.network, training=scene.training, background=self._met(scene, found)
        )


class BestRow(ChosenExample):
    """For each model the candidate whose gradient stands out most, chosen anew at every ``rechoose``-th step."""

    def __init__(self, candidates: rows.Candidates, *, copies: int, rechoose: int) -> None:
        super().__init__(
            np.stack([row.x for row in candidates.rows]), [row.y for row in candidates.rows], copies=copies
        )
        self._candidates, self._rechoose = candidates, rechoose
        self._places: NDArray[np.int64] | None = None

    def start(self, trials: NDArray[np.int64]) -> None:
        """Forget the stack before."""
        self._places = None

    def choose(self, state: StackState) -> NDArray[np.int64]:
        """The strongest row for each model, ``[S]``."""
        self._candidates.background.renew(state.step, state.parameters)
        if self._places is None or (state.step - 1) % self._rechoose == 0:
            self._places = self._candidates.gradients(state.parameters)[1].cpu().numpy()
        return self._places


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptiveRow(CraftedRowSteps):
    """Of the ``candidates`` strongest rows the best for the model as it is, anew at every ``rechoose``-th step."""

    candidates: int = 3
    rechoose: int = 5

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=WhitenedRatio.view,
        access="intermediate models",
        modification="adaptive samples",
        dataset="not modified",
        summary="Adds copies of the row that stands out most then, anew at each step, and looks for their gradient.",
        paper=f"nasr-2021, Section IV-D; {_SOURCE}",
        adds="chooses the row anew at every step",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _validate.integer("candidates", self.candidates, at_least=1, at_most=1000)
        _validate.integer("rechoose", self.rechoose, at_least=1)

    def craft(self, scene: Scene) -> Attack:
        """Prepare the candidates; each model gets its own at each step."""
        found = self.found(scene)
        chosen = found.rows[: self.candidates]
        candidates = self._candidates(scene, found, chosen)
        return Attack(
            neighbours=Neighbours(
                scene.base, canary=BestRow(candidates, copies=self._number(scene), rechoose=self.rechoose)
            ),
            distinguisher=self._ratio(scene, candidates.background, candidates, rechoose=self.rechoose),
            notes=(
                f"every {self.rechoose} steps the best of {len(chosen)} rows for that model; {_words(chosen[0])}",
                *self._notes(scene),
            ),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CraftedGradient(CraftedRowSteps):
    """A gradient of length C in a direction that the other rows' gradients do not touch at shadow models."""

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=WhitenedRatio.view,
        access="intermediate models",
        modification="malicious gradients",
        dataset="not modified",
        summary="Adds rows with a gradient of its own where the others have none, and looks for it in every step.",
        paper="nasr-2021, Section IV-E; the direction by the other rows' gradients at shadow models",
        adds="gives a gradient instead of a row",
    )

    def craft(self, scene: Scene) -> Attack:
        """Find the direction; world 1 has the gradient on top of the others."""
        found = self.found(scene)
        gradient = scene.training.clip * found.untouched
        return Attack(
            neighbours=Neighbours(scene.base, canary=GradientCanary(gradient, copies=self._number(scene))),
            distinguisher=self._ratio(scene, self._met(scene, found), gradient),
            notes=("the gradient is orthogonal to those of the other rows at shadow models", *self._notes(scene)),
        )


def _words(row: Row) -> str:
    return (
        f"the row is {row.words}, label {row.y}; at shadow models its gradient has d² = {row.strength:.3g} when drawn"
    )


def _final_words(row: Row) -> str:
    return (
        f"the row is {row.words}, label {row.y}; at shadow models the mean of its gradients along a training has "
        f"d² = {row.strength:.3g}"
    )
