"""The players of the privacy game, and what each of them may see.

The trainer trains in one of two worlds, an :class:`Observer` watches within its :class:`View`, and a
:class:`Distinguisher` is an observer that gives one score a trial. Tensors are typed ``Any`` here: this module knows
NumPy alone, and a trainer may keep its models where it likes.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine.records import Named

LOSS = "loss"
"""The column with minus the loss of the final model at the canary: what membership inference sees of the training."""
DISTANCE = "distance"
"""The column with √Σ_t (LS_t/s_t)²: how far the worlds are apart over all steps, in units of the noise."""


class View(Named):
    """What the adversary sees of a training. Each view includes the ones before it."""

    BLACK_BOX = "black_box"
    """The final model's outputs at chosen inputs."""
    FINAL_MODEL = "final_model"
    """The final model's parameters too."""
    ALL_ITERATES = "all_iterates"
    """Every model from the first to the last, and so every private gradient too."""


@runtime_checkable
class Queries(Protocol):
    """Trained models as a black box: S models at once, in the order of ``trials``."""

    @property
    def trials(self) -> NDArray[np.int64]:
        """The trial number of each model, ``[S]``."""

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Outputs of every model at B inputs: ``[S, B, classes]``."""

    def losses(self, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Loss of every model at B labelled inputs: ``[S, B]``."""


@runtime_checkable
class Models(Queries, Protocol):
    """Trained models with their parameters."""

    @property
    def parameters(self) -> Any:
        """Parameters of every model, ``[S, P]``; not to be written to."""

    @property
    def initial_parameters(self) -> Any:
        """Parameters each training started from, ``[S, P]``: they do not depend on the data."""


@dataclasses.dataclass(frozen=True, eq=False)
class WorldsApart:
    """The two worlds before a step, for one who knows both data sets, in units of the private gradient.

    All of it follows from the two data sets, the batch of the rows that both share and ``Iterate.previous``: it holds
    nothing of the world that was trained in.
    """

    shared: Any
    """Sum of the clipped gradients of the drawn rows that both worlds share, ``[S, P]``."""
    canary: Any
    """Clipped gradient of the canary's row, ``[S, P]``: only world 1 has that row."""
    replaced: Any | None
    """Clipped gradient of the row in whose place the canary stands, ``[S, P]``; None with ``add_remove``."""


@dataclasses.dataclass(frozen=True, eq=False)
class Iterate:
    """One step of S trainings. Tensors are the trainer's own: read them during the call, do not keep or change them."""

    trials: NDArray[np.int64]
    """The trial number of each model, ``[S]``."""
    step: int
    """Which step this is: 1 for the first, T for the last."""
    previous: Any
    """Parameters before the step, ``[S, P]``."""
    parameters: Any
    """Parameters after the step, ``[S, P]``."""
    private_gradient: Any
    """(sum of clipped gradients + noise) / expected batch size, ``[S, P]``; the regularizer is not in it."""
    pair: WorldsApart | None = None
    """The two worlds at ``previous``, for an observer who knows both; None for any other."""
    shared: Any | None = None
    """What the other rows add to the private gradient, ``[S, P]``; None but for canaries that are many gradients.

    Whoever knows the other rows and which of them were drawn knows it; it holds nothing of the canaries.
    """


class Observer:
    """Watches S trainings at once, within its view. Keeps running statistics, never a list of all models.

    A subclass sets ``view``, what it needs to see (it is shown no more than that), and takes over what it needs:
    by default every call does nothing. One that sees all iterates and knows both data sets says
    ``knows_both_worlds = True``, and is then shown ``Iterate.pair`` too.
    """

    view: View
    knows_both_worlds: bool = False

    def start(self, trials: NDArray[np.int64]) -> None:
        """A new stack of trainings begins: forget everything before it."""

    def observe(self, iterate: Iterate) -> None:
        """One step is done. Called only where the view is ``all_iterates``."""

    def finish(self, models: Any) -> NDArray[np.float64] | None:
        """Training is over: :class:`Queries` under ``black_box``, :class:`Models` otherwise; scores ``[S]`` or nothing.

        A two-dimensional array ``[S, k]`` gives k scores a trial.
        """


class Distinguisher(Observer, abc.ABC):
    """An observer that gives one score a trial; a larger score speaks for world 1.

    ``columns`` names k more numbers a trial, which are kept beside the score. ``several`` names the scores where there
    are more than one, each an attack by itself: the first is the score, the others are the first columns. ``log_odds``
    says that the score is the log-odds of a posterior belief in world 1, from even odds.
    """

    columns: tuple[str, ...] = ()
    several: tuple[str, ...] = ()
    log_odds: bool = False

    @abc.abstractmethod
    def finish(self, models: Any) -> NDArray[np.float64]:
        """The scores of this stack, ``[S]``, or ``[S, 1 + k]`` with the columns beside them."""
