"""Rényi divergences of T Poisson-sampled Gaussian steps, never rounded down, and what they prove.

For a whole order α ≥ 2 the moment of one step (Mironov, Talwar and Zhang 2019, eq. 6 ff.) is one of a binomial,

    A(α) = E[e^{K(K − 1)/(2σ²)}],   K ~ Binomial(α, q),   so   A(α) − 1 = E[e^{K(K − 1)/(2σ²)} − 1],

a sum of positive terms: it keeps its digits however near to 1 the moment is. dp-accounting adds up A(α) itself, whose
rounding is larger than A(α) − 1 where there is much noise; its divergences are then negative, and it takes those for an
ε of 0. Only orders that are no whole numbers come from it, with its rounding added.

The divergence of T steps is T·ln A(α)/(α − 1), and (ε, δ) follows by Proposition 12 of Canonne, Kamath and Steinke
(2020), or from δ ≤ √(1 − e^{−KL}) where ε is 0. The orders that are tried go on as far as they help.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.accounting._common import sensitivity
from coalmine.records import DpSgd

Array = NDArray[np.float64]

_BETWEEN = tuple(1.0 + tenth / 10.0 for tenth in range(1, 100) if tenth % 10)
_WHOLE = 64
_EVERY_TERM = 2**16
"""Up to this order all terms are added up; beyond, those around the largest, with a bound on the rest."""
_MOST_ORDERS = 40
"""Doublings of the order: up to 10¹²."""
_MOST_TERMS = 400_000
_WAYS = 12.0
"""Standard deviations of K to either side of its mean."""
_LIBRARY = 1e-10
"""More than rounding and the end of its series can take from the library's ln A(α): they are near 10⁻¹²."""


def epsilon(mechanism: DpSgd, *, delta: float) -> float:
    """ε at δ, 0 < q ≤ 1: min over α of r + ln(1 − 1/α) − ln(δ·α)/(α − 1), with r the divergence of all steps.

    >>> round(epsilon(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), delta=1e-5), 4)
    5.632
    """

    def at(order: float, divergence: float) -> float:
        if -math.expm1(-divergence) < delta * delta:
            return 0.0
        return divergence + math.log1p(-1.0 / order) - (math.log(delta) + math.log(order)) / (order - 1.0)

    return max(0.0, _least(mechanism, at)) * (1.0 + 1e-12)


def delta(mechanism: DpSgd, *, epsilon: float) -> float:
    """δ at ε, 0 < q ≤ 1: min over α of e^{(α − 1)(r − ε + ln(1 − 1/α))}/α.

    >>> f"{delta(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), epsilon=5.632):.2e}"
    '1.00e-05'
    """

    def at(order: float, divergence: float) -> float:
        together = (order - 1.0) * (divergence - epsilon + math.log1p(-1.0 / order)) - math.log(order)
        apart = 0.5 * math.log(-math.expm1(-divergence)) if divergence > 0.0 else -math.inf
        return min(together, apart)

    return min(1.0, math.exp(min(0.0, _least(mechanism, at))) * (1.0 + 1e-9))


def _least(mechanism: DpSgd, at: Callable[[float, float], float]) -> float:
    """The least value of ``at(order, divergence)`` over the orders tried. Each of them holds, whichever is found."""
    best = min(
        (at(order, found) for order, found in zip(_BETWEEN, _between(mechanism), strict=True) if found < math.inf),
        default=math.inf,
    )
    values: dict[int, float] = {}

    def whole(order: int) -> float:
        if order not in values:
            found = _divergence(mechanism, order)
            values[order] = at(order, found) if found < math.inf else math.inf
        return values[order]

    for order in range(2, _WHOLE + 1):
        whole(order)
    worse = 0
    for doubled in range(7, _MOST_ORDERS + 1):
        least = min(values.values())
        worse = worse + 1 if whole(2**doubled) >= least else 0
        if worse == 3:
            break
    around = min(values, key=values.__getitem__)
    if around >= _WHOLE:
        for step in range(-7, 8):
            whole(round(around * 2.0 ** (step / 8.0)))
    return min(best, *values.values())


def _divergence(mechanism: DpSgd, order: int) -> float:
    """The Rényi divergence of a whole order of all steps."""
    if mechanism.sample_rate == 1.0:
        return order * _without_sampling(mechanism)
    return mechanism.steps * _log_moment(mechanism, order) / (order - 1.0)


def _without_sampling(mechanism: DpSgd) -> float:
    """The divergence over its order: T·Δ²/(2σ²)."""
    return 0.5 * mechanism.steps * (sensitivity(mechanism.relation) / mechanism.noise_multiplier) ** 2


def _log_moment(mechanism: DpSgd, order: int) -> float:
    """ln A(α) of one step, from above; ∞ where the terms that matter are too many to add up."""
    q, variance = mechanism.sample_rate, mechanism.noise_multiplier**2
    low, high = 2, order
    if order > _EVERY_TERM:
        window = _window(q, variance, order)
        if window is None:
            return math.inf
        low, high = window
    k = np.arange(low, high + 1, dtype=np.float64)
    exponents = k * (k - 1.0) / (2.0 * variance)
    logs = (
        special.gammaln(order + 1.0) - special.gammaln(k + 1.0) - special.gammaln(order - k + 1.0)
        + k * math.log(q) + (order - k) * math.log1p(-q) + exponents + np.log(-np.expm1(-exponents))
    )  # fmt: skip
    total = float(special.logsumexp(logs))
    if high < order:
        # Each term beyond is at most this much of the one before, and the less the farther out.
        ratio = (order - high) / (high - 1.0) * q / (1.0 - q) * math.exp(high / variance)
        if not ratio < 1.0:
            return math.inf
        total = float(np.logaddexp(total, logs[-1] + math.log(ratio) - math.log1p(-ratio)))
    if low > 2:  # Chernoff: Pr[K ≤ l] ≤ e^{−(m − l)²/(2m)}
        mean, most = order * q, low * low / (2.0 * variance)
        below = most + math.log(-math.expm1(-most)) - (mean - low) ** 2 / (2.0 * mean)
        total = float(np.logaddexp(total, below))
    sizes = order * (math.log(order) + 1.0 - math.log1p(-q)) - high * math.log(q) + float(exponents[-1])
    total += 2.0**-49 * sizes  # what each logarithm may have lost to rounding
    return math.log1p(math.exp(total)) if total < 700.0 else total + 1e-300


def _window(q: float, variance: float, order: int) -> tuple[int, int] | None:
    """The k around the largest terms. Beyond them the terms fall ever faster, if α ≤ σ²."""
    mean = order * q
    if order > variance:
        return None
    middle = mean
    for _ in range(20):
        middle = mean / (1.0 - q) * math.exp(middle / variance)
        if middle > variance:
            return None
    low = max(2, math.floor(mean - _WAYS * math.sqrt(mean)))
    high = min(order, math.ceil(middle + _WAYS * math.sqrt(middle)) + 60)
    return (low, high) if high - low < _MOST_TERMS else None


def _between(mechanism: DpSgd) -> list[float]:
    """The divergences of all steps at the orders that are no whole numbers."""
    if mechanism.sample_rate == 1.0:
        return [order * _without_sampling(mechanism) for order in _BETWEEN]
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(orders=list(_BETWEEN))
    # The library warns of orders whose series does not converge, and leaves them out: the bound holds without.
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        step = dp_event.PoissonSampledDpEvent(
            mechanism.sample_rate, dp_event.GaussianDpEvent(mechanism.noise_multiplier)
        )
        accountant.compose(step)
    finally:
        log.setLevel(before)
    return [
        mechanism.steps * (max(0.0, float(found)) * (1.0 + 1e-12) + _LIBRARY / (order - 1.0))
        for order, found in zip(_BETWEEN, accountant.rdp, strict=True)
    ]
