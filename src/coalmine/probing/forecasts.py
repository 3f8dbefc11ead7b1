"""Bets on forecasts of a coin: evidence against a noise multiplier that may be looked at after every step.

A fair coin s = ±1 decides whether a canary of norm C enters a step; the release is y. Somebody forecasts the coin by a
number u(y) in [−1, 1] and is paid 2su − u² = 1 − (s − u)². The best forecast is E[s | y] and earns E[E[s | y]²] on
average. For a Gaussian mechanism with sensitivity/noise μ that is

    v(μ) = E[tanh²((μZ + μ²/2)/2)],  Z standard normal,

and no release that is μ-GDP earns more: it is a post-processing of the Gaussian one (Dong, Roth and Su 2019, Theorem
2), and what is forgotten cannot help a forecast. So 1 + λ·(2su − u² − v(μ)) has mean at most 1 given the past, whatever
the forecast, if the claim "at least this noise" holds: products of these are a betting process (e-process), and by
Ville's inequality one ever reaches 1/level with a chance of at most level. Averages of such processes are one again.

Each process here bets that the noise is a certain fraction of what is claimed, with the λ and the forecast that make
the most of it (largest expected logarithm). Guesses "in" or "out" are forecasts ±1 and need 1.4 times as many steps.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from coalmine import _validate

Array = NDArray[np.float64]

FRACTIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""How much of the claimed noise there is, by each of the bets; weighed so that half the noise is found soonest."""
WEIGHTS = (0.11, 0.22, 0.165, 0.165, 0.165, 0.165)
REPEATED = 0.01
"""The share of the stake that is on noise which is the same as in the step before."""
_ALIKE = 0.01
"""Noise is the same if it differs by less than this fraction of what is claimed."""

_GRID = np.linspace(-14.0, 14.0, 28_001)
_DENSITY = np.exp(-_GRID * _GRID / 2.0) / math.sqrt(2.0 * math.pi) * (_GRID[1] - _GRID[0])
_LOG_ODDS = np.linspace(0.0, 14.0, 141)
_FORECASTS = np.linspace(0.0, 1.0, 201) ** 2  # finer near 0, where forecasts are when there is much noise
_LEAST = 1e-3
"""No bet risks more than all but a thousandth of what it has."""


@functools.lru_cache(maxsize=4096)
def best_payoff(mu: float) -> float:
    """v(μ), rounded up: the most that forecasts of the coin earn on average from a μ-GDP release.

    >>> round(best_payoff(1.0), 4), round(best_payoff(2.0), 4)
    (0.2041, 0.5504)
    """
    mu = _validate.non_negative("mu", mu)
    if mu > 25.0:
        return 1.0
    return min(1.0, float(_DENSITY @ np.tanh((mu * _GRID + mu * mu / 2.0) / 2.0) ** 2) + 1e-9)


@dataclasses.dataclass(frozen=True, eq=False)
class Bet:
    """One bet against a claim: the noise is ``sigma``. ``stake`` is λ; ``forecasts`` belong to a grid of log-odds.

    ``growth`` and ``spread`` are the mean and standard deviation of the logarithm of a step's factor if it is right.
    """

    sigma: float
    stake: float
    allowed: float
    forecasts: Array
    growth: float
    spread: float

    def log_factors(self, scores: Array, coins: Array) -> Array:
        """log(1 + λ·(2su − u² − v)) for each score y − (what the other rows add), in clipping norms.

        In the middle between the worlds, at ½, nothing is known and u = 0.
        """
        odds = (np.asarray(scores) - 0.5) / self.sigma**2
        u = np.sign(odds) * np.interp(np.abs(odds), _LOG_ODDS, self.forecasts)
        side = 2.0 * np.asarray(coins, dtype=np.float64) - 1.0
        return np.asarray(np.log1p(self.stake * (2.0 * side * u - u * u - self.allowed)))


@functools.lru_cache(maxsize=1024)
def bet(claimed: float, fraction: float) -> Bet:
    """The bet that the noise is ``fraction`` of the claimed σ: λ and forecasts of largest expected logarithm.

    >>> best = bet(1.0, 0.5)
    >>> round(math.log(100) / best.growth)  # steps until 99 %, if half the noise is missing
    58
    """
    sigma = claimed * fraction
    allowed = best_payoff(1.0 / claimed)
    mu = 1.0 / sigma
    log_odds = np.minimum(np.abs(mu * _GRID + mu * mu / 2.0), _LOG_ODDS[-1])
    right = np.where(mu * _GRID + mu * mu / 2.0 >= 0.0, 1.0, -1.0)

    def played(stake: float) -> tuple[Array, Array]:
        chosen = _best_forecasts(stake, allowed)
        u = np.interp(log_odds, _LOG_ODDS, chosen)
        return chosen, np.log1p(stake * (2.0 * right * u - u * u - allowed))

    def loss(log_stake: float) -> float:
        return -float(_DENSITY @ played(math.exp(log_stake))[1])

    found = optimize.minimize_scalar(loss, bounds=(math.log(1e-4), math.log(0.999)), method="bounded")
    stake = math.exp(found.x)
    chosen, logs = played(stake)
    growth = float(_DENSITY @ logs)
    spread = math.sqrt(max(0.0, float(_DENSITY @ (logs - growth) ** 2)))
    return Bet(sigma=sigma, stake=stake, allowed=allowed, forecasts=chosen, growth=growth, spread=spread)


def _best_forecasts(stake: float, allowed: float) -> Array:
    """For each log-odds of the grid the forecast of largest expected log(1 + λ·payoff), never risking everything."""
    u = _FORECASTS
    won, lost = 1.0 + stake * (2.0 * u - u * u - allowed), 1.0 + stake * (-2.0 * u - u * u - allowed)
    safe = lost >= _LEAST
    won, lost = np.log(won[safe]), np.log(lost[safe])
    sure = 1.0 / (1.0 + np.exp(-_LOG_ODDS))
    return np.asarray(u[safe][np.argmax(np.outer(sure, won) + np.outer(1.0 - sure, lost), axis=1)])


def log_factors(residuals: Array, before: Array, coins: Array, *, claimed: float) -> Array:
    """The logarithms of all bets' factors, ``[..., bets]``: one for each fraction, and the one on repeated noise last.

    ``residuals`` is the private sum less what the other rows add, ``before`` the same one step earlier (NaN where there
    was none: then nothing is bet on repetition).
    """
    plain = [bet(claimed, fraction).log_factors(residuals + coins, coins) for fraction in FRACTIONS]
    known = np.isfinite(before)
    again = bet(claimed, _ALIKE).log_factors(np.where(known, residuals - before, 0.0) + coins, coins)
    return np.stack([*plain, np.where(known, again, 0.0)], axis=-1)


def log_evidence(wealth: Array) -> Array:
    """The logarithm of the weighed mean of the bets, whose logarithms are the last axis of ``wealth``."""
    weights = np.append(np.log(WEIGHTS) + math.log1p(-REPEATED), math.log(REPEATED))
    return np.asarray(special.logsumexp(wealth + weights, axis=-1))
