"""The standard privacy profile, coarser and about ten times quicker: for searches that need one for many σ."""

from __future__ import annotations

from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.accounting import standard
from coalmine.accounting._common import Profile
from coalmine.records import DpSgd, Relation, Sampling

_COARSER = 10.0


def quick_profile(mechanism: DpSgd, *, points: int = 256) -> Profile:
    """δ(ε) of DP-SGD with every iterate seen, never below the truth, from losses discretised ten times as coarsely.

    Losses are rounded to the safe side at any width (Doroshenko et al. 2022), so the profile is valid; its trade-off
    curve lies below the one of :func:`coalmine.accounting.standard.profile` by about 0.1 % at most.

    >>> round(float(quick_profile(DpSgd(sample_rate=0.1, noise_multiplier=1.3, steps=100)).deltas[0]), 3)
    0.328
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    points = _validate.integer("points", points, at_least=2)
    if mechanism.sampling is Sampling.SHUFFLE or mechanism.sample_rate in (0.0, 1.0):
        return standard.profile(mechanism, points=points)  # in closed form
    composed = _composed(mechanism)
    rounding = standard._rounding(mechanism)
    top = min(float(composed.get_epsilon_for_delta(max(2.0 * rounding, 1e-13))), Profile.LARGEST_EPSILON)
    epsilons = np.linspace(0.0, top, points)
    deltas = np.asarray(composed.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
    return Profile(epsilons=epsilons, deltas=np.clip(deltas + rounding, 0.0, 1.0))


def _composed(mechanism: DpSgd) -> Any:
    """The composed privacy loss distribution."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    replace = mechanism.relation is Relation.REPLACE
    return privacy_loss_distribution.from_gaussian_mechanism(
        mechanism.noise_multiplier,
        sampling_prob=mechanism.sample_rate,
        value_discretization_interval=_COARSER * standard._interval(mechanism),
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE,
    ).self_compose(mechanism.steps)
