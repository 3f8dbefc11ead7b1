"""What is proved for DP-SGD when every iterate may be seen: composition over all T steps.

``analysis="pld"`` composes privacy loss distributions numerically with Google's dp-accounting, always rounded to the
safe side; ``"rdp"`` composes Rényi divergences, which is looser but holds in closed form. :func:`gdp_clt` is the
central-limit approximation; it can be too small, so it is a :class:`~coalmine.records.Heuristic`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.accounting import _below, _losses, _renyi
from coalmine.accounting._common import Profile, gaussian_steps_mu, sensitivity
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Guarantee, Heuristic, Relation, Sampling
from coalmine.theory import curves

ANALYSES = ("pld", "rdp")
_POINTS = 256
_DELTA_FLOOR = 1e-15
LEAST_POSITIVE = math.ulp(0.0)
"""The smallest number above 0: what underflows is rounded up to it."""

# The library's T-fold convolution works in the frequency domain, where rounding grows with T: against the exact
# Gaussian its δ was off by up to 0.25·T·2⁻⁵² either way. Sixteen times as much is added to every δ.
_ROUNDING_PER_STEP = 4.0 * 2.0**-52
# The constant covers the tail of the composition that the library cuts off (1e-15).
_ROUNDING = 1e-14
_LOST = 0.25
"""What the library gives below this part of it is rounding alone, which goes up and down."""
_COARSER = {"rdp": "RDP", "no_amplification": "the same steps without sampling"}
"""What stands in for the PLD where its rounding is too large."""


def epsilon(mechanism: DpSgd, *, delta: float, analysis: str = "pld") -> Guarantee:
    """The ε that composition over all iterates guarantees at δ.

    Exact (analytic Gaussian, Balle and Wang 2018) without sampling; with Poisson sampling by PLD (Koskela et al. 2020,
    Doroshenko et al. 2022) or RDP (Mironov et al. 2019).

    >>> mechanism = DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000)
    >>> round(epsilon(mechanism, delta=1e-5).epsilon, 2)
    5.19
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    delta = _validate.open_unit("delta", delta)
    analysis = _validate.choice("analysis", analysis, ANALYSES)
    if mechanism.sampling is Sampling.SHUFFLE:
        holds = shuffle_epsilon(mechanism, delta=delta).epsilon
        raise _shuffle_refusal(f"ε = {_validate.rounded_up(holds)} at δ = {delta:g}")
    note: tuple[str, ...] = ()
    if mechanism.sample_rate == 0.0:
        value = 0.0
    elif analysis == "rdp":
        _check_rdp(mechanism)
        value = _renyi.epsilon(mechanism, delta=delta)
    elif mechanism.sample_rate == 1.0:
        value = curves.gaussian_epsilon(gaussian_steps_mu(mechanism), delta=delta)
    elif delta > 2.0 * _rounding(mechanism):
        value = float(_losses.composed(mechanism).get_epsilon_for_delta(delta - _rounding(mechanism)))
    else:
        value, analysis, note = _too_small_for_pld(mechanism, delta)
    return _guarantee(mechanism, value, delta, analysis, note)


def epsilon_at_least(mechanism: DpSgd, *, delta: float) -> float:
    """A number that is never above ε(δ) of the mechanism: for lower bounds, which :func:`epsilon` would round up.

    Without sampling it is the exact value of the Gaussian mechanism, less its rounding. With Poisson sampling one step
    is seen through a partition into cells (post-processing, so no δ grows), whose losses are composed by an FFT that is
    tilted towards δ: about 0.01 % below the truth up to a million steps, for δ down to 1e-300
    (:mod:`coalmine.accounting._below` has the argument).

    Args:
        mechanism: DP-SGD with Poisson or full batches.
        delta: Between 0 and 1.

    Returns:
        At most the smallest ε at which the mechanism is (ε, δ)-DP.

    >>> mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=1000)
    >>> round(epsilon_at_least(mechanism, delta=1e-12), 1), round(epsilon(mechanism, delta=1e-12).epsilon, 1)
    (39.0, 41.0)
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    delta = _validate.open_unit("delta", delta)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError("sampling = 'shuffle' has no known trade-off curve: expected 'poisson' or 'full'")
    if mechanism.sample_rate == 0.0:
        return 0.0
    if mechanism.sample_rate == 1.0:
        return curves.gaussian_epsilon(gaussian_steps_mu(mechanism), delta=delta) * (1.0 - 1e-12)
    return _below.epsilon(mechanism, delta=delta)


def delta(mechanism: DpSgd, *, epsilon: float, analysis: str = "pld") -> Guarantee:
    """The δ that composition over all iterates guarantees at ε.

    >>> mechanism = DpSgd(sample_rate=1.0, noise_multiplier=10.0, steps=100)
    >>> round(delta(mechanism, epsilon=1.0).delta, 6)
    0.126937
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    epsilon = _validate.non_negative("epsilon", epsilon)
    analysis = _validate.choice("analysis", analysis, ANALYSES)
    note: tuple[str, ...] = ()
    if mechanism.sampling is Sampling.SHUFFLE:
        holds = shuffle_delta(mechanism, epsilon=epsilon).delta
        raise _shuffle_refusal(f"δ = {_validate.rounded_up(holds)} at ε = {epsilon:g}", "shuffle_delta")
    if mechanism.sample_rate == 0.0:
        value = 0.0
    elif analysis == "rdp":
        _check_rdp(mechanism)
        value = _renyi.delta(mechanism, epsilon=epsilon)
    elif mechanism.sample_rate == 1.0:
        value = curves.gaussian_delta(gaussian_steps_mu(mechanism), epsilon=epsilon)
    else:
        value = float(_losses.composed(mechanism).get_delta_for_epsilon(epsilon)) + _rounding(mechanism)
        if value <= 2.0 * _rounding(mechanism):
            value, analysis, note = _below_pld(mechanism, epsilon, value)
    return _guarantee(mechanism, epsilon, min(1.0, max(_least_delta(mechanism), value)), analysis, note)


def _least_delta(mechanism: DpSgd) -> float:
    """Normal noise never gives δ = 0: what is too small for a number is rounded up to the smallest there is."""
    return LEAST_POSITIVE if mechanism.sample_rate > 0.0 else 0.0


def _guarantee(mechanism: DpSgd, epsilon: float, delta: float, analysis: str, note: tuple[str, ...]) -> Guarantee:
    """The record, with what it rests on."""
    if mechanism.sample_rate == 1.0:
        batches = "every row in every step"
    else:
        batches = f"Poisson sampling: every row on its own with probability {mechanism.sample_rate:.6g} in each step"
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        analysis=analysis,
        relation=mechanism.relation,
        assumptions=(batches, "per-example gradients clipped; every iterate may be seen", *note),
    )


def _too_small_for_pld(mechanism: DpSgd, delta: float) -> tuple[float, str, tuple[str, ...]]:
    """A δ under the rounding error of the PLD: the smaller of two bounds that still hold, its name, and a note.

    Sampling never adds to what a step reveals, so T Gaussian steps without it are one of them; RDP is the other, where
    there is one.
    """
    too_small = "delta is below the rounding error of the PLD analysis: this epsilon comes from"
    found = {"no_amplification": curves.gaussian_epsilon(gaussian_steps_mu(mechanism), delta=delta)}
    if mechanism.relation is Relation.ADD_REMOVE:
        found["rdp"] = _renyi.epsilon(mechanism, delta=delta)
    analysis = min(reversed(found), key=found.__getitem__)
    return found[analysis], analysis, (f"{too_small} {_COARSER[analysis]}",)


def _below_pld(mechanism: DpSgd, epsilon: float, value: float) -> tuple[float, str, tuple[str, ...]]:
    """δ at an ε so large that most of what the PLD gives, ``value``, is what its rounding may have lost.

    The least of it and of the two bounds of :func:`_too_small_for_pld`. All three fall as ε grows, so this does too.
    """
    value = max(value, (1.0 + _LOST) * _rounding(mechanism))
    found = {"pld": value, "no_amplification": curves.gaussian_delta(gaussian_steps_mu(mechanism), epsilon=epsilon)}
    if mechanism.relation is Relation.ADD_REMOVE:
        found["rdp"] = _renyi.delta(mechanism, epsilon=epsilon)
    analysis = min(found, key=found.__getitem__)
    if analysis == "pld":
        return value, analysis, ()
    too_small = "the rounding error of the PLD analysis is larger than this delta, which comes from"
    return found[analysis], analysis, (f"{too_small} {_COARSER[analysis]}",)


def _rounding(mechanism: DpSgd) -> float:
    """What is added to a δ from the PLD to cover floating-point error."""
    return _ROUNDING + _ROUNDING_PER_STEP * mechanism.steps


def profile(mechanism: DpSgd, *, points: int = _POINTS, coarser: float = 1.0) -> Profile:
    """δ(ε) on a grid of ε, both directions, never below the truth; composed once.

    The grid runs from 0 to where δ falls under 1e-15 (or under what the PLD can resolve). A trade-off curve
    built from it (:meth:`Profile.curve`) is never above the true one: conservative wherever the mechanism's guarantee
    is used as an upper bound on what an adversary can reach. ``coarser`` widens the steps of the loss grid by that
    factor: as valid, quicker, a little looser.

    >>> grid = profile(DpSgd(sample_rate=1.0, noise_multiplier=10.0, steps=100))
    >>> round(float(grid.deltas[0]), 6)
    0.382925
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    points = _validate.integer("points", points, at_least=2)
    coarser = _validate.positive("coarser", coarser)
    if mechanism.sampling is Sampling.SHUFFLE:
        mu = _shuffle_mu(mechanism)
    elif mechanism.sample_rate == 0.0:
        return Profile(epsilons=np.zeros(1), deltas=np.zeros(1))
    elif mechanism.sample_rate == 1.0:
        mu = gaussian_steps_mu(mechanism)
    else:
        epsilons, *both = _directions(mechanism, points, coarser)
        return Profile(epsilons=epsilons, deltas=np.maximum(*both))
    top = min(curves.gaussian_epsilon(mu, delta=_DELTA_FLOOR), Profile.LARGEST_EPSILON)
    epsilons = np.linspace(0.0, top, points)
    return Profile(epsilons=epsilons, deltas=np.array([curves.gaussian_delta(mu, epsilon=float(e)) for e in epsilons]))


def _directions(mechanism: DpSgd, points: int, coarser: float) -> list[NDArray[np.float64]]:
    """A grid of ε, and δ on it of the data with the row against those without, and the other way round."""
    composed = _losses.composed(mechanism, coarser)
    floor = max(_DELTA_FLOOR, 2.0 * _rounding(mechanism), 1e-13)
    top = min(float(composed.get_epsilon_for_delta(floor)), Profile.LARGEST_EPSILON)
    epsilons = np.linspace(0.0, top, points)
    found = _losses.deltas(composed, epsilons)
    return [epsilons, *(np.clip(deltas + _rounding(mechanism), 0.0, 1.0) for deltas in found)]


def trade_off(mechanism: DpSgd, *, added: bool = False) -> curves.TradeOff:
    """The trade-off curve of DP-SGD with every iterate seen, never above the true one.

    Exactly that of a Gaussian without sampling. Otherwise from a profile whose losses are discretised ten times as
    coarsely as elsewhere: still rounded to the safe side (Doroshenko et al. 2022), below the finer curve by 0.1 % at
    most, and ten times as quick, for searches that need one for many σ.

    Args:
        mechanism: DP-SGD with Poisson or full batches.
        added: the curve for world 0 without a row and world 1 with it, in this order. A step with the row drawn at
            random is harder to tell from one without it in one order than in the other, so this curve lies above the
            one that holds in both (Zhu, Dong and Wang 2022, Theorems 10 and 11: each order composes by itself).

    Returns:
        A function from false-positive rates to the smallest false-negative rates.

    >>> mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.3, steps=100)
    >>> round(float(trade_off(mechanism)(0.05)), 3)
    0.775
    >>> round(float(trade_off(mechanism)(0.9)), 4), round(float(trade_off(mechanism, added=True)(0.9)), 4)
    (0.0143, 0.0191)
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    _validate.instance("added", added, bool)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError("sampling = 'shuffle' has no known trade-off curve: expected 'poisson' or 'full'")
    if mechanism.sample_rate == 1.0:
        return curves.GaussianCurve(mu=gaussian_steps_mu(mechanism))
    if not added:
        return profile(mechanism, coarser=10.0).curve()
    if mechanism.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError("added = True is not allowed where a row is replaced: neither world has a row more")
    epsilons, more, less = _directions(mechanism, _POINTS, 10.0)
    return curves.ProfileCurve(epsilons, more, reverse=less)


def _check_rdp(mechanism: DpSgd) -> None:
    """Refuse what the Rényi divergences here do not cover: a replaced row in sampled batches."""
    if mechanism.sample_rate < 1.0 and mechanism.relation is Relation.REPLACE:
        raise UnsupportedError(
            "relation = 'replace' has no RDP analysis of Poisson-sampled batches here: "
            "use the standard analysis (PLD), or relation = 'add_remove'"
        )


_MEANS_NOTHING = 1e9
"""The central limit is infinite from this μ on, an ε of some 10^17: it is far from the truth already."""


def gdp_mu(mechanism: DpSgd) -> float:
    """μ = q·√(T·(e^{1/σ²} − 1)), the central-limit value (Bu, Dong, Long and Su 2019); exact if nothing is sampled.

    >>> round(gdp_mu(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000)), 5)
    1.13366
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError("sampling = 'shuffle' has no central-limit analysis here: it needs 'poisson' or 'full'")
    if mechanism.sample_rate == 1.0:
        return gaussian_steps_mu(mechanism)
    if mechanism.relation is Relation.REPLACE:
        raise UnsupportedError(
            "relation = 'replace' has no central-limit analysis of sampled batches here: it needs 'add_remove'"
        )
    exponent = min(mechanism.noise_multiplier**-2.0, 600.0)  # no overflow
    mu = mechanism.sample_rate * math.sqrt(mechanism.steps * math.expm1(exponent))
    return mu if mu < _MEANS_NOTHING else math.inf


def gdp_clt(mechanism: DpSgd, *, delta: float) -> Heuristic:
    """ε at δ as if the central limit of :func:`gdp_mu` held exactly: an approximation that may be below the truth.

    >>> round(gdp_clt(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), delta=1e-5).epsilon, 4)
    5.0647
    """
    mu = gdp_mu(mechanism)
    delta = _validate.open_unit("delta", delta)
    value = curves.gaussian_epsilon(mu, delta=delta) if math.isfinite(mu) else math.inf
    return _gdp(mechanism, value, delta)


def gdp_clt_delta(mechanism: DpSgd, *, epsilon: float) -> Heuristic:
    """δ at ε as if the central limit held exactly: an approximation that may be below the truth.

    >>> f"{gdp_clt_delta(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), epsilon=5.0).delta:.3e}"
    '1.276e-05'
    """
    mu = gdp_mu(mechanism)
    epsilon = _validate.non_negative("epsilon", epsilon)
    value = curves.gaussian_delta(mu, epsilon=epsilon) if math.isfinite(mu) else 1.0
    return _gdp(mechanism, epsilon, value)


def _gdp(mechanism: DpSgd, epsilon: float, delta: float) -> Heuristic:
    """The record of a central-limit value."""
    return Heuristic(
        epsilon=epsilon,
        delta=delta,
        analysis="gdp_clt",
        relation=mechanism.relation,
        assumptions=(
            "approximate: a central limit over many steps, each of which hardly counts; it can be below the truth",
            "Poisson sampling; every iterate may be seen",
        ),
    )


def shuffle_epsilon(mechanism: DpSgd, *, delta: float) -> Guarantee:
    """What holds for shuffled batches: each row is used once an epoch, and nothing is gained from sampling.

    E epochs are E Gaussian mechanisms: μ = Δ·√E/σ. Fix the order of the rows; then only the batch with the differing
    row changes, once an epoch. Under ``replace`` Δ = 2. Under ``add_remove`` Δ = 1 and the missing row is read as a row
    whose gradient is zero, so that the other batches stay what they are. An epoch has ⌊1/q⌋ steps, and a started one
    counts.

    >>> shuffled = DpSgd(sample_rate=0.01, noise_multiplier=4.0, steps=1600, sampling=Sampling.SHUFFLE)
    >>> round(shuffle_epsilon(shuffled, delta=1e-5).epsilon, 6)
    4.377178
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    delta = _validate.open_unit("delta", delta)
    return _shuffle(mechanism, curves.gaussian_epsilon(_shuffle_mu(mechanism), delta=delta), delta)


def shuffle_delta(mechanism: DpSgd, *, epsilon: float) -> Guarantee:
    """δ at ε for shuffled batches, without amplification (see :func:`shuffle_epsilon`).

    >>> shuffled = DpSgd(sample_rate=0.01, noise_multiplier=4.0, steps=1600, sampling=Sampling.SHUFFLE)
    >>> round(shuffle_delta(shuffled, epsilon=0.0).delta, 6)
    0.382925
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    epsilon = _validate.non_negative("epsilon", epsilon)
    return _shuffle(mechanism, epsilon, curves.gaussian_delta(_shuffle_mu(mechanism), epsilon=epsilon))


def _shuffle_mu(mechanism: DpSgd) -> float:
    """μ of E passes over the data, each row once a pass."""
    if mechanism.sample_rate == 0.0:
        return 0.0
    steps_per_epoch = math.floor(1.0 / mechanism.sample_rate + 1e-9)
    epochs = -(-mechanism.steps // steps_per_epoch)
    return sensitivity(mechanism.relation) * math.sqrt(epochs) / mechanism.noise_multiplier


def _shuffle(mechanism: DpSgd, epsilon: float, delta: float) -> Guarantee:
    """The record of the guarantee for shuffled batches."""
    if mechanism.relation is Relation.REPLACE:
        neighbours = "one row replaced; the number of rows stays"
    else:
        neighbours = "a missing row is read as a row with zero gradient, so that the other batches stay what they are"
    return Guarantee(
        epsilon=epsilon,
        delta=delta,
        analysis="shuffle_no_amplification",
        relation=mechanism.relation,
        assumptions=("fixed-size batches, each row once an epoch; no amplification by sampling", neighbours),
    )


def _shuffle_refusal(what_holds: str, function: str = "shuffle_epsilon") -> UnsupportedError:
    """Shuffling is not Poisson sampling, and accounting for it as if it were understates ε."""
    return UnsupportedError(
        "sampling = 'shuffle' has no amplified guarantee: the analyses of sampled batches need 'poisson'. What does "
        f"hold for shuffled batches, one pass an epoch without amplification, is {what_holds} "
        f"(accounting.standard.{function})"
    )
