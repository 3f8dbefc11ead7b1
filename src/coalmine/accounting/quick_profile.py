"""The standard privacy profile, coarser and about ten times quicker: for searches that need one for many σ."""

from __future__ import annotations

from coalmine.accounting import standard
from coalmine.accounting._common import Profile
from coalmine.records import DpSgd


def quick_profile(mechanism: DpSgd, *, points: int = 256) -> Profile:
    """δ(ε) of DP-SGD with every iterate seen, never below the truth, from losses discretised ten times as coarsely.

    Losses are rounded to the safe side at any width (Doroshenko et al. 2022), so the profile is valid; its trade-off
    curve lies below the one of :func:`coalmine.accounting.standard.profile` by about 0.1 % at most.

    >>> round(float(quick_profile(DpSgd(sample_rate=0.1, noise_multiplier=1.3, steps=100)).deltas[0]), 3)
    0.328
    """
    return standard.profile(mechanism, points=points, coarser=10.0)
