"""The players of the privacy game, and what each of them may see.

A :class:`Crafter` chooses the two worlds, a :class:`Trainer` trains in one of them, an :class:`Observer` watches
within its :class:`View`, and a :class:`Distinguisher` is an observer that gives one score a trial. Tensors are typed
``Any`` here: this module knows NumPy alone, and a trainer may keep its models where it likes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate


class View(StrEnum):
    """What the adversary sees of a training. Each view includes the ones before it."""

    BLACK_BOX = "black_box"
    """The final model's outputs at chosen inputs."""
    FINAL_MODEL = "final_model"
    """The final model's parameters too."""
    ALL_ITERATES = "all_iterates"
    """Every model from the first to the last, and so every private gradient too."""

    @classmethod
    def parse(cls, value: object) -> View:
        """The view of that name; the error lists the names."""
        return cls(_validate.choice("view", value, [member.value for member in cls]))


@runtime_checkable
class Queries(Protocol):
    """Trained models as a black box: S models at once, in the order of ``trials``."""

    @property
    def trials(self) -> NDArray[np.int64]:
        """The trial number of each model, ``[S]``."""
        ...

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Outputs of every model at B inputs: ``[S, B, classes]``."""
        ...

    def losses(self, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Loss of every model at B labelled inputs: ``[S, B]``."""
        ...


@runtime_checkable
class Models(Queries, Protocol):
    """Trained models with their parameters."""

    @property
    def parameters(self) -> Any:
        """Parameters of every model, ``[S, P]``; not to be written to."""
        ...

    @property
    def initial_parameters(self) -> Any:
        """Parameters each training started from, ``[S, P]``: they do not depend on the data."""
        ...


@runtime_checkable
class Iterate(Protocol):
    """One step of S trainings. Tensors are the trainer's own: read them during the call, do not keep or change them."""

    @property
    def trials(self) -> NDArray[np.int64]:
        """The trial number of each model, ``[S]``."""
        ...

    @property
    def step(self) -> int:
        """Which step this is: 1 for the first, T for the last."""
        ...

    @property
    def previous(self) -> Any:
        """Parameters before the step, ``[S, P]``."""
        ...

    @property
    def parameters(self) -> Any:
        """Parameters after the step, ``[S, P]``."""
        ...

    @property
    def private_gradient(self) -> Any:
        """(sum of clipped gradients + noise) / expected batch size, ``[S, P]``; the regulariser is not in it."""
        ...


@runtime_checkable
class WorldsApart(Protocol):
    """The two worlds before a step, for one who knows both data sets, in units of the private gradient.

    All of it follows from the two data sets, the batch of the rows that both share and ``Iterate.previous``: it holds
    nothing of the world that was trained in.
    """

    @property
    def shared(self) -> Any:
        """Sum of the clipped gradients of the drawn rows that both worlds share, ``[S, P]``."""
        ...

    @property
    def canary(self) -> Any:
        """Clipped gradient of the canary's row, ``[S, P]``: only world 1 has that row."""
        ...

    @property
    def replaced(self) -> Any | None:
        """Clipped gradient of the row in whose place the canary stands, ``[S, P]``; None with ``add_remove``."""
        ...


class PairedIterate(Iterate, Protocol):
    """A step as one who knows both data sets sees it: an observer that says so by ``knows_both_worlds = True``."""

    @property
    def pair(self) -> WorldsApart:
        """The two worlds at ``previous``."""
        ...


class Observer(Protocol):
    """Watches S trainings at once, within its view. Keeps running statistics, never a list of all models."""

    @property
    def view(self) -> View:
        """What it needs to see; it is shown no more than that."""
        ...

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack of trainings begins: forget everything before it."""
        ...

    def observe(self, iterate: Iterate) -> None:
        """One step is done. Called only where the view is ``all_iterates``."""
        ...

    def finish(self, models: Any) -> NDArray[np.float64] | None:
        """Training is over: :class:`Queries` under ``black_box``, :class:`Models` otherwise; scores ``[S]`` or nothing.

        A two-dimensional array ``[S, k]`` gives k scores a trial.
        """
        ...


class Distinguisher(Observer, Protocol):
    """An observer that gives one score a trial; a larger score speaks for world 1.

    One that has an attribute ``columns``, a tuple of k names, gives as many more numbers a trial, which are kept beside
    the score.
    """

    def finish(self, models: Any) -> NDArray[np.float64]:
        """The scores of this stack, ``[S]``, or ``[S, 1 + k]`` with the columns beside them."""
        ...


class Crafter(Protocol):
    """Chooses the worlds: base data, canary, and how the two worlds differ."""

    def craft(self, base: Any, *, seed: int) -> Any:
        """The neighbours, as the trainer takes them (:class:`coalmine.training.Neighbours`)."""
        ...


class Trainer(Protocol):
    """Trains trials, each in its world, and shows them to the observer. Not adversarial, and knows no secret."""

    def train(self, trials: ArrayLike, *, worlds: ArrayLike, observer: Observer | None) -> Any:
        """One training for each trial; what comes back holds status and scores, trial by trial."""
        ...
