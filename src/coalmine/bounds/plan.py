"""How many trials an audit needs before it can refute a claim: nobody should run one that cannot answer."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from scipy import special

from coalmine import _validate
from coalmine.bounds import ranks
from coalmine.bounds.claims import of_copies
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import Family, Gdp
from coalmine.bounds.method import Evidence
from coalmine.bounds.methods import METHODS, make_family, reading
from coalmine.bounds.one_run import ONE_RUN, Guesses, one_run_epsilon
from coalmine.bounds.one_run_fdp import ONE_RUN_FDP, one_run_fdp
from coalmine.bounds.sup import false_negatives, invert, kept_level, simulate
from coalmine.bounds.thresholds import Rule, Sup
from coalmine.bounds.trials import ceiling_of
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Record, Relation
from coalmine.theory.curves import GaussianCurve, TradeOff, gaussian_mu, largest_true, least_whole
from coalmine.theory.rates import upper_limit

_MOST_CANARIES = {ONE_RUN.name: 2**18, ONE_RUN_FDP.name: 2**14}
_MOST_EPSILON = 700.0  # beyond it e^ε is no floating-point number
_MOST_TRIALS = 1_000_000
_SIMULATED_AUDITS = 1999


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan(Record):
    """How many trials in each world (canaries, for one run) refute ``claim``; None when ``most`` would not do.

    Without ``attack_epsilon`` the attack makes no error and ``trials`` is the least number at which the ceiling is
    above the claim; by ``Sup`` the ceiling that all but one seed of its simulated copies in a thousand reach, so that
    with up to one and a tenth fewer it is a matter of the seed. With it, the attack's scores are two Gaussians worth
    ``attack_epsilon`` at δ, and ``trials`` is the number at which the claim is refuted with probability ``power``
    (simulated; within about 3 %). ``mechanism`` is what the method knows of it; its noise multiplier plays no part.
    """

    claim: float
    delta: float
    confidence: float
    method: str
    threshold_rule: str
    attack_epsilon: float | None
    power: float
    copies: int
    trials: int | None
    ceiling: float | None
    most: int
    relation: Relation = Relation.ADD_REMOVE
    mechanism: DpSgd | None = None


def plan(
    claim: float,
    *,
    delta: float,
    confidence: float,
    method: str = "clopper_pearson",
    threshold: Rule | None = None,
    attack_epsilon: float | None = None,
    power: float = 0.8,
    copies: int = 1,
    mechanism: DpSgd | None = None,
    relation: Relation = Relation.ADD_REMOVE,
) -> Plan:
    """How many trials in each world are needed to refute the claim "(ε, δ)-DP with ε = ``claim``".

    Args:
        claim: ε, at most 700.
        delta: The δ of the claim.
        confidence: Of the bound that is to refute it.
        method: A method for independent trials, ``one_run`` or ``one_run_fdp``.
        threshold: None for a test fixed beforehand (its best threshold is used), or ``Sup()`` for scores.
        attack_epsilon: What the attack is worth: its scores are two Gaussians with this ε at δ. None: it never errs.
        power: The wanted chance of refuting the claim, with ``attack_epsilon``.
        copies: k, in how many rows the worlds differ.
        mechanism: For the methods that assume one; its noise multiplier is not used.
        relation: Which data sets count as neighbours; a mechanism has its own.

    Returns:
        The number of trials, or none where it would be beyond ``most``.

    >>> plan(4.0, delta=1e-5, confidence=0.95).trials
    204
    """
    claim = _validate.at_most("claim", _validate.non_negative("claim", claim), _MOST_EPSILON)
    delta = _validate.half_open_unit("delta", delta)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    chosen = METHODS[_validate.choice("method", method, [*reading(Evidence.TRIALS), *_MOST_CANARIES])]
    power = _validate.open_unit("power", power)
    copies = _validate.integer("copies", copies, at_least=1)
    if threshold is not None and not isinstance(threshold, Sup):
        raise UnsupportedError(f"threshold = {threshold!s} has no plan: expected sup, or a test fixed beforehand")
    mu = None if attack_epsilon is None else _attack_mu(attack_epsilon, claim=claim, delta=delta)
    most = _MOST_CANARIES.get(method, _MOST_TRIALS)
    top: Callable[[int], float]
    if chosen.evidence is Evidence.TRIALS:
        members = make_family(method, delta=delta, copies=copies, mechanism=mechanism)
        theta = _theta_of(members, claim)

        def top(n: int) -> float:
            return ceiling_of(members, n, n, level=level, rule=threshold, sure=True)

        def enough(n: int) -> bool:
            if mu is None:
                return top(n) > claim
            if threshold is None:
                return _power_fixed(members, theta, mu * copies, n, level) >= power
            return _power_sup(members, theta, mu * copies, n, level, threshold.seed) >= power

        hopeless = mu is not None and _hopeless(members.curve(theta), GaussianCurve(mu=mu * copies))
    else:
        if copies != 1 or threshold is not None or mechanism is not None:
            raise InvalidInputError(
                f"copies, threshold and mechanism are not allowed with method = {method!r}: it has none of them"
            )
        if relation is not Relation.ADD_REMOVE:
            raise InvalidInputError(
                f"relation = {relation.value!r} is not allowed with method = {method!r}: canaries are added or left out"
            )

        def top(n: int) -> float:
            return _one_run(method, n, n, delta=delta, confidence=confidence)

        def enough(n: int) -> bool:
            if mu is None:
                return top(n) > claim
            # Guess every canary; each guess is right with probability Φ(μ/2); count on the (1 − power) quantile.
            correct = int(special.bdtrik(1.0 - power, n, special.ndtr(mu / 2.0)))
            return _one_run(method, n, correct, delta=delta, confidence=confidence) > claim

        hopeless = False  # a number of canaries that is too large proves less, so the most is not asked first
    trials = None if hopeless else least_whole(enough, start=0, most=most, parts=0 if mu is None else 100)
    if trials is not None and mu is not None and threshold is not None:
        trials = _settled(members, theta, mu * copies, trials, level, power=power, seed=threshold.seed)
    return Plan(
        claim=claim,
        delta=delta,
        confidence=confidence,
        method=method,
        threshold_rule=str(threshold) if threshold is not None else "fixed beforehand",
        attack_epsilon=attack_epsilon,
        power=power if mu is not None else 1.0,
        copies=copies,
        trials=trials,
        ceiling=top(trials) if trials is not None else None,
        most=most,
        relation=mechanism.relation if mechanism is not None else relation,
        mechanism=mechanism,
    )


def typical_bound(
    curve: TradeOff,
    *,
    negatives: int,
    positives: int,
    delta: float,
    confidence: float,
    method: str = "clopper_pearson",
    copies: int = 1,
    mechanism: DpSgd | None = None,
    added: bool = False,
) -> float:
    """The ε that half of all audits would prove with an attack that loses nothing of a trade-off curve.

    The bound grows with its test's statistic S, so the median bound is that of the median S, which is simulated for
    scores that reach the curve.

    Args:
        curve: Of one row, as :func:`~coalmine.bounds.less_noise` gives one.
        negatives: Trials in world 0.
        positives: Trials in world 1.
        delta: The δ at which ε is stated.
        confidence: Of the bound.
        method: A method for independent trials.
        copies: k, in how many rows the worlds differ.
        mechanism: For the methods that assume one; its noise multiplier is not used.
        added: World 1 is world 0 with rows added, and the method is "dpsgd" (see :func:`~coalmine.bounds.dpsgd`).

    Returns:
        ε per row: at least half of the simulated audits prove this much.

    >>> trials = {"negatives": 500, "positives": 500, "delta": 1e-5, "confidence": 0.99}
    >>> round(typical_bound(GaussianCurve(mu=1.0), method="gdp", **trials), 1)
    3.4
    """
    n0, n1 = (
        _validate.integer(name, value, at_least=1, at_most=_MOST_TRIALS)
        for name, value in (("negatives", negatives), ("positives", positives))
    )
    level = 1.0 - _validate.open_unit("confidence", confidence)
    family = make_family(method, delta=delta, copies=copies, mechanism=mechanism)
    reached = of_copies(curve, family.copies)
    seed = Sup().seed + 2
    if isinstance(family, DpSgdNoise):
        family = dataclasses.replace(family, added=added)
        parts = false_negatives(reached, n0, n1, simulations=_SIMULATED_AUDITS, seed=seed)
        found = np.concatenate([ranks.statistic(family, places, n0, n1) for places in parts])
        theta = ranks.invert(family, n0, n1, float(np.quantile(found, 0.5, method="lower")), level=level)
    else:
        found = simulate(family, reached, n0, n1, simulations=_SIMULATED_AUDITS, seed=seed)
        theta = invert(family, n0, n1, float(np.quantile(found, 0.5, method="lower")), level=level, rule=Sup())
    return family.epsilon(theta) if theta > 0.0 else 0.0


def _hopeless(claimed: TradeOff, attack: TradeOff) -> bool:
    """Whether the attack's curve is so near the claimed one that the most trials there may be cannot tell them apart.

    At a false-positive rate α the gap f(α) − g(α) is seen with a standard deviation of
    √((g(1 − g) + f′(α)²·α(1 − α))/n); no α comes near one of them. Asked first, because it costs nothing.
    """
    alpha = np.geomspace(1e-9, 0.5, 400)
    f, g = claimed(alpha), attack(alpha)
    slope = np.gradient(f, alpha)
    noise = np.sqrt((g * (1.0 - g) + slope**2 * alpha * (1.0 - alpha)) / _MOST_TRIALS)
    return bool(np.all(f - g < noise))


def _attack_mu(attack_epsilon: float, *, claim: float, delta: float) -> float:
    """μ of the Gaussian attack; it must be worth more than the claim."""
    attack = _validate.at_most("attack_epsilon", _validate.positive("attack_epsilon", attack_epsilon), _MOST_EPSILON)
    if attack <= claim:
        raise InvalidInputError(
            f"attack_epsilon = {attack:g} is not allowed: expected more than the claim {claim:g}; an attack that is "
            "worth no more than is claimed cannot refute it with any number of trials"
        )
    return gaussian_mu(attack, delta=_validate.open_unit("delta", delta))


def _theta_of(family: Family, claim: float) -> float:
    """The largest member whose ε does not exceed the claim."""
    if isinstance(family, Gdp):
        return gaussian_mu(claim, delta=family.delta) * family.copies
    if isinstance(family, DpSgdNoise):
        return float(math.floor(largest_true(lambda t: family.epsilon(math.floor(t)) <= claim, 0.0, family.size + 1.0)))
    return claim


@functools.lru_cache(maxsize=256)
def _one_run(method: str, canaries: int, correct: int, *, delta: float, confidence: float) -> float:
    """The one-run bound when every canary is guessed."""
    guesses = Guesses(canaries=canaries, guesses=canaries, correct=correct)
    if method == ONE_RUN.name:
        return one_run_epsilon(guesses, delta=delta, level=1.0 - confidence)
    return one_run_fdp(guesses, delta=delta, confidence=confidence).epsilon


def _power_fixed(family: Family, theta: float, mu: float, n: int, level: float) -> float:
    """The chance that a test with the best fixed threshold refutes θ, over simulated counts."""
    rng = np.random.default_rng([0x91A4, n])
    thresholds = np.linspace(-2.0, mu + 4.0, 49)
    wrong0 = rng.binomial(n, special.ndtr(-thresholds), size=(500, thresholds.size))
    wrong1 = rng.binomial(n, special.ndtr(thresholds - mu), size=(500, thresholds.size))
    alpha, beta = upper_limit(wrong0, n, level / 2.0), upper_limit(wrong1, n, level / 2.0)
    return float(np.max(np.mean(beta < family.curve(theta)(alpha), axis=0)))


def _power_sup(family: Family, theta: float, mu: float, n: int, level: float, seed: int) -> float:
    """The chance that the sup-test refutes θ, with the attack's scores simulated like the claim's: quick, and rough."""
    copies = max(_SIMULATED_AUDITS, math.ceil(100.0 / level) - 1)
    claimed = simulate(family, family.curve(theta), n, n, simulations=copies, seed=seed)
    attacked = simulate(family, GaussianCurve(mu=mu), n, n, simulations=_SIMULATED_AUDITS, seed=seed + 1)
    rank = math.floor(kept_level(level, n, rule=Sup()) * (copies + 1)) - 1
    return float(np.mean(attacked > np.sort(claimed)[::-1][rank]))


def _settled(family: Family, theta: float, mu: float, n: int, level: float, *, power: float, seed: int) -> int:
    """The number of trials near n from which on the test itself, with its own simulated copies, has this power.

    With few trials its statistic has few values, so one that is refuted or not decides about a tenth of all audits.
    """

    def enough(trials: int) -> bool:
        rule = Sup(seed=seed)
        copies = _SIMULATED_AUDITS
        attacked = simulate(family, GaussianCurve(mu=mu), trials, trials, simulations=copies, seed=seed + 1)
        values = np.unique(attacked)
        first = bisect.bisect_left(
            range(values.size),
            True,
            key=lambda place: invert(family, trials, trials, float(values[place]), level=level, rule=rule) > theta,
        )
        return first < values.size and float(np.mean(attacked >= values[first])) >= power

    step = max(1, n // 50)
    if enough(n):
        while n > step and enough(n - step):
            n -= step
        return n
    while n < _MOST_TRIALS and not enough(n):
        n = min(n + step, _MOST_TRIALS)
    return n
