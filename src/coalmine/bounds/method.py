"""A method as a value: all that a report, the command line or a verdict needs to know about the origin of a number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coalmine.bounds.families import Family
    from coalmine.records import DpSgd, Estimate, LowerBound


class Evidence(StrEnum):
    """What a method reads."""

    TRIALS = "trials"
    """Scores of independent trials, or the counts of a test that was fixed beforehand."""
    COUNTS = "counts"
    """Counts of a test that was fixed beforehand, and nothing else."""
    ONE_RUN = "one_run"
    """One training with many canaries."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """A way from evidence to ε.

    ``words`` is its sentence for people and ``short`` the head of a column. Where one method has several families of
    curves, ``base`` is the name that they share and ``variant`` that of the family. ``decides`` says whether its bounds
    may decide a verdict: they assume nothing about the mechanism. ``proves`` is False where it gives an estimate.
    ``family`` makes the trade-off curves behind it, from δ, the number of copies and (where ``needs_mechanism``) a
    mechanism whose noise is not used; ``from_counts`` and ``from_run`` are the ways where there is no such family.
    """

    name: str
    words: str
    short: str
    base: str = ""
    variant: str = ""
    evidence: Evidence = Evidence.TRIALS
    decides: bool = False
    proves: bool = True
    needs_mechanism: bool = False
    family: Callable[[float, int, DpSgd | None], Family] | None = None
    from_counts: Callable[..., LowerBound | Estimate] | None = None
    from_run: Callable[..., LowerBound] | None = None
