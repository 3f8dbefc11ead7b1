"""Lower bounds from independent trials: a family of trade-off curves, a threshold rule, and the evidence."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.bounds import ranks
from coalmine.bounds._rates import Errors, dkw_width, errors_at, errors_by_position, lattice
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import EpsilonDelta, Family
from coalmine.bounds.sup import kept_level, observed, sup_ceiling, sup_test, surely_kept_level
from coalmine.bounds.thresholds import DKW, Bonferroni, Given, HoldOut, Optimistic, Ranks, Rule, Sup
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Counts, Estimate, LowerBound, OneRunScores, Relation, Scores
from coalmine.theory.rates import upper_limit

Array = NDArray[np.float64]

# Level of the rate limits by which a hold-out chooses its threshold: of 0.1, 0.01, …, 1e-5 the one with the largest
# mean bounds on Gaussian scores. It is a matter of tightness alone.
_CHOOSING_LEVEL = 0.001

INDEPENDENT = "the trials are independent of each other, and trials within each world are identically distributed"
_FIXED = "the threshold was fixed before the scores were seen"
_RULE_WORDS: dict[type, str] = {
    Given: _FIXED,
    HoldOut: "the trials that chose the threshold are not counted",
    Bonferroni: "the level is shared among all thresholds that were looked at",
    DKW: "both error rates are bounded at all thresholds at once",
    Ranks: "the statistic of all scores, or of the best threshold, is held against its simulated law",
    Sup: "the best threshold is corrected for its selection, by the simulated law of the best threshold",
}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Limits:
    """Upper limits for both error rates that hold together, one pair for each threshold, and the counts behind them."""

    alpha: Array
    beta: Array
    errors: Errors


def check_evidence(evidence: object) -> Counts | Scores:
    """Counts or scores of independent trials; scores of one run are refused in words."""
    if isinstance(evidence, OneRunScores):
        raise UnsupportedError(
            "evidence is not allowed: scores of one run are not independent trials, so this method would not give a "
            "bound; use one_run or one_run_fdp"
        )
    _validate.instance("evidence", evidence, (Counts, Scores))
    return evidence  # type: ignore[return-value]


def bound_trials(
    evidence: Counts | Scores, *, family: Family, confidence: float, threshold: Rule | None, relation: Relation
) -> LowerBound:
    """The lower bound that the evidence proves in ``family`` at ``confidence``.

    ``threshold`` says how the threshold of scores was chosen. When it is None that is :class:`Ranks` where the curves
    are those of DP-SGD, else :class:`Sup`; with counts it must be None: their threshold is part of what was counted.
    """
    evidence = check_evidence(evidence)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    relation = Relation.parse(relation)
    rule = _rule_for(evidence, threshold, family)
    if isinstance(evidence, Scores) and isinstance(rule, Ranks):
        theta, counts, details = _by_ranks(evidence, family, level, rule)
    elif isinstance(evidence, Scores) and isinstance(rule, Sup):
        theta, counts, details = _by_sup(evidence, family, level, rule)
    else:
        theta, limits = refuted_theta(evidence, rule, level, family)
        best = int(np.argmax(family.statistic(limits.alpha, limits.beta)))
        counts, details = limits.errors.counts(best), {}
        if rule is not None:
            details["threshold"] = float(limits.errors.thresholds[best])
    if isinstance(evidence, Scores):
        trials = (evidence.world0.size, evidence.world1.size)
    else:
        trials = (evidence.negatives, evidence.positives)
    epsilon = family.epsilon(theta) if theta > 0.0 else 0.0
    words = "the test was fixed before the counted trials were run" if rule is None else _RULE_WORDS[type(rule)]
    return LowerBound(
        epsilon=epsilon,
        delta=family.delta,
        confidence=confidence,
        method=family.method.name,
        threshold_rule="counts" if rule is None else str(rule),
        trials=trials,
        relation=relation,
        copies=family.copies,
        assumptions=(INDEPENDENT, words, *family.assumptions),
        counts=counts,
        ceiling=max(epsilon, ceiling_of(family, *trials, level=level, rule=rule)),
        details={**details, **family.details(theta)},
    )


def refuted_theta(evidence: Counts | Scores, rule: Rule | None, level: float, family: Family) -> tuple[float, Limits]:
    """The largest θ that the rate limits refute; for scores without a rule, not corrected for selection."""
    limits = _limits(evidence, rule, level, family)
    return family.most_refuted(limits.alpha, limits.beta), limits


def estimate_trials(evidence: Scores, *, family: Family, confidence: float, relation: Relation) -> Estimate:
    """The best threshold of the same scores, not corrected for selection: an estimate, whatever its confidence."""
    evidence = check_evidence(evidence)  # type: ignore[assignment]
    if isinstance(evidence, Counts):
        raise InvalidInputError("threshold is not allowed with counts: their threshold is part of what was counted")
    level = 1.0 - _validate.open_unit("confidence", confidence)
    theta, _ = refuted_theta(evidence, None, level, family)
    return Estimate(
        epsilon=family.epsilon(theta) if theta > 0.0 else 0.0,
        delta=family.delta,
        method=f"{family.method.name}, {Optimistic()} threshold",
        relation=Relation.parse(relation),
        copies=family.copies,
        assumptions=(
            INDEPENDENT,
            "the threshold was chosen on the same scores and not corrected for selection",
            *family.assumptions,
        ),
        details={"rate_limit_confidence": confidence, **family.details(theta)},
    )


def _rule_for(evidence: Counts | Scores, threshold: object, family: Family) -> Rule | None:
    """The rule to use: None for counts; for scores, when nothing was said, the family's usual one."""
    if isinstance(evidence, Counts):
        if threshold is not None:
            raise InvalidInputError("threshold is not allowed with counts: their threshold is part of what was counted")
        return None
    if threshold is None:
        return Ranks() if isinstance(family, DpSgdNoise) else Sup()
    if isinstance(threshold, Ranks) and isinstance(family, EpsilonDelta):
        raise UnsupportedError(
            "threshold = ranks is not allowed where nothing is assumed about the mechanism: there the best threshold "
            "says all, so use sup (Sup())"
        )
    return check_rule(threshold)


def check_rule(threshold: object) -> Rule:
    """A rule that pays for its threshold."""
    if isinstance(threshold, Optimistic):
        raise UnsupportedError(
            "threshold = Optimistic() is not allowed here: it gives no bound; coalmine.bounds.lower_bound returns its "
            "result as an Estimate"
        )
    _validate.instance("threshold", threshold, (Given, HoldOut, Bonferroni, DKW, Sup, Ranks))
    return threshold  # type: ignore[return-value]


def _by_sup(scores: Scores, family: Family, level: float, rule: Sup) -> tuple[float, Counts, dict[str, float]]:
    """θ of the sup-test and the counts at the threshold that carries it."""
    result = sup_test(family, scores, level=level, rule=rule)
    threshold = float(result.errors.thresholds[result.best])
    return result.theta, result.errors.counts(result.best), {"threshold": threshold, "simulations": result.simulations}


def _by_ranks(scores: Scores, family: Family, level: float, rule: Ranks) -> tuple[float, Counts, dict[str, float]]:
    """θ of the rank test, and the counts at the best threshold."""
    n0, n1 = scores.world0.size, scores.world1.size
    theta = ranks.invert(family, n0, n1, ranks.observed(family, scores), level=level, seed=rule.seed)
    _, best, errors = observed(family, scores)
    details = {"threshold": float(errors.thresholds[best]), "simulations": ranks.simulations_for(level)}
    return theta, errors.counts(best), details


def _limits(evidence: Counts | Scores, rule: Rule | None, level: float, family: Family) -> Limits:
    """Rate limits by rule; level/2 goes to each rate."""
    if isinstance(evidence, Counts):
        wrong = np.array([evidence.false_positives]), np.array([evidence.false_negatives])
        errors = Errors(
            positions=wrong[0],
            thresholds=np.array([np.nan]),
            false_positives=wrong[0],
            false_negatives=wrong[1],
            trials=(evidence.negatives, evidence.positives),
        )
        return _exact(errors, level)
    if isinstance(rule, Given):
        return _exact(errors_at(evidence, np.array([rule.threshold])), level)
    if isinstance(rule, Bonferroni) and rule.grid is not None:
        return _exact(errors_at(evidence, np.array(rule.grid)), level / len(rule.grid))
    if isinstance(rule, HoldOut):
        choosing, counted = split(evidence, rule)
        _, best, errors = observed(family, choosing, inner_level=_CHOOSING_LEVEL)
        return _exact(errors_at(counted, errors.thresholds[best : best + 1]), level)
    errors = errors_by_position(evidence)
    n0, n1 = errors.trials
    if isinstance(rule, Bonferroni):
        # 1 − F(X_(n0 − i)) is at most W_(i+1), whose (1 − level) quantile is the Clopper–Pearson limit for i.
        share = level / (2.0 * (errors.positions.size - 1))
        alpha = upper_limit(errors.positions, n0, share)
        return Limits(alpha=alpha, beta=upper_limit(errors.false_negatives, n1, share), errors=errors)
    if rule is None:
        return _exact(errors, level)
    alpha = np.minimum(1.0, errors.false_positives / n0 + dkw_width(n0, level / 2.0))
    beta = np.minimum(1.0, errors.false_negatives / n1 + dkw_width(n1, level / 2.0))
    return Limits(alpha=alpha, beta=beta, errors=errors)


def _exact(errors: Errors, level: float) -> Limits:
    """Clopper–Pearson limits at level/2 for thresholds that do not depend on these scores."""
    return Limits(
        alpha=upper_limit(errors.false_positives, errors.trials[0], level / 2.0),
        beta=upper_limit(errors.false_negatives, errors.trials[1], level / 2.0),
        errors=errors,
    )


def held_out(total: int, rule: HoldOut) -> int:
    """How many of a world's trials choose the threshold; at least one is left on either side."""
    chosen = round(rule.fraction * total)
    if not 1 <= chosen <= total - 1:
        raise InvalidInputError(
            f"fraction = {rule.fraction} is not allowed with {total} trials in a world: expected at least one trial to "
            "choose the threshold and one to count"
        )
    return chosen


def split(scores: Scores, rule: HoldOut) -> tuple[Scores, Scores]:
    """A random part of each world to choose the threshold, and the rest to be counted."""
    rng = np.random.default_rng([0x401D, rule.seed])
    parts = []
    for world in (scores.world0, scores.world1):
        order = rng.permutation(world.size)
        chosen = held_out(world.size, rule)
        parts.append((world[order[:chosen]], world[order[chosen:]]))
    (zero_a, zero_b), (one_a, one_b) = parts
    return Scores(zero_a, one_a), Scores(zero_b, one_b)


def ceiling_of(
    family: Family, negatives: int, positives: int, *, level: float, rule: Rule | None, sure: bool = False
) -> float:
    """The ε that an attack without a single error would prove with as many trials, under the same rule.

    With ``Sup`` that hangs a little on the simulated copies: it is the ε in the mean over seeds, or with ``sure`` what
    all but one seed in a thousand prove.
    """
    if isinstance(family, DpSgdNoise):
        family = family.coarse()
    if isinstance(rule, (Sup, Ranks)):
        kept_by_sup = surely_kept_level if sure else kept_level
        kept = ranks.kept_level(level) if isinstance(rule, Ranks) else kept_by_sup(level, negatives, rule=rule)
        theta = sup_ceiling(family, negatives, positives, level=kept)
    else:
        share = level / 2.0
        if isinstance(rule, HoldOut):
            negatives -= held_out(negatives, rule)
            positives -= held_out(positives, rule)
        if isinstance(rule, Bonferroni):
            choices = len(rule.grid) if rule.grid is not None else lattice(negatives).size - 1
            share = level / (2.0 * choices)
        if isinstance(rule, DKW):
            alpha = np.minimum(1.0, np.array([dkw_width(negatives, share)]))
            beta = np.minimum(1.0, np.array([dkw_width(positives, share)]))
        else:
            alpha, beta = upper_limit([0], negatives, share), upper_limit([0], positives, share)
        theta = family.most_refuted(alpha, beta)
    return family.epsilon(theta) if theta > 0.0 else 0.0
