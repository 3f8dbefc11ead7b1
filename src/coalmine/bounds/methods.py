"""All methods, and the bounds from independent trials by the name of their method."""

from __future__ import annotations

from typing import overload

from coalmine import _validate
from coalmine.bounds.anytime import ANYTIME, ANYTIME_GDP
from coalmine.bounds.bayesian import BAYESIAN
from coalmine.bounds.dpsgd import DPSGD, LAST_ITERATE, DpSgdNoise
from coalmine.bounds.families import CLOPPER_PEARSON, GDP, EpsilonDelta, Family, Gdp
from coalmine.bounds.method import Evidence, Method
from coalmine.bounds.one_run import ONE_RUN
from coalmine.bounds.one_run_dpsgd import ONE_RUN_DPSGD
from coalmine.bounds.one_run_fdp import ONE_RUN_EPSILON_DELTA, ONE_RUN_FDP
from coalmine.bounds.thresholds import Optimistic, Rule
from coalmine.bounds.trials import bound_trials, ceiling_of, check_rule, estimate_trials
from coalmine.errors import InvalidInputError
from coalmine.records import Counts, DpSgd, Estimate, LowerBound, Relation, Scores

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        CLOPPER_PEARSON,
        DPSGD,
        GDP,
        LAST_ITERATE,
        ANYTIME,
        ANYTIME_GDP,
        BAYESIAN,
        ONE_RUN,
        ONE_RUN_FDP,
        ONE_RUN_EPSILON_DELTA,
        ONE_RUN_DPSGD,
    )
}
"""Every method by its name. Of several that assume something, a report prefers the one that comes first."""


def named(name: str) -> Method:
    """The method of a bound or estimate, by the name that it carries.

    >>> named("gdp").short
    'if Gaussian'
    """
    return METHODS[_validate.choice("method", name, METHODS)]


def reading(evidence: Evidence) -> list[str]:
    """The names of the methods that read such evidence.

    >>> reading(Evidence.TRIALS)
    ['clopper_pearson', 'dpsgd', 'gdp', 'dpsgd_last_iterate']
    """
    return [method.name for method in METHODS.values() if method.evidence is evidence]


def make_family(name: str, *, delta: float, copies: int = 1, mechanism: DpSgd | None = None) -> Family:
    """The family of trade-off curves behind a method; ``mechanism`` is for those that assume one.

    >>> make_family("gdp", delta=1e-5).details(2.0)
    {'mu': 2.0}
    """
    method = METHODS[_validate.choice("method", name, reading(Evidence.TRIALS))]
    if (mechanism is not None) is not method.needs_mechanism:
        which = "missing: expected a DpSgd" if mechanism is None else "not allowed: expected none"
        raise InvalidInputError(f"mechanism is {which} with method = {name!r}")
    assert method.family is not None
    return method.family(delta, copies, mechanism)


def clopper_pearson(
    evidence: Counts | Scores,
    *,
    delta: float,
    confidence: float,
    threshold: Rule | None = None,
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
) -> LowerBound:
    """The bound that assumes nothing about the mechanism: Algorithm 2 of jagielski-2020, eq. (5) of nasr-2021.

    With Clopper–Pearson limits α of the false-positive and β of the false-negative rate at (1 − confidence)/2 each,
    ε is the larger of ln((1 − δ − β)/α) and ln((1 − δ − α)/β); for k copies, the largest ε with
    1 − β > e^{kε}·α + δ(e^{kε} − 1)/(e^ε − 1), or the same with α and β exchanged.

    >>> counts = Counts(false_positives=2, negatives=1000, false_negatives=983, positives=1000)
    >>> round(clopper_pearson(counts, delta=1e-5, confidence=0.95).epsilon, 6)
    0.320015
    """
    family = EpsilonDelta(delta=delta, copies=copies)
    return bound_trials(evidence, family=family, confidence=confidence, threshold=threshold, relation=relation)


def gdp(
    evidence: Counts | Scores,
    *,
    delta: float,
    confidence: float,
    threshold: Rule | None = None,
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
) -> LowerBound:
    """The bound for a Gaussian trade-off curve: μ = Φ⁻¹(1 − α) − Φ⁻¹(β), never below 0, then ε(δ) of μ.

    Nasr et al. 2023, "Tight auditing of differentially private machine learning"; Dong, Roth and Su 2019, Corollary 1.

    >>> counts = Counts(false_positives=50, negatives=1000, false_negatives=500, positives=1000)
    >>> round(gdp(counts, delta=1e-5, confidence=0.95).details["mu"], 6)
    1.432112
    """
    family = Gdp(delta=delta, copies=copies)
    return bound_trials(evidence, family=family, confidence=confidence, threshold=threshold, relation=relation)


def dpsgd(
    evidence: Counts | Scores,
    *,
    mechanism: DpSgd,
    delta: float,
    confidence: float,
    family: str = "standard",
    threshold: Rule | None = None,
    copies: int = 1,
    weigh: str = "gaussian",
    added: bool = False,
) -> LowerBound:
    """The bound for DP-SGD with known sampling and steps: the adversary estimates σ (last-iterate-2024).

    Rate limits (α, β) refute σ when β < f_σ(α); the smallest refuted σ gives ε at δ.

    Args:
        evidence: Scores of independent trials, or counts of a fixed test.
        mechanism: All of DP-SGD but its noise multiplier, which is not used.
        delta: The δ at which ε is stated.
        confidence: 1 minus how often the bound may be too high.
        family: "standard" (every iterate seen) or "last_iterate" (Theorem 1 of last-iterate-2024).
        threshold: How scores are read; :class:`Ranks` if None.
        copies: k, in how many rows the worlds differ.
        weigh: "curves" compares thresholds by the family's own curves before one is corrected for selection (see
            :class:`~coalmine.bounds.dpsgd.DpSgdNoise`): slower, and tighter for small sampling rates.
        added: World 1 is world 0 with the rows added, and never the other way round: then the curve of this order is
            enough, which proves a little more. Only for "standard" and rows that are added or removed.

    Returns:
        The bound, with σ in its details.

    >>> counts = Counts(false_positives=50, negatives=1000, false_negatives=500, positives=1000)
    >>> mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=100)
    >>> found = dpsgd(counts, mechanism=mechanism, delta=1e-5, confidence=0.95, family="last_iterate")
    >>> 0.5 < found.details["noise_multiplier"] < 1.5
    True
    """
    members = DpSgdNoise(mechanism=mechanism, delta=delta, copies=copies, analysis=family, weigh=weigh, added=added)
    return bound_trials(
        evidence, family=members, confidence=confidence, threshold=threshold, relation=mechanism.relation
    )


@overload
def lower_bound(
    evidence: Counts | Scores,
    *,
    delta: float,
    confidence: float,
    method: str = ...,
    threshold: Rule | None = ...,
    copies: int = ...,
    relation: Relation = ...,
    mechanism: DpSgd | None = ...,
) -> LowerBound: ...


@overload
def lower_bound(
    evidence: Counts | Scores,
    *,
    delta: float,
    confidence: float,
    method: str = ...,
    threshold: Optimistic,
    copies: int = ...,
    relation: Relation = ...,
    mechanism: DpSgd | None = ...,
) -> Estimate: ...


def lower_bound(
    evidence: Counts | Scores,
    *,
    delta: float,
    confidence: float,
    method: str = "clopper_pearson",
    threshold: Rule | Optimistic | None = None,
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
    mechanism: DpSgd | None = None,
) -> LowerBound | Estimate:
    """Any method for independent trials by its name; with ``threshold=Optimistic()`` the result is an Estimate.

    Args:
        evidence: Scores of independent trials, or counts of a fixed test.
        delta: The δ at which ε is stated.
        confidence: 1 minus how often the bound may be too high.
        method: The name of a method for independent trials.
        threshold: How the threshold of scores was chosen; :class:`Sup` if None.
        copies: k, in how many rows the worlds differ.
        relation: Which data sets count as neighbours; a mechanism has its own.
        mechanism: For the methods that assume one; its noise multiplier is not used.

    Returns:
        The bound, with all that it rests on.

    >>> counts = Counts(false_positives=0, negatives=1000, false_negatives=0, positives=1000)
    >>> round(lower_bound(counts, delta=1e-5, confidence=0.95).epsilon, 6)
    5.600577
    """
    members = make_family(method, delta=delta, copies=copies, mechanism=mechanism)
    relation = mechanism.relation if mechanism is not None else relation
    if isinstance(threshold, Optimistic):
        return estimate_trials(evidence, family=members, confidence=confidence, relation=relation)  # type: ignore[arg-type]
    return bound_trials(evidence, family=members, confidence=confidence, threshold=threshold, relation=relation)


def ceiling(
    negatives: int,
    *,
    positives: int,
    delta: float,
    confidence: float,
    method: str = "clopper_pearson",
    threshold: Rule | None = None,
    copies: int = 1,
    mechanism: DpSgd | None = None,
) -> float:
    """The largest ε that an attack without error could prove (ε_OPT of jagielski-2020); None: the test was fixed.

    >>> round(ceiling(500, positives=500, delta=0.0, confidence=0.99), 6)
    4.541916
    """
    n0 = _validate.integer("negatives", negatives, at_least=1)
    n1 = _validate.integer("positives", positives, at_least=1)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    if threshold is not None:
        check_rule(threshold)
    members = make_family(method, delta=delta, copies=copies, mechanism=mechanism)
    return ceiling_of(members, n0, n1, level=level, rule=threshold)
