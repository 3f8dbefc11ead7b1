"""What an adversary's trials say about one person: its beliefs, held against what theory allows."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from coalmine.accounting import standard
from coalmine.adversaries.distinguishers.likelihood import DISTANCE, LOSS
from coalmine.identifiability import belief, estimates
from coalmine.records import DpSgd, Relation, Sampling, Scores
from coalmine.store import Trials
from coalmine.training import TrainingConfig


def beliefs_of(
    trials: Trials,
    *,
    scores: Scores,
    relation: Relation,
    training: TrainingConfig,
    sample_rate: float,
    delta: float,
    confidence: float,
) -> estimates.Beliefs:
    """The beliefs of a run whose scores are log-odds, beside the ε of these neighbours.

    With noise scaled to the clipping norm that ε is a guarantee (for rows replaced, that of the relation ``replace``);
    with noise scaled to the local sensitivity it is the ε between the two data sets of the attack, and no promise.
    """
    local = training.noise_scale == "local"
    mechanism = DpSgd(
        sample_rate=sample_rate,
        noise_multiplier=training.noise_multiplier,
        steps=training.steps,
        sampling=training.sampling,
        relation=Relation.ADD_REMOVE if local else relation,
    )
    epsilon = standard.epsilon(mechanism, delta=delta).epsilon
    full = training.sampling is Sampling.FULL
    return estimates.summary(
        scores,
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        promised=not local,
        expected=belief.exceedance(mechanism, epsilon=epsilon) if epsilon < math.inf else None,
        distances=_finite(trials.columns[DISTANCE]) if full else None,
        losses=(_finite(trials.in_world(0, column=LOSS)), _finite(trials.in_world(1, column=LOSS))),
        confidence=confidence,
    )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without the trainings that failed."""
    kept: NDArray[np.float64] = values[np.isfinite(values)]
    return kept
