"""A claim put to the test as a whole: its trade-off curve, not its ε at one δ.

If the claimed curve f holds, then for independent scores X of world 0 and Y of world 1 there are independent uniform
numbers W and V with 1{X_i < Y_j} ≤ 1{V_j > f(W_i)} for all i and j at once (docs/bounds.md). So for every statistic
that rises in these indicators, its law under *any* training that keeps the claim lies below its law for (f(W), V),
which is simulated. Ties among scores count against the refutation. No property of the training is assumed.

A claim is tested by the larger of two such statistics, each scaled by its simulated median and 99 % quantile; the
maximum is simulated too, so the choice between them is corrected for:

- *threshold*: the best threshold, as in the sup-test (:mod:`coalmine.bounds.sup`);
- *likelihood*: Σ_j a(share of X above Y_j) + Σ_i a(share of Y below X_i) with a = ln(f₁′/f′), where f₁ is the claim
  with half its noise: strong where a leak is spread over all scores, or carried by few scores of a rare canary.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from coalmine import _validate
from coalmine.bounds._rates import errors_by_position, lattice
from coalmine.bounds.dpsgd import GroupCurve, mechanism_curve
from coalmine.bounds.families import EpsilonDelta, Family, Gdp
from coalmine.bounds.ranks import rank_sum
from coalmine.bounds.sup import draw_world0, evidence_table, least_level
from coalmine.errors import UnsupportedError
from coalmine.records import Claim, EpsilonClaim, MechanismClaim, Sampling, Scores
from coalmine.theory.curves import GaussianCurve, TradeOff, gaussian_mu, least_whole
from coalmine.theory.rates import upper_limit

Array = NDArray[np.float64]

_SURE = 1e-3
"""A p-value is the upper limit of the simulated share at this level: so the size of a fixed seed keeps its level."""
_COPIES = (20_000, 60.0)
"""Simulated copies: at least the first number, and the second over the level."""
_FEW_COPIES = (2_000, 10.0)
"""The same where a rough answer is enough: how many trials would do."""
_SCALING_COPIES = 2_000
_SCALE, _RARER = 0.99, 0.997
"""The quantile under the claim that is 1 on the scale of each statistic. Where the order of the worlds is known, the
likelihood is that of the scores themselves, and a threshold has to say more to decide."""
_LARGEST_TABLE = 40_000_000
_TIE = 1e-7
"""Copies within this of the observed value count as reaching it: sums of equal counts may differ in their last bits."""
_ALTERNATIVE = 0.5
"""The share of the claimed noise against which the likelihood statistic is made."""
_MOST_TRIALS = 2_000_000
_CLAIMS = (EpsilonClaim, MechanismClaim)
_SEED = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimTest:
    """The test of a claim. ``p_value`` is never too small; ``statistic`` names the one that speaks most against it."""

    p_value: float
    level: float
    statistic: str
    trials: tuple[int, int]

    @property
    def refuted(self) -> bool:
        """Whether the claim is false at the stated level."""
        return self.p_value <= self.level


def check_claim(claim: Claim, *, confidence: float) -> None:
    """Refuse, before anything is trained, a claim that cannot be tested at this confidence.

    Args:
        claim: an ε at a δ, or a mechanism.
        confidence: of the test.

    Raises:
        UnsupportedError: the mechanism has no known trade-off curve, or the confidence needs too many simulations.

    """
    _validate.instance("claim", claim, _CLAIMS)
    _copies(1.0 - _validate.open_unit("confidence", confidence), 1000, _COPIES)
    if isinstance(claim, MechanismClaim):
        if claim.mechanism.sampling is Sampling.SHUFFLE:
            raise UnsupportedError(
                "sampling = 'shuffle' has no known trade-off curve, so a claim about it cannot be tested as a whole: "
                "claim an ε instead, or the mechanism with 'poisson' or 'full' sampling that is accounted for"
            )
        claim_curve(claim)


def check_confidence(confidence: float, *, attacks: int = 1, claimed: bool = True) -> None:
    """Refuse, before anything is trained, a confidence that the tests of so many attacks cannot reach together.

    >>> check_confidence(0.9999)
    Traceback (most recent call last):
    coalmine.errors.UnsupportedError: confidence = 0.9999 is too high for these tests, whose law is simulated: \
expected at most 0.999838

    Args:
        confidence: of all of them together; each has an equal share of what may go wrong.
        attacks: how many share it.
        claimed: a claim is tested, which takes more than a bound.

    """
    confidence = _validate.open_unit("confidence", confidence)
    least = 2.0 * _least_level(1000) if claimed else least_level(2)  # what failed may be tested beside the scores
    most = 1.0 - attacks * least
    if confidence > most:
        fewer = f" (of {attacks} attacks together; fewer attacks allow more)" if attacks > 1 else ""
        raise UnsupportedError(
            f"confidence = {confidence!r} is too high for these tests, whose law is simulated: expected at most "
            f"{_validate.rounded_down(most)}{fewer}"
        )


def claim_curve(claim: Claim, *, copies: int = 1, added: bool = False) -> TradeOff:
    """The trade-off curve that the claim promises for worlds that differ in ``copies`` rows; never too high.

    ``added``: world 1 is known to be world 0 with these rows added, so the curve of a mechanism need hold in this order
    alone (:func:`coalmine.accounting.standard.trade_off`). A claimed ε has one curve for both orders.
    """
    _validate.instance("claim", claim, _CLAIMS)
    copies = _validate.integer("copies", copies, at_least=1)
    _validate.instance("added", added, bool)
    if isinstance(claim, EpsilonClaim):
        return EpsilonDelta(delta=claim.delta, copies=copies).curve(claim.epsilon)
    return of_copies(mechanism_curve(claim.mechanism, added=added), copies)


def of_copies(curve: TradeOff, copies: int) -> TradeOff:
    """The curve of ``copies`` rows together, from that of one (Dong, Roth and Su 2019, Theorem 2)."""
    return GroupCurve(curve, copies) if copies > 1 else curve


def less_noise(claim: Claim, *, share: float, added: bool = False) -> TradeOff:
    """The curve of one row for the claimed training with this share of its noise.

    For a claimed ε that is the Gaussian mechanism that just keeps the claim, with its noise scaled. ``added``: for
    world 0 without the row and world 1 with it, in this order. With sampled batches no attack reaches the curve that
    holds in both orders, so for :func:`power` and :func:`trials_needed` take ``added=True`` here whatever they are
    asked: the other curve promises far too much (at q = 0.05, σ = 1, T = 1 a power of 0.42 for 0.07).

    >>> float(less_noise(EpsilonClaim(epsilon=2.0, delta=1e-5), share=0.5)(0.5)) < 0.5
    True
    """
    _validate.instance("claim", claim, _CLAIMS)
    share = _validate.at_most("share", _validate.positive("share", share), 1.0)
    _validate.instance("added", added, bool)
    if isinstance(claim, EpsilonClaim):
        return GaussianCurve(mu=gaussian_mu(claim.epsilon, delta=claim.delta) / share)
    return mechanism_curve(claim.mechanism.with_share(share), added=added)


def claim_test(scores: Scores, *, claim: Claim, confidence: float, copies: int = 1, added: bool = False) -> ClaimTest:
    """Test a claim as a whole by the scores of independent trials; nothing is assumed about the training.

    Args:
        scores: of both worlds; a larger one speaks for world 1.
        claim: an ε at a δ, or a mechanism, for one row.
        confidence: a true claim is refuted with probability at most 1 − confidence.
        copies: in how many rows the worlds differ, under the relation of the claim.
        added: world 1 is known to be world 0 with these rows added, never the other way round.

    Returns:
        The p-value, and whether the claim is refuted.

    >>> rng = np.random.default_rng(0)
    >>> from coalmine.records import DpSgd
    >>> claim = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=1e-5)
    >>> scores = Scores(rng.normal(size=100), rng.normal(2.0, size=100))  # half the claimed noise
    >>> claim_test(scores, claim=claim, confidence=0.99).refuted
    True

    """
    _validate.instance("scores", scores, Scores)
    level, copies = _checked(claim, confidence, copies, added)
    sizes = scores.world0.size, scores.world1.size
    null = _null(claim, copies, *sizes, _copies(level, sizes[0], _COPIES), added)
    values = null.scaled(errors_by_position(scores).false_negatives[None, :])[0]
    worse = null.largest.size - int(np.searchsorted(null.largest, values.max() - _TIE, side="left"))
    p_value = float(upper_limit(worse, null.largest.size, _SURE))
    return ClaimTest(p_value=p_value, level=level, statistic=null.names[int(values.argmax())], trials=sizes)


def refutations(
    claim: Claim,
    places: NDArray[np.int64],
    negatives: int,
    positives: int,
    *,
    level: float,
    copies: int = 1,
    added: bool = False,
) -> NDArray[np.bool_]:
    """Which of many audits refute the claim, from their false negatives as places on the fine lattice, a row each."""
    null = _null(claim, copies, negatives, positives, _copies(level, negatives, _COPIES), added)
    values = null.scaled(lattice(positives, fine=True)[places]).max(axis=1)
    return np.asarray(values > null.critical(level))


def power(
    claim: Claim,
    *,
    alternative: TradeOff,
    negatives: int,
    positives: int,
    confidence: float,
    copies: int = 1,
    added: bool = False,
) -> float:
    """The probability that a perfect attack refutes the claim when the training's curve is ``alternative``.

    Args:
        claim: what is tested.
        alternative: the curve of one row of what really runs (see :func:`less_noise`). With sampled batches no attack
            reaches the curve that holds in both orders: take that of the order that is played.
        negatives: trials in world 0.
        positives: trials in world 1.
        confidence: of the test.
        copies: in how many rows the worlds differ.
        added: as in :func:`claim_test`.

    Returns:
        The share of 2000 simulated audits that refute; scores are those that reach the curve.

    >>> from coalmine.records import DpSgd
    >>> claim = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=1e-5)
    >>> half = less_noise(claim, share=0.5)
    >>> power(claim, alternative=half, negatives=40, positives=40, confidence=0.99) > 0.8
    True

    """
    level, copies = _checked(claim, confidence, copies, added)
    sizes = [
        _validate.integer(name, value, at_least=1, at_most=_MOST_TRIALS)
        for name, value in (("negatives", negatives), ("positives", positives))
    ]
    return _power(claim, _curve(alternative), *sizes, level, copies, added, _COPIES)


def trials_needed(
    claim: Claim, *, alternative: TradeOff, confidence: float, copies: int = 1, power: float = 0.8, added: bool = False
) -> int | None:
    """About how many trials, both worlds together, refute the claim with this probability; None if two millions do not.

    Args:
        claim: what is tested.
        alternative: the curve of one row of what really runs, in the order that is played, as for :func:`power`.
        confidence: of the test.
        copies: in how many rows the worlds differ.
        power: the probability that is wanted.
        added: as in :func:`claim_test`.

    Returns:
        An even number, within about 5 %.

    """
    level, copies = _checked(claim, confidence, copies, added)
    power = _validate.open_unit("power", power)
    alternative = _curve(alternative)

    def enough(n: int) -> bool:
        return _power(claim, alternative, n, n, level, copies, added, _FEW_COPIES) >= power

    each = least_whole(enough, start=4, most=_MOST_TRIALS // 2, parts=20)
    return None if each is None else 2 * each


def _checked(claim: Claim, confidence: float, copies: int, added: bool) -> tuple[float, int]:
    """The level of the test, and the copies."""
    _validate.instance("claim", claim, _CLAIMS)
    _validate.instance("added", added, bool)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    return level, _validate.integer("copies", copies, at_least=1)


def _curve(alternative: TradeOff) -> TradeOff:
    if not callable(alternative):
        raise _validate.reject("alternative", alternative, "a trade-off curve, as claim_curve and less_noise give one")
    return alternative


@functools.lru_cache(maxsize=256)
def _power(
    claim: Claim,
    alternative: TradeOff,
    n0: int,
    n1: int,
    level: float,
    copies: int,
    added: bool,
    how_many: tuple[int, float],
) -> float:
    null = _null(claim, copies, n0, n1, _copies(level, n0, how_many), added)
    missed = _simulated(of_copies(alternative, copies), n0, n1, _SCALING_COPIES, _SEED + 2)
    return float(np.mean(null.scaled(missed).max(axis=1) > null.critical(level)))


def _copies(level: float, negatives: int, how_many: tuple[int, float]) -> int:
    """How many copies are simulated; an error where the confidence needs more than there is room for."""
    wanted, room = max(how_many[0], math.ceil(how_many[1] / level)), _room(negatives)
    fewest = math.ceil(-math.log(_SURE) / level) + 1  # with none worse, the p-value is −ln(1/1000)/copies
    if min(wanted, room) < fewest:
        raise UnsupportedError(
            f"confidence = {1 - level!r} is too high for the test of a claim, which would need {fewest} simulated "
            f"copies of these trials and has room for {room}: expected at most "
            f"{_validate.rounded_down(1.0 - _least_level(negatives))}"
        )
    return min(wanted, room)


def _room(negatives: int) -> int:
    """How many copies of so many trials are kept at once."""
    return _LARGEST_TABLE // (2 * lattice(negatives).size)


def _least_level(negatives: int) -> float:
    """The smallest level that as many copies as there is room for can show."""
    return -math.log(_SURE) / (_room(negatives) - 1)


@dataclasses.dataclass(frozen=True, eq=False)
class _Null:
    """The claim's statistics: their scaling, and the sorted maxima of the simulated copies."""

    names: tuple[str, ...]
    statistics: tuple[Callable[[NDArray[np.int64]], Array], ...]
    center: Array
    width: Array
    largest: Array

    def critical(self, level: float) -> float:
        """A larger maximum refutes: then few enough copies reach it."""
        total = self.largest.size
        allowed = int(np.searchsorted(upper_limit(np.arange(total + 1), total, _SURE), level, side="right"))
        return float(self.largest[total - allowed]) + _TIE if allowed else math.inf

    def scaled(self, missed: NDArray[np.int64]) -> Array:
        """Every statistic of every row, scaled."""
        return (np.stack([one(missed) for one in self.statistics], axis=1) - self.center) / self.width


@functools.lru_cache(maxsize=16)
def _null(claim: Claim, copies: int, n0: int, n1: int, simulations: int, added: bool) -> _Null:
    """Simulate the claim's statistics when its curve is just reached."""
    curve = claim_curve(claim, copies=copies, added=added)
    said = isinstance(claim, EpsilonClaim)
    family: Family = EpsilonDelta(delta=claim.delta, copies=copies) if said else Gdp(delta=claim.delta)
    named = {
        "threshold": _threshold(family, n0, n1),
        "likelihood": _likelihood(curve, of_copies(less_noise(claim, share=_ALTERNATIVE, added=added), copies), n0, n1),
    }
    statistics = tuple(named.values())
    first = np.stack([one(_simulated(curve, n0, n1, _SCALING_COPIES, _SEED + 1)) for one in statistics], axis=1)
    center = np.median(first, axis=0)
    # Where most copies tie there is no width; what is left must still be far above rounding.
    tops = np.array([np.quantile(first[:, 0], _RARER if added else _SCALE), np.quantile(first[:, 1], _SCALE)])
    width = np.maximum(tops - center, 1e-6 * (1.0 + np.abs(center)))
    null = _Null(tuple(named), statistics, center, width, np.empty(0))
    most = max(1, 4_000_000 // lattice(n0).size)  # copies that fit into memory
    parts = [min(most, simulations - start) for start in range(0, simulations, most)]
    largest = [null.scaled(_simulated(curve, n0, n1, part, _SEED, at)).max(axis=1) for at, part in enumerate(parts)]
    return dataclasses.replace(null, largest=np.sort(np.concatenate(largest)))


def _simulated(curve: TradeOff, n0: int, n1: int, simulations: int, seed: int, part: int = 0) -> NDArray[np.int64]:
    """Errors in world 1 for every copy and every count of errors in world 0 on the lattice, when the scores reach the
    curve: a score of world 1 is missed at position i when V ≤ f(W_(i+1)).
    """
    rng = np.random.default_rng([0xC1A1, seed, part, n0, n1])
    missed = np.clip(curve(draw_world0(rng, n0, simulations)), 0.0, 1.0)  # falls along a row
    edges = np.concatenate([np.zeros((simulations, 1)), missed[:, ::-1], np.ones((simulations, 1))], axis=1)
    between = rng.multinomial(n1, np.maximum(np.diff(edges, axis=1), 0.0))
    return np.cumsum(between[:, :-1], axis=1)[:, ::-1]


def _threshold(family: Family, n0: int, n1: int) -> Callable[[NDArray[np.int64]], Array]:
    """The best threshold by the family's measure."""
    table, counts = evidence_table(family, n0, n1), lattice(n1, fine=True)
    places = np.searchsorted(counts, np.arange(n1 + 1), side="right") - 1  # rounded down, observed and simulated alike
    positions = np.arange(table.shape[0])
    return lambda missed: np.asarray(table[positions[None, :], places[missed]].max(axis=1))


def _likelihood(curve: TradeOff, other: TradeOff, n0: int, n1: int) -> Callable[[NDArray[np.int64]], Array]:
    """Σ over world 1 of a(share of world 0 above) + Σ over world 0 of b(share of world 1 below).

    a = ln(f₁′/f′) is the log-likelihood ratio of a score of world 1 by its place among those of world 0; b, that of a
    score of world 0 by its place among those of world 1, is the same of the inverse curves. Any a and b that fall give
    a valid statistic; these are made to fall by isotonic regression.
    """
    edges = np.unique(np.concatenate([[0.0], np.geomspace(1e-7, 0.5, 400), np.linspace(0.0, 1.0, 401)]))
    fine = np.unique(np.concatenate([np.linspace(0.0, 1.0, 8001), np.geomspace(1e-9, 0.5, 2000)]))
    middles = 0.5 * (edges[1:] + edges[:-1])

    def inverse(one: TradeOff) -> Array:
        values = np.minimum.accumulate(np.minimum(one(fine), 1.0))
        return np.asarray(np.interp(edges, values[::-1], fine[::-1]))

    def ratios(values: Array, others: Array) -> Callable[[Array], Array]:
        slopes = [np.maximum(-np.diff(np.minimum(one, 1.0)), 1e-15) for one in (values, others)]
        raw = np.log(slopes[1] / slopes[0])
        fitted = optimize.isotonic_regression(raw, weights=np.diff(edges), increasing=False).x
        return lambda share: np.interp(share, middles, fitted)

    forth, back = ratios(curve(edges), other(edges)), ratios(inverse(curve), inverse(other))
    return rank_sum(forth, n0, n1, back=back)
