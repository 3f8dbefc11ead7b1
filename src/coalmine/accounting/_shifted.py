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

import dataclasses
import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_SQRT_HALF = math.sqrt(0.5)
# How far under the target log δ the search aims, so that rounding never leaves it above.
_HAIR = 1e-12


class ShiftedPair(Protocol):
    """A pair (P, Q) as above; ``support`` gives all of V that matters for y in [low, high]."""

    @property
    def scale(self) -> float:
        """s, the standard deviation of the noise."""
        ...

    @property
    def mean(self) -> float:
        """E[V]."""
        ...

    @property
    def spread(self) -> float:
        """The standard deviation of V."""
        ...

    @property
    def log_zero_weight(self) -> float:
        """log Pr[V = 0], the smallest value that f can take; −inf if V is never 0."""
        ...

    def support(self, low: float, high: float) -> tuple[Array, Array]:
        """The values v of V and their log weights."""
        ...

    def landmarks(self) -> tuple[Array, Array]:
        """Some positive values of V with their log weights, spread over its range (they bound f from below)."""
        ...


@dataclasses.dataclass(frozen=True)
class FiniteShift:
    """A pair whose V takes the given values with the given log weights."""

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
        """log Pr[V = 0]."""
        zero = self.values == 0.0
        return float(special.logsumexp(self.log_weights[zero])) if zero.any() else -math.inf

    def support(self, low: float, high: float) -> tuple[Array, Array]:
        """All values."""
        return self.values, self.log_weights

    def landmarks(self) -> tuple[Array, Array]:
        """Up to a thousand or so of the values."""
        positive = np.flatnonzero(self.values > 0.0)[:: max(1, self.values.size // 1000)]
        return self.values[positive], self.log_weights[positive]


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
