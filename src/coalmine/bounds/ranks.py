"""The rank test: a lower bound from all scores at once, where the sup-test looks at the best threshold alone.

If the mechanism's trade-off curve is at least f_θ, then for independent scores X of world 0 and Y of world 1 there are
independent uniform numbers W and V with 1{X_i < Y_j} ≤ 1{V_j > f_θ(W_i)} for all i and j at once (docs/bounds.md). So
every statistic that rises in these indicators is at most, in law, what (f_θ(W), V) gives, which is simulated; the
largest θ for which few simulated copies reach the observed value is the bound. Ties among scores count against it.

The statistic is the larger of two, each turned into the μ of the Gaussian leak that it would refute by itself, and
this maximum is what is simulated, so the choice between them is corrected for:

- the best threshold, as in :mod:`coalmine.bounds.sup`;
- normal scores: Σ_j a(share of X above Y_j) + Σ_i a(share of Y below X_i) with a = −Φ⁻¹, which for two Gaussians is
  nearly the likelihood ratio (van der Waerden 1952; Chernoff and Savage 1958).

The copies are the same for every θ, so each rises with θ: after one look at all of them, at a θ a little too large,
only those that reach the observed value there are asked again.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.bounds._rates import errors_by_position, lattice
from coalmine.bounds.families import Family
from coalmine.bounds.sup import copies_of, evidence_table, missed_by, rank_for
from coalmine.bounds.thresholds import Sup
from coalmine.records import Scores
from coalmine.theory.curves import GaussianCurve, TradeOff

Array = NDArray[np.float64]
Places = NDArray[np.int64]
"""False negatives at every position of world 0, as places in the fine lattice of counts, rounded down."""

_COPIES = (20_000, 60.0)
"""Simulated copies: at least the first number, and the second over the level."""
_FEW = 500
"""Copies for scales, and for where the answer is to be looked for."""
_RUNGS = np.concatenate([np.arange(0.0, 2.0, 0.25), np.arange(2.0, 8.5, 0.5)])
_ONE_IN_A_HUNDRED = 2.326
_TINY = 1e-9
_LARGEST_MU = 64.0
_STREAMS = 0x5C0B0, 0x5C0B1
_TIE = 1e-9
"""Copies this near the observed value count as reaching it: equal sums may differ in their last bits."""


def rank_sum(gain: Callable[[Array], Array], negatives: int, positives: int) -> Callable[[NDArray[np.int64]], Array]:
    """Σ_j a(share of X above Y_j) + Σ_i a(share of Y below X_i), from the false negatives at every lattice position.

    ``gain`` is a, which falls: then the sum rises in every 1{X_i < Y_j}. Between two positions of the lattice the
    scores of world 0 count as one.
    """
    positions = lattice(negatives)
    gains = gain(np.asarray((positions + 0.5) / (negatives + 1.0), dtype=np.float64))
    steps = np.maximum(gains - np.append(gains[1:], gains[-1]), 0.0)
    table = gain(np.asarray((np.arange(positives + 1) + 0.5) / (positives + 1.0), dtype=np.float64))
    held = np.diff(positions, prepend=-1.0)[:-1]  # how many scores of world 0 each threshold stands for
    return lambda missed: np.asarray(-(missed @ steps) + table[missed[:, :-1]] @ held)


def statistic(family: Family, places: Places, negatives: int, positives: int) -> Array:
    """The larger of both statistics for every row of false negatives, each as the μ that it would refute by itself."""
    raw, ladder = _raw(family, negatives, positives)(places), _ladder(family, negatives, positives)
    return np.asarray(np.max([_up_the_ladder(raw[:, k], ladder[:, k]) for k in range(raw.shape[1])], axis=0))


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
    (20000, 60000)
    """
    return max(_COPIES[0], round(_COPIES[1] / level))


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

    def reaching(theta: float, world0: Array, world1: Array) -> NDArray[np.bool_]:
        places = missed_by(family.curve(theta), world0, world1)
        return np.asarray(statistic(family, places, n0, n1) >= value - _TIE)

    count = 0
    for world0, world1 in copies_of(n0, n1, simulations=total, seed=seed, streams=_STREAMS):
        count += int(reaching(0.0, world0, world1).sum())
        if count > allowed:
            return 0.0  # not even "nothing leaks" is refuted
    mu, theta = _guess(family, n0, n1, value, min(2.0 * level, 0.5)), -1.0
    while True:
        before, theta = theta, family.near(mu)
        if theta <= before:
            theta = family.near(math.inf)
        kept = [
            (world0[rows], world1[rows])
            for world0, world1 in copies_of(n0, n1, simulations=total, seed=seed, streams=_STREAMS)
            if (rows := reaching(theta, world0, world1)).any()
        ]
        if sum(world0.shape[0] for world0, _ in kept) > allowed:
            break
        if theta == family.near(math.inf):
            return theta  # there is no larger one
        mu = 2.0 * mu + 0.1
    top = theta
    zero, one = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return family.search(lambda at: at < top and int(reaching(at, zero, one).sum()) <= allowed, start=top - 1.0)


def _guess(family: Family, n0: int, n1: int, value: float, level: float) -> float:
    """The μ at which the copies would reach the value with about that probability: by a few of them, as if normal."""
    sample = list(copies_of(n0, n1, simulations=_FEW, seed=0, streams=_STREAMS))

    def limit(curve: TradeOff) -> float:
        copies = np.concatenate([statistic(family, missed_by(curve, *pair), n0, n1) for pair in sample])
        return float(copies.mean() - special.ndtri(level) * copies.std())

    low, high = 0.0, 1.0
    while limit(GaussianCurve(mu=high)) < value and high < _LARGEST_MU:
        low, high = high, 2.0 * high
    while high - low > 0.02 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if limit(GaussianCurve(mu=middle)) < value else (low, middle)
    # The family is not quite Gaussian: one step by the slope that Gaussians have.
    slope = (limit(GaussianCurve(mu=high + 0.1)) - limit(GaussianCurve(mu=high))) / 0.1
    if slope > 0.0:
        high += float(np.clip((value - limit(family.curve(family.near(high)))) / slope, -0.5 * high, high))
    return high


@functools.lru_cache(maxsize=32)
def _raw(family: Family, n0: int, n1: int) -> Callable[[Places], Array]:
    """Both statistics of every row, each in its own unit."""
    # A rate limit of 1 gives −∞; of finite numbers means and widths can be taken.
    table, counts = np.clip(evidence_table(family, n0, n1), -50.0, 50.0), lattice(n1, fine=True)
    # Multiples of 2⁻²⁰: their sums are exact, so equal counts give equal values in whatever order they are added up.
    normal = rank_sum(lambda share: np.round(-special.ndtri(share) * 2.0**20) / 2.0**20, n0, n1)
    rows = np.arange(table.shape[0])
    return lambda places: np.stack([table[rows, places].max(axis=1), normal(counts[places])], axis=1)


@functools.lru_cache(maxsize=32)
def _ladder(family: Family, n0: int, n1: int) -> Array:
    """For every rung μ and either statistic, what about one in a hundred audits of a Gaussian leak of μ exceeds."""
    raw = _raw(family, n0, n1)
    copies = list(copies_of(n0, n1, simulations=_FEW, seed=1, streams=_STREAMS))
    found = []
    for mu in _RUNGS:
        values = np.concatenate([raw(missed_by(GaussianCurve(mu=mu), *pair)) for pair in copies])
        found.append(values.mean(axis=0) + _ONE_IN_A_HUNDRED * values.std(axis=0))
    # Rising, also where most copies tie: a statistic must never fall when its argument rises.
    rising = np.maximum.accumulate(found, axis=0) + _TINY * np.arange(_RUNGS.size)[:, None]
    return np.asarray(rising)
