"""A bound that may be watched as trials arrive, and the audit stopped at any moment, at no cost in confidence.

For each of the two error rates a confidence sequence: an upper limit that holds at all times at once. For a rate p
take the bets M(p) = ∫_{q<p} (q/p)^k ((1 − q)/(1 − p))^{n−k} dπ(q)/π(0, p) with the Beta(½, ½) prior π cut at p. If the
true rate is at least p, M is a non-negative supermartingale that starts at 1, so by Ville's inequality it ever reaches
1/level with probability at most level. The limit is the largest p with M(p) < 1/level.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.families import CLOPPER_PEARSON, GDP, EpsilonDelta, Family, Gdp
from coalmine.bounds.method import Evidence, Method
from coalmine.errors import InvalidInputError
from coalmine.records import Counts, LowerBound, Relation

_ASSUMPTIONS = (
    "the trials are independent of each other, and trials within each world are identically distributed",
    "the threshold was fixed before the first trial; the audit may be stopped at any moment for any reason",
)


def _log_bets(p: NDArray[np.float64], wrong: int, total: int) -> NDArray[np.float64]:
    """log M(p) for every p, in logarithms throughout."""
    a, b = wrong + 0.5, total - wrong + 0.5
    with np.errstate(divide="ignore"):
        reached = np.log(special.betainc(a, b, p))
    low = reached < -600.0  # near underflow: a series that is never above the truth
    if np.any(low):
        reached = np.where(low, _log_betainc(a, b, np.where(low, p, 0.5)), reached)
    prior = np.log(2.0 / math.pi * np.arcsin(np.sqrt(p)))
    stakes = special.betaln(a, b) - special.betaln(0.5, 0.5)
    return np.asarray(reached + stakes - prior - special.xlogy(wrong, p) - special.xlog1py(total - wrong, -p))


def _log_betainc(a: float, b: float, p: NDArray[np.float64]) -> NDArray[np.float64]:
    """log of the incomplete beta function far in its lower tail, by the first terms of its series, from below."""
    term, total = np.ones_like(p), np.ones_like(p)
    for n in range(100):
        term = term * (a + b + n) * p / (a + 1.0 + n)
        total = total + term
    return np.asarray(a * np.log(p) + b * np.log1p(-p) - math.log(a) - special.betaln(a, b) + np.log(total))


@functools.lru_cache(maxsize=65536)
def anytime_limit(wrong: int, total: int, *, level: float) -> float:
    """Upper limit for a rate that holds after every number of trials at once, with probability 1 − level.

    >>> round(anytime_limit(0, 1000, level=0.025), 4)
    0.0046
    """
    total = _validate.integer("total", total, at_least=0)
    wrong = _validate.integer("wrong", wrong, at_least=0, at_most=total)
    target = -math.log(_validate.open_unit("level", level))
    if wrong == total:
        return 1.0
    # The largest p that is not refuted. A grid in the odds, from the observed rate up, finds the last such stretch;
    # nested grids narrow it. The end that is refuted is returned, so the limit is never too small.
    odds = np.linspace(special.logit((wrong + 0.25) / (total + 0.5)), 36.0, 200)
    for _ in range(6):
        with np.errstate(invalid="ignore"):
            open_ = ~(_log_bets(special.expit(odds), wrong, total) >= target)
        last = int(np.flatnonzero(open_)[-1]) if np.any(open_) else 0
        if last == odds.size - 1:
            return 1.0
        if odds[last + 1] - odds[last] < 1e-11:
            break
        odds = np.linspace(odds[last], odds[last + 1], 50)
    return float(special.expit(odds[last + 1]))


class AnytimeAudit:
    """Counts that grow, and the bound they prove so far; stop when you like.

    >>> audit = AnytimeAudit(delta=1e-5, confidence=0.95)
    >>> audit.add(world=0, trials=500, wrong=5)
    >>> audit.add(world=1, trials=500, wrong=200)
    >>> round(audit.bound().epsilon, 2)
    2.83
    """

    def __init__(
        self,
        *,
        delta: float,
        confidence: float,
        method: str = "clopper_pearson",
        copies: int = 1,
        relation: Relation = Relation.ADD_REMOVE,
    ) -> None:
        self._method, make = _OF[_validate.choice("method", method, _OF)]
        self._family: Family = make(delta=delta, copies=copies)
        self._confidence = _validate.open_unit("confidence", confidence)
        self._relation = Relation.parse(relation)
        self._trials = [0, 0]
        self._wrong = [0, 0]
        self._limits = [1.0, 1.0]

    def add(self, *, world: int, trials: int, wrong: int) -> None:
        """``trials`` more in ``world`` (0 or 1), of which ``wrong`` were taken for the other world."""
        if world not in (0, 1) or isinstance(world, bool):
            raise _validate.reject("world", world, "0 or 1")
        more = _validate.integer("trials", trials, at_least=1)
        wrong = _validate.integer("wrong", wrong, at_least=0, at_most=more)
        self._trials[world] += more
        self._wrong[world] += wrong
        limit = anytime_limit(self._wrong[world], self._trials[world], level=(1.0 - self._confidence) / 2.0)
        # The limit holds at all times at once, so the smallest so far holds too.
        self._limits[world] = min(self._limits[world], limit)

    def bound(self) -> LowerBound:
        """What the trials so far prove."""
        if min(self._trials) == 0:
            raise InvalidInputError(
                f"trials = {tuple(self._trials)} is not allowed: expected at least one in each world"
            )
        theta = self._family.most_refuted(np.array(self._limits[:1]), np.array(self._limits[1:]))
        limits = [np.array([anytime_limit(0, n, level=(1.0 - self._confidence) / 2.0)]) for n in self._trials]
        best = self._family.most_refuted(limits[0], limits[1])
        return LowerBound(
            epsilon=self._family.epsilon(theta) if theta > 0.0 else 0.0,
            delta=self._family.delta,
            confidence=self._confidence,
            method=self._method.name,
            threshold_rule="counts",
            trials=(self._trials[0], self._trials[1]),
            relation=self._relation,
            copies=self._family.copies,
            assumptions=(*_ASSUMPTIONS, *self._family.assumptions),
            counts=Counts(
                false_positives=self._wrong[0],
                negatives=self._trials[0],
                false_negatives=self._wrong[1],
                positives=self._trials[1],
            ),
            ceiling=self._family.epsilon(best) if best > 0.0 else 0.0,
            details=dict(self._family.details(theta)),
        )


def anytime(
    counts: Counts,
    *,
    delta: float,
    confidence: float,
    method: str = "clopper_pearson",
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
) -> LowerBound:
    """The bound from the counts at one moment of an audit that is watched, and may stop, at any time.

    Confidence sequences at (1 − confidence)/2 for each rate (Ville 1939; Robbins 1970) in place of Clopper–Pearson.

    >>> counts = Counts(false_positives=5, negatives=500, false_negatives=200, positives=500)
    >>> round(anytime(counts, delta=1e-5, confidence=0.95).epsilon, 2)
    2.83
    """
    _validate.instance("evidence", counts, Counts)
    audit = AnytimeAudit(delta=delta, confidence=confidence, method=method, copies=copies, relation=relation)
    audit.add(world=0, trials=counts.negatives, wrong=counts.false_positives)
    audit.add(world=1, trials=counts.positives, wrong=counts.false_negatives)
    return audit.bound()


ANYTIME = Method(
    name="anytime",
    words="Nothing assumed, may be stopped at any time",
    short="proved",
    evidence=Evidence.COUNTS,
    decides=True,
    from_counts=anytime,
)
ANYTIME_GDP = Method(
    name="anytime_gdp",
    words="If the leak is Gaussian, may be stopped at any time",
    short="if Gaussian",
    evidence=Evidence.COUNTS,
    from_counts=functools.partial(anytime, method="gdp"),
)
_OF: dict[str, tuple[Method, Callable[..., Family]]] = {
    CLOPPER_PEARSON.name: (ANYTIME, EpsilonDelta),
    GDP.name: (ANYTIME_GDP, Gdp),
}
