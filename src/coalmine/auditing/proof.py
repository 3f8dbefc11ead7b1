"""What the scores of an attack prove, by every method that may read them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from coalmine import bounds
from coalmine.auditing.facts import AttackFacts
from coalmine.bounds import claim_curve as claim_curve
from coalmine.bounds.methods import METHODS as METHODS
from coalmine.bounds.one_run import Guesses as Guesses
from coalmine.errors import UnsupportedError
from coalmine.one_run.design import Design
from coalmine.one_run.judge import free_method, lower_bounds
from coalmine.records import DpSgd, Estimate, LowerBound, OneRunScores, Relation, Scores
from coalmine.roles import View
from coalmine.store import Trials

_FEWEST = 8


def scores_of(trials: Trials) -> Scores:
    """The scores of the two worlds. A training that failed counts with a score below all others: leaving it out would
    condition on success, and whether a training succeeds may itself tell the worlds apart.
    """
    values = trials.score
    finite = values[np.isfinite(values)]
    least = float(finite.min()) if finite.size else 0.0
    lowest = min(least - 1.0, float(np.nextafter(least, -np.inf)))  # the second for scores so large that 1 is lost
    return _by_world(trials, np.where(np.isfinite(values), values, lowest))


def log_odds_of(trials: Trials) -> Scores:
    """The same where scores are log-odds. A training that failed says nothing, so it leaves the attacker at even odds;
    read as log-odds, the lowest score would be the surest belief of all.
    """
    return _by_world(trials, np.where(np.isfinite(trials.score), trials.score, 0.0))


def failures_of(trials: Trials) -> Scores:
    """1 for each training that failed and 0 for the others: failing is a result too, and may tell the worlds apart."""
    return _by_world(trials, np.isnan(trials.score).astype(np.float64))


def coins_of(trials: Trials) -> OneRunScores:
    """The canaries of one training, or of several: the world of each is its coin. A training that failed says nothing,
    so its canaries get the middle of all scores.
    """
    values = trials.score
    middle = float(np.median(values[np.isfinite(values)]))
    return OneRunScores(trials.world == 1, np.where(np.isfinite(values), values, middle), trials.trial.astype(str))


def _by_world(trials: Trials, values: NDArray[np.float64]) -> Scores:
    return Scores(values[trials.world == 0], values[trials.world == 1])


def prove(
    scores: Scores,
    attack: AttackFacts,
    *,
    delta: float,
    confidence: float,
    relation: Relation = Relation.ADD_REMOVE,
    mechanism: DpSgd | None = None,
) -> tuple[LowerBound, tuple[LowerBound | Estimate, ...]]:
    """The bound that assumes nothing, for one row under ``relation``; then what other methods make of the same scores.

    Where the ``mechanism`` is known, so is its family of trade-off curves, and only its noise is estimated: the curves
    of DP-SGD, and for one who sees no more than the final model those of its last iterate too. For worlds that differ
    by replaced rows there are bounds per row replaced and per row added or removed.
    """
    if attack.runs:
        raise UnsupportedError(
            f"the trials of {attack.label} are canaries of one training, which may depend on each other: they are read "
            "by guesses (prove_one_run), not as independent trials"
        )
    kinds = [relation]
    if attack.relation is Relation.REPLACE:
        kinds.append(Relation.ADD_REMOVE if relation is Relation.REPLACE else Relation.REPLACE)
    found: list[LowerBound | Estimate] = []
    for kind in kinds:
        rows = attack.copies_under(kind)
        found += [
            bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows, relation=kind, method=method)
            for method in ("clopper_pearson", "gdp")
        ]
    rows = attack.copies_under(relation)
    found.append(
        bounds.lower_bound(
            scores, delta=delta, confidence=confidence, copies=rows, relation=relation, threshold=bounds.HoldOut()
        )
    )
    if mechanism is not None and mechanism.relation is relation:
        families = ("standard",) if attack.reads_as is View.ALL_ITERATES else ("standard", "last_iterate")
        found += [
            bounds.dpsgd(
                scores,
                mechanism=mechanism,
                family=family,
                delta=delta,
                confidence=confidence,
                copies=rows,
                added=attack.added and family == "standard" and relation is Relation.ADD_REMOVE,
            )
            for family in families
        ]
    first = found[0]
    assert isinstance(first, LowerBound)
    return first, tuple(found[1:])


def prove_one_run(scores: OneRunScores, *, design: Design) -> tuple[LowerBound, tuple[LowerBound | Estimate, ...]]:
    """The bound that assumes nothing, by the method that looked better before a score was seen; then all others."""
    found = lower_bounds(scores, design=design)
    first = next(bound for bound in found if bound.method == free_method(design))
    return first, tuple(bound for bound in found if bound is not first)


def grown(scores: Scores, bound: LowerBound) -> list[LowerBound]:
    """The bounds of the first n trials alone, for a few n, the audit's own last.

    Each is the bound of an audit that was planned with n trials. They hold one by one, not all at once. The earlier
    ones simulate less (any number of simulations gives a valid bound).
    """
    rule = bounds.Sup(simulations=max(999, math.ceil(8.0 / (1.0 - bound.confidence))))
    found: list[LowerBound] = []
    n = min(scores.world0.size, scores.world1.size)
    while (n := n // 2) >= _FEWEST and len(found) < 5:
        part = Scores(scores.world0[:n], scores.world1[:n])
        found.append(
            bounds.clopper_pearson(
                part,
                delta=bound.delta,
                confidence=bound.confidence,
                copies=bound.copies,
                relation=bound.relation,
                threshold=rule,
            )
        )
    return [*reversed(found), bound]
