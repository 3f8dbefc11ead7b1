"""What an adversary's trials say about one person: its beliefs, held against what theory allows."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from coalmine.auditing.facts import AttackFacts, Subject
from coalmine.auditing.promises import epsilon as promised_epsilon
from coalmine.auditing.proof import log_odds_of
from coalmine.errors import UnsupportedError
from coalmine.identifiability import belief, estimates
from coalmine.records import Relation, Sampling
from coalmine.roles import DISTANCE, LOSS
from coalmine.store import Trials


def beliefs_of(
    trials: Trials, attack: AttackFacts, *, subject: Subject, delta: float, confidence: float
) -> estimates.Beliefs:
    """The beliefs of a run whose scores are log-odds, beside the ε of these neighbours.

    With noise scaled to the clipping norm that ε is a guarantee (for rows replaced, that of the relation ``replace``);
    with noise scaled to the local sensitivity it is the ε between the two data sets of the attack, and no promise.
    """
    if subject.ran is None:
        raise UnsupportedError("a training without noise has no beliefs: every likelihood is zero or one")
    mechanism = dataclasses.replace(subject.ran, relation=Relation.ADD_REMOVE if subject.local else attack.relation)
    epsilon = promised_epsilon(mechanism, delta=delta)
    distances = _finite(trials.columns[DISTANCE]) if mechanism.sampling is Sampling.FULL else np.empty(0)
    losses = (_finite(trials.in_world(0, column=LOSS)), _finite(trials.in_world(1, column=LOSS)))
    return estimates.summary(
        log_odds_of(trials),
        epsilon=epsilon,
        delta=delta,
        relation=attack.relation,
        promised=not subject.local,
        expected=belief.exceedance(mechanism, epsilon=epsilon) if epsilon < math.inf else None,
        distances=distances if distances.size else None,
        losses=losses if min(len(world) for world in losses) >= 2 else None,
        confidence=confidence,
    )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without the trainings that failed."""
    kept: NDArray[np.float64] = values[np.isfinite(values)]
    return kept
