"""What only the last model reveals, if every loss were linear: Theorem 1 of last-iterate-2024, exactly.

For linear losses the last iterate is a sum, and the adversary has to tell

    P = Binomial(T, q) + N(0, σ²·T)   from   Q = N(0, σ²·T)                                    (eq. 1)

so δ(ε) = max{H_{e^ε}(P, Q), H_{e^ε}(Q, P)} (eq. 2) and ε(δ) is its inverse (eq. 3). For other losses this is a
:class:`~coalmine.records.Heuristic`: usually close to what the best known attacks reach, and sometimes too small.
:mod:`coalmine.accounting.counterexamples` has losses for which the truth is larger.

Only those k of the binomial that can matter are summed, so T = 10⁷ costs little more than T = 10⁴.
"""

from __future__ import annotations

import bisect
import functools
import heapq
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from coalmine import _validate
from coalmine.accounting import _shifted
from coalmine.accounting._common import Profile, gaussian_steps_mu
from coalmine.accounting._shifted import Array
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Heuristic, Relation, Sampling
from coalmine.theory import curves

ANALYSIS = "last_iterate"
ANALYSIS_WORST = "last_iterate_worst"

# Terms e^-60 below the largest are left out: with log-concave terms, what is left out is then below 1e-20 of the sum.
_DROP = 60.0
# ε of `worst` is certified to this much: no t ≤ T gives more than the returned value plus it.
WORST_TOLERANCE = 1e-7
_DELTA_FLOOR = 1e-15

_ASSUMPTIONS: tuple[str, ...] = (
    "Poisson sampling, and only the last model is released",
    "exact for linear losses and a linear regularizer (last-iterate-2024, Theorem 1); a prediction for any other",
    "not a guarantee: a regularizer or adversarial data can leak more",
)


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


def _check(mechanism: DpSgd) -> None:
    """Refuse what Theorem 1 does not cover."""
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError(
            "sampling = 'shuffle' is not covered by the last-iterate analysis: it needs 'poisson' or 'full'"
        )
    if mechanism.relation is Relation.REPLACE and mechanism.sample_rate < 1.0:
        raise UnsupportedError(
            "relation = 'replace' is not covered by the last-iterate analysis of sampled batches: it needs 'add_remove'"
        )


def _pair(mechanism: DpSgd, log_tail: float) -> BinomialShift:
    """The pair (P, Q) of eq. (1)."""
    scale = mechanism.noise_multiplier * math.sqrt(mechanism.steps)
    return BinomialShift(mechanism.steps, mechanism.sample_rate, scale, log_tail)


def _epsilon(mechanism: DpSgd, delta: float) -> float:
    """ε(δ) of eq. (3)."""
    if mechanism.sample_rate == 0.0:
        return 0.0
    if mechanism.sample_rate == 1.0:
        return curves.gaussian_epsilon(gaussian_steps_mu(mechanism), delta=delta)
    log_target = math.log(delta)
    return _shifted.epsilon(_pair(mechanism, log_target), log_delta=log_target)


def _log_delta(mechanism: DpSgd, epsilon: float) -> float:
    """log δ(ε) of eq. (2)."""
    if mechanism.sample_rate == 0.0:
        return -math.inf
    if mechanism.sample_rate == 1.0:
        return curves.gaussian_log_delta(gaussian_steps_mu(mechanism), epsilon=epsilon)
    return _log_delta_of(functools.partial(_pair, mechanism), epsilon)


def _log_delta_of(pair: Callable[[float], BinomialShift], epsilon: float) -> float:
    """log δ(ε) of a pair whose window must fit a δ that is not known yet: widen until it does."""
    log_tail = -60.0
    while True:
        result = _shifted.log_delta(pair(log_tail), epsilon=epsilon)
        if result >= log_tail or log_tail < -700.0:
            return result
        log_tail *= 4.0


def epsilon(mechanism: DpSgd, *, delta: float) -> Heuristic:
    """The ε at δ that Theorem 1 of last-iterate-2024 gives (eq. 3), to about 1e-9.

    >>> mechanism = DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000)
    >>> round(epsilon(mechanism, delta=1e-5).epsilon, 6)
    4.000528
    """
    _check(mechanism)
    delta = _validate.open_unit("delta", delta)
    return _heuristic(mechanism, _epsilon(mechanism, delta), delta)


def delta(mechanism: DpSgd, *, epsilon: float) -> Heuristic:
    """The δ at ε that Theorem 1 of last-iterate-2024 gives (eq. 2).

    >>> mechanism = DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000)
    >>> round(delta(mechanism, epsilon=4.0).delta, 10)
    1.00239e-05
    """
    _check(mechanism)
    epsilon = _validate.non_negative("epsilon", epsilon)
    return _heuristic(mechanism, epsilon, math.exp(_log_delta(mechanism, epsilon)))


def _heuristic(mechanism: DpSgd, epsilon: float, delta: float, *, worst_at: int | None = None) -> Heuristic:
    """The record, with what it rests on."""
    analysis, assumptions = ANALYSIS, _ASSUMPTIONS
    if worst_at is not None:
        analysis = ANALYSIS_WORST
        assumptions = (*_ASSUMPTIONS, f"largest over all t ≤ {mechanism.steps} steps, reached at t = {worst_at}")
    return Heuristic(
        epsilon=epsilon, delta=delta, analysis=analysis, relation=mechanism.relation, assumptions=assumptions
    )


def worst(mechanism: DpSgd, *, delta: float) -> Heuristic:
    """max over t ≤ T of ε_t(δ): the heuristic is not monotone in T (last-iterate-2024, Section 4.1).

    Found by branch and bound, not by T evaluations: for a ≤ t ≤ b the pair at t is no easier to tell apart than
    Binomial(b, q) with noise σ²·a (more draws dominate, less noise reveals more), which bounds ε_t on the whole
    stretch. A stretch is dropped when this bound cannot beat the best t seen by more than 1e-7.

    >>> mechanism = DpSgd(sample_rate=0.01, noise_multiplier=0.5, steps=100)
    >>> round(worst(mechanism, delta=1e-6).epsilon, 4), round(epsilon(mechanism, delta=1e-6).epsilon, 4)
    (4.2854, 1.3247)
    """
    _check(mechanism)
    delta = _validate.open_unit("delta", delta)
    log_target = math.log(delta)

    def value(t: int) -> float:
        return _epsilon(mechanism.with_steps(t), delta)

    def beats(a: int, b: int, best: float) -> bool:
        pair = BinomialShift(b, mechanism.sample_rate, mechanism.noise_multiplier * math.sqrt(a), log_target)
        return _shifted.log_delta(pair, epsilon=best + WORST_TOLERANCE) > log_target

    best, at = _maximise(mechanism, value, beats)
    return _heuristic(mechanism, best, delta, worst_at=at)


def worst_delta(mechanism: DpSgd, *, epsilon: float) -> Heuristic:
    """max over t ≤ T of δ_t(ε), by the same branch and bound as :func:`worst` (to a factor of 1 + 1e-7).

    >>> mechanism = DpSgd(sample_rate=0.01, noise_multiplier=0.5, steps=100)
    >>> f"{worst_delta(mechanism, epsilon=6.0).delta:.3e}"
    '2.551e-08'
    """
    _check(mechanism)
    epsilon = _validate.non_negative("epsilon", epsilon)

    def value(t: int) -> float:
        return _log_delta(mechanism.with_steps(t), epsilon)

    def beats(a: int, b: int, best: float) -> bool:
        scale = mechanism.noise_multiplier * math.sqrt(a)
        bound = _log_delta_of(functools.partial(BinomialShift, b, mechanism.sample_rate, scale), epsilon)
        return bound > max(best, -745.0) + WORST_TOLERANCE

    best, at = _maximise(mechanism, value, beats)
    return _heuristic(mechanism, epsilon, math.exp(best), worst_at=at)


def _maximise(
    mechanism: DpSgd, value: Callable[[int], float], beats: Callable[[int, int, float], bool]
) -> tuple[float, int]:
    """The largest value(t), 1 ≤ t ≤ T, where ``beats(a, b, best)`` says whether any t in [a, b] might exceed best."""
    steps = mechanism.steps
    if mechanism.sample_rate in (0.0, 1.0):  # constant, or increasing in t
        return value(steps), steps
    best, at = max((value(t), t) for t in {1, steps})
    # The stretches still in question, the longest first.
    open_stretches = [(-(steps - 2), 2, steps - 1)] if steps > 2 else []
    while open_stretches:
        _, a, b = heapq.heappop(open_stretches)
        if a == b or beats(a, b, best):
            middle = (a + b) // 2 if b < 4 * a else math.isqrt(a * b)
            found = value(middle)
            if found > best:
                best, at = found, middle
            for low, high in ((a, middle - 1), (middle + 1, b)):
                if low <= high:
                    heapq.heappush(open_stretches, (low - high, low, high))
    return best, at


def profile(mechanism: DpSgd, *, points: int = 256) -> Profile:
    """δ(ε) of Theorem 1 on a grid of ε from 0 to where δ falls under 1e-15; vectorised over ε.

    The values are the exact ones (to about 1e-9), of a heuristic: a trade-off curve built from them is a prediction.

    >>> curve = profile(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000))
    >>> round(float(curve.deltas[0]), 6)
    0.349897
    """
    _check(mechanism)
    points = _validate.integer("points", points, at_least=2)
    top = _epsilon(mechanism, _DELTA_FLOOR)
    epsilons = np.linspace(0.0, min(top, Profile.LARGEST_EPSILON), points) if top > 0.0 else np.zeros(1)
    if mechanism.sample_rate in (0.0, 1.0):
        deltas = np.exp([_log_delta(mechanism, float(value)) for value in epsilons])
    else:
        deltas = np.exp(_shifted.log_deltas(_pair(mechanism, math.log(_DELTA_FLOOR)), epsilons))
    return Profile(epsilons=epsilons, deltas=deltas)
