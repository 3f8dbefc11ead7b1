"""Exact laws for counts: tails of binomials, of their sums, and of how far many of them are spread.

Every tail is computed, not approximated by a limit theorem: sums of independent counts by convolution in the frequency
domain. What is cut off and what rounding may add are put on top of the tail, so a p-value from here is never too small.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import signal, special

Array = NDArray[np.float64]
Tails = tuple[float, float]
"""The chances of a value at most, and at least, as large as the one that was seen."""

_ROUNDING = 1e-9
"""On top of every tail that comes from a convolution; its own error is far below."""
_NEGLIGIBLE = 1e-18


def two_sided(tails: Tails) -> float:
    """The p-value of a test in both directions: twice the smaller tail."""
    return min(1.0, 2.0 * min(tails))


def binomial_tails(count: int, trials: int, rate: float) -> Tails:
    """Both tails of Binomial(``trials``, ``rate``) at ``count``.

    >>> lower, upper = binomial_tails(8, 10, 0.5)
    >>> round(upper, 6)
    0.054688
    """
    if rate <= 0.0:
        return (1.0, 1.0) if count == 0 else (1.0, 0.0)
    if rate >= 1.0:
        return (1.0, 1.0) if count == trials else (0.0, 1.0)
    upper = float(special.betainc(count, trials - count + 1, rate)) if count > 0 else 1.0
    lower = float(special.betaincc(count + 1, trials - count, rate)) if count < trials else 1.0
    return lower, upper


def binomial_pmf(trials: int, rate: float) -> Array:
    """The probabilities of 0 … ``trials``."""
    k = np.arange(trials + 1.0)
    chosen = special.gammaln(trials + 1.0) - special.gammaln(k + 1.0) - special.gammaln(trials - k + 1.0)
    return np.asarray(np.exp(chosen + special.xlogy(k, rate) + special.xlog1py(trials - k, -rate)))


def sum_of_binomials_tails(count: int, parts: Sequence[tuple[int, float]]) -> Tails:
    """Both tails at ``count`` of a sum of independent Binomial(n, p), one for each pair (n, p) of ``parts``.

    >>> lower, upper = sum_of_binomials_tails(0, [(10, 0.1), (5, 0.2)])
    >>> round(lower, 5)  # 0.9¹⁰·0.8⁵
    0.11425
    """
    merged: dict[float, int] = {}
    for n, p in parts:
        merged[p] = merged.get(p, 0) + n
    if len(merged) == 1:
        ((p, n),) = merged.items()
        return binomial_tails(count, n, p)
    law = np.ones(1)
    for p, n in merged.items():
        law = np.maximum(signal.fftconvolve(law, binomial_pmf(n, p)), 0.0)
    return min(1.0, float(law[: count + 1].sum()) + _ROUNDING), min(1.0, float(law[count:].sum()) + _ROUNDING)


def spread_tails(counts: NDArray[np.int64], trials: int, rate: float) -> Tails:
    """Both tails of the spread Σ⌊|c − m|/g⌋² of ``counts``, which should be independent Binomial(``trials``, ``rate``).

    m is the mean, rounded; g is 1 unless the counts are so large that a coarser grid loses nothing (16 steps to a
    standard deviation). A large spread means that some counts come from another rate; a small one that they are tied.

    >>> lower, upper = spread_tails(np.full(50, 10), 100, 0.1)
    >>> lower < 1e-8
    True
    """
    m, unit = _center(trials, rate)
    seen = int(((np.abs(np.asarray(counts, dtype=np.int64) - m) // unit) ** 2).sum())
    law, dropped = _square_law(trials, rate)
    lower, upper = sum_tails(seen, law, counts.size)
    return lower, min(1.0, upper + counts.size * dropped)


def _center(trials: int, rate: float) -> tuple[int, int]:
    """m and g of :func:`spread_tails`."""
    return round(trials * rate), max(1, int((trials * rate * (1.0 - rate)) ** 0.5 / 16.0))


@functools.lru_cache(maxsize=64)
def _square_law(trials: int, rate: float) -> tuple[Array, float]:
    """The law of ⌊|c − m|/g⌋² for one count, and how much of its tail is left out."""
    m, unit = _center(trials, rate)
    single = binomial_pmf(trials, rate)
    kept = np.flatnonzero(single > _NEGLIGIBLE)
    squares = (np.abs(kept - m) // unit) ** 2
    law = np.bincount(squares, weights=single[kept]).astype(np.float64)
    return law, abs(1.0 - float(law.sum())) + _NEGLIGIBLE * trials


def sum_tails(seen: int, law: Array, terms: int) -> Tails:
    """Both tails at ``seen`` of a sum of ``terms`` independent values with the probabilities ``law`` of 0, 1, 2, ….

    >>> lower, upper = sum_tails(12, np.full(6, 1 / 6), 3)  # three dice that show 0 to 5
    >>> round(upper, 6), round(20 / 216, 6)
    (0.092593, 0.092593)
    """
    start, table, beyond = _sum_law(law.tobytes(), terms)
    place = seen - start
    lower = float(table[: max(place + 1, 0)].sum()) if place < table.size else 1.0
    upper = float(table[max(place, 0) :].sum()) if place < table.size else 0.0
    return min(1.0, lower + beyond), min(1.0, upper + beyond)


@functools.lru_cache(maxsize=64)
def _sum_law(raw: bytes, terms: int) -> tuple[int, Array, float]:
    """A window of the law of the sum: its first value, the probabilities, and what may be missing or wrong in a tail.

    The convolution is circular with as many points as the window, so values outside it appear inside. Their chance is
    bounded by Chernoff's inequality and added to both tails.
    """
    law = np.frombuffer(raw, dtype=np.float64)
    values = np.arange(law.size, dtype=np.float64)
    mean = float(law @ values)
    deviation = max(float(law @ (values - mean) ** 2), 1e-12) ** 0.5 * terms**0.5
    whole = terms * (law.size - 1) + 1
    size = 1 << int(np.ceil(np.log2(min(whole, 2.0 * (12.0 * deviation + law.size)))))
    start = 0 if size >= whole else max(0, int(terms * mean - size / 2))
    folded = np.bincount(np.arange(law.size) % size, weights=law, minlength=size)
    circular = np.fft.irfft(np.fft.rfft(folded) ** terms, n=size)
    table = np.maximum(np.roll(circular, -(start % size)), 0.0)
    beyond = _ROUNDING
    if size < whole:
        beyond += _chernoff(law, terms, start + size, deviation) + _chernoff(law, terms, start, -deviation)
    return start, table, beyond


def _chernoff(law: Array, terms: int, bound: int, deviation: float) -> float:
    """The smallest of exp(n·log E e^{tv} − t·bound) over a grid of t of the sign of ``deviation``."""
    values = np.arange(law.size)
    slopes = np.geomspace(0.5, 40.0, 24) / deviation
    with np.errstate(divide="ignore"):
        logs = [terms * float(special.logsumexp(np.log(law) + t * values)) - t * bound for t in slopes]
    return float(np.exp(min(0.0, min(logs))))
