"""The exact sup-test: a lower bound from the best threshold of the scores, corrected for selection by simulation.

For n0 + n1 independent scores let S = max over thresholds t of g(FP(t), FN(t)), with g falling in both error counts.
If the mechanism's trade-off curve is at least f_θ, then S is at most S*(θ) = max_i g(i, #{V ≤ f_θ(W_(i+1))}) where
W_(1) < W_(2) < … and V_(1) < V_(2) < … are the order statistics of n0 and n1 independent uniform numbers (proof in
docs/bounds.md). So θ is refuted when few simulated S* reach S (how few: :func:`rank_for`), whatever the distributions,
ties included. For a fixed S each simulated copy has one critical θ_b, below which S*(θ) < S; θ is refuted exactly when
it is at most one order statistic of the θ_b. That order statistic is at once the largest rejected θ and the limit of
those not rejected: no search, no step width.

False positives run over a coarse lattice of counts, false negatives are rounded down onto a fine one, observed and
simulated alike, and only order statistics that matter are drawn: a million scores cost little more than a thousand.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.bounds._rates import Errors, errors_by_position, lattice, lattice_limits
from coalmine.bounds.families import Family
from coalmine.bounds.thresholds import Sup
from coalmine.errors import UnsupportedError
from coalmine.records import Scores
from coalmine.theory.curves import TradeOff

Array = NDArray[np.float64]

_LARGEST_TABLE = 30_000_000  # simulated numbers kept at once: 240 MB
_CEILING_NODES = 4000
UNLUCKY = 1e-3  # the share of seeds for which the fixed copies may have a size above the level
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


def least_level(negatives: int) -> float:
    """The smallest level for which there is room to simulate so many trials."""
    return 20.0 / (_LARGEST_TABLE // (2 * lattice(negatives).size))


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


def draw_world0(rng: np.random.Generator, negatives: int, simulations: int) -> Array:
    """W_(i+1) for every position i of the lattice, one row a copy; position n0 is the threshold −∞, with α = 1."""
    ranks = lattice(negatives)[:-1] + 1
    return _order_statistics(rng, simulations, negatives, ranks, np.arange(ranks.size + 1))


def evidence_table(family: Family, negatives: int, positives: int) -> Array:
    """The family's statistic at every place of the two lattices."""
    return _evidence_table(family, negatives, positives, family.inner_level)


@functools.lru_cache(maxsize=2)
def _world0(negatives: int, simulations: int, seed: int) -> Array:
    """W_(i+1) for every position i, one row a copy; position n0 is the threshold −∞, with α = 1."""
    return draw_world0(np.random.default_rng([0x5C0A0, seed, negatives, simulations]), negatives, simulations)


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
    table = _evidence_table(family, *errors.trials, inner_level or family.inner_level)
    values = table[np.arange(errors.positions.size), errors.places]
    best = int(np.argmax(values))
    return float(values[best]), best, errors


def sup_test(family: Family, scores: Scores, *, level: float, rule: Sup) -> SupResult:
    """Run the sup-test at ``level`` (see the module's text)."""
    simulations = simulations_for(level, scores.world0.size, rule=rule)
    s, best, errors = observed(family, scores)
    theta = invert(family, scores.world0.size, scores.world1.size, s, level=level, rule=rule)
    return SupResult(theta=theta, best=best, errors=errors, simulations=simulations)


def sup_ceiling(family: Family, negatives: int, positives: int, *, level: float) -> float:
    """The θ that scores without any overlap would prove, computed without simulation.

    They refute θ when the extremal pair separates by chance with probability at most ``level``, the share of copies
    that the rank allows. No overlap means V_(1) > f_θ(W_(1)): ∫ (1 − f_θ(w))^{n1} dP(W_(1) ≤ w), with W_(1) at its
    quantiles.
    """
    quantiles = (np.arange(_CEILING_NODES) + 0.5) / _CEILING_NODES
    smallest = -np.expm1(np.log1p(-quantiles) / negatives)

    def refuted(theta: float) -> bool:
        errors = np.minimum(family.curve(theta)(smallest), 1.0)
        with np.errstate(divide="ignore"):
            return float(np.mean(np.exp(positives * np.log1p(-errors)))) <= level

    return family.search(refuted)


def copies_of(negatives: int, positives: int, *, simulations: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Uniform order statistics of both worlds, one row a copy, some at a time: W at every position of the lattice, V at
    every count of the fine one.
    """
    zero, one = (
        np.random.default_rng([stream, seed, total, simulations])
        for stream, total in zip((0x5C0A0, 0x5C0A1), (negatives, positives), strict=True)
    )
    positions = lattice(negatives)[:-1] + 1
    counts = lattice(positives, fine=True)[1:]
    rows = max(1, _CHUNK // (positions.size + counts.size))
    for start in range(0, simulations, rows):
        some = min(rows, simulations - start)
        yield (
            _order_statistics(zero, some, negatives, positions, np.arange(positions.size + 1)),
            _order_statistics(one, some, positives, counts, np.arange(counts.size)),
        )


def missed_by(curve: TradeOff, world0: Array, world1: Array) -> NDArray[np.int64]:
    """The false negatives at every position of world 0 when the scores reach ``curve``, one row a copy.

    They are given as places in the fine lattice of counts, rounded down.
    """
    wrong = curve(world0)
    # One search for all rows: each is moved by its number, so that they follow one another.
    number = np.arange(world0.shape[0])[:, None]
    places = np.searchsorted((world1 + number).ravel(), (wrong + number).ravel(), side="right")
    return np.asarray(places.reshape(wrong.shape) - number * world1.shape[1])


def false_negatives(
    curve: TradeOff, negatives: int, positives: int, *, simulations: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """:func:`missed_by` for simulated copies, some at a time."""
    for world0, world1 in copies_of(negatives, positives, simulations=simulations, seed=seed):
        yield missed_by(curve, world0, world1)


def statistics(family: Family, places: NDArray[np.int64], negatives: int, positives: int) -> Array:
    """S for each row of false negatives at all positions, given as places in the fine lattice."""
    table = _evidence_table(family, negatives, positives, family.inner_level)
    return np.asarray(table[np.arange(table.shape[0]), places].max(axis=1))


def simulate(family: Family, curve: TradeOff, negatives: int, positives: int, *, simulations: int, seed: int) -> Array:
    """Simulated copies of S when the scores reach the trade-off curve ``curve``."""
    parts = false_negatives(curve, negatives, positives, simulations=simulations, seed=seed)
    return np.concatenate([statistics(family, places, negatives, positives) for places in parts])


def rank_for(level: float, simulations: int, *, rule: Sup) -> int:
    """The test rejects when fewer than this many copies reach the observed S: the plain or the careful rank.

    With the copies given, the size is that of the order statistic of rank k: Beta(k, B + 1 − k) over all seeds. The
    plain rank ⌊level·(B + 1)⌋ has the level as its mean, so about half of all seeds are above it. The copies of the
    default are fixed by a fixed seed, so it takes the largest k whose size exceeds the level for one seed in a
    thousand. Whoever sets the number of copies draws a seed too, and gets the plain rank.

    >>> rank_for(0.05, 9999, rule=Sup()), rank_for(0.05, 9999, rule=Sup(simulations=9999))
    (434, 500)
    """
    if rule.simulations is not None:
        return math.floor(level * (simulations + 1) * (1.0 + 1e-12))
    # Pr[Beta(k, B + 1 − k) > level] = Pr[Binomial(B, level) < k].
    rank = int(special.bdtrik(UNLUCKY, simulations, level)) + 1
    while rank > 0 and special.bdtr(rank - 1, simulations, level) > UNLUCKY:
        rank -= 1
    return rank


def kept_level(level: float, negatives: int, *, rule: Sup) -> float:
    """The share of copies that the rank allows: the size of the test on average over seeds, at most ``level``.

    >>> round(kept_level(0.05, 1000, rule=Sup()), 4)
    0.0434
    """
    simulations = simulations_for(level, negatives, rule=rule)
    return rank_for(level, simulations, rule=rule) / (simulations + 1)


def surely_kept_level(level: float, negatives: int, *, rule: Sup) -> float:
    """The size that the test has, or more, for all but one seed in a thousand: below :func:`kept_level`, its mean.

    >>> round(surely_kept_level(0.05, 1000, rule=Sup()), 4)
    0.0374
    """
    simulations = simulations_for(level, negatives, rule=rule)
    rank = rank_for(level, simulations, rule=rule)
    return float(special.betaincinv(rank, simulations + 1 - rank, UNLUCKY)) if rank else 0.0


def invert(family: Family, negatives: int, positives: int, s: float, *, level: float, rule: Sup) -> float:
    """Reject while fewer copies than the rank reach S: up to the θ_b of that rank."""
    simulations = simulations_for(level, negatives, rule=rule)
    rank = rank_for(level, simulations, rule=rule) - 1
    return _refuted(family, negatives, positives, simulations, rule.seed, rank, s)
