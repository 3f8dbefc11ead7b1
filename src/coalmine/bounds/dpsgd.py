"""The bound that knows the algorithm: DP-SGD with known sampling rate and steps, unknown noise.

The method of the audits in last-iterate-2024 and of Nasr et al. 2023, "Tight auditing of differentially private machine
learning": for every noise multiplier σ the trade-off curve f_σ of DP-SGD at (q, T) is known; two rate limits (α, β)
refute σ when β < f_σ(α); the smallest σ on a fine grid among the refuted gives ε at δ.

Every rounding is to the safe side. f_σ is built from a privacy profile with δ never too small, so f_σ is never too
high and nothing is refuted that should not be; of two neighbouring grid values the refuted one is reported; and σ is
turned into ε by an accountant that rounds down (:func:`coalmine.accounting.standard.epsilon_at_least`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds._row_minima import reached
from coalmine.bounds.families import Family, Gdp
from coalmine.bounds.method import Method
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Relation, Sampling
from coalmine.theory.curves import GaussianCurve, Lines, TradeOff, tangents

Array = NDArray[np.float64]

ANALYSES = ("standard", "last_iterate")
WEIGHINGS = ("gaussian", "curves")
_RUNGS = (0.05, 12.0, 25)
"""The curves by which thresholds are weighed: 25, near Gaussians of μ = 0.05 to 12."""
_OCTAVE = 512
MOST_COPIES = 10_000
"""Rows that the worlds may differ in."""
_STEP_BY_STEP = 16
"""So few copies are taken one after the other: stored bounds keep their last digits."""
_LARGEST_SIGMA = 2.0**12
_SMALLEST_SIGMA = 2.0**-6


@dataclasses.dataclass(frozen=True)
class GroupCurve:
    """f_k = 1 − (1 − f)∘…∘(1 − f), k times: worlds that differ in k rows (Dong, Roth and Su 2019, Theorem 2)."""

    single: TradeOff
    copies: int

    def __call__(self, alpha: object, /) -> Array:
        """The smallest false-negative rate at false-positive rate ``alpha``."""
        power = np.asarray(alpha, dtype=np.float64)
        if self._at_once is not None:
            return self._at_once(power)
        for _ in range(self.copies):
            power = 1.0 - self.single(power)
            if power.size and power.min() >= 1.0:  # it stays there: f(1) = 0
                break
        return np.asarray(1.0 - power)

    @functools.cached_property
    def _at_once(self) -> TradeOff | None:
        """The curve of many copies, never too high, without going through all of them each time."""
        if self.copies <= _STEP_BY_STEP:
            return None
        if isinstance(self.single, GaussianCurve):
            return GaussianCurve(mu=self.copies * self.single.mu)
        return tangents(self.single, copies=self.copies) if isinstance(self.single, Lines) else None


@functools.lru_cache(maxsize=2048)
def mechanism_curve(mechanism: DpSgd, analysis: str = "standard", added: bool = False) -> TradeOff:
    """The trade-off curve of one row, never too high.

    >>> round(float(mechanism_curve(DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=4))(0.05)), 6)
    0.740489
    """
    if analysis == "last_iterate":
        from coalmine.accounting import last_iterate

        return last_iterate.profile(mechanism).curve()
    from coalmine.accounting import standard

    return standard.trade_off(mechanism, added=added)


@functools.lru_cache(maxsize=512)
def _epsilon(mechanism: DpSgd, analysis: str, delta: float) -> float:
    """ε(δ) of one row, never too large."""
    if analysis == "last_iterate":
        from coalmine.accounting import last_iterate

        # Exact to about 1e-9, and rounded up: a hair more δ outweighs that.
        return last_iterate.epsilon(mechanism, delta=min(delta * (1.0 + 1e-8), 0.5 * (1.0 + delta))).epsilon
    from coalmine.accounting import standard

    return standard.epsilon_at_least(mechanism, delta=delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DpSgdNoise(Family):
    """DP-SGD like ``mechanism``, whose noise alone is not known: θ counts steps in 1/σ, ``octave`` to a doubling.

    ``analysis`` is "standard" (the adversary sees every iterate) or "last_iterate" (Theorem 1 of last-iterate-2024:
    only the last one, linear losses). ``weigh`` says how thresholds are compared before the best one is corrected for
    selection: by Φ⁻¹(1 − α) − Φ⁻¹(β) as for a Gaussian ("gaussian", quick), or by the family's own curves ("curves"),
    which is tighter for small sampling rates, where the Gaussian measure favors thresholds that few trials pass.
    ``added``: world 1 is known to be world 0 with rows added, so the curve of this order is enough
    (:func:`coalmine.accounting.standard.trade_off`); otherwise it must hold in both orders.
    """

    mechanism: DpSgd
    delta: float
    copies: int = 1
    analysis: str = "standard"
    weigh: str = "gaussian"
    added: bool = False
    octave: int = _OCTAVE
    inner_level: float = dataclasses.field(default=0.001, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", _validate.open_unit("delta", self.delta))
        object.__setattr__(self, "copies", _validate.integer("copies", self.copies, at_least=1, at_most=MOST_COPIES))
        _validate.choice("family", self.analysis, ANALYSES)
        _validate.choice("weigh", self.weigh, WEIGHINGS)
        _validate.instance("mechanism", self.mechanism, DpSgd)
        if self.added and (self.analysis != "standard" or self.mechanism.relation is not Relation.ADD_REMOVE):
            raise UnsupportedError(
                "added = True is not allowed here: expected the family 'standard' and rows that are added, not replaced"
            )
        if self.mechanism.sampling is Sampling.SHUFFLE:
            raise UnsupportedError(
                "sampling = 'shuffle' has no known trade-off curve: expected 'poisson' or 'full', or the method "
                "clopper_pearson"
            )
        if self.mechanism.sample_rate == 0.0:
            raise _validate.reject("sample_rate", self.mechanism.sample_rate, "a number above 0 and at most 1")
        # The noise is what is looked for: families that differ in it alone are one.
        object.__setattr__(self, "mechanism", self.mechanism.with_noise(1.0))

    @property
    def method(self) -> Method:
        """See :class:`~coalmine.bounds.families.Family`."""
        return DPSGD if self.analysis == "standard" else LAST_ITERATE

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That it is this DP-SGD."""
        seen = (
            "the adversary may see every iterate"
            if self.analysis == "standard"
            else "the adversary sees the last iterate alone, the losses are linear, and there is neither momentum nor "
            "a regularizer (Theorem 1 of last-iterate-2024)"
        )
        known = self.mechanism
        words = [
            f"the mechanism is DP-SGD with sampling rate {known.sample_rate:g}, "
            f"{_validate.counted(known.steps, 'step')} and {known.sampling.value} sampling; only its noise is unknown",
            seen,
        ]
        if self.added:
            words.append("world 1 is world 0 with rows added")
        if self.copies > 1:
            words.append(f"the worlds differ in {self.copies} rows; ε is per row, by group privacy")
        return tuple(words)

    def sigma(self, theta: float) -> float:
        """σ of the grid value θ = 1, 2, …: from 4096 down."""
        return float(_LARGEST_SIGMA * 2.0 ** (-(theta - 1.0) / self.octave))

    @property
    def size(self) -> int:
        """How many noise multipliers the grid has."""
        return round(math.log2(_LARGEST_SIGMA / _SMALLEST_SIGMA) * self.octave) + 1

    def curve(self, theta: float) -> TradeOff:
        """f_σ for k rows; θ = 0 is the mechanism that leaks nothing."""
        if theta <= 0.0:
            return lambda alpha: 1.0 - np.asarray(alpha, dtype=np.float64)
        single = mechanism_curve(self.mechanism.with_noise(self.sigma(theta)), self.analysis, self.added)
        return single if self.copies == 1 else GroupCurve(single, self.copies)

    def critical(self, alpha: Array, beta: Array) -> Array:
        """The largest refuted grid value for each pair on its own."""
        pairs = np.broadcast(alpha, beta)
        values = [self.most_refuted(np.array([a]), np.array([b])) for a, b in pairs]
        return np.array(values).reshape(pairs.shape)

    def most_refuted(self, alpha: Array, beta: Array) -> float:
        """The largest θ refuted by at least one pair; pairs that do not refute a θ are dropped above it."""
        a, b = np.atleast_1d(alpha), np.atleast_1d(beta)
        start = self._near(float(np.max(self.statistic(a, b))))

        def refuted(theta: int) -> bool:
            nonlocal a, b
            keep = b < self.curve(theta)(a)
            if not np.any(keep):
                return False
            a, b = a[keep], b[keep]
            return True

        return float(_largest(refuted, start, self.size))

    def rank_of_row_minima(self, alpha: Array, beta: Array, rank: int) -> float:
        """See :class:`~coalmine.bounds.families.Family`: bisection that drops all rows that are decided.

        A row's minimum is below θ when one of its pairs does not refute θ. With more than ``rank`` such rows the
        answer is below θ and the other rows drop out; otherwise it is at least θ and those rows do.
        """
        gaussian = Gdp(delta=self.delta)  # where its answer is, ours is not far
        start = self._near(gaussian.rank_of_row_minima(alpha, beta, rank))
        a, b = alpha, beta
        decided = 0

        def at_least(theta: int) -> bool:
            nonlocal a, b, decided
            low_rows = reached(self.curve(theta), a, b).any(axis=1)
            count = decided + int(low_rows.sum())
            if count > rank:
                keep = low_rows
            else:
                keep, decided = ~low_rows, count
            if not keep.all():
                a, b = a[keep], b[keep]
            return count <= rank

        return float(_largest(at_least, start, self.size))

    def search(self, holds: Callable[[float], bool], *, start: float = 0.0) -> float:
        """See :class:`~coalmine.bounds.families.Family`."""
        return float(_largest(holds, round(start) or self._near(6.0), self.size))

    def near(self, mu: float) -> float:
        """See :class:`~coalmine.bounds.families.Family`."""
        return float(min(max(self._near(mu), 1), self.size))

    def _near(self, mu: float) -> int:
        """The grid value whose curve is near that of N(0, 1) against N(μ, 1): where a search may start."""
        if not 0.0 < mu < 1e6:
            return 1 if not mu > 0.0 else self.size
        single = mu / (self.copies * self.mechanism.sample_rate * math.sqrt(self.mechanism.steps))
        sigma = 1.0 / single if self.analysis == "last_iterate" else 1.0 / math.sqrt(math.log1p(single**2))
        return round(math.log2(_LARGEST_SIGMA / sigma) * self.octave) + 1

    def statistic(self, alpha: Array, beta: Array) -> Array:
        """Φ⁻¹(1 − α) − Φ⁻¹(β), as in the Gaussian family."""
        return np.asarray(-special.ndtri(alpha) - special.ndtri(beta))

    def evidence(self, alpha: Array, beta: Array) -> Array:
        """See :class:`~coalmine.bounds.families.Family`; with ``weigh`` = "curves", how far up a ladder of curves each
        pair reaches, interpolated in Φ⁻¹(β). Where the curves cannot tell, the Gaussian measure does.
        """
        gaussian = self.statistic(alpha[:, None], beta[None, :])
        if self.weigh == "gaussian":
            return gaussian
        rungs = [self._near(mu) for mu in np.geomspace(*_RUNGS)]
        heights = _quantiles(np.minimum.accumulate([self.curve(theta)(alpha) for theta in rungs], axis=0))
        reached = _quantiles(beta)
        order = np.arange(len(rungs), dtype=np.float64)
        table = np.stack([np.interp(-reached, -column, order, left=-1.0, right=order.size) for column in heights.T])
        table += 1e-3 * np.clip(gaussian, -50.0, 50.0)
        # Interpolation may rise a little where it must fall: a running maximum makes it fall in both.
        table = np.maximum.accumulate(table[::-1], axis=0)[::-1]
        return np.asarray(np.maximum.accumulate(table[:, ::-1], axis=1)[:, ::-1])

    def epsilon(self, theta: float) -> float:
        """ε at δ of DP-SGD with that σ, never rounded up."""
        return (
            0.0 if theta <= 0.0 else _epsilon(self.mechanism.with_noise(self.sigma(theta)), self.analysis, self.delta)
        )

    def coarse(self) -> DpSgdNoise:
        """The same family on a coarse grid, for a ceiling that needs no third digit."""
        return dataclasses.replace(self, octave=16)

    def details(self, theta: float) -> dict[str, float]:
        """σ, infinite when nothing was refuted."""
        return {"noise_multiplier": self.sigma(theta) if theta > 0.0 else math.inf}


def _quantiles(rates: Array) -> Array:
    """Φ⁻¹, finite at 0 and 1 too."""
    return np.asarray(special.ndtri(np.clip(rates, 1e-300, 1.0 - 1e-16)))


def _largest(holds: Callable[[int], bool], start: int, top: int) -> int:
    """The largest grid value in 0 … top that holds, when the answer changes once from yes to no (0 when none does).

    The search starts where the answer is likely to be, because a curve can take a second to build. After a yes only
    larger values are asked, after a no only smaller ones.
    """
    if not holds(0):
        return 0
    low, high, step = 0, top + 1, 8
    probe = min(max(start, 1), top)
    while high - low > 1:
        if holds(probe):
            low = probe
            probe = low + step if high > top else (low + high) // 2
        else:
            high = probe
            probe = high - step if low == 0 else (low + high) // 2
        step *= 4
        if not low < probe < high:
            probe = (low + high) // 2
    return low


def _members(delta: float, copies: int, mechanism: DpSgd | None, *, analysis: str) -> DpSgdNoise:
    _validate.instance("mechanism", mechanism, DpSgd)
    assert mechanism is not None
    return DpSgdNoise(mechanism=mechanism, delta=delta, copies=copies, analysis=analysis)


DPSGD = Method(
    name="dpsgd",
    words="If it is DP-SGD and only its noise is unknown",
    short="if DP-SGD",
    base="dpsgd",
    variant="standard",
    needs_mechanism=True,
    family=functools.partial(_members, analysis="standard"),
)
LAST_ITERATE = Method(
    name="dpsgd_last_iterate",
    words="If it is DP-SGD on linear losses, only its last iterate is seen and only its noise is unknown",
    short="if last iterate",
    base="dpsgd",
    variant="last_iterate",
    needs_mechanism=True,
    family=functools.partial(_members, analysis="last_iterate"),
)
