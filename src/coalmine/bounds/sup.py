"""The exact sup-test: a lower bound from the best threshold of the scores, paid for by simulation.

For n0 + n1 independent scores let S = max over thresholds t of g(FP(t), FN(t)), with g falling in both error counts.
If the mechanism's trade-off curve is at least f_θ, then S is at most S*(θ) = max_i g(i, #{V ≤ f_θ(W_(i+1))}) where
W_(1) < W_(2) < … and V_(1) < V_(2) < … are the order statistics of n0 and n1 independent uniform numbers (proof in
docs/bounds.md). So p(θ) = (1 + #{simulated S* ≥ S})/(1 + simulations) is a valid p-value, whatever the distributions,
ties included. For a fixed S each simulated copy has one critical θ_b, below which S*(θ) < S; p(θ) ≤ level exactly when
θ is at most one order statistic of the θ_b. That order statistic is at once the largest rejected θ and the limit of
those not rejected: no search, no step width.

False positives run over a coarse lattice of counts, false negatives are rounded down onto a fine one, observed and
simulated alike, and only order statistics that matter are drawn: a million scores cost little more than a thousand.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray

from coalmine.bounds._rates import Errors, errors_by_position, lattice, lattice_limits
from coalmine.bounds.families import Family
from coalmine.bounds.thresholds import Sup
from coalmine.errors import UnsupportedError
from coalmine.records import Scores
from coalmine.theory.curves import TradeOff

Array = NDArray[np.float64]

_LARGEST_TABLE = 30_000_000  # simulated numbers kept at once: 240 MB
_CEILING_NODES = 4000
_CHUNK = 1 << 17  # simulated numbers drawn at once: 1 MB


def simulations_for(level: float, negatives: int, *, rule: Sup) -> int:
    """How many copies are simulated: 500/level, from 20 000 on 100/level, as far as memory allows; at least 20/level.

    >>> simulations_for(0.05, 1000, rule=Sup())
    9999
    """
    if rule.simulations is not None:
        if level * (rule.simulations + 1) < 1.0:
            raise UnsupportedError(
                f"simulations = {rule.simulations} cannot reject anything at confidence {1 - level:g}: "
                f"expected at least {math.ceil(1.0 / level) - 1}"
            )
        return rule.simulations
    # A level like 1 − 0.95 is not exactly 0.05.
    steady, fewer, fewest = (math.ceil(times / level - 1e-6) for times in (500, 100, 20))
    room = _LARGEST_TABLE // (2 * lattice(negatives).size)
    copies = min(max(min(steady, 20_000), fewer), room)
    if copies < fewest:
        raise UnsupportedError(
            f"confidence = {1 - level!r} is too high for the sup-test, which would need {fewest} simulated copies of "
            f"these trials and has room for {room}: use the threshold rule bonferroni, holdout or given"
        )
    return copies - 1


def _order_statistics(
    rng: np.random.Generator, simulations: int, total: int, ranks: NDArray[np.int64], columns: NDArray[np.int64]
) -> Array:
    """Uniform order statistics at the given ranks (1 … total): partial sums of gamma spacings over their total.

    Column j of the result is that of rank ``ranks[columns[j]]``; ``len(ranks)`` stands for 1. A few rows are drawn at a
    time, because memory that is still in the cache is several times as quick.
    """
    gaps = np.diff(np.concatenate([[0], ranks, [total + 1]])).astype(np.float64)
    table = np.empty((simulations, columns.size))
    rows = max(1, _CHUNK // gaps.size)
    for start in range(0, simulations, rows):
        part = table[start : start + rows]
        sums = rng.standard_gamma(gaps, size=(part.shape[0], gaps.size))
        np.cumsum(sums, axis=1, out=sums)
        sums /= sums[:, -1:].copy()
        np.take(sums, columns, axis=1, out=part, mode="clip")  # any other mode makes a copy first
    table.flags.writeable = False  # it is kept and handed out again
    return table


@functools.lru_cache(maxsize=2)
def _world0(negatives: int, simulations: int, seed: int) -> Array:
    """W_(i+1) for every position i, one row a copy; position n0 is the threshold −∞, with α = 1."""
    rng = np.random.default_rng([0x5C0A0, seed, negatives, simulations])
    ranks = lattice(negatives)[:-1] + 1
    return _order_statistics(rng, simulations, negatives, ranks, np.arange(ranks.size + 1))


@functools.lru_cache(maxsize=1)
def _world1(positives: int, simulations: int, seed: int, wanted: tuple[int, ...]) -> Array:
    """V at the wanted ranks, one row a copy: the law is that of a whole sample looked at in those ranks alone.

    The last one is kept: families with the same statistic ask for the same ranks.
    """
    rng = np.random.default_rng([0x5C0A1, seed, positives, simulations])
    ranks, columns = np.unique(np.array(wanted, dtype=np.int64), return_inverse=True)
    return _order_statistics(rng, simulations, positives, ranks, columns)


@functools.lru_cache(maxsize=8)
def _evidence_table(family: Family, negatives: int, positives: int, inner_level: float) -> Array:
    """g on the lattice of (false positives, false negatives): the family's statistic at inner rate limits."""
    alpha = lattice_limits(negatives, inner_level)
    beta = lattice_limits(positives, inner_level, fine=True)
    return family.evidence(alpha, beta)


@functools.lru_cache(maxsize=4096)
def _refuted(family: Family, negatives: int, positives: int, simulations: int, seed: int, rank: int, s: float) -> float:
    """The order statistic of the critical θ_b that is the bound, for an observed S = ``s``."""
    table = _evidence_table(family, negatives, positives, family.inner_level)
    reached = (table >= s).sum(axis=1)  # how many lattice counts of false negatives still reach s, by position
    if np.any(reached == table.shape[1]):
        return 0.0  # some position reaches s whatever happens in world 1: nothing can be rejected
    rows = np.flatnonzero(reached)
    alpha = _world0(negatives, simulations, seed)
    alpha = alpha[:, : rows.size] if rows[-1] == rows.size - 1 else alpha[:, rows]  # a view where there are no gaps
    beta = _world1(positives, simulations, seed, tuple(lattice(positives, fine=True)[reached[rows]].tolist()))
    return family.rank_of_row_minima(alpha, beta, rank)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class SupResult:
    """The largest rejected θ, the position at which the statistic is reached, and the errors at all positions."""

    theta: float
    best: int
    errors: Errors
    simulations: int


def observed(family: Family, scores: Scores, *, inner_level: float | None = None) -> tuple[float, int, Errors]:
    """S, the position where it is reached, and the errors at all positions.

    Another ``inner_level`` gives another statistic: for choosing a threshold, not for this test.
    """
    errors = errors_by_position(scores)
    columns = np.searchsorted(lattice(scores.world1.size, fine=True), errors.false_negatives, side="right") - 1
    table = _evidence_table(family, scores.world0.size, scores.world1.size, inner_level or family.inner_level)
    values = table[np.arange(columns.size), columns]
    best = int(np.argmax(values))
    return float(values[best]), best, errors


def sup_test(family: Family, scores: Scores, *, level: float, rule: Sup) -> SupResult:
    """Run the sup-test at ``level`` (see the module's text)."""
    simulations = simulations_for(level, scores.world0.size, rule=rule)
    s, best, errors = observed(family, scores)
    theta = invert(family, scores.world0.size, scores.world1.size, simulations, rule.seed, level, s)
    return SupResult(theta=theta, best=best, errors=errors, simulations=simulations)


def sup_ceiling(family: Family, negatives: int, positives: int, *, level: float) -> float:
    """The θ that scores without any overlap would prove, computed without simulation.

    They refute θ when the extremal pair separates by chance with probability at most ``level``. No overlap means
    V_(1) > f_θ(W_(1)): ∫ (1 − f_θ(w))^{n1} dP(W_(1) ≤ w), with W_(1) at its quantiles.
    """
    quantiles = (np.arange(_CEILING_NODES) + 0.5) / _CEILING_NODES
    smallest = -np.expm1(np.log1p(-quantiles) / negatives)

    def refuted(theta: float) -> bool:
        errors = np.minimum(family.curve(theta)(smallest), 1.0)
        with np.errstate(divide="ignore"):
            return float(np.mean(np.exp(positives * np.log1p(-errors)))) <= level

    return family.search(refuted)


def simulate(family: Family, curve: TradeOff, negatives: int, positives: int, *, simulations: int, seed: int) -> Array:
    """Simulated copies of S when the scores reach the trade-off curve ``curve``."""
    table = _evidence_table(family, negatives, positives, family.inner_level)
    wrong = curve(_world0(negatives, simulations, seed))
    later = _world1(positives, simulations, seed, tuple(lattice(positives, fine=True)[1:].tolist()))
    positions = np.arange(table.shape[0])
    return np.array(
        [table[positions, np.searchsorted(later[b], wrong[b], side="right")].max() for b in range(simulations)]
    )


def invert(family: Family, n0: int, n1: int, simulations: int, seed: int, level: float, s: float) -> float:
    """Reject while (1 + #{θ_b < θ})/(1 + simulations) ≤ level: up to the θ_b of this rank."""
    rank = math.floor(level * (simulations + 1) * (1.0 + 1e-12)) - 1
    return _refuted(family, n0, n1, simulations, seed, rank, s)
