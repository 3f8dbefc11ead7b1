"""What the scores of an attack prove: worlds told apart by how many rows, and each method that may read them."""

from __future__ import annotations

import numpy as np

from coalmine import bounds
from coalmine.adversaries import Attack
from coalmine.auditing.setting import Setting
from coalmine.records import DpSgd, Estimate, LowerBound, Relation, Scores
from coalmine.roles import View
from coalmine.store import Trials
from coalmine.training import Sgd


def distance(relation: Relation, copies: int) -> int:
    """How many rows must be added or removed to get from one world to the other.

    A row that is replaced is one taken away and one added: k replacements are 2k additions and removals.

    >>> distance(Relation.REPLACE, 4)
    8
    """
    return 2 * copies if relation is Relation.REPLACE else copies


def read_as(setting: Setting, attack: Attack) -> View:
    """The view under which bounds may read an attack's scores.

    The last iterate of linear losses is a plain sum of the steps. With momentum or a regulariser steps count unequally,
    and scores of such a training, read as that sum, would prove more than is true (docs/last-iterate.md).
    """
    training = attack.training or setting.training
    plain = training.optimiser == Sgd() and training.regulariser == 0.0
    return attack.evidence if plain else View.ALL_ITERATES


def scores_of(trials: Trials) -> Scores:
    """The scores of the two worlds. A training that failed counts with a score below all others: leaving it out would
    condition on success, and whether a training succeeds may itself tell the worlds apart.
    """
    values = trials.score
    finite = values[np.isfinite(values)]
    least = float(finite.min()) if finite.size else 0.0
    lowest = min(least - 1.0, float(np.nextafter(least, -np.inf)))  # the second for scores so large that 1 is lost
    filled = np.where(np.isfinite(values), values, lowest)
    return Scores(filled[trials.world == 0], filled[trials.world == 1])


def if_dpsgd(
    scores: Scores,
    mechanism: DpSgd,
    *,
    family: str,
    delta: float,
    confidence: float,
    copies: int = 1,
    weigh: str = "gaussian",
) -> LowerBound:
    """The bound of one who knows the mechanism's sampling, rate and steps, and estimates its noise."""
    return bounds.dpsgd(
        scores,
        delta=delta,
        confidence=confidence,
        copies=copies,
        sample_rate=mechanism.sample_rate,
        steps=mechanism.steps,
        sampling=mechanism.sampling,
        family=family,
        weigh=weigh,
    )


def prove(
    scores: Scores,
    *,
    delta: float,
    confidence: float,
    relation: Relation,
    copies: int,
    mechanism: DpSgd | None = None,
    view: View = View.ALL_ITERATES,
) -> tuple[LowerBound, tuple[LowerBound | Estimate, ...]]:
    """The bound that assumes nothing, for the verdict; then what further methods make of the same scores.

    All are per row added or removed; for worlds that differ by replaced rows, bounds per row replaced come too. Where
    the ``mechanism`` is known, so is its family of trade-off curves, and only its noise is estimated: the curves of
    DP-SGD, and for one who sees no more than the final model those of its last iterate too.
    """
    rows = distance(relation, copies)
    first = bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows)
    others: list[LowerBound | Estimate] = [
        bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows, threshold=bounds.HoldOut()),
        bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows, method="gdp"),
    ]
    if mechanism is not None and mechanism.relation is Relation.ADD_REMOVE:
        families = ("standard",) if view is View.ALL_ITERATES else ("standard", "last_iterate")
        others += [
            if_dpsgd(scores, mechanism, family=family, delta=delta, confidence=confidence, copies=rows)
            for family in families
        ]
    if relation is Relation.REPLACE:
        others += [
            bounds.lower_bound(
                scores, delta=delta, confidence=confidence, copies=copies, method=method, relation=relation
            )
            for method in ("clopper_pearson", "gdp")
        ]
    return first, tuple(others)
