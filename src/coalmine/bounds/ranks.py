"""The rank test: a lower bound from all scores at once, where the sup-test looks at the best threshold alone.

If the mechanism's trade-off curve is at least f_θ, then for independent scores X of world 0 and Y of world 1 there are
independent uniform numbers W and V with 1{X_i < Y_j} ≤ 1{V_j > f_θ(W_i)} for all i and j at once (docs/bounds.md). So
every statistic that rises in these indicators is at most, in law, what (f_θ(W), V) gives, which is simulated; the
largest θ for which few simulated copies reach the observed value is the bound. Ties among scores count against it.

The statistic is the larger of two, each turned into the μ that names the member of the family which it would refute by
itself, and this maximum is what is simulated, so the choice between them is corrected for:

- likelihood: −Σ_i a(share of all scores above X_i), where a is the log-likelihood ratio of one member of the family,
  near a Gaussian leak of μ = 3, at the score that has this share above it. The sum over all scores is the same in every
  order, so this is half of Σ_j a(…Y_j) − Σ_i a(…X_i): nearly the likelihood ratio of the ranks;
- the best threshold, as in :mod:`coalmine.bounds.sup`. It is better where few trials carry all the evidence and the
  attack is not like the family, so it is asked for more: one audit in two thousand may exceed the μ that it is turned
  into, and one in a hundred that of the likelihood.

The copies are the same for every θ, so each rises with θ: after one look at all of them, at a θ a little too large,
only those that reach the observed value there are asked again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.bounds._rates import errors_by_position, lattice
from coalmine.bounds.families import Family
from coalmine.bounds.sup import evidence_table, missed_by, rank_for
from coalmine.bounds.thresholds import Sup
from coalmine.errors import UnsupportedError
from coalmine.records import Scores
from coalmine.theory.curves import GaussianCurve, TradeOff

Array = NDArray[np.float64]
Places = NDArray[np.int64]
"""False negatives at some positions of world 0, as places among counts, rounded down: in the fine lattice where they
come from outside, among :func:`told_apart` inside."""

_COPIES = (20_000, 100.0)
_MOST_COPIES = 2_000_000
"""Simulated copies: at least the first number, and the second over the level."""
_CHUNK = 1 << 17
"""Simulated numbers drawn at once: 1 MB."""
_FEW = 500
"""Copies for scales, and for where the answer is to be looked for."""
_PLENTY = 12
"""So many times as many copies as are allowed may reach the value where the search begins: more are not kept."""
_RUNGS = np.concatenate([np.arange(0.0, 2.0, 0.25), np.arange(2.0, 8.5, 0.5)])
_EXCEEDED = special.ndtri([1.0 - 1.0 / 2000.0, 1.0 - 1.0 / 100.0])
"""How rarely the μ of the best threshold, and that of the likelihood, is exceeded."""
_REFERENCE = 3.0
"""μ of the Gaussian leak near the member of the family whose likelihood ratio is used."""
_LEAST_MU = 1e-3
_LARGE_MU = 64.0
"""Nothing that noise explains lies above: from there on the search takes long steps."""
_NARROW = 1e-3
"""Where so little is left to search, the lower end is the answer: it is refuted already."""
_TINY = 1e-9
_ALL_TOLD_APART = 1024
"""With so many trials or fewer every count of false negatives is told from the next."""
_STREAMS = 0x5C0B0, 0x5C0B1
_TIE = 1e-9
"""Copies this near the observed value count as reaching it: equal sums may differ in their last bits."""


def rank_sum(
    gain: Callable[[Array], Array], negatives: int, positives: int, *, back: Callable[[Array], Array] | None = None
) -> Callable[[NDArray[np.int64]], Array]:
    """Σ_j a(share of X above Y_j) + Σ_i b(share of Y below X_i), from the false negatives at every lattice position.

    ``gain`` is a and ``back`` is b (default: a too). Both fall: then the sum rises in every 1{X_i < Y_j}. Between two
    positions of the lattice the scores of world 0 count as one.
    """
    positions = lattice(negatives)
    gains = gain(np.asarray((positions + 0.5) / (negatives + 1.0), dtype=np.float64))
    steps = np.maximum(gains - np.append(gains[1:], gains[-1]), 0.0)
    table = (back or gain)(np.asarray((np.arange(positives + 1) + 0.5) / (positives + 1.0), dtype=np.float64))
    held = np.diff(positions, prepend=-1.0)[:-1]  # how many scores of world 0 each threshold stands for
    return lambda missed: np.asarray(-(missed @ steps) + table[missed[:, :-1]] @ held)


@functools.lru_cache(maxsize=64)
def told_apart(total: int) -> NDArray[np.int64]:
    """The counts of false negatives that this test tells apart: those of the fine lattice; of many trials fewer, about
    a standard deviation of a count from one to the next.

    That takes a sixth of the numbers and loses nothing that shows: counts at hundreds of positions are added up, and
    each is rounded by itself.

    >>> told_apart(500).size, told_apart(50_000).size
    (501, 730)
    """
    every = lattice(total, fine=True)
    if total <= _ALL_TOLD_APART:
        return every
    near = np.minimum(every, total - every)
    step = np.where(near < 64, near, 64 + np.floor(2.0 * np.sqrt(near)))  # √j counts near a count j are one
    return np.asarray(every[np.append(True, np.diff(np.where(2 * every < total, step, -step)) != 0)])


def statistic(family: Family, places: Places, negatives: int, positives: int) -> Array:
    """The larger of both statistics for every row of false negatives, each as the μ that it would refute by itself.

    ``places`` are in the fine lattice of counts.
    """
    coarser = np.searchsorted(told_apart(positives), lattice(positives, fine=True), side="right") - 1
    return _statistic(family, coarser[places], negatives, positives)


def _statistic(family: Family, places: Places, n0: int, n1: int) -> Array:
    """:func:`statistic`, of places among the counts told apart."""
    raw, ladder = _raw(family, n0, n1)(places), _ladder(family, n0, n1)
    return np.maximum(*(_up_the_ladder(raw[:, k], ladder[:, k]) for k in range(2)))


def _up_the_ladder(values: Array, rungs: Array) -> Array:
    """μ by interpolation; below and above the ladder along its first and last line."""
    inside = np.interp(values, rungs, _RUNGS)
    below = np.minimum(values - rungs[0], 0.0) / (rungs[1] - rungs[0]) * (_RUNGS[1] - _RUNGS[0])
    above = np.maximum(values - rungs[-1], 0.0) / (rungs[-1] - rungs[-2]) * (_RUNGS[-1] - _RUNGS[-2])
    return np.asarray(inside + below + np.minimum(above, 1e3))


def observed(family: Family, scores: Scores) -> float:
    """The statistic of an audit."""
    errors = errors_by_position(scores)
    return float(statistic(family, errors.places[None, :], *errors.trials)[0])


def simulations_for(level: float) -> int:
    """How many copies are simulated.

    >>> simulations_for(0.05), simulations_for(0.001)
    (20000, 100000)
    """
    copies = max(_COPIES[0], round(_COPIES[1] / level))
    if copies > _MOST_COPIES:
        raise UnsupportedError(
            f"confidence = {1 - level!r} is too high for the rule ranks, which would need {copies} simulated copies of "
            f"these trials and takes at most {_MOST_COPIES}: use the threshold rule bonferroni, holdout or given"
        )
    return copies


def kept_level(level: float) -> float:
    """The share of copies that the rank allows: the size of the test on average over seeds.

    >>> round(kept_level(0.05), 4)
    0.0453
    """
    total = simulations_for(level)
    return rank_for(level, total, rule=Sup()) / (total + 1)


def invert(family: Family, negatives: int, positives: int, value: float, *, level: float, seed: int = 0) -> float:
    """The largest θ that an observed statistic refutes at ``level``; 0 when there is none."""
    return _refuted(family, negatives, positives, value, level, seed)


@functools.lru_cache(maxsize=4096)
def _refuted(family: Family, n0: int, n1: int, value: float, level: float, seed: int) -> float:
    """See :func:`invert`."""
    total = simulations_for(level)
    allowed = rank_for(level, total, rule=Sup()) - 1  # so many copies may reach the value where θ is still refuted

    def reaching(curve: TradeOff, world0: Array, world1: Array) -> NDArray[np.bool_]:
        return np.asarray(_statistic(family, missed_by(curve, world0, world1), n0, n1) >= value - _TIE)

    def kept(curve: TradeOff, most: int) -> list[tuple[Array, Array]] | None:
        """The copies that reach the value; None if there are more than ``most``."""
        found, count = [], 0
        for world0, world1 in _copies(n0, n1, simulations=total, seed=seed):
            rows = reaching(curve, world0, world1)
            count += int(rows.sum())
            if count > most:
                return None
            if rows.any():
                found.append((world0[rows], world1[rows]))
        return found

    first = next(_copies(n0, n1, simulations=total, seed=seed))  # enough to see that a value is an everyday one
    if int(reaching(family.curve(0.0), *first).sum()) > allowed:
        return 0.0  # not even "nothing leaks" is refuted
    (mu, step), low, high = _guess(family, n0, n1, value, min(2.0 * level, 0.5)), 0.0, math.inf
    least = 0.0
    while True:
        theta = family.near(mu)
        some = kept(family.curve(theta), _PLENTY * (allowed + 1))
        if some is None:
            high = mu
            if low == 0.0 and mu < 8.0 * step and not least:
                least = _LEAST_MU if kept(family.curve(0.0), allowed) is not None else math.inf
            if high < least:
                return 0.0  # not even "nothing leaks" is refuted, or hardly more
        elif sum(world0.shape[0] for world0, _ in some) > allowed:
            break
        elif theta == family.near(math.inf):
            return theta  # there is no larger one
        else:
            low = mu
        mu, step = _next(mu, low, high, step), 2.0 * step
        if high - low < _NARROW * high:  # all copies pass the value within less than one step of the family
            return family.near(low) if low > 0.0 else 0.0
    top = theta
    zero, one = (np.concatenate(parts) for parts in zip(*some, strict=True))
    return family.search(
        lambda at: at < top and int(reaching(family.curve(at), zero, one).sum()) <= allowed, start=top - 1.0
    )


def _next(mu: float, low: float, high: float, step: float) -> float:
    """Where to look next: beyond the only end that is known by one step, above 64 by a far longer one; or between."""
    if high == math.inf:
        return mu + step if mu < _LARGE_MU else mu * mu
    if low == 0.0:
        return max(mu - step, 0.5 * mu)
    return math.sqrt(low * high) if low > _LARGE_MU else 0.5 * (low + high)


def _copies(n0: int, n1: int, *, simulations: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """Uniform order statistics of both worlds, one row a copy, some at a time: W at every position of the lattice (1
    for the threshold −∞), V at every count of the fine one.
    """
    zero, one = (
        np.random.default_rng([stream, seed, total, simulations])
        for stream, total in zip(_STREAMS, (n0, n1), strict=True)
    )
    positions, counts = lattice(n0)[:-1] + 1, told_apart(n1)[1:]
    rows = max(1, _CHUNK // (positions.size + counts.size))
    for start in range(0, simulations, rows):
        some = min(rows, simulations - start)
        world0 = np.ones((some, positions.size + 1))
        world0[:, :-1] = _order_statistics(zero, some, np.diff(positions, prepend=0, append=n0 + 1))
        yield world0, _order_statistics(one, some, np.diff(counts, prepend=0, append=n1 + 1))


def _order_statistics(rng: np.random.Generator, rows: int, gaps: NDArray[np.int64]) -> Array:
    """Uniform order statistics whose ranks are these far apart: partial sums of gamma spacings over their total."""
    wide = np.flatnonzero(gaps > 1)
    if 2 * wide.size > gaps.size:
        sums = rng.standard_gamma(gaps.astype(np.float64), size=(rows, gaps.size))
    else:  # exponential numbers are drawn several times as quickly
        sums = rng.standard_exponential((rows, gaps.size))
        if wide.size:
            sums[:, wide] = rng.standard_gamma(gaps[wide].astype(np.float64), size=(rows, wide.size))
    np.cumsum(sums, axis=1, out=sums)
    sums /= sums[:, -1:].copy()
    return np.asarray(sums[:, :-1])


def _guess(family: Family, n0: int, n1: int, value: float, level: float) -> tuple[float, float]:
    """The μ at which the copies would reach the value with about that probability, by a few of them, as if normal; and
    how far off that may be.
    """
    sample = list(_copies(n0, n1, simulations=_FEW, seed=0))

    def limit(curve: TradeOff) -> tuple[float, float]:
        """What that share of the copies exceeds, and their spread."""
        copies = np.concatenate([_statistic(family, missed_by(curve, *pair), n0, n1) for pair in sample])
        return float(copies.mean() - special.ndtri(level) * copies.std()), float(copies.std())

    low, high, spread = 0.0, 1.0, 0.0
    while high < _LARGE_MU:
        reached, spread = limit(GaussianCurve(mu=high))
        if reached >= value:
            break
        low, high = high, 2.0 * high
    while high - low > min(0.02 * high, 0.2 * spread) and high > 0.05:
        middle = 0.5 * (low + high)
        reached, spread = limit(GaussianCurve(mu=middle))
        low, high = (middle, high) if reached < value else (low, middle)
    # The family is not quite Gaussian: a few steps by the slope that Gaussians have.
    slope = (limit(GaussianCurve(mu=high + 0.1))[0] - limit(GaussianCurve(mu=high))[0]) / 0.1
    for _ in range(3 if slope > 0.0 else 0):
        reached, spread = limit(family.curve(family.near(high)))
        if abs(value - reached) <= 0.2 * spread:
            break
        high += float(np.clip((value - reached) / slope, -0.5 * high, high))
    return high, max(0.3 * spread, 0.01 * high)


@functools.lru_cache(maxsize=32)
def _raw(family: Family, n0: int, n1: int) -> Callable[[Places], Array]:
    """Both statistics of every row, each in its own unit."""
    columns = np.searchsorted(lattice(n1, fine=True), told_apart(n1))
    # A rate limit of 1 gives −∞; of finite numbers means and widths can be taken.
    thresholds, ratios = np.clip(evidence_table(family, n0, n1)[:, columns], -50.0, 50.0), likelihood(family, n0, n1)
    starts = np.arange(thresholds.shape[0]) * thresholds.shape[1]

    def both(places: Places) -> Array:
        at = places + starts
        return np.stack([thresholds.take(at).max(axis=1), ratios.take(at).sum(axis=1)], axis=1)

    return both


def likelihood(family: Family, n0: int, n1: int) -> Array:
    """−a(share of all scores above X_i) for every position i of the lattice and every count of Y at or below X_i that
    is told apart; 0 for the last position, the threshold −∞.

    If r is the ratio of the densities of world 1 and world 0 at a score, then of the member of the family that is used
    a = ln r = ln(−f′(α)) at the false-positive rate α for which (α + 1 − f(α))/2 is the share. Scores of world 0
    between two positions count as one. Multiples of 2⁻²⁰: their sums are exact, so equal counts give equal values in
    whatever order they are added up.
    """
    alpha = special.ndtr(np.linspace(-4.5, 4.5, 257))
    beta = family.curve(family.near(_REFERENCE))(alpha)
    ratio = np.log(np.maximum(-np.diff(beta) / np.diff(alpha), _TINY))
    share = 0.5 * (alpha + 1.0 - beta)
    positions, counts = lattice(n0)[:-1], told_apart(n1)
    held = np.diff(positions, prepend=-1)
    above = (positions - 0.5 * (held - 1.0))[:, None] + (n1 - counts)[None, :] + 0.5
    # The ratio falls along a convex curve; rounding must not let it rise.
    falling = np.minimum.accumulate(ratio)
    found = np.interp(above / (n0 + n1), 0.5 * (share[1:] + share[:-1]), falling)
    values = -held[:, None] * np.round(found * 2.0**20) / 2.0**20
    return np.concatenate([values, np.zeros((1, counts.size))])


@functools.lru_cache(maxsize=32)
def _ladder(family: Family, n0: int, n1: int) -> Array:
    """For every rung μ and either statistic, what few audits exceed whose leak is that of the member near μ.

    Of members of the family itself, because what is rare under a Gaussian is not under them: with many trials the
    threshold would else seem to say more than the likelihood, and decide with its larger scatter.
    """
    raw = _raw(family, n0, n1)
    copies = list(_copies(n0, n1, simulations=_FEW, seed=1))
    found = []
    for mu in _RUNGS:
        curve = family.curve(family.near(mu) if mu > 0.0 else 0.0)
        values = np.concatenate([raw(missed_by(curve, *pair)) for pair in copies])
        found.append(values.mean(axis=0) + _EXCEEDED * values.std(axis=0))
    # Rising, also where most copies tie: a statistic must never fall when its argument rises.
    rising = np.maximum.accumulate(found, axis=0) + _TINY * np.arange(_RUNGS.size)[:, None]
    return np.asarray(rising)
