"""How the threshold of a score was chosen, as small values. None is a flag, and none chooses for free.

================  =============================================================================================
rule              what it pays
================  =============================================================================================
``Sup()``         nothing is split or multiplied: the exact law of the best threshold is simulated (the default)
``Ranks()``       the same for the likelihood of all ranks, or the best threshold if it says much more (known families)
``Given(t)``      nothing: the threshold was fixed before the scores were seen
``HoldOut()``     a part of the trials chooses the threshold, the rest give the bound (jagielski-2020, Section 2.2)
``Bonferroni()``  the level is shared among the thresholds
``DKW()``         both error rates are bounded at all thresholds at once (Dvoretzky–Kiefer–Wolfowitz–Massart)
``Optimistic()``  nothing, although it should: the result is an :class:`~coalmine.records.Estimate`, not a bound
================  =============================================================================================
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, TypeAlias

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError


class _Named:
    """A rule goes by its name, with its numbers where it has some."""

    name: ClassVar[str]

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Given(_Named):
    """World 1 is guessed when the score exceeds ``threshold``, which was fixed before the scores were seen."""

    threshold: float
    name: ClassVar[str] = "given"

    def __post_init__(self) -> None:
        value = _validate.between("threshold", self.threshold, -float("inf"), float("inf"))
        object.__setattr__(self, "threshold", value)

    def __str__(self) -> str:
        return f"given:{self.threshold:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HoldOut(_Named):
    """A random ``fraction`` of each world chooses the threshold; only the rest is counted."""

    fraction: float = 0.5
    seed: int = 0
    name: ClassVar[str] = "holdout"

    def __post_init__(self) -> None:
        _validate.open_unit("fraction", self.fraction)
        _validate.integer("seed", self.seed, at_least=0)

    def __str__(self) -> str:
        return f"holdout(fraction={self.fraction:g}, seed={self.seed})"


@dataclasses.dataclass(frozen=True)
class Bonferroni(_Named):
    """The level shared equally among K thresholds.

    ``grid`` are K thresholds fixed before the scores were seen. Without a grid the thresholds are order positions of
    the world-0 scores: a list of counts that depends on the number of trials alone (every count up to 129 trials,
    thinned beyond).
    """

    grid: tuple[float, ...] | None = None
    name: ClassVar[str] = "bonferroni"

    def __post_init__(self) -> None:
        if self.grid is None:
            return
        values = _validate.finite_vector("grid", self.grid)
        if np.unique(values).size != values.size:
            raise InvalidInputError("grid is not allowed: expected every threshold once")
        object.__setattr__(self, "grid", tuple(values.tolist()))

    def __str__(self) -> str:
        return "bonferroni" if self.grid is None else f"bonferroni({len(self.grid)} given thresholds)"


@dataclasses.dataclass(frozen=True)
class DKW(_Named):
    """One band around each empirical distribution function that holds at all thresholds at once."""

    name: ClassVar[str] = "dkw"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sup(_Named):
    """The exact Monte-Carlo test of the best threshold; its proof is in docs/bounds.md.

    ``simulations`` is chosen from the confidence when it is None. ``seed`` fixes the simulated copies.
    """

    simulations: int | None = None
    seed: int = 0
    name: ClassVar[str] = "sup"

    def __post_init__(self) -> None:
        if self.simulations is not None:
            _validate.integer("simulations", self.simulations, at_least=19, at_most=1_000_000)
        _validate.integer("seed", self.seed, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranks(_Named):
    """The exact Monte-Carlo test of all scores at once, by their ranks; its proof is in docs/bounds.md.

    The default where the trade-off curves are those of DP-SGD. ``seed`` fixes the simulated copies.
    """

    seed: int = 0
    name: ClassVar[str] = "ranks"

    def __post_init__(self) -> None:
        _validate.integer("seed", self.seed, at_least=0)


@dataclasses.dataclass(frozen=True)
class Optimistic(_Named):
    """The best threshold of the same scores, not corrected for selection: an estimate, which proves nothing."""

    name: ClassVar[str] = "optimistic"


Rule: TypeAlias = Given | HoldOut | Bonferroni | DKW | Sup | Ranks
