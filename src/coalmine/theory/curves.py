"""Privacy as curves: the Gaussian mechanism exactly, privacy profiles δ(ε), trade-off curves β = f(α).

A trade-off curve f gives, for a test with false-positive rate α, the smallest false-negative rate β that any
adversary can reach (Dong, Roth and Su 2019, "Gaussian differential privacy"). A privacy profile δ(ε) says the same
thing in the (ε, δ) language; the two are convex duals of each other.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coalmine import _validate
from coalmine.errors import InvalidInputError

_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_TANGENTS = 1500
"""At small α, and as many at α near 1."""
_ROUNDING = 4e-12
"""By how much the tangents are lowered for each copy: more than rounding was seen to lift them."""


def _mills(x: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Mills ratio Φ(−x)/φ(x), without under- or overflow for x > −25."""
    return np.asarray(_SQRT_HALF_PI * special.erfcx(np.asarray(x) / math.sqrt(2.0)))


def gaussian_log_delta(mu: float, *, epsilon: float) -> float:
    """log δ(ε) of the Gaussian mechanism with sensitivity/noise = μ; −inf where δ = 0.

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2019, Corollary 1).
    With a = μ/2 − ε/μ the second term is φ(a)·Mills(μ − a), so nothing overflows and the tail keeps full precision.

    >>> round(gaussian_log_delta(1.0, epsilon=4.377178), 5)
    -11.51293
    """
    mu = _validate.non_negative("mu", mu)
    epsilon = _validate.non_negative("epsilon", epsilon)
    if mu == 0.0:
        return -math.inf
    if epsilon == 0.0:
        return math.log(special.erf(mu / (2.0 * math.sqrt(2.0))))
    a = mu / 2.0 - epsilon / mu
    if a > 0.0:
        density = math.exp(-a * a / 2.0) / math.sqrt(2.0 * math.pi)
        return math.log(float(special.ndtr(a)) - density * float(_mills(mu - a)))
    log_density = -a * a / 2.0 - 0.5 * math.log(2.0 * math.pi)
    gap = float(_mills(-a)) - float(_mills(mu - a))
    return log_density + math.log(gap) if gap > 0.0 else -math.inf


def gaussian_delta(mu: float, *, epsilon: float) -> float:
    """δ(ε) of the Gaussian mechanism with sensitivity/noise = μ (see :func:`gaussian_log_delta`).

    >>> round(gaussian_delta(1.0, epsilon=0.0), 6)
    0.382925
    """
    return math.exp(gaussian_log_delta(mu, epsilon=epsilon))


def gaussian_epsilon(mu: float, *, delta: float) -> float:
    """The smallest ε ≥ 0 for which the Gaussian mechanism with sensitivity/noise = μ is (ε, δ)-DP.

    >>> round(gaussian_epsilon(1.0, delta=1e-5), 6)
    4.377178
    """
    mu = _validate.non_negative("mu", mu)
    log_target = math.log(_validate.open_unit("delta", delta))
    if gaussian_log_delta(mu, epsilon=0.0) <= log_target:
        return 0.0
    # δ(ε) ≤ Φ(μ/2 − ε/μ) ≤ exp(−(ε/μ − μ/2)²/2) gives an upper end at which δ is certainly small enough.
    high = mu * mu / 2.0 + mu * math.sqrt(-2.0 * log_target)
    return smallest_true(lambda e: gaussian_log_delta(mu, epsilon=e) <= log_target, 0.0, high)


def gaussian_mu(epsilon: float, *, delta: float) -> float:
    """The largest μ for which the Gaussian mechanism is (ε, δ)-DP: the inverse of :func:`gaussian_epsilon`.

    >>> round(gaussian_mu(4.377178, delta=1e-5), 5)
    1.0
    """
    epsilon = _validate.non_negative("epsilon", epsilon)
    log_target = math.log(_validate.open_unit("delta", delta))
    high = 1.0
    while gaussian_log_delta(high, epsilon=epsilon) <= log_target:
        high *= 2.0
    # Largest μ that still holds = just below the smallest that fails.
    return math.nextafter(smallest_true(lambda m: gaussian_log_delta(m, epsilon=epsilon) > log_target, 0.0, high), 0.0)


def smallest_true(predicate: Callable[[float], bool], low: float, high: float, *, relative: float = 1e-14) -> float:
    """The smallest x in (low, high] with ``predicate(x)``, by bisection, returned from the side where it holds.

    The answer changes once, from no to yes, and ``predicate(high)`` must hold. What is returned always satisfies the
    predicate, so rounding never turns a bound into one that does not hold.

    >>> round(smallest_true(lambda x: x * x >= 2, 0, 2), 12)
    1.414213562373
    """
    for _ in range(2000):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= relative * abs(high):
            break
        if predicate(middle):
            high = middle
        else:
            low = middle
    return high


def largest_true(predicate: Callable[[float], bool], low: float, high: float, *, relative: float = 1e-14) -> float:
    """The largest x in [low, high) with ``predicate(x)`` when the answer changes once, from yes to no.

    ``predicate(low)`` must hold; what is returned satisfies the predicate.

    >>> round(largest_true(lambda x: x * x <= 2, 0, 2), 12)
    1.414213562373
    """
    return -smallest_true(lambda x: predicate(-x), -high, -low, relative=relative)


def least_whole(enough: Callable[[int], bool], *, start: int, most: int, parts: int = 0) -> int | None:
    """The least whole number above ``start`` that is enough, by doubling and bisection; None if ``most`` is not.

    It is exact, or with ``parts`` to one part in so many.

    >>> least_whole(lambda n: n * n >= 50, start=0, most=100), least_whole(lambda n: n > 9, start=0, most=8)
    (8, None)
    """
    low, high = start, max(1, 2 * start)
    while not enough(high):
        low, high = high, min(2 * high, most)
        if low >= most:
            return None
    while high - low > max(1, high // parts if parts else 1):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


class TradeOff(Protocol):
    """A trade-off curve: convex, non-increasing, with f(α) ≤ 1 − α; symmetric unless it tells the worlds apart."""

    def __call__(self, alpha: ArrayLike, /) -> NDArray[np.float64]:
        """The smallest false-negative rate of any test with false-positive rate ``alpha``."""

    def __hash__(self) -> int:
        """Curves are values: what is simulated for one is kept."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonDeltaCurve:
    """f(α) = max(0, 1 − δ − e^ε·α, e^−ε·(1 − δ − α)): all that (ε, δ)-DP says (Wasserman and Zhou 2010).

    >>> EpsilonDeltaCurve(epsilon=0.0, delta=0.0)([0.25]).tolist()
    [0.75]
    >>> EpsilonDeltaCurve(epsilon=1e9, delta=0.0)([0.0, 1e-9]).tolist()
    [1.0, 0.0]
    """

    epsilon: float
    delta: float

    def __call__(self, alpha: ArrayLike, /) -> NDArray[np.float64]:
        """The smallest false-negative rate at false-positive rate ``alpha``."""
        a = np.asarray(alpha, dtype=np.float64)
        steep = 1.0 - self.delta - np.exp(min(self.epsilon, 700.0)) * a  # ∞·0 is no number
        flat = np.exp(-self.epsilon) * (1.0 - self.delta - a)
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianCurve:
    """f(α) = Φ(Φ⁻¹(1 − α) − μ), the trade-off curve of N(0, 1) against N(μ, 1): μ-GDP.

    >>> [round(x, 6) for x in GaussianCurve(mu=1.0)([0.05]).tolist()]
    [0.740489]
    """

    mu: float

    def __call__(self, alpha: ArrayLike, /) -> NDArray[np.float64]:
        """The smallest false-negative rate at false-positive rate ``alpha``."""
        return np.asarray(special.ndtr(-special.ndtri(np.asarray(alpha, dtype=np.float64)) - self.mu))


class Lines:
    """f(α) = max over i of {0, height_i + slope_i·α}, for slopes of at most 0.

    >>> lines = Lines([-2.0, -0.5], [0.8, 0.4])
    >>> lines([0.1, 0.5]).round(6).tolist(), lines.slopes([0.1, 0.5]).tolist()
    ([0.6, 0.15], [-2.0, -0.5])
    """

    def __init__(self, slopes: ArrayLike, heights: ArrayLike) -> None:
        self._envelope = _upper_envelope(np.append(slopes, 0.0), np.append(heights, 0.0))

    def __call__(self, alpha: ArrayLike, /) -> NDArray[np.float64]:
        """The smallest false-negative rate at false-positive rate ``alpha``."""
        a = np.asarray(alpha, dtype=np.float64)
        breaks, slopes, heights = self._envelope
        line = np.searchsorted(breaks, a)
        return np.asarray(np.maximum(0.0, heights[line] + slopes[line] * a))

    def slopes(self, alpha: ArrayLike, /) -> NDArray[np.float64]:
        """The slope of the line that is highest at ``alpha``."""
        breaks, slopes, _ = self._envelope
        return np.asarray(slopes[np.searchsorted(breaks, np.asarray(alpha, dtype=np.float64))])


class ProfileCurve(Lines):
    """f(α) = max over i of {0, 1 − δ_i − e^{ε_i}·α, e^{−ε_i}·(1 − δ_i − α)}: what the points (ε_i, δ_i) say together.

    The curve is never above the trade-off curve of a mechanism that satisfies every (ε_i, δ_i), whatever the grid:
    fewer points, or a δ that is too large, only lower it. So it is safe where a curve that is too low is safe (a
    statement about what every adversary of this mechanism can reach at most), and not where one that is too high is
    needed.

    Where the two directions are known apart, ``deltas`` are those of world 1 against world 0 (they give the steep
    lines) and ``reverse`` those of world 0 against world 1 (the flat ones); the curve then speaks of these worlds in
    this order.

    >>> ProfileCurve([0.0, 1.0], [0.3, 0.1])([0.0, 0.1, 1.0]).round(6).tolist()
    [0.9, 0.628172, 0.0]
    >>> ProfileCurve([0.0, 1.0], [0.3, 0.1], reverse=[0.3, 0.05])([0.1, 0.9]).round(6).tolist()
    [0.628172, 0.018394]
    """

    def __init__(self, epsilons: ArrayLike, deltas: ArrayLike, *, reverse: ArrayLike | None = None) -> None:
        e = _validate.finite_vector("epsilons", epsilons)
        d = _validate.finite_vector("deltas", deltas)
        r = d if reverse is None else _validate.finite_vector("reverse", reverse)
        checked = [("epsilons", e, e >= 0.0)]
        for name, values in (("deltas", d), ("reverse", r)):
            if e.size != values.size:
                raise InvalidInputError(f"{name} has {values.size} entries: expected {e.size}, one for each epsilon")
            checked.append((name, values, (values >= 0.0) & (values <= 1.0)))
        for name, values, good in checked:
            bad = np.flatnonzero(~good)
            if bad.size:
                allowed = "a number of at least 0" if name == "epsilons" else "a number from 0 to 1"
                raise _validate.reject(f"{name}[{bad[0]}]", values[bad[0]].item(), allowed)
        self.epsilons, self.deltas, self.reverse = e, d, r
        usable = e <= 700.0  # e^ε is a floating-point number; leaving points out only lowers the curve
        e, d, r = e[usable], d[usable], r[usable]
        slopes, heights = np.concatenate([-np.exp(e), -np.exp(-e)]), np.concatenate([1.0 - d, np.exp(-e) * (1.0 - r)])
        super().__init__(slopes, heights)


def tangents(single: Lines, *, copies: int) -> Lines:
    """Tangents to f_k = 1 − (1 − f)∘…∘(1 − f), k times, at some α: never above f_k, which is convex.

    1 − f is concave and rises, so the product of its slopes along the way is a slope of the whole.

    >>> one = ProfileCurve([0.0, 1.0], [0.1, 0.01])
    >>> twice = 1.0 - (1.0 - one(1.0 - one(0.05)))
    >>> round(float(twice), 4), round(float(tangents(one, copies=2)(0.05)), 4)
    (0.7541, 0.7541)
    """
    tail = np.geomspace(1e-15, 0.5, _TANGENTS)
    start = np.concatenate([[0.0], tail, 1.0 - tail])
    power, slopes = start, np.ones_like(start)
    for _ in range(copies):
        slopes = slopes * -single.slopes(power)
        power = 1.0 - single(power)
        if power.min() >= 1.0:  # it stays there: f(1) = 0
            break
    # 1 − f is rounded at 1e-16, which steep slopes make larger: by 2e-11 at 17 copies, 7e-10 at 10,000.
    heights = 1.0 - power + slopes * start - _ROUNDING * copies
    good = np.isfinite(heights)
    return Lines(-slopes[good], heights[good])


def _upper_envelope(
    slopes: NDArray[np.float64], heights: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The lines that are highest somewhere on α ≥ 0, from left to right, and where one takes over from the other."""
    order = np.lexsort((heights, slopes))
    chosen: list[tuple[float, float]] = []
    breaks: list[float] = []
    for slope, height in zip(slopes[order].tolist(), heights[order].tolist(), strict=True):
        while chosen:
            rise = slope - chosen[-1][0]  # 0 if parallel and, by the order, at least as high
            crossing = (chosen[-1][1] - height) / rise if rise > 0.0 else -math.inf
            if crossing > (breaks[-1] if breaks else 0.0):
                breaks.append(crossing)
                break
            chosen.pop()
            if breaks:
                breaks.pop()
        chosen.append((slope, height))
    return np.array(breaks), np.array([c[0] for c in chosen]), np.array([c[1] for c in chosen])
