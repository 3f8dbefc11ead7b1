"""`last-iterate-gradient` and `last-iterate-input`: attacks on the final model alone (last-iterate-2024, Section 3)."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries import _plain_sgd
from coalmine.adversaries.attack import Attack, DrawnScores, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Displacement, FinalLoss, planted
from coalmine.errors import InvalidInputError
from coalmine.roles import View
from coalmine.training import Dataset, Neighbours, Vector, ZeroGradients, parameter_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastIterateGradient:
    """A Dirac gradient: norm C on one coordinate, whenever the canary is drawn; the score is how far that one moved.

    ``data`` = "natural" leaves the data as it is. ``data`` = "zero-gradient" is the worst case: every other row has
    gradient 0, so that the score is Binomial(T, q) + N(0, σ²T) against N(0, σ²T) exactly (Theorem 1), nothing needs to
    be trained, and the heuristic is tight. ``coordinate`` is drawn at random unless it is given; a negative one
    counts from the end (−1 is the last parameter, a bias of the output layer in most networks). The first model does
    not depend on the data, so whoever trains knows it (``start`` = "known") and it is taken off; with "unknown" the
    score is the coordinate of the final model alone, as in the paper, and random first weights hide the canary.
    """

    data: str = "natural"
    coordinate: int | None = None
    start: str = "known"

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.FINAL_MODEL,
        access="parameters of the first and of the final model",
        modification="adds one row whose gradient is chosen",
        dataset="not chosen, or all other gradients zero",
        summary="Pushes one parameter whenever its row is drawn, and looks how far that one has moved at the end.",
        paper="last-iterate-2024, Section 3, Figures 2 and 3",
    )

    def __post_init__(self) -> None:
        _validate.choice("data", self.data, ("natural", "zero-gradient"))
        _validate.choice("start", self.start, ("known", "unknown"))
        if self.start == "unknown" and self.data != "natural":
            raise _validate.reject("start", self.start, "'known' with data = 'zero-gradient': nothing is trained there")
        if self.coordinate is not None:
            # How large it may be is known only with the network.
            _validate.integer("coordinate", self.coordinate, at_least=-(2**63))

    def craft(self, scene: Scene) -> Attack:
        """Choose the coordinate; with zero-gradient data, say what is known about the score."""
        unit = _plain_sgd.unit(scene)
        if self.data == "natural":
            size = parameter_count(scene.network)
            coordinate = self.coordinate
            if coordinate is None:
                coordinate = int(scene.stream("Dirac coordinate").integers(size))
            elif not -size <= coordinate < size:
                raise _validate.reject("coordinate", coordinate, f"a parameter of the model, at most {size - 1}")
            coordinate %= size
            return Attack(
                neighbours=Neighbours(scene.base, canary=_plain_sgd.dirac(scene, coordinate, size)),
                distinguisher=Displacement(coordinate, unit=unit, known=self.start == "known"),
                notes=(
                    f"the canary's gradient is C on coordinate {coordinate} of {size}; the first model is {self.start}",
                ),
            )
        if self.coordinate is not None:
            raise _validate.reject("coordinate", self.coordinate, "none with data = 'zero-gradient': there is only one")
        weights = _plain_sgd.weights(scene)
        return Attack(
            neighbours=Neighbours(ZeroGradients(rows=scene.base.rows), canary=_plain_sgd.dirac(scene, 0, 1)),
            distinguisher=Displacement(0, unit=unit),
            network=Vector(1),
            shortcut=WeightedSum(weights, rate=scene.sample_rate, noise=scene.training.noise_multiplier),
            notes=(
                "every other row has gradient 0, so nothing is trained: the score is drawn from its exact distribution",
            ),
        )


class WeightedSum(DrawnScores):
    """Scores Σ_t w_t·(A_t + σ·ξ_t) with A_t ~ Bernoulli(q) in world 1 and 0 in world 0; ξ_t standard normal.

    All w_t = 1 is eq. (1) of last-iterate-2024.
    """

    def __init__(self, weights: NDArray[np.float64], *, rate: float, noise: float) -> None:
        self._weights, self._rate = weights, rate
        self._equal = bool((weights == weights[0]).all())
        self._spread = noise * math.sqrt(float((weights**2).sum()))

    def draw(self, stream: np.random.Generator, *, canary: bool) -> float:
        """One score."""
        steps, value = self._weights.size, self._spread * stream.standard_normal()
        if canary and self._equal:
            value += float(self._weights[0]) * int(stream.binomial(steps, self._rate))
        elif canary:
            value += float(self._weights[stream.random(steps) < self._rate].sum())
        return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastIterateInput:
    """An ordinary row with a wrong label; the score is minus the final model's loss at it.

    The row is taken out of the data and stands there with a wrong label in world 1 only (add/remove). ``data`` =
    "natural" leaves the other rows as they are; "blank" replaces them by blank ones (all zeros) with the row's right
    label. ``row`` and ``label`` are drawn at random unless they are given.
    """

    data: str = "natural"
    row: int | None = None
    label: int | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.FINAL_MODEL,
        access="loss of the final model at one point",
        modification="adds one mislabelled row",
        dataset="not chosen, or all other rows blank",
        summary="Plants an ordinary row with a wrong label and asks the final model for its loss there.",
        paper="last-iterate-2024, Section 3, Figure 4",
    )

    def __post_init__(self) -> None:
        _validate.choice("data", self.data, ("natural", "blank"))
        for name, value in (("row", self.row), ("label", self.label)):
            if value is not None:
                _validate.integer(name, value, at_least=0)

    def craft(self, scene: Scene) -> Attack:
        """Take one row out, give it a wrong label, and ask about it."""
        base, classes = scene.base, scene.classes
        if base.rows < 2 or classes < 2:
            raise InvalidInputError(
                f"the data has {base.rows} rows and {classes} classes: last-iterate-input needs 2 of each"
            )
        stream = scene.stream("flipped label")
        row, label = int(stream.integers(base.rows)), int(stream.integers(classes - 1))
        if self.row is not None:
            scene.check_row("row", self.row)
            row = self.row
        right = int(base.y[row])
        label += label >= right  # one of the other classes, each as likely
        if self.label is not None:
            if self.label >= classes or self.label == right:
                raise _validate.reject(
                    "label", self.label, f"a class below {classes} other than the right one, {right}"
                )
            label = self.label
        others = base.without(row)
        if self.data == "blank":
            others = Dataset(np.zeros_like(others.x), np.full(others.rows, right))
        note = f"the canary is row {row} with label {label} instead of {right}"
        if self.data == "blank":
            note += f"; the other {others.rows} rows are blank, label {right}"
        return planted(others, base.x[row], label, note, seen=FinalLoss)
