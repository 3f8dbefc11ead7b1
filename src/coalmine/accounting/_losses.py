"""Privacy loss distributions of Poisson-sampled DP-SGD, by dp-accounting; and whole profiles of them at once."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.accounting._common import sensitivity
from coalmine.records import DpSgd, Relation

Array = NDArray[np.float64]
_WIDEST = 500.0
"""The library takes the exponential of the step of the loss grid."""
_SMALL_RATE, _ODD = 1e-6, 1.0 + 1.0 / (137.0 * math.sqrt(2.0))


@functools.lru_cache(maxsize=8)
def composed(mechanism: DpSgd, coarser: float = 1.0) -> Any:
    """The composed privacy loss distribution of Poisson-sampled DP-SGD, 0 < q < 1, rounded to the safe side."""
    interval = coarser * _interval(mechanism)
    if interval > _WIDEST:
        least = (
            f"at least {_least_noise(mechanism, coarser):g} here: with less no privacy is left, and the analysis of "
            "sampled batches overflows"
        )
        raise _validate.reject("noise_multiplier", mechanism.noise_multiplier, least)
    step = one_step(mechanism, interval)
    if mechanism.steps < 1000 or _largest_loss(mechanism) > 1500.0 * interval:
        return step.self_compose(mechanism.steps)
    # With few points the library computes points^steps as a whole number, which takes minutes: ten steps come first.
    tens, rest = divmod(mechanism.steps, 10)
    whole = step.self_compose(10, 0.0).self_compose(tens)
    return whole.compose(step.self_compose(rest, 0.0)) if rest else whole


def one_step(mechanism: DpSgd, interval: float) -> Any:
    """The privacy loss distribution of one step, its losses rounded up to multiples of ``interval``."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    replaced = mechanism.relation is Relation.REPLACE
    rate = mechanism.sample_rate
    if rate < _SMALL_RATE:
        # The library computes ln(1 − q) from the rounded 1 − q: a rate that is a little larger makes 1 − q exact.
        others = 1.0 - rate
        rate = 1.0 - (others if 1.0 - others >= rate else math.nextafter(others, 0.0))
    return privacy_loss_distribution.from_gaussian_mechanism(
        mechanism.noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=NeighboringRelation.REPLACE_ONE if replaced else NeighboringRelation.ADD_OR_REMOVE_ONE,
    )


def deltas(distribution: Any, epsilons: Array) -> tuple[Array, Array]:
    """δ at every one of the ascending finite ``epsilons``: Σ over losses l > ε of p(l)·(1 − e^{ε−l}).

    First that of the data with the row against those without it, then the other way round.

    From the largest loss down, the masses Σ p and Σ p·e^{−l} are running sums. The library asks for one ε after the
    other and one loss after the other, which takes seventy times as long.
    """
    try:
        parts = distribution._pmf_remove, distribution._pmf_add
    except AttributeError:  # another version of the library: the larger of the two stands for both
        larger = np.asarray(distribution.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
        return larger, larger
    return _of_losses(parts[0], epsilons), _of_losses(parts[1], epsilons)


def _of_losses(pmf: Any, epsilons: Array) -> Array:
    """δ of one direction."""
    try:
        infinite, probabilities = pmf._infinity_mass, pmf._probs
        losses = (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization
    except AttributeError:  # few losses, kept in another form
        return np.asarray(pmf.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
    above = losses.size - np.searchsorted(losses, epsilons, side="right")
    largest, masses = losses[::-1][: above[0]], probabilities[::-1][: above[0]]
    upper = np.cumsum(np.append(infinite, masses))
    lower = np.cumsum(np.append(0.0, masses * np.exp(-largest)))
    return np.asarray(upper[above] - np.exp(epsilons) * lower[above])


def _interval(mechanism: DpSgd) -> float:
    """How finely privacy losses are discretised: a hundredth of one step's typical loss, as far as memory allows.

    Any interval gives a valid bound (losses are rounded up). A finer one gives a tighter bound and costs more; past
    10⁵ steps it is made coarser again, for the library then adds up rounding noise of the far tail, always upwards.
    One step gets at most 200 000 points and the composition about two million.
    """
    q, sigma = mechanism.sample_rate, mechanism.noise_multiplier
    shift = sensitivity(mechanism.relation) / sigma
    largest = _largest_loss(mechanism)
    spread = math.sqrt(q * (shift**2 + shift**4 / 4.0))
    if shift < 20.0:
        spread = min(spread, q * math.sqrt(math.expm1(shift**2)))
    share = min(0.05, 0.01 * max(1.0, math.sqrt(mechanism.steps / 1e5)))
    wanted = min(1e-3, share * q * shift)
    # One step's probabilities are differences of numbers near 1, over the interval: noise of about 1e-16 in each point.
    noise = math.sqrt(mechanism.steps * max(1e-20, 1e-17 * largest))
    chosen = max(wanted, noise, largest / 2e5, 20.0 * math.sqrt(mechanism.steps) * spread / 2e6)
    # For a tiny q the least loss is −q to all digits. It must not be a multiple: the library takes the logarithm of 0.
    return chosen * _ODD if q < _SMALL_RATE else chosen


def _least_noise(mechanism: DpSgd, coarser: float) -> float:
    """A noise with two digits at which the loss grid is fine enough, and little more than that takes."""
    digits, power = 10, math.floor(math.log10(mechanism.noise_multiplier)) - 1
    while coarser * _interval(mechanism.with_noise(float(f"{digits}e{power}"))) > _WIDEST:
        digits, power = (digits + 1, power) if digits < 99 else (10, power + 1)
    return float(f"{digits}e{power}")


def _largest_loss(mechanism: DpSgd) -> float:
    """The largest loss of one step that is kept, ten standard deviations out."""
    q, shift = mechanism.sample_rate, sensitivity(mechanism.relation) / mechanism.noise_multiplier
    return float(np.logaddexp(math.log1p(-q), math.log(q) + 10.0 * shift + shift * shift / 2.0))
