"""Privacy loss distributions of Poisson-sampled DP-SGD, composed by dp-accounting.

The library asks its Gaussian mechanism for δ one loss at a time, and adds up a profile one loss at a time. Here the
same formulas are taken over whole arrays, term by term in the library's order, so that the numbers are the library's.
"""

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


@functools.lru_cache(maxsize=8)
def composed(mechanism: DpSgd, coarser: float = 1.0) -> Any:
    """The composed privacy loss distribution of Poisson-sampled DP-SGD, 0 < q < 1, rounded to the safe side."""
    interval = coarser * _interval(mechanism)
    if interval > 500.0:  # the library takes the exponential of it
        least = "at least about 0.0001: with less no privacy is left, and the analysis of sampled batches overflows"
        raise _validate.reject("noise_multiplier", mechanism.noise_multiplier, least)
    step = _one_step(mechanism, interval)
    if mechanism.steps < 1000 or _largest_loss(mechanism) > 1500.0 * interval:
        return step.self_compose(mechanism.steps)
    # With few points the library computes points^steps as a whole number, which takes minutes: ten steps come first.
    tens, rest = divmod(mechanism.steps, 10)
    whole = step.self_compose(10, 0.0).self_compose(tens)
    return whole.compose(step.self_compose(rest, 0.0)) if rest else whole


def deltas(distribution: Any, epsilons: Array) -> Array:
    """δ at every one of the ascending finite ``epsilons``: Σ over losses l > ε of p(l)·(1 − e^{ε−l}).

    From the largest loss down, the masses Σ p and Σ p·e^{−l} are running sums.
    """
    try:
        parts = [
            (pmf._infinity_mass, (np.arange(pmf.size) + pmf._lower_loss) * pmf._discretization, pmf._probs)
            for pmf in (distribution._pmf_remove, distribution._pmf_add)
        ]
    except AttributeError:  # few losses, kept in another form; or another version of the library
        return np.asarray(distribution.get_delta_for_epsilon(epsilons.tolist()), dtype=np.float64)
    found = []
    for infinite, losses, probabilities in parts:
        above = losses.size - np.searchsorted(losses, epsilons, side="right")
        largest, masses = losses[::-1][: above[0]], probabilities[::-1][: above[0]]
        upper = np.cumsum(np.append(infinite, masses))
        lower = np.cumsum(np.append(0.0, masses * np.exp(-largest)))
        found.append(upper[above] - np.exp(epsilons) * lower[above])
    return np.asarray(np.maximum(*found))


def _one_step(mechanism: DpSgd, interval: float) -> Any:
    """The losses of one step on a grid, by the library's pessimistic connect-the-dots rule (Doroshenko et al. 2022)."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap
    from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

    if mechanism.relation is Relation.REPLACE:
        return privacy_loss_distribution.from_gaussian_mechanism(
            mechanism.noise_multiplier,
            sampling_prob=mechanism.sample_rate,
            value_discretization_interval=interval,
            neighboring_relation=NeighboringRelation.REPLACE_ONE,
        )
    parts = []
    for sign, kind in ((1.0, AdjacencyType.REMOVE), (-1.0, AdjacencyType.ADD)):
        loss = GaussianPrivacyLoss(mechanism.noise_multiplier, sampling_prob=mechanism.sample_rate, adjacency_type=kind)
        bounds = loss.connect_dots_bounds()
        low, high = math.floor(bounds.epsilon_lower / interval), math.ceil(bounds.epsilon_upper / interval)
        dots = _step_deltas(loss, np.arange(low, high + 1) * interval, sign)
        parts.append(create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, dots))
    return privacy_loss_distribution.PrivacyLossDistribution(*parts)


def _step_deltas(loss: Any, epsilons: Array, sign: float) -> Array:
    """δ(ε) of one sampled step; ``sign`` is 1 for a removed row and −1 for an added one.

    With a row removed the loss at x is ln(1 − q + q·e^{l(x)}), l the loss without sampling, which falls in x: δ(ε) is
    the mass above ε where it begins to exceed it. With a row added the loss is the negative of that.
    """
    q, sigma = loss.sampling_prob, loss.standard_deviation
    edge = math.log1p(-q)  # losses of a removed row lie above, those of an added one below the negative
    inner = sign * epsilons > edge
    found = np.zeros(epsilons.size)
    if sign > 0.0:
        found[~inner] = -np.expm1(epsilons[~inner])
    wanted = sign * epsilons[inner]
    # ln(1 + (e^ε − 1)/q) = ln(e^ε/q − (1/q − 1))
    with np.errstate(divide="ignore"):
        shifted, minus = wanted + np.log(1.0 / q), np.log(1.0 / q - 1.0)
        plain = shifted + np.log1p(-np.exp(minus - shifted))
    plain = np.where(wanted == 0.0, np.log(1.0 / q + (1.0 - 1.0 / q)), plain)
    near = math.log(1.0 - q)
    plain[np.abs(wanted - near) <= 1e-9 * np.maximum(np.abs(wanted), abs(near))] = -np.inf
    cutoff = -0.5 - sign * plain * sigma**2
    if sign < 0.0:
        cutoff = 1.0 + cutoff
    found[inner] = loss.mu_upper_cdf(cutoff) - np.exp(epsilons[inner] + loss.mu_lower_log_cdf(cutoff))
    return np.clip(found, 0.0, 1.0)


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
    return max(wanted, noise, largest / 2e5, 20.0 * math.sqrt(mechanism.steps) * spread / 2e6)


def _largest_loss(mechanism: DpSgd) -> float:
    """The largest loss of one step that is kept, ten standard deviations out."""
    q, shift = mechanism.sample_rate, sensitivity(mechanism.relation) / mechanism.noise_multiplier
    return float(np.logaddexp(math.log1p(-q), math.log(q) + 10.0 * shift + shift * shift / 2.0))
