"""Telling N(0, s²) from N(V, s²), where V ≥ 0 is random: both hockey-stick directions, exactly, in log space.

P is the law of V + s·Z and Q that of s·Z. The log likelihood ratio f(y) = log Σ_v w_v·exp((2vy − v²)/(2s²)) grows with
y, so the sets that matter are half-lines (last-iterate-2024, Appendix A). With z_v = (y − v)/s and the Mills ratio
M(x) = Φ(−x)/φ(x),

    H(P, Q) at ε =  f(y):  Σ_v w_v·[Φ(−z_v) − φ(z_v)·M(z_0)]
    H(Q, P) at ε = −f(y):  Σ_v r_v·[Φ(z_0) − φ(z_0)·M(−z_v)],   r_v ∝ w_v·φ(z_v), Σ r_v = 1.

Every bracket is a gap Φ(−x) − φ(x)·M(x + h) ≥ 0 with h = v/s ≥ 0: the sums have positive terms only and nothing
cancels between them.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_SQRT_HALF = math.sqrt(0.5)
# Terms e^-60 below the largest are left out: with log-concave terms, what is left out is then below 1e-20 of the sum.
_DROP = 60.0
# How far under the target log δ the search aims, so that rounding never leaves it above.
_HAIR = 1e-12


@dataclasses.dataclass(frozen=True)
class FiniteShift:
    """A pair whose V takes the given values with the given log weights; ``scale`` is s."""

    values: Array
    log_weights: Array
    scale: float

    @property
    def mean(self) -> float:
        """E[V]."""
        return float(np.dot(np.exp(self.log_weights), self.values))

    @property
    def spread(self) -> float:
        """The standard deviation of V."""
        return math.sqrt(float(np.dot(np.exp(self.log_weights), (self.values - self.mean) ** 2)))

    @property
    def log_zero_weight(self) -> float:
        """log Pr[V = 0], the smallest value that f can take; −inf if V is never 0."""
        zero = self.values == 0.0
        return float(special.logsumexp(self.log_weights[zero])) if zero.any() else -math.inf

    def support(self, low: float, high: float) -> tuple[Array, Array]:
        """The values of V that matter for y in [low, high], and their log weights: all of them."""
        return self.values, self.log_weights

    def landmarks(self) -> tuple[Array, Array]:
        """Some positive values with their log weights, spread over the range of V: they bound f from below."""
        positive = np.flatnonzero(self.values > 0.0)[:: max(1, self.values.size // 1000)]
        return self.values[positive], self.log_weights[positive]


class BinomialShift:
    """V ~ Binomial(trials, q) against noise of standard deviation ``scale``, with 0 < q < 1.

    ``support`` holds the k that matter for the likelihood ratio at the asked thresholds (a tilted binomial, log-concave
    in k) and the k that hold all but ``tail`` of the binomial itself. Both windows come with a bound on what they miss.
    """

    def __init__(self, trials: int, q: float, scale: float, log_tail: float) -> None:
        self.scale = scale
        self._trials = trials
        self._q = q
        self._logit = math.log(q) - math.log1p(-q)
        self.mean = trials * q
        self.spread = math.sqrt(trials * q * (1.0 - q))
        self.log_zero_weight = trials * math.log1p(-q)
        # Bernstein: Pr[|V − mean| ≥ t] ≤ 2·exp(−t²/(2(var + t/3))); e^-30 of the wanted δ may be missed on each side.
        level = 30.0 - log_tail
        reach = level / 3.0 + math.sqrt(level * level / 9.0 + 2.0 * level * self.spread**2)
        self._bulk = (max(0, math.floor(self.mean - reach)), min(trials, math.ceil(self.mean + reach)))
        self._covered = (math.inf, -math.inf)
        self._cached: tuple[Array, Array] = (np.empty(0), np.empty(0))

    def support(self, low: float, high: float) -> tuple[Array, Array]:
        """The k that matter for thresholds in [low, high], and their log weights."""
        if not self._covered[0] <= low <= high <= self._covered[1]:
            margin = 0.5 * self.scale
            first, last = self._edge(low - margin, -1), self._edge(high + margin, 1)
            bulk_first, bulk_last = self._bulk
            if first <= bulk_last and bulk_first <= last:
                k = np.arange(min(first, bulk_first), max(last, bulk_last) + 1, dtype=np.float64)
            else:
                windows = sorted([(first, last), self._bulk])
                k = np.concatenate([np.arange(a, b + 1, dtype=np.float64) for a, b in windows])
            self._covered = (low - margin, high + margin)
            self._cached = (k, self._log_weights(k))
        return self._cached

    def landmarks(self) -> tuple[Array, Array]:
        """k = 1, 2, 4, … and the mean."""
        powers = 2.0 ** np.arange(math.floor(math.log2(self._trials)) + 1)
        middle = np.clip(np.round(self.mean + self.spread * np.arange(-3.0, 4.0)), 1.0, self._trials)
        k = np.unique(np.concatenate([powers, middle]))
        return k, self._log_weights(k)

    def _log_term(self, k: int, y: float) -> float:
        """log of w_k·exp((2ky − k²)/(2s²)), up to a constant."""
        n = self._trials
        tilt = k * (self._logit + (y - 0.5 * k) / self.scale**2)
        return tilt - math.lgamma(k + 1.0) - math.lgamma(n - k + 1.0)

    def _edge(self, y: float, direction: int) -> int:
        """The last k on that side of the largest term at threshold y that is not e^-_DROP below it."""
        n = self._trials

        def rises(k: int) -> bool:
            return math.log((n - k) / (k + 1.0)) + self._logit + (y - k - 0.5) / self.scale**2 > 0.0

        mode = bisect.bisect_left(range(n), True, key=lambda k: not rises(k))  # the first k from which the terms fall
        floor = self._log_term(mode, y) - _DROP
        near, far = mode, (n if direction > 0 else 0)
        if self._log_term(far, y) > floor:
            return far
        while abs(far - near) > 1:
            middle = (near + far) // 2
            near, far = (middle, far) if self._log_term(middle, y) > floor else (near, middle)
        return far

    def _log_weights(self, k: Array) -> Array:
        """log of the binomial probabilities, by Loader's saddle-point form: good to 1e-12 where lgamma loses digits."""
        n, q = float(self._trials), self._q
        rest = n - k
        inner = np.clip(k, 1.0, max(n - 1.0, 1.0))
        outer = np.maximum(n - inner, 1.0)
        log_weights = (
            _stirling_error(np.array([n]))
            - _stirling_error(inner)
            - _stirling_error(outer)
            - _deviance(inner, n * q)
            - _deviance(outer, n * (1.0 - q))
            + 0.5 * np.log(n / (2.0 * math.pi * inner * outer))
        )
        log_weights = np.where(k == 0.0, n * math.log1p(-q), log_weights)
        return np.asarray(np.where(rest == 0.0, n * math.log(q), log_weights))


def _stirling_error(n: Array) -> Array:
    """log n! − log(√(2πn)·(n/e)^n)."""
    inverse = 1.0 / n
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square * (1 / 1680 - square / 1188))))
    if n[0] > 16.0 and n[-1] > 16.0:  # k runs in order, so the ends speak for all
        return np.asarray(series)
    small = np.minimum(n, 16.0)
    exact = special.gammaln(small + 1.0) - (small + 0.5) * np.log(small) + small - 0.5 * math.log(2.0 * math.pi)
    return np.asarray(np.where(n > 16.0, series, exact))


def _deviance(x: Array, expected: float) -> Array:
    """x·log(x/m) + m − x without cancellation near x = m."""
    relative = (x - expected) / expected
    return np.asarray(expected * ((1.0 + relative) * np.log1p(relative) - relative))


ShiftedPair: TypeAlias = FiniteShift | BinomialShift
"""A pair (P, Q) as above."""


@dataclasses.dataclass(frozen=True)
class Point:
    """What one threshold y says: f(y), its slope, log δ of one direction, and log of the set's own probability."""

    log_ratio: Array
    slope: Array
    log_delta: Array
    log_set: Array


def _log_gap(x: Array, h: Array) -> Array:
    """log[Φ(−x) − φ(x)·M(x + h)] for h ≥ 0; −inf where h = 0."""
    far = x + h
    mills_far = _SQRT_HALF_PI * special.erfcx(np.maximum(far, 0.0) * _SQRT_HALF)
    mills_near = _SQRT_HALF_PI * special.erfcx(np.maximum(x, 0.0) * _SQRT_HALF)
    right = np.log(np.maximum(mills_near - mills_far, 0.0)) - 0.5 * x * x - _LOG_SQRT_2PI
    if np.all(x >= 0.0):
        return np.asarray(right)
    negative = np.minimum(x, 0.0)
    # φ(x)·M(far) is φ(x)/φ(far)·Φ(−far), which stays finite where M itself overflows (far < 0).
    second = np.where(
        far >= 0.0,
        np.exp(-0.5 * negative * negative - _LOG_SQRT_2PI) * mills_far,
        np.exp(np.minimum(0.5 * h * (h + 2.0 * x), 0.0)) * special.ndtr(-far),
    )
    left = np.log(np.maximum(special.ndtr(-negative) - second, 0.0))
    return np.asarray(np.where(x >= 0.0, right, left))


def _log_sum(terms: Array) -> Array:
    """log Σ exp over the last axis."""
    top = np.max(terms, axis=-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    return np.asarray(np.log(np.sum(np.exp(terms - top), axis=-1)) + top[..., 0])


def log_ratio(pair: ShiftedPair, y: Array) -> tuple[Array, Array]:
    """f(y) and f′(y) at each y (one-dimensional, close together: they share one support)."""
    values, log_weights = pair.support(float(np.min(y)), float(np.max(y)))
    h = values / pair.scale
    terms = log_weights + h * ((y / pair.scale)[:, None] - 0.5 * h)
    f = _log_sum(terms)
    return f, np.exp(terms - f[:, None]) @ h / pair.scale


def evaluate(pair: ShiftedPair, y: Array, *, forward: bool) -> Point:
    """f, f′ and log δ at each threshold y: H(P, Q) over {Y ≥ y} if ``forward``, else H(Q, P) over {Y ≤ y}."""
    values, log_weights = pair.support(float(np.min(y)), float(np.max(y)))
    h = values / pair.scale
    z = (y / pair.scale)[:, None]
    terms = log_weights + h * (z - 0.5 * h)
    f = _log_sum(terms)
    posterior = terms - f[:, None]
    slope = np.exp(posterior) @ h / pair.scale
    with np.errstate(divide="ignore"):
        if forward:
            log_delta = _log_sum(log_weights + _log_gap(z - h, np.broadcast_to(h, terms.shape)))
            log_set = special.log_ndtr(-z[:, 0])
        else:
            log_delta = _log_sum(posterior + _log_gap(-z, h))
            log_set = special.log_ndtr(z[:, 0])
    return Point(f, slope, np.minimum(log_delta, 0.0), log_set)


def epsilon(pair: ShiftedPair, *, log_delta: float) -> float:
    """The smallest ε ≥ 0 at which both directions have δ(ε) ≤ δ."""
    return max(one_way_epsilon(pair, log_delta, forward=True), one_way_epsilon(pair, log_delta, forward=False))


def one_way_epsilon(pair: ShiftedPair, log_target: float, *, forward: bool) -> float:
    """Solve log δ(y) = log δ for the threshold y, and return |f(y)| there.

    log δ as a function of y is concave as far as ever seen, so Newton's method arrives monotonically from the side
    where δ(y) ≤ δ; a bracket guards it all the same, and what is returned always comes from that side.
    """
    sign = 1.0 if forward else -1.0
    quantile = float(special.ndtri_exp(log_target))
    if forward:
        safe = max(0.0, pair.mean - math.hypot(pair.spread, pair.scale) * quantile)
        unsafe = 0.0  # f(0) ≤ 0
    else:
        safe = pair.scale * quantile  # δ ≤ Q(Y ≤ y)
        unsafe = _zero_bound(pair)  # f ≥ 0 there

    def at(y: float) -> tuple[float, float, float]:
        """log δ(y) above what is aimed at (a hair under the target), ε = ±f(y), and how fast log δ changes."""
        point = evaluate(pair, np.array([y]), forward=forward)
        log_delta, f = float(point.log_delta[0]), sign * float(point.log_ratio[0])
        if not math.isfinite(log_delta):
            return -math.inf, f, 0.0
        # dδ/dε is −e^ε·Q(S) forward and δ − Q(S) backward, with dε = ±f′·dy.
        mass = math.exp(min((f if forward else 0.0) + float(point.log_set[0]) - log_delta, 700.0))
        change = (mass if forward else mass - 1.0) * float(point.slope[0])
        return log_delta - (log_target - _HAIR), f, change

    gap, f, change = at(safe)
    while gap > _HAIR:
        unsafe, safe = safe, safe + sign * (pair.scale + pair.spread + abs(safe - unsafe))
        gap, f, change = at(safe)
    for _ in range(300):
        # Done when ε = f ≤ 0 already suffices, or when the gap is below what floating point can tell.
        if f <= 0.0 or gap > -10.0 * _HAIR:
            break
        y = safe + sign * gap / change if change > 0.0 else math.nan
        if not min(safe, unsafe) < y < max(safe, unsafe):
            y = 0.5 * (safe + unsafe)
        if abs(y - safe) <= 1e-15 * abs(safe):
            break
        at_y = at(y)
        if at_y[0] > _HAIR:
            unsafe = y
            y = 0.5 * (safe + y)
            at_y = at(y)
        if at_y[0] > _HAIR:
            unsafe = y
        else:
            safe, (gap, f, change) = y, at_y
    return max(0.0, f)


def _zero_bound(pair: ShiftedPair) -> float:
    """A y at which f(y) ≥ 0: by Jensen f(y) ≥ (2·E[V]·y − E[V²])/(2s²)."""
    return 0.5 * (pair.mean + pair.spread**2 / pair.mean)


def log_delta(pair: ShiftedPair, *, epsilon: float) -> float:
    """log of max{H(P, Q), H(Q, P)} at e^ε."""
    return float(log_deltas(pair, np.array([epsilon]))[0])


def log_deltas(pair: ShiftedPair, epsilons: Array) -> Array:
    """log δ at each ε ≥ 0 (in increasing order), both directions, a few ε at a time."""
    forward = one_way_log_deltas(pair, epsilons, forward=True)
    return np.maximum(forward, one_way_log_deltas(pair, epsilons, forward=False))


def one_way_log_deltas(pair: ShiftedPair, epsilons: Array, *, forward: bool) -> Array:
    """log δ of one direction at increasing ε."""
    result = np.full(epsilons.shape, -math.inf)
    # H(Q, P) is zero beyond ε = −log Pr[V = 0]: f never gets that low.
    count = epsilons.size if forward else int(np.searchsorted(epsilons, -pair.log_zero_weight))
    for first in range(0, count, 16):
        part = slice(first, min(first + 16, count))
        y = _invert(pair, epsilons[part] if forward else -epsilons[part])
        result[part] = evaluate(pair, y, forward=forward).log_delta
    return result


def _invert(pair: ShiftedPair, targets: Array) -> Array:
    """y with f(y) = target, to rounding.

    f is convex and increasing, so Newton's steps fall towards the root from the right. They start where a single term
    of f, or Jensen's line, reaches the target: f(y) ≥ log w_v + (2vy − v²)/(2s²) for every v, hence to the right.
    Below −40·s nothing counts any more (Φ(−40) < 1e-348).
    """
    values, log_weights = pair.landmarks()
    steep = (targets[:, None] - log_weights) * (pair.scale**2 / values) + 0.5 * values
    jensen = _zero_bound(pair) + targets * pair.scale**2 / pair.mean
    floor = -40.0 * pair.scale
    y = np.maximum(np.minimum(np.min(steep, axis=1), jensen), floor)
    rounding = 1e-13 * np.maximum(1.0, np.abs(targets))
    for _ in range(1000):
        f, slope = log_ratio(pair, y)
        missing = f - targets
        step = np.divide(missing, slope, out=np.zeros_like(missing), where=slope > 0.0)
        done = (np.abs(missing) <= rounding) | (np.abs(step) <= 1e-14 * (np.abs(y) + pair.scale))
        if np.all(done | ((y <= floor) & (missing > 0.0))):
            break
        y = np.maximum(y - step, floor)
    return np.asarray(y)
