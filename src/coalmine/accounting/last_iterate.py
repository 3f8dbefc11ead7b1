"""What only the last model reveals, if every loss were linear: Theorem 1 of last-iterate-2024, exactly.

For linear losses the last iterate is a sum, and the adversary has to tell

    P = Binomial(T, q) + N(0, σ²·T)   from   Q = N(0, σ²·T)                                    (eq. 1)

so δ(ε) = max{H_{e^ε}(P, Q), H_{e^ε}(Q, P)} (eq. 2) and ε(δ) is its inverse (eq. 3). For other losses this is a
:class:`~coalmine.records.Heuristic`: usually close to what the best known attacks reach, and sometimes too small.
:mod:`coalmine.accounting.counterexamples` has losses for which the truth is larger.

Only those k of the binomial that can matter are summed, so T = 10⁷ costs little more than T = 10⁴.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Callable

import numpy as np

from coalmine import _validate
from coalmine.accounting import _shifted
from coalmine.accounting._common import Profile, gaussian_steps_mu
from coalmine.accounting._shifted import BinomialShift
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Heuristic, Relation, Sampling
from coalmine.theory import curves

# ε of `worst` is certified to this much: no t ≤ T gives more than the returned value plus it.
WORST_TOLERANCE = 1e-7
_DELTA_FLOOR = 1e-15

_ASSUMPTIONS: tuple[str, ...] = (
    "Poisson sampling, and only the last model is released",
    "exact for linear losses and a linear regularizer (last-iterate-2024, Theorem 1); a prediction for any other",
    "not a guarantee: a regularizer or adversarial data can leak more",
)


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
    analysis, assumptions = "last_iterate", _ASSUMPTIONS
    if worst_at is not None:
        analysis = "last_iterate_worst"
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
