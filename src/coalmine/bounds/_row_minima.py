"""Which of millions of simulated pairs of error rates lie on or above a trade-off curve, without asking it of each.

A trade-off curve is convex, so a tangent lies below it everywhere, and a pair below a tangent is below the curve. A
column of simulated order statistics keeps near its mean: one tangent a column settles all but a few pairs, at the price
of one multiplication each. The rest are held against the curve itself, so the answer is the curve's own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from coalmine.theory.curves import TradeOff

Array = NDArray[np.float64]

_CHUNK = 1 << 18  # pairs looked at together: 2 MB a table, which stay in the cache
_WORTH_IT = 1 << 14  # fewer pairs are held against the curve at once
_EVERY = 8
_SLACK = 1e-9  # far above the rounding of a tangent


def reached(curve: TradeOff, alpha: Array, beta: Array) -> NDArray[np.bool_]:
    """β ≥ f(α) for every pair of two tables, column by column near one place."""
    if alpha.size < _WORTH_IT:
        return np.asarray(beta >= curve(alpha))
    slope, height = _tangents(curve, alpha.mean(axis=0))
    mask = np.empty(alpha.shape, dtype=np.bool_)
    rows = max(1, _CHUNK // alpha.shape[1])
    line = np.empty((rows, alpha.shape[1]))
    for start in range(0, alpha.shape[0], rows):
        part = slice(start, min(start + rows, alpha.shape[0]))
        value = line[: part.stop - start]
        np.multiply(alpha[part], slope, out=value)
        value += height
        np.greater_equal(beta[part], value, out=mask[part])
    at = np.unravel_index(np.flatnonzero(mask), mask.shape)  # several times as quick as nonzero of a table
    mask[at] = beta[at] >= curve(alpha[at])
    return mask


def _tangents(curve: TradeOff, centres: Array) -> tuple[Array, Array]:
    """Slope and height of a line below the curve for each centre; where there is none to be had, a line below all.

    The line through (c, f(c)) and (c + h, f(c + h)) is below a convex f outside of [c, c + h], and inside above it by
    at most f(c + h) − 2·f(c) + f(c − h), by which it is lowered.
    """
    wide = 1e-4 * centres
    inside = (centres > 0.0) & (centres + wide < 1.0)
    centre, step = np.where(inside, centres, 0.5), np.where(inside, wide, 1e-4)
    left, middle, right = curve(centre - step), curve(centre), curve(centre + step)
    slope = (right - middle) / step
    height = middle - slope * centre - np.maximum(right - 2.0 * middle + left, 0.0) - _SLACK
    good = inside & np.isfinite(slope) & np.isfinite(height)
    return np.where(good, slope, 0.0), np.where(good, height, -1.0)


def rank_of_row_minima(
    critical: Callable[[Array, Array], Array], curve: Callable[[float], TradeOff], alpha: Array, beta: Array, rank: int
) -> float:
    """The value of rank ``rank`` (from 0, ascending) among the row minima of ``critical(alpha, beta)``.

    The minima over some columns alone are too large, so their order statistic is an upper end. Only rows with a pair
    on or above the curve of that end can have a smaller minimum. Should rounding of the curve lose a row that counts,
    it shows: the order statistic of the others is then above that end, and all rows are asked.
    """
    if alpha.size < _WORTH_IT:
        return _rank(critical(alpha, beta), rank)
    most = _rank(critical(alpha[:, ::_EVERY], beta[:, ::_EVERY]), rank)
    if not most > 0.0:
        return most
    if np.isfinite(most):
        rows = reached(curve(most * (1.0 + _SLACK)), alpha, beta).any(axis=1)
        if np.count_nonzero(rows) > rank:
            found = _rank(critical(alpha[rows], beta[rows]), rank)
            if found <= most:
                return found
    return _rank(critical(alpha, beta), rank)


def _rank(values: Array, rank: int) -> float:
    """The value of rank ``rank`` among the row minima."""
    return float(np.partition(values.min(axis=1), rank)[rank])
