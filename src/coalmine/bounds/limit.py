"""The most that any method can prove of ε without assumptions, from so many scores: a limit for all of them.

A method that holds for every pair of laws refutes ε on a pair that keeps ε with chance at most γ = 1 − confidence. Take
such a pair (P′, Q′) near the true one (P, Q): by Neyman and Pearson no test that refutes ε so rarely on P′ⁿ × Q′ⁿ
refutes it more often on Pⁿ × Qⁿ than the likelihood ratio of the two does. Its logarithm is a sum over the scores, and
the law of that sum comes from one Fourier transform.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

from coalmine import _validate
from coalmine.theory.curves import largest_true

_BINS = 1 << 14
"""Cells that stand for the real line of scores."""
_WIDTH = 1e-3
"""The logarithm of a single ratio is kept on multiples of this."""
_MOST_EPSILON = 100.0


def most_provable(mu: float, *, trials: int, confidence: float, share: float = 0.5) -> float:
    """What no valid method without assumptions exceeds in more than ``share`` of all audits.

    Scores are N(0, 1) in world 0 and N(μ, 1) in world 1. It holds for claims (ε, δ) with every δ, since a pair that
    keeps ε with δ = 0 keeps it with any; where trials·δ is far below 1 nothing is lost by that.

    Args:
        mu: the distance of the two laws, d′ of the scores.
        trials: scores in each world.
        confidence: of the bounds.
        share: of all audits; ½ asks for the median bound.

    Returns:
        ε: the largest one that may be refuted in that share of audits; 0 where not even ε = 0 may.

    >>> round(most_provable(0.775, trials=500, confidence=1 - 0.01 / 6), 2)
    1.01

    """
    distance = _validate.positive("mu", mu)
    _validate.at_most("mu", distance, 20.0)
    count = _validate.integer("trials", trials, at_least=1, at_most=1_000_000)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    wanted = _validate.open_unit("share", share)
    edges = np.linspace(-10.0, distance + 10.0, _BINS + 1)
    masses = np.diff(special.ndtr(edges[: _BINS // 2 + 1]))  # the lower half, where no digit is lost; then the rest
    rest = np.diff(special.ndtr(-edges[_BINS // 2 :][::-1]))[::-1]
    law = np.concatenate([masses, rest])

    def possible(epsilon: float) -> bool:
        return chance_to_refute(epsilon, law=law, trials=count, level=level) >= wanted

    return largest_true(possible, 0.0, _MOST_EPSILON, relative=1e-3) if possible(0.0) else 0.0


def chance_to_refute(epsilon: float, *, law: NDArray[np.float64], trials: int, level: float) -> float:
    """How often the best test of ``level`` refutes ε: no valid method does more often.

    ``law`` are the probabilities of the scores in world 0; world 1 has its mirror image, so one law says it for both. A
    pair that keeps ε may be refuted in a share ``level``. The pair that is held against the true one is the nearest in
    Hellinger's distance, cell by cell: where q > e^ε·p, √p′ = (√p + e^(ε/2)·√q)/(1 + e^ε) and q′ = e^ε·p′, likewise on
    the other side, else p and q, and then scaled to a sum of 1.

    >>> round(chance_to_refute(0.0, law=np.array([0.9, 0.1]), trials=1, level=0.05), 2)
    0.16

    """
    p = np.asarray(law, dtype=np.float64) / np.sum(law)
    q = p[::-1]
    grown = math.exp(epsilon / 2.0)
    upper = ((np.sqrt(p) + grown * np.sqrt(q)) / (1.0 + grown**2)) ** 2
    lower = grown**2 * ((np.sqrt(q) + grown * np.sqrt(p)) / (1.0 + grown**2)) ** 2
    near = np.where(q > grown**2 * p, upper, np.where(p > grown**2 * q, lower, p))
    some = p > 0.0
    logs = np.log(p[some]) - np.log(near[some] / near.sum())
    return _best_test(_sums(logs, p[some], 2 * trials), level)


def _best_test(law: tuple[NDArray[np.float64], NDArray[np.float64]], level: float) -> float:
    """How often the likelihood ratio test of this level refutes; at its threshold it may toss a coin."""
    values, masses = (part[::-1] for part in law)
    with np.errstate(over="ignore"):
        null = np.cumsum(masses * np.exp(-values))  # a ratio of e^s has e^−s of its mass where the claim is kept
    whole = int(np.searchsorted(null, level, side="right"))
    found = float(masses[:whole].sum())
    if whole < len(null):
        before = float(null[whole - 1]) if whole else 0.0
        found += float(masses[whole]) * (level - before) / (float(null[whole]) - before)
    return min(1.0, found)


def _sums(
    logs: NDArray[np.float64], masses: NDArray[np.float64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and masses of a sum of ``count`` independent logarithms, on a grid that favours the test.

    A value between two points of the grid is split such that its mass and its mass times e^−value stay: the pair on
    the grid can be told apart at least as well as the true one (Doroshenko et al. 2022).
    """
    low = math.floor(logs.min() / _WIDTH)
    places = np.floor(logs / _WIDTH).astype(np.int64)
    over = np.expm1(-(logs - places * _WIDTH)) / math.expm1(-_WIDTH)
    size = int(places.max()) - low + 2
    one = np.bincount(places - low, weights=masses * (1.0 - over), minlength=size)
    one += np.bincount(places - low + 1, weights=masses * over, minlength=size)
    points = (low + np.arange(size)) * _WIDTH
    mean = float(one @ points)
    spread = math.sqrt(float(one @ (points - mean) ** 2) * count)
    most = (size - 1) * count + 1
    # Beyond 12 standard deviations and 40 largest steps the sum has no mass that a double would show.
    reach = math.ceil((12.0 * spread + 40.0 * size * _WIDTH) / _WIDTH)
    length = fft.next_fast_len(min(most, 2 * reach + 1), real=True)
    first = 0 if length >= most else round((mean * count - low * count * _WIDTH) / _WIDTH) - length // 2
    on_circle = np.bincount(np.arange(size) % length, weights=one, minlength=length)
    sums = fft.irfft(fft.rfft(on_circle) ** count, length)
    sums = np.roll(np.maximum(sums, 0.0), -(first % length))
    return (low * count + first + np.arange(length)) * _WIDTH, sums
