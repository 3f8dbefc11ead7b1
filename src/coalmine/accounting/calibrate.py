"""The smallest noise multiplier σ that keeps ε within a target, under any of the analyses.

ε falls as σ grows. The search closes in on σ in (log σ, log ε) and returns a σ whose own ε, computed by the same
analysis, does not exceed the target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from scipy import optimize

from coalmine import _validate
from coalmine.accounting import full_batch, last_iterate, standard
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Guarantee, Heuristic, Relation, Sampling

Statement = Guarantee | Heuristic


def _standard(mechanism: DpSgd, delta: float) -> Statement:
    if mechanism.sampling is Sampling.SHUFFLE:
        return standard.shuffle_epsilon(mechanism, delta=delta)
    return standard.epsilon(mechanism, delta=delta)


_ANALYSES: dict[str, Callable[[DpSgd, float], Statement]] = {
    "standard": _standard,
    "rdp": lambda m, delta: standard.epsilon(m, delta=delta, analysis="rdp"),
    "gdp_clt": lambda m, delta: standard.gdp_clt(m, delta=delta),
    "last_iterate": lambda m, delta: last_iterate.epsilon(m, delta=delta),
    "last_iterate_worst": lambda m, delta: last_iterate.worst(m, delta=delta),
    "full_batch": lambda m, delta: full_batch.epsilon(m, delta=delta),
}

ANALYSES = tuple(_ANALYSES)
"""The names that ``analysis`` may take."""

SMALLEST, LARGEST = 1e-2, 1e6
"""The σ that are searched."""

# σ is found to this relative accuracy.
_TOLERANCE = 1e-6
_MOST_STEPS = 10**6
"""Of longer trainings the search for σ takes minutes and gigabytes."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Calibration:
    """The smallest σ found, and the statement it gives (its ε is at most the target)."""

    noise_multiplier: float
    target: float
    statement: Statement


def noise_multiplier(
    *,
    sample_rate: float,
    steps: int,
    epsilon: float,
    delta: float,
    analysis: str = "standard",
    sampling: Sampling = Sampling.POISSON,
    relation: Relation = Relation.ADD_REMOVE,
) -> Calibration:
    """The smallest σ (to one part in 10⁶) for which ``analysis`` gives at most the target ε at δ.

    >>> found = noise_multiplier(sample_rate=1.0, steps=1, epsilon=4.377178, delta=1e-5, analysis="full_batch")
    >>> round(found.noise_multiplier, 4), found.statement.epsilon <= 4.377178
    (1.0, True)
    """
    target = _validate.positive("epsilon", epsilon)
    _validate.integer("steps", steps, at_least=1, at_most=_MOST_STEPS)
    delta = _validate.open_unit("delta", delta)
    analysis = _validate.choice("analysis", analysis, ANALYSES)
    mechanism = DpSgd(sample_rate=sample_rate, noise_multiplier=1.0, steps=steps, sampling=sampling, relation=relation)
    evaluate = _ANALYSES[analysis]

    def at(sigma: float) -> float:
        return evaluate(mechanism.with_noise(sigma), delta).epsilon

    start = _guess(mechanism, target, delta) if analysis == "standard" else 1.0
    sigma = _search(at, "epsilon", target, start)
    statement = evaluate(mechanism.with_noise(sigma), delta)
    return Calibration(noise_multiplier=sigma, target=target, statement=statement)


def for_advantage(*, sample_rate: float, steps: int, advantage: float) -> float:
    """The smallest σ (to one part in 10⁶) that keeps the exact advantage, δ at ε = 0, within a target.

    >>> sigma = for_advantage(sample_rate=1.0, steps=100, advantage=0.382925)
    >>> round(sigma, 4)
    10.0
    """
    target = _validate.open_unit("advantage", advantage)
    mechanism = DpSgd(sample_rate=sample_rate, noise_multiplier=1.0, steps=steps)

    def roughly(sigma: float) -> float:
        return standard.gdp_clt_delta(mechanism.with_noise(sigma), epsilon=0.0).delta

    def exactly(sigma: float) -> float:
        return standard.delta(mechanism.with_noise(sigma), epsilon=0.0).delta

    start = _search(roughly, "advantage", target, 1.0, tolerance=1e-3)
    return _search(exactly, "advantage", target, start)


def _guess(mechanism: DpSgd, target: float, delta: float) -> float:
    """A σ to start the slow PLD search from: what the central limit asks for, at least the last-iterate value."""
    if mechanism.sampling is Sampling.SHUFFLE or mechanism.sample_rate in (0.0, 1.0):
        return 1.0
    simple = dataclasses.replace(mechanism, relation=Relation.ADD_REMOVE)

    def at(sigma: float) -> float:
        noisy = simple.with_noise(sigma)
        return max(_ANALYSES[name](noisy, delta).epsilon for name in ("gdp_clt", "last_iterate"))

    try:
        return _search(at, "epsilon", target, 1.0, tolerance=1e-3)
    except InvalidInputError:
        return 1.0


def _search(
    at: Callable[[float], float], name: str, target: float, start: float, *, tolerance: float = _TOLERANCE
) -> float:
    """The smallest σ with at(σ) ≤ target: bracket it from ``start``, then Brent's method in (log σ, log value).

    The best σ seen is returned, never one that was not evaluated. Brent's method ends with both sides evaluated and
    closer together than the tolerance.
    """
    best = math.inf

    def excess(log_sigma: float) -> float:
        nonlocal best
        sigma = math.exp(log_sigma)
        value = at(sigma)
        if value <= target:
            best = min(best, sigma)
        # A zero or an overflow far from the target must not upset the interpolation.
        ratio = value / target
        return math.log(min(max(ratio, 1e-3), 1e3)) if ratio != 1.0 else -1e-300

    low_end, high_end = math.log(SMALLEST), math.log(LARGEST)
    first, step = math.log(start), 0.03
    sign = 1.0 if excess(first) > 0.0 else -1.0
    near = far = first
    while True:
        near, far = far, min(max(far + sign * step, low_end), high_end)
        if near == far:
            break
        if sign * excess(far) <= 0.0:
            optimize.brentq(excess, near, far, xtol=tolerance, rtol=1e-12)
            break
        step *= 3.0
    if math.isinf(best):
        raise InvalidInputError(
            f"{name} = {target!r} is not allowed: expected at least {at(LARGEST):.6g}, "
            f"which is what the largest noise_multiplier tried ({LARGEST:g}) gives"
        )
    return best
