"""The methods for independent trials, by name: what each assumes about the mechanism is all that differs."""

from __future__ import annotations

from typing import overload

from coalmine import _validate
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import EpsilonDelta, Family, Gdp
from coalmine.bounds.thresholds import Optimistic, Rule
from coalmine.bounds.trials import bound_trials, ceiling_of, check_rule, estimate_trials
from coalmine.errors import InvalidInputError
from coalmine.records import Counts, Estimate, LowerBound, Relation, Sampling, Scores

METHODS = ("clopper_pearson", "gdp", "dpsgd")


def make_family(
    method: str,
    *,
    delta: float,
    copies: int = 1,
    relation: Relation = Relation.ADD_REMOVE,
    sample_rate: float | None = None,
    steps: int | None = None,
    sampling: Sampling = Sampling.POISSON,
    family: str = "standard",
) -> Family:
    """The family of trade-off curves behind a method; ``sample_rate``, ``steps`` and ``family`` are for dpsgd alone.

    >>> make_family("gdp", delta=1e-5).details(2.0)
    {'mu': 2.0}
    """
    method = _validate.choice("method", method, METHODS)
    if method != "dpsgd":
        for name, value in (("sample_rate", sample_rate), ("steps", steps)):
            if value is not None:
                raise InvalidInputError(f"{name} is not allowed with method = {method!r}: expected method dpsgd")
        return (
            EpsilonDelta(delta=delta, copies=copies) if method == "clopper_pearson" else Gdp(delta=delta, copies=copies)
        )
    for name, value in (("sample_rate", sample_rate), ("steps", steps)):
        if value is None:
            raise InvalidInputError(f"{name} is missing: expected a value with method = 'dpsgd'")
    return DpSgdNoise(
        sample_rate=sample_rate,  # type: ignore[arg-type]
        steps=steps,  # type: ignore[arg-type]
        delta=delta,
        copies=copies,
        analysis=family,
        sampling=sampling,
        relation=relation,
    )


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
    delta: float,
    confidence: float,
    sample_rate: float,
    steps: int,
    family: str = "standard",
    threshold: Rule | None = None,
    copies: int = 1,
    sampling: Sampling = Sampling.POISSON,
    relation: Relation = Relation.ADD_REMOVE,
    weigh: str = "gaussian",
) -> LowerBound:
    """The bound for DP-SGD with known sampling rate and steps: the adversary estimates σ (last-iterate-2024).

    Rate limits (α, β) refute σ when β < f_σ(α); the smallest refuted σ gives ε at δ. ``family`` is "standard" (every
    iterate seen) or "last_iterate" (Theorem 1). ``weigh`` = "curves" compares thresholds by the family's own curves
    before the best one is paid for (see :class:`~coalmine.bounds.dpsgd.DpSgdNoise`): slower, and tighter for small q.

    >>> counts = Counts(false_positives=50, negatives=1000, false_negatives=500, positives=1000)
    >>> found = dpsgd(counts, delta=1e-5, confidence=0.95, sample_rate=0.1, steps=100, family="last_iterate")
    >>> 0.5 < found.details["noise_multiplier"] < 1.5
    True
    """
    members = DpSgdNoise(
        sample_rate=sample_rate,
        steps=steps,
        delta=delta,
        copies=copies,
        analysis=family,
        sampling=sampling,
        relation=relation,
        weigh=weigh,
    )
    return bound_trials(evidence, family=members, confidence=confidence, threshold=threshold, relation=relation)


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
    sample_rate: float | None = ...,
    steps: int | None = ...,
    sampling: Sampling = ...,
    family: str = ...,
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
    sample_rate: float | None = ...,
    steps: int | None = ...,
    sampling: Sampling = ...,
    family: str = ...,
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
    sample_rate: float | None = None,
    steps: int | None = None,
    sampling: Sampling = Sampling.POISSON,
    family: str = "standard",
) -> LowerBound | Estimate:
    """Any method for independent trials by its name; with ``threshold=Optimistic()`` the result is an Estimate.

    >>> counts = Counts(false_positives=0, negatives=1000, false_negatives=0, positives=1000)
    >>> round(lower_bound(counts, delta=1e-5, confidence=0.95).epsilon, 6)
    5.600577
    """
    members = make_family(
        method,
        delta=delta,
        copies=copies,
        relation=relation,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
        family=family,
    )
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
    relation: Relation = Relation.ADD_REMOVE,
    sample_rate: float | None = None,
    steps: int | None = None,
    sampling: Sampling = Sampling.POISSON,
    family: str = "standard",
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
    members = make_family(
        method,
        delta=delta,
        copies=copies,
        relation=relation,
        sample_rate=sample_rate,
        steps=steps,
        sampling=sampling,
        family=family,
    )
    return ceiling_of(members, n0, n1, level=level, rule=threshold)
