"""Bounds from one training with many canaries, each included by its own fair coin.

The scores of one run depend on each other, so methods for independent trials do not apply to them. What is counted
here are guesses: "included" for the ``guess_in`` canaries with the highest scores, "not included" for the
``guess_out`` lowest, no guess for the rest. Both numbers are fixed beforehand, or several pairs are tried and the
level is shared among them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.method import Evidence, Method
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Counts, LowerBound, OneRunScores, Relation, Scores
from coalmine.theory.curves import largest_true
from coalmine.theory.rates import lower_limit

COINS = "every canary was included by its own fair coin, and the guesses use nothing else that depends on the coins"
FIXED = "the numbers of guesses were fixed before the scores were seen"
_FEW = 20
"""Of fewer canaries, exactly half are in too often to say anything of it."""
_UNFAIR = 1e-6
PAID = "the level is shared among the pairs of guess numbers that were tried"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guesses:
    """How many of ``canaries`` coins were guessed and how many guesses were right.

    ``sides`` is 1 when all guesses say the same (all IN, or all OUT): the bound for trade-off curves is then tighter.

    >>> Guesses(canaries=1000, guesses=300, correct=250).correct
    250
    """

    canaries: int
    guesses: int
    correct: int
    sides: int = dataclasses.field(default=2, repr=False)

    def __post_init__(self) -> None:
        m = _validate.integer("canaries", self.canaries, at_least=1)
        r = _validate.integer("guesses", self.guesses, at_least=1)
        v = _validate.integer("correct", self.correct, at_least=0)
        if r > m:
            raise InvalidInputError(f"guesses = {r} is not allowed: expected at most canaries = {m}")
        if v > r:
            raise InvalidInputError(f"correct = {v} is not allowed: expected at most guesses = {r}")
        _validate.integer("sides", self.sides, at_least=1, at_most=2)


def count_guesses(scores: OneRunScores, *, guess_in: int, guess_out: int, seed: int = 0) -> Guesses:
    """Guess IN for the ``guess_in`` highest and OUT for the ``guess_out`` lowest scores; count the right ones.

    Tied scores are ordered by a random order of the canaries that is fixed by ``seed`` alone, so the order cannot
    depend on which canaries were included.

    >>> count_guesses(OneRunScores([1, 0, 1, 0], [3.0, 2.0, 1.0, 0.0]), guess_in=1, guess_out=1)
    Guesses(canaries=4, guesses=2, correct=2)
    """
    _refuse_independent(scores)
    m = scores.score.size
    check_coins(int(scores.included.sum()), m)
    high = _validate.integer("guess_in", guess_in, at_least=0)
    low = _validate.integer("guess_out", guess_out, at_least=0)
    seed = _validate.integer("seed", seed, at_least=0)
    if not 1 <= high + low <= m:
        raise InvalidInputError(
            f"guess_in = {high} and guess_out = {low} are not allowed together: expected 1 to {m} guesses, "
            "as many as there are canaries at most"
        )
    order = ranked(scores, seed=seed)
    correct = int(np.sum(~scores.included[order[:low]])) + int(np.sum(scores.included[order[m - high :]]))
    return Guesses(canaries=m, guesses=high + low, correct=correct, sides=2 if high and low else 1)


def check_coins(included: int, canaries: int) -> None:
    """Refuse coins that cannot have been fair: every bound from one training rests on a fair coin for each canary.

    >>> check_coins(540, 1000)
    """
    few = min(included, canaries - included)
    chance = min(1.0, 2.0 * float(special.bdtr(few, canaries, 0.5)))
    if chance < _UNFAIR:
        raise InvalidInputError(
            f"{included} of {canaries} were members: a fair coin for each gives that less than once in a million "
            f"({chance:.1e}), and bounds from one training need such coins; expected about half"
        )


def coin_notes(included: int, canaries: int) -> tuple[str, ...]:
    """What a reader should know of coins that may have been fair and need not: exactly half of the canaries are in.

    >>> len(coin_notes(500, 1000)), len(coin_notes(501, 1000))
    (1, 0)
    """
    check_coins(included, canaries)
    if canaries < _FEW or included * 2 != canaries:
        return ()
    return (
        "Exactly half are members. If the halves were made so, and not by a fair coin for each, the coins depend "
        "on each other and the bound from one training is not proved for them.",
    )


def ranked(scores: OneRunScores, *, seed: int = 0) -> NDArray[np.int64]:
    """The canaries by score, the lowest first; tied ones in an order that is fixed by ``seed`` alone.

    >>> ranked(OneRunScores([1, 0, 1], [3.0, 1.0, 2.0])).tolist()
    [1, 2, 0]
    """
    shuffled = np.random.default_rng([0x71E5, seed]).permutation(scores.score.size)
    return np.asarray(shuffled[np.argsort(scores.score[shuffled], kind="stable")])


def _refuse_independent(evidence: object) -> None:
    """Scores or counts of independent trials are not one run."""
    if isinstance(evidence, (Scores, Counts)):
        raise UnsupportedError(
            "evidence is not allowed: independent trials are not one run with many canaries; "
            "use clopper_pearson, gdp or dpsgd"
        )
    _validate.instance("evidence", evidence, OneRunScores)


def p_value(guesses: Guesses, *, epsilon: float, delta: float) -> float:
    """The chance of so many right guesses about an (ε, δ)-DP training is at most this: Steinke et al. 2023, Thm. 5.2.

    With B ~ Binomial(r, 1/(1 + e^−ε)): P[B ≥ v] + 2mδ·max_{1≤i≤v} P[v − i ≤ B < v]/i, at most 1.

    >>> round(p_value(Guesses(canaries=1000, guesses=300, correct=250), epsilon=1.347004, delta=1e-5), 6)
    0.05
    """
    _validate.instance("guesses", guesses, Guesses)
    epsilon = _validate.non_negative("epsilon", epsilon)
    delta = _validate.half_open_unit("delta", delta)
    r, v = guesses.guesses, guesses.correct
    right = float(special.expit(epsilon))
    tail = float(special.bdtrc(v - 1, r, right)) if v > 0 else 1.0
    if delta == 0.0 or v == 0:
        return min(1.0, tail)
    # P[v − i ≤ B < v] for i = 1 … v, from the largest value down: sums of positive terms, so small values keep digits.
    values = np.arange(v - 1, -1, -1)
    log_pmf = (
        special.gammaln(r + 1.0)
        - special.gammaln(values + 1.0)
        - special.gammaln(r - values + 1.0)
        + special.xlogy(values, right)
        - (r - values) * (epsilon + math.log1p(math.exp(-epsilon)))
    )
    windows = np.cumsum(np.exp(log_pmf)) / np.arange(1, v + 1)
    return min(1.0, tail + 2.0 * guesses.canaries * delta * float(np.max(windows)))


@functools.lru_cache(maxsize=4096)
def one_run_epsilon(guesses: Guesses, *, delta: float, level: float) -> float:
    """The ε up to which every ε is rejected at ``level``, by bisection, since the p-value rises while it is small.

    It rises wherever it is at most 1/4 (proof in docs/bounds.md), so the rejected ε form an interval from 0 on, and a
    bound above the truth needs the truth itself to be rejected. A level above 1/4 counts as 1/4.
    """
    level = min(level, 0.25)

    def survives(epsilon: float) -> bool:
        return p_value(guesses, epsilon=epsilon, delta=delta) > level

    # The first term alone, P[B ≥ v], is the level at a known ε: the crossing is not beyond it.
    r, v = guesses.guesses, guesses.correct
    if v == 0 or survives(0.0):
        return 0.0
    top = float(special.logit(lower_limit(v, r, level))) * (1.0 + 1e-12) + 1e-12
    # Of the last two ε the rejected one is returned.
    return largest_true(lambda e: not survives(e), 0.0, top, relative=1e-11)


def default_guess_numbers(canaries: int) -> tuple[int, int]:
    """The 1.5·√m highest and as many lowest scores: fixed by the number of canaries alone.

    For Gaussian scores the best number of guesses of both one-run methods is near 3·√m, up to a million canaries.

    >>> default_guess_numbers(10_000)
    (150, 150)
    """
    each = max(1, min(math.ceil(1.5 * math.sqrt(canaries)), canaries // 2))
    return each, min(each, canaries - each)


def choose_guesses(
    evidence: Guesses | OneRunScores, tried: Sequence[tuple[int, int]] | None, *, seed: int
) -> list[tuple[Guesses, str]]:
    """The guesses to test, with a word on where each comes from."""
    if isinstance(evidence, Guesses):
        if tried is not None:
            raise InvalidInputError(
                "guess_numbers is not allowed with counted guesses: they are part of what was counted"
            )
        return [(evidence, "counts")]
    _refuse_independent(evidence)
    m = evidence.score.size
    if tried is not None and not isinstance(tried, (tuple, list)):
        raise _validate.reject("guess_numbers", tried, "pairs (highest guessed IN, lowest guessed OUT)")
    pairs = [default_guess_numbers(m)] if tried is None else list(tried)
    if not pairs or any(not isinstance(pair, (tuple, list)) or len(pair) != 2 for pair in pairs):
        raise _validate.reject("guess_numbers", tried, "pairs (highest guessed IN, lowest guessed OUT)")
    if len({tuple(pair) for pair in pairs}) != len(pairs):
        raise _validate.reject("guess_numbers", tried, "every pair once")
    return [
        (count_guesses(evidence, guess_in=high, guess_out=low, seed=seed), f"in:{high},out:{low}")
        for high, low in pairs
    ]


def one_run(
    evidence: Guesses | OneRunScores,
    *,
    delta: float,
    confidence: float,
    guess_numbers: Sequence[tuple[int, int]] | None = None,
    relation: Relation = Relation.ADD_REMOVE,
    seed: int = 0,
) -> LowerBound:
    """The one-run bound of Steinke, Nasr and Jagielski 2023 (Theorem 5.2); assumes nothing about the mechanism.

    ``guess_numbers`` are pairs (IN, OUT); the level is divided by how many there are. Without it the numbers of
    :func:`default_guess_numbers` are used.

    >>> round(one_run(Guesses(canaries=1000, guesses=1000, correct=600), delta=1e-5, confidence=0.95).epsilon, 6)
    0.297227
    """
    delta = _validate.half_open_unit("delta", delta)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    tested = choose_guesses(evidence, guess_numbers, seed=seed)
    share = level / len(tested)
    bounds = [one_run_epsilon(guesses, delta=delta, level=share) for guesses, _ in tested]
    best = int(np.argmax(bounds))
    perfect = [dataclasses.replace(guesses, correct=guesses.guesses) for guesses, _ in tested]
    return one_run_record(
        ONE_RUN,
        epsilon=bounds[best],
        delta=delta,
        confidence=confidence,
        tested=tested,
        best=best,
        relation=relation,
        ceiling=max(one_run_epsilon(guesses, delta=delta, level=share) for guesses in perfect),
        assumptions=(),
        details={"p_value_at_0": p_value(tested[best][0], epsilon=0.0, delta=delta)},
    )


def one_run_record(
    method: Method,
    *,
    epsilon: float,
    delta: float,
    confidence: float,
    tested: list[tuple[Guesses, str]],
    best: int,
    relation: Relation,
    ceiling: float,
    assumptions: tuple[str, ...],
    details: dict[str, float],
) -> LowerBound:
    """The record of a one-run bound."""
    guesses, words = tested[best]
    rule = words if len(tested) == 1 else f"bonferroni({len(tested)} pairs), best {words}"
    return LowerBound(
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        method=method.name,
        threshold_rule=rule,
        trials=(guesses.canaries, guesses.guesses),
        relation=Relation.parse(relation),
        copies=1,
        assumptions=(COINS, FIXED if len(tested) == 1 else PAID, *assumptions),
        ceiling=ceiling,
        details={**dataclasses.asdict(guesses), **details},
    )


ONE_RUN = Method(
    name="one_run",
    words="Nothing assumed about the algorithm, one training",
    short="proved",
    evidence=Evidence.ONE_RUN,
    decides=True,
    from_run=one_run,
)
