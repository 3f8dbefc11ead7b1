"""The smallest noise multiplier σ that keeps ε within a target, under any of the analyses.

ε falls as σ grows. The search closes in on σ by the secant rule in (log σ, log ε) and returns a σ whose own ε, computed
by the same analysis, does not exceed the target.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

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
    delta = _validate.open_unit("delta", delta)
    analysis = _validate.choice("analysis", analysis, ANALYSES)
    mechanism = DpSgd(sample_rate=sample_rate, noise_multiplier=1.0, steps=steps, sampling=sampling, relation=relation)
    evaluate = _ANALYSES[analysis]

    def at(sigma: float) -> Statement:
        return evaluate(mechanism.with_noise(sigma), delta)

    start = 1.0 if analysis in _CHEAP else _guess(mechanism, target, delta)
    sigma, statement = _search(at, target, start)
    return Calibration(noise_multiplier=sigma, target=target, statement=statement)


_CHEAP = ("last_iterate", "last_iterate_worst", "full_batch", "gdp_clt", "rdp")


def _guess(mechanism: DpSgd, target: float, delta: float) -> float:
    """A σ to start from: RDP where it applies (its answer is a little too large), the full batch otherwise."""
    simple = "rdp" if mechanism.relation is Relation.ADD_REMOVE and mechanism.sampling is Sampling.POISSON else None
    if simple is None or mechanism.sample_rate in (0.0, 1.0):
        return 1.0
    try:
        return _search(lambda s: _ANALYSES[simple](mechanism.with_noise(s), delta), target, 1.0, tolerance=1e-3)[0]
    except InvalidInputError:
        return 1.0


def _search(
    at: Callable[[float], Statement], target: float, start: float, *, tolerance: float = _TOLERANCE
) -> tuple[float, Statement]:
    """The smallest σ with ε(σ) ≤ target: bracket it, then secant steps in log–log that stay inside the bracket."""
    log_target = math.log(target)
    sigma, found = start, at(start)
    low: tuple[float, float] | None = None  # (log σ, log ε) with ε too large
    high: tuple[float, float] | None = None  # … with ε small enough
    best: tuple[float, Statement] | None = None
    step = 0.05
    for _ in range(200):
        x, y = math.log(sigma), math.log(max(found.epsilon, 1e-300)) if math.isfinite(found.epsilon) else 700.0
        if found.epsilon <= target:
            high, best = (x, y), (sigma, found)
        else:
            low = (x, y)
        if low is None:
            if sigma <= SMALLEST:
                break
            sigma = max(SMALLEST, sigma * math.exp(-step))
            step *= 2.5
        elif high is None:
            if sigma >= LARGEST:
                raise InvalidInputError(
                    f"epsilon = {target!r} is not allowed: even noise_multiplier = {LARGEST:g} gives {found.epsilon:.6g}, "
                    "expected a larger epsilon, a larger delta or fewer steps"
                )
            sigma = min(LARGEST, sigma * math.exp(step))
            step *= 2.5
        else:
            width = high[0] - low[0]
            if width <= tolerance:
                break
            x = _next_guess(low, high, log_target, tolerance)
            sigma = math.exp(x)
        found = at(sigma)
    assert best is not None
    return best


def _next_guess(low: tuple[float, float], high: tuple[float, float], log_target: float, tolerance: float) -> float:
    """Where the secant through both ends meets the target, a little to the safe side, kept off the ends."""
    width = high[0] - low[0]
    share = (low[1] - log_target) / (low[1] - high[1]) if low[1] > high[1] else 0.5
    x = low[0] + share * width
    margin = min(0.4 * tolerance, 0.25 * width)
    return min(max(x, low[0] + margin), high[0] - margin)
