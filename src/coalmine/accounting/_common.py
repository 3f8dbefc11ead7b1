"""What the analyses share: the Gaussian case and the privacy profile on a grid."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Relation, Sampling
from coalmine.theory import curves


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Profile:
    """A privacy profile δ(ε) on an increasing grid of ε, the larger of both directions at each point."""

    LARGEST_EPSILON: ClassVar[float] = 700.0
    """Beyond this, e^ε is no floating-point number."""

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def curve(self) -> curves.ProfileCurve:
        """The trade-off curve that these points imply; it never lies above the true one if no δ is too small."""
        return curves.ProfileCurve(self.epsilons, self.deltas)


def sensitivity(relation: Relation) -> float:
    """By how many clipping norms one row moves the gradient sum when it is in the batch: 1, or 2 if it is replaced."""
    return 2.0 if relation is Relation.REPLACE else 1.0


def check_counterexample(mechanism: DpSgd) -> None:
    """The counterexamples are about Poisson sampling and add/remove neighbours."""
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is not Sampling.POISSON or mechanism.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError(
            "the counterexamples need sampling = 'poisson' and relation = 'add_remove', "
            f"not '{mechanism.sampling.value}' and '{mechanism.relation.value}'"
        )


def gaussian_steps_mu(mechanism: DpSgd) -> float:
    """μ of T steps without sampling: T Gaussian mechanisms in a row are one with μ = Δ·√T/σ."""
    return sensitivity(mechanism.relation) * math.sqrt(mechanism.steps) / mechanism.noise_multiplier
