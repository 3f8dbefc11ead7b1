"""ε of Poisson-sampled DP-SGD from below: what a lower bound may say that DP-SGD with this noise leaks.

Accountants round ε up. Here every step rounds it down, so that the result never exceeds the true ε(δ):

1. One step's output y (in units of σ) is reported only as the cell of a partition of the line that it falls into.
   Forgetting the rest is post-processing: the cells, and T draws of them, have no larger δ at any ε.
2. The ends of the cells are chosen such that the loss log P(cell)/Q(cell) of each is a multiple of one number h. Where
   it cannot be (the two end cells, and rounding), the loss is lowered; δ(ε) = E_P[(1 − e^{ε − ΣL})₊] falls with it.
3. The T-fold sum of the losses is computed by one FFT of the weights p·e^{θL}, tilted so that its middle is where δ
   comes from; so δ keeps its digits however small it is. What wraps around and what is rounded is subtracted.

Cells of width w cost in proportion to w², like the trapezium rule, not to w as rounding every loss down does (the
optimistic mode of dp-accounting: a hundred steps of 0.01 are rounded down by 0.5 in all). The direction is that of
the row's removal (P with the row, Q without): the larger one wherever it was computed, and a lower bound anyway.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.records import DpSgd, Relation

Array = NDArray[np.float64]

_FEW_POINTS, _MANY_POINTS = 1 << 18, 1 << 20
"""Points of the FFT up to ten thousand steps and beyond, where the sum is wide against one step."""
_CELLS_TO_AN_E = 50.0
"""Cells are this many to a loss of its own size: their width is 2 % of the loss."""
_OUTSIDE = 30.0
"""The sum leaves the window of the FFT with probability e^−30 on either side."""
_MOST_CELLS = 4000
_SQRT_HALF = math.sqrt(0.5)


class _Step:
    """One step: P and Q are (1 − q)·N(0, 1) + q·N(m, 1) with m = 1/σ under P, and 0 or (replaced) −1/σ under Q."""

    def __init__(self, mechanism: DpSgd) -> None:
        self.rate = mechanism.sample_rate
        self.shift = 1.0 / mechanism.noise_multiplier
        self.other = -self.shift if mechanism.relation is Relation.REPLACE else 0.0
        # With little noise most outputs have the loss of a step that did not draw the row: the lattice starts there.
        self.pile = 0.0 if self.other else math.log1p(-self.rate)

    def _mixed(self, log_ratio: float) -> float:
        """ln(1 − q + q·e^x)."""
        if log_ratio < 30.0:
            return math.log1p(self.rate * math.expm1(log_ratio))
        return math.log(self.rate) + log_ratio + math.log1p((1.0 / self.rate - 1.0) * math.exp(-log_ratio))

    def log_ratios(self, y: float) -> tuple[float, float]:
        """ln of the densities of P and Q at y over that of N(0, 1)."""
        up = self._mixed(self.shift * (y - 0.5 * self.shift))
        return up, self._mixed(self.other * (y - 0.5 * self.other)) if self.other else 0.0

    def cell(self, low: float, high: float) -> tuple[float, float]:
        """ln of the probabilities of [low, high] under P and Q."""
        base = _log_mass(low, high)
        up = self._mixed(_log_mass(low - self.shift, high - self.shift) - base)
        down = self._mixed(_log_mass(low - self.other, high - self.other) - base) if self.other else 0.0
        return base + up, base + down

    def loss(self, y: float) -> float:
        """The privacy loss at y; it rises."""
        up, down = self.log_ratios(y)
        return up - down

    def cell_loss(self, low: float, high: float) -> float:
        """The privacy loss of [low, high]."""
        up, down = self.cell(low, high)
        return up - down


def _log_mass(low: float, high: float) -> float:
    """ln Pr[low ≤ N(0, 1) ≤ high], with all its digits in the tails."""
    if low < 0.0 < high:
        return math.log(0.5 * (math.erf(high * _SQRT_HALF) - math.erf(low * _SQRT_HALF)))
    near, far = (low, high) if low >= 0.0 else (-high, -low)
    rest = 0.0
    if far < math.inf:
        rest = math.exp(-0.5 * (far - near) * (far + near)) * float(special.erfcx(far * _SQRT_HALF))
    gap = 0.5 * (float(special.erfcx(near * _SQRT_HALF)) - rest)
    return math.log(gap) - 0.5 * near * near if gap > 0.0 else -math.inf


def _partition(step: _Step, width: float, reach: float, spare: float) -> tuple[Array, Array]:
    """The losses of the cells and ln of their weights in P.

    A cell goes on until its loss is a whole number of ``width`` above ``step.pile``. It stops earlier, where the loss
    has grown by 2 % or at once, if lowering what is over a whole number costs no more than ``spare`` on average.
    """
    top = reach + step.shift
    ends = [-math.inf, -reach]
    while ends[-1] < top and len(ends) < _MOST_CELLS:
        low = ends[-1]
        loss = step.loss(low)

        def cost(high: float, low: float = low) -> float:
            up, down = step.cell(low, high)
            return math.exp(up) * ((up - down - step.pile) % width)

        gap = max(width, (step.rate * min(step.shift, 1.0) + abs(loss)) / _CELLS_TO_AN_E)
        high = _crossing(step.loss, low, top, loss + gap)
        if cost(high) > spare:
            target = step.pile + width * (math.floor((loss + 0.5 * gap - step.pile) / width) + 1)
            farther = _crossing(functools.partial(step.cell_loss, low), low, top, target)
            if step.cell_loss(low, farther) < 0.5 * (target + loss) or step.loss(farther) > loss + 8.0 * gap:
                farther = _crossing(cost, low, high, spare)
                spare *= 1.2
            high = farther
        ends.append(high)
    ends.append(math.inf)
    logs = np.array([step.cell(*pair) for pair in itertools.pairwise(ends)])
    seen = np.isfinite(logs).all(axis=1)
    return logs[seen, 0] - logs[seen, 1], logs[seen, 0]


def _crossing(rising: Callable[[float], float], low: float, top: float, target: float) -> float:
    """Where a rising function reaches ``target`` between ``low`` and ``top``; ``top`` if it does not."""
    from scipy import optimize  # only here: it takes longer to load than all the rest

    span = 1e-6 * (1.0 + abs(low))
    near, far = low, low + span
    while far < top and rising(far) < target:
        span *= 4.0
        near, far = far, far + span
    far = min(far, top)
    if near == low or rising(far) < target:
        return far
    return float(optimize.brentq(lambda y: rising(y) - target, near, far, xtol=1e-15, rtol=1e-15))


class _Tilt(NamedTuple):
    """θ, ln E[e^{θL}], the tilted weights, the tilted mean of L, and a window in which the sum of T losses falls."""

    theta: float
    log_mean: float
    weights: Array
    mean: float
    low: float
    high: float


def _tilt(losses: Array, log_weights: Array, steps: int, log_delta: float) -> _Tilt | None:
    """The tilt at which the tilted mean of the sum is near the ε with that δ (saddle point), and its window; None where
    all losses are the same number.
    """

    def moments(theta: float) -> tuple[float, Array, float, float]:
        terms = theta * losses + log_weights
        log_mean = float(special.logsumexp(terms))
        weights = np.exp(terms - log_mean)
        mean = float(weights @ losses)
        return log_mean, weights, mean, steps * float(weights @ (losses - mean) ** 2)

    def too_small(log_theta: float) -> bool:
        theta = math.exp(log_theta)
        log_mean, _, mean, variance = moments(theta)
        prefactor = (1.0 + theta) * max(1.0, theta * math.sqrt(2.0 * math.pi * variance))
        return steps * (log_mean - theta * mean) - math.log(prefactor) > log_delta

    scale = math.sqrt(moments(0.0)[3])
    if scale == 0.0:
        return None
    low, high = math.log(1e-6 / scale), math.log(1e4 / scale)
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if too_small(middle) else (low, middle)
    theta = math.exp(low)
    log_mean, weights, mean, variance = moments(theta)
    # Chernoff's bound on either side, over a grid of further tilts.
    further = np.geomspace(1e-3, 1e3, 200) / max(math.sqrt(variance), 1e-6 * scale)
    ways = []
    for sign in (1.0, -1.0):
        grown = special.logsumexp((theta + sign * further)[:, None] * losses + log_weights, axis=1)
        ways.append(float(np.min((steps * (grown - log_mean) + _OUTSIDE) / further)))
    return _Tilt(theta, log_mean, weights, mean, -ways[1], ways[0])


def epsilon(mechanism: DpSgd, *, delta: float) -> float:
    """A number at most ε(δ) of Poisson-sampled DP-SGD, 0 < q < 1; below it by about 1e-4 of itself.

    >>> round(epsilon(DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=1000), delta=1e-12), 2)
    39.01
    """
    step, steps, log_delta = _Step(mechanism), mechanism.steps, math.log(delta)
    points = _FEW_POINTS if steps <= 10_000 else _MANY_POINTS
    reach = min(36.0, -float(special.ndtri_exp(log_delta - math.log(steps) - 7.0)))
    # How wide the window will be, from cells that are not yet on a lattice.
    grid = np.linspace(-reach, reach + step.shift, 4000)
    ratios = np.array([step.log_ratios(float(y)) for y in grid])
    log_weights = ratios[:, 0] - 0.5 * grid * grid
    rough = _tilt(ratios[:, 0] - ratios[:, 1], log_weights - special.logsumexp(log_weights), steps, log_delta)
    if rough is None:
        return 0.0
    width = (rough.high - rough.low) / (0.8 * points)
    while True:
        losses, log_weights = _partition(step, width, reach, 1e-7 * points * width / steps)
        places = np.floor((losses - step.pile) / width + 1e-6)
        lattice = step.pile + places * width
        tilt = _tilt(lattice, log_weights, steps, log_delta)
        if tilt is None:  # no two losses that doubles tell apart
            return 0.0
        if tilt.high - tilt.low < points * width:
            break
        width *= 1.5
    lowered = steps * float(np.max(np.maximum(lattice - losses, 0.0)))

    centre = round((tilt.mean - step.pile) / width)
    table = np.zeros(points)
    np.add.at(table, (places.astype(np.int64) - centre) % points, tilt.weights)
    waves = np.fft.rfft(table)
    sums = np.fft.irfft(np.abs(waves) ** steps * np.exp(1j * steps * np.angle(waves)), points)
    first = math.floor((tilt.low - steps * step.pile) / width)
    sums = sums[(first - steps * centre + np.arange(points)) % points]
    # δ at a lattice point e is e^{T·k(θ) − θ·e} times the sum over u > 0 of sums[e + u]·e^{−θu}·(1 − e^{−u}).
    kernel = _discounted(sums, tilt.theta * width) - _discounted(sums, (tilt.theta + 1.0) * width)
    lost = 2.0 * math.exp(-_OUTSIDE) + 4.0 * steps * 2.0**-52
    places = steps * step.pile + width * (first + np.arange(points))
    log_deltas = steps * tilt.log_mean - tilt.theta * places + np.log(np.maximum(kernel - lost, 1e-300))
    reached = np.flatnonzero((kernel > lost) & (log_deltas >= log_delta))
    return max(0.0, float(places[reached[-1]]) - lowered) if reached.size else 0.0


def _discounted(values: Array, rate: float) -> Array:
    """Σ over j ≥ i of values[j]·e^{−rate·(j − i)} at every i, in pieces in which nothing overflows."""
    total = np.empty_like(values)
    length = max(1, min(values.size, int(600.0 / rate)))
    carry = 0.0
    for start in range((values.size - 1) // length * length, -1, -length):
        part = values[start : start + length]
        factors = np.exp(-rate * np.arange(part.size))
        sums = np.cumsum((part * factors)[::-1])[::-1] / factors
        total[start : start + length] = sums + carry * (math.exp(-rate * part.size) / factors)
        carry = float(total[start])
    return total
