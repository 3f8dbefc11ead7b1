"""What the last iterate of a linear loss is: a weighted sum of what each step added."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries.attack import Scene
from coalmine.errors import UnsupportedError
from coalmine.records import Sampling
from coalmine.training import GradientCanary, Sgd, parameter_count


def unit(scene: Scene, *, rows: int | None = None) -> float:
    """−ηC/B: what one use of a canary gradient of norm C, pointing up, adds to its coordinate.

    ``rows`` is the size of a data set that the adversary chose; without it the scene's counts.
    """
    training = scene.training
    if training.learning_rate == 0.0:
        raise _validate.reject("learning_rate", 0.0, "a number above 0: with 0 the final model holds nothing")
    if training.noise_scale == "local":
        raise UnsupportedError(
            "noise scaled to the local sensitivity is made for one example, and the canary is a gradient: use the "
            "clipping norm (noise_scale = 'clip'), or another adversary"
        )
    batch = training.expected_batch(scene.base.rows) if rows is None else rows * scene.sample_rate
    return -training.learning_rate * training.clip / batch


def dirac(scene: Scene, coordinate: int, size: int) -> GradientCanary:
    """A gradient of norm C on one coordinate."""
    gradient = np.zeros(size)
    gradient[coordinate] = scene.training.clip
    return GradientCanary(gradient)


def require_cells(name: str, scene: Scene) -> None:
    """For those who keep every step in a parameter of its own: m ← m − η·(g + ∇r) must keep what was written."""
    training, size = scene.training, parameter_count(scene.network)
    if training.optimizer != Sgd():
        raise UnsupportedError(
            f"adversary {name!r} is made for plain SGD, and the optimizer is {training.optimizer}: set momentum 0"
        )
    if training.steps > size:
        raise UnsupportedError(
            f"{name} keeps every step in a parameter of its own: {training.steps} steps do not fit a model of {size} "
            "parameters; use fewer steps or a larger model"
        )
    if training.sampling is Sampling.SHUFFLE or training.noise_multiplier == 0.0:
        raise UnsupportedError(f"{name} needs noise, and poisson or full sampling")


def weights(scene: Scene) -> NDArray[np.float64]:
    """How much of what step t = 1…T adds is still there at the end: 1 for plain SGD.

    With the regularizer λ/2·‖m‖² each later step keeps 1 − ηλ of it (last-iterate-2024, Section 4.2); with momentum β
    it goes on growing towards 1/(1 − β).
    """
    training = scene.training
    if training.sampling is Sampling.SHUFFLE:
        raise UnsupportedError(
            "zero-gradient data needs poisson or full sampling: shuffled batches are not independent"
        )
    if not isinstance(training.optimizer, Sgd) or callable(training.regularizer):
        raise UnsupportedError(
            f"zero-gradient data is made for SGD with a quadratic regularizer, not for {training.optimizer}"
        )
    shrink, momentum = training.learning_rate * training.regularizer, training.optimizer.momentum
    if shrink > 1.0:
        raise _validate.reject(
            "learning_rate · regularizer", shrink, "a number from 0 to 1 (beyond it the model swings from side to side)"
        )
    if momentum == 0.0:
        return np.asarray((1.0 - shrink) ** np.arange(training.steps - 1, -1, -1), dtype=np.float64)
    values, value, speed = [], 0.0, 0.0
    for step in range(training.steps):  # the path of one impulse: v ← βv + g + λm, m ← m − ηv, with η·g = −1
        speed = momentum * speed + (1.0 if step == 0 else 0.0) - shrink * value
        value += speed
        values.append(value)
    return np.asarray(values[::-1])
