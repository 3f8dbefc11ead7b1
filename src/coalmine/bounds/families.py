"""Ordered families of trade-off curves: from two error rates to the leakiest claim that they refute.

A family is a set of trade-off curves f_θ that fall as θ grows (more leakage, smaller errors possible). Two error rates
(α, β) that a test really has refute the claim θ when β < f_θ(α): no test on a mechanism with that curve errs so little.
So the largest refuted θ is a lower bound on the leakage, and ε follows from θ at the wanted δ, rounded down.

==================  =======================  ==================================================================
family              θ                        assumes
==================  =======================  ==================================================================
EpsilonDelta        ε at the given δ         nothing about the mechanism
Gdp                 μ                        its trade-off curve is that of a Gaussian
DpSgdNoise          1/σ (on a fine grid)     it is DP-SGD with the stated sampling rate and number of steps
==================  =======================  ==================================================================
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds._row_minima import rank_of_row_minima, reached
from coalmine.bounds.method import Method
from coalmine.theory.curves import EpsilonDeltaCurve, GaussianCurve, TradeOff, gaussian_epsilon, largest_true

Array = NDArray[np.float64]


class Family(abc.ABC):
    """An ordered family of trade-off curves at one δ and number of copies. A value: results are kept by family."""

    delta: float
    """The δ at which ε is stated."""
    copies: int
    """k: in how many rows the two worlds differ."""
    inner_level: float
    """Level of the rate limits inside :meth:`statistic`: a matter of tightness, not of validity."""

    @property
    @abc.abstractmethod
    def method(self) -> Method:
        """The method that it belongs to."""

    @property
    @abc.abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What must be true of the mechanism, in words."""

    @abc.abstractmethod
    def critical(self, alpha: Array, beta: Array) -> Array:
        """For each pair of error rates the largest θ that they refute (0 where they refute none)."""

    def most_refuted(self, alpha: Array, beta: Array) -> float:
        """The largest θ refuted by at least one of the pairs."""
        return float(np.max(self.critical(alpha, beta)))

    def rank_of_row_minima(self, alpha: Array, beta: Array, rank: int) -> float:
        """The value of rank ``rank`` (from 0, ascending) among the row minima of :meth:`critical`."""
        return rank_of_row_minima(self.critical, self.curve, alpha, beta, rank)

    def search(self, holds: Callable[[float], bool], *, start: float = 0.0) -> float:
        """The largest θ that holds when the answer changes once from yes to no; 0 when none does.

        ``start`` is where it is likely to be; doubling and bisection need no such place.
        """
        if not holds(0.0):
            return 0.0
        high = 1.0
        while holds(high):
            if high > 1e3:
                return high
            high *= 2.0
        return largest_true(holds, 0.0, high, relative=1e-12)

    @abc.abstractmethod
    def near(self, mu: float) -> float:
        """The θ whose curve is near that of N(0, 1) against N(μ, 1)."""

    @abc.abstractmethod
    def statistic(self, alpha: Array, beta: Array) -> Array:
        """What the sup-test maximises: the evidence in a pair of rate limits, falling in both, free of θ."""

    def evidence(self, alpha: Array, beta: Array) -> Array:
        """The statistic at every pair of the ascending limits ``alpha`` and ``beta``, as a table that falls in both."""
        return self.statistic(alpha[:, None], beta[None, :])

    @abc.abstractmethod
    def curve(self, theta: float) -> TradeOff:
        """f_θ for worlds that differ in k rows."""

    @abc.abstractmethod
    def epsilon(self, theta: float) -> float:
        """The ε per row that the member θ has at δ, never rounded up."""

    @abc.abstractmethod
    def details(self, theta: float) -> dict[str, float]:
        """The parameter under its own name."""


def group_epsilon(larger: ArrayLike, smaller: ArrayLike, *, delta: float, copies: int) -> Array:
    """The largest ε with larger > e^{kε}·smaller + δ·(e^{kε} − 1)/(e^ε − 1), and 0 where there is none.

    Group privacy for k rows with δ: eq. (2) of jagielski-2020; for k = 1 it is ln((larger − δ)/smaller), eq. (5) of
    nasr-2021. For k > 1 the equation is solved in logarithms by Newton's method: the logarithm of a sum of
    exponentials is convex, so the steps from above never cross the root, and the result is moved below it.

    >>> round(float(group_epsilon(0.5, 0.01, delta=1e-5, copies=2)), 6)
    1.955931
    """
    p, q, k = np.asarray(larger, np.float64), np.asarray(smaller, np.float64), copies
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if k == 1 or delta == 0.0:
            return np.maximum(0.0, np.where(p > delta, np.log(np.maximum(p - delta, 0.0) / q) / k, 0.0))
        hopeless = ~(p > q + k * delta)
        log_p = np.log(p)
        epsilon = np.maximum(np.minimum((log_p - np.log(q)) / k, (log_p - math.log(delta)) / (k - 1)), 1e-12)
        for _ in range(60):
            gap, slope = _log_group_gap(epsilon, p, q, delta, k)
            step = np.where(hopeless, 0.0, gap / slope)
            epsilon = np.maximum(epsilon - step, 0.0)
            if not np.any(np.abs(step) > 1e-13 * epsilon):
                break
        epsilon = np.where(hopeless, 0.0, epsilon)
        for _ in range(60):  # step below the root, whatever the rounding did
            above = ~hopeless & (_log_group_gap(epsilon, p, q, delta, k)[0] >= 0.0) & (epsilon > 0.0)
            if not np.any(above):
                break
            epsilon = np.where(above, epsilon * (1.0 - 1e-12) - 1e-15, epsilon)
        return np.maximum(0.0, epsilon)


def _log_group_gap(epsilon: Array, p: Array, q: Array, delta: float, k: int) -> tuple[Array, Array]:
    """ln(e^{kε}·q + δ·S) − ln p with S = Σ_{j<k} e^{jε}, and its derivative; scaled by e^{−kε} against overflow."""
    tiny = epsilon < 1e-5
    gain = np.where(tiny, 1.0, np.expm1(np.minimum(epsilon, 700.0)))
    scaled = np.where(tiny, k * (1.0 - epsilon * (k + 1) / 2.0), -np.expm1(-k * epsilon) / gain)
    rise = np.where(tiny, k * (k - 1) / 2.0, (k - scaled * (gain + 1.0)) / gain)
    total = q + delta * scaled
    return k * epsilon + np.log(total) - np.log(p), (k * q + delta * rise) / total


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpsilonDelta(Family):
    """All (ε, δ)-DP mechanisms at a fixed δ: θ is ε per row. No assumption on the mechanism.

    >>> family = EpsilonDelta(delta=1e-5)
    >>> round(family.most_refuted(np.array([0.01]), np.array([0.5])), 6)
    3.912003
    """

    delta: float
    copies: int = 1
    # A compromise: 0.1 is 5 % tighter on Gaussian scores, where rare scores tell most, but loses a third on randomised
    # response and Laplace; 0.001 is the other way round. Other rules are at most 4 % tighter there (docs/coverage.md).
    inner_level: float = dataclasses.field(default=0.02, init=False)

    def __post_init__(self) -> None:
        copies = _validate.integer("copies", self.copies, at_least=1)
        _validate.assign(self, delta=_validate.half_open_unit("delta", self.delta), copies=copies)

    @property
    def method(self) -> Method:
        """See :class:`Family`."""
        return CLOPPER_PEARSON

    @property
    def assumptions(self) -> tuple[str, ...]:
        """None about the mechanism itself; k copies rest on group privacy."""
        if self.copies == 1:
            return ()
        return (f"the worlds differ in {self.copies} rows; ε is per row, by group privacy",)

    def critical(self, alpha: Array, beta: Array) -> Array:
        """Both directions from the same two rates: (1 − β) against α and (1 − α) against β."""
        return np.maximum(
            group_epsilon(1.0 - beta, alpha, delta=self.delta, copies=self.copies),
            group_epsilon(1.0 - alpha, beta, delta=self.delta, copies=self.copies),
        )

    def rank_of_row_minima(self, alpha: Array, beta: Array, rank: int) -> float:
        """See :class:`Family`."""
        if self.copies == 1 or self.delta == 0.0:
            return super().rank_of_row_minima(alpha, beta, rank)
        # Solving for ε in every entry is slow; asking the curve whether an entry lies below a given ε is not. With
        # δ = 0 every critical ε is at least as large, so that the search has an upper end.
        high = EpsilonDelta(delta=0.0, copies=self.copies).rank_of_row_minima(alpha, beta, rank)
        low, below = 0.0, 0
        while high - low > 1e-12 * high:
            middle = 0.5 * (low + high)
            lower = reached(self.curve(middle), alpha, beta).any(axis=1)
            count = below + int(lower.sum())
            if count > rank:
                high, keep = middle, lower
            else:
                low, below, keep = middle, count, ~lower
            if not keep.all():
                alpha, beta = alpha[keep], beta[keep]
        return low

    def near(self, mu: float) -> float:
        """See :class:`Family`: the ε of that Gaussian."""
        return gaussian_epsilon(mu / self.copies, delta=max(self.delta, 1e-12))

    def statistic(self, alpha: Array, beta: Array) -> Array:
        """max(ln((1 − δ − β)/α), ln((1 − δ − α)/β)), below 0 too."""
        tiny = np.finfo(np.float64).tiny
        with np.errstate(divide="ignore"):
            one = np.log(np.maximum(1.0 - self.delta - beta, tiny)) - np.log(np.maximum(alpha, tiny))
            two = np.log(np.maximum(1.0 - self.delta - alpha, tiny)) - np.log(np.maximum(beta, tiny))
        return np.asarray(np.maximum(one, two))

    def curve(self, theta: float) -> TradeOff:
        """The curve of (kε, δ·(e^{kε} − 1)/(e^ε − 1))-DP: k rows, by group privacy."""
        if self.copies == 1:
            return EpsilonDeltaCurve(epsilon=theta, delta=self.delta)
        if self.copies * theta > 700.0:  # e^700 is near the largest float, and e^350 times the smallest δ is above 1
            return EpsilonDeltaCurve(epsilon=self.copies * theta, delta=1.0 if self.delta > 0.0 else 0.0)
        grown = self.copies if theta == 0.0 else math.expm1(self.copies * theta) / math.expm1(theta)
        return EpsilonDeltaCurve(epsilon=self.copies * theta, delta=min(1.0, self.delta * grown))

    def epsilon(self, theta: float) -> float:
        """θ is ε."""
        return theta

    def details(self, theta: float) -> dict[str, float]:
        """Nothing beyond ε."""
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gdp(Family):
    """Gaussian trade-off curves: θ is μ between worlds that differ in k rows, so μ/k is the μ of one row.

    >>> round(Gdp(delta=1e-5).epsilon(1.0), 6)
    4.377178
    """

    delta: float
    copies: int = 1
    # Of 0.1, 0.01, 0.001, 1e-4 on Gaussian scores: 0.01 is 1 % less tight, and below 0.001 nothing is gained.
    inner_level: float = dataclasses.field(default=0.001, init=False)

    def __post_init__(self) -> None:
        copies = _validate.integer("copies", self.copies, at_least=1)
        _validate.assign(self, delta=_validate.open_unit("delta", self.delta), copies=copies)

    @property
    def method(self) -> Method:
        """See :class:`Family`."""
        return GDP

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That the curve is Gaussian."""
        words = ["the mechanism's trade-off curve is that of a Gaussian mechanism (μ-GDP with the curve reached)"]
        if self.copies > 1:
            words.append(
                f"the worlds differ in {self.copies} rows; ε is per row, by group privacy (μ = {self.copies}·μ₁)"
            )
        return tuple(words)

    def critical(self, alpha: Array, beta: Array) -> Array:
        """μ = Φ⁻¹(1 − α) − Φ⁻¹(β), clamped at 0: each direction for itself, never its size alone."""
        return np.maximum(0.0, self.statistic(alpha, beta))

    def near(self, mu: float) -> float:
        """See :class:`Family`."""
        return mu

    def statistic(self, alpha: Array, beta: Array) -> Array:
        """Φ⁻¹(1 − α) − Φ⁻¹(β), below 0 too."""
        with np.errstate(invalid="ignore"):
            return np.asarray(np.nan_to_num(-special.ndtri(alpha) - special.ndtri(beta), posinf=np.inf, neginf=-np.inf))

    def curve(self, theta: float) -> TradeOff:
        """N(0, 1) against N(μ, 1)."""
        return GaussianCurve(mu=theta)

    def epsilon(self, theta: float) -> float:
        """ε of the Gaussian mechanism with μ/k at δ."""
        return gaussian_epsilon(theta / self.copies, delta=self.delta) if theta < math.inf else math.inf

    def details(self, theta: float) -> dict[str, float]:
        """μ of one row."""
        return {"mu": theta / self.copies}


CLOPPER_PEARSON = Method(
    name="clopper_pearson",
    words="Nothing assumed about the algorithm",
    short="proved",
    decides=True,
    family=lambda delta, copies, _: EpsilonDelta(delta=delta, copies=copies),
)
GDP = Method(
    name="gdp",
    words="If the leak is Gaussian",
    short="if Gaussian",
    family=lambda delta, copies, _: Gdp(delta=delta, copies=copies),
)
