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


def log_odds_of(trials: Trials) -> Scores:
    """The log-odds of both worlds. A training that failed says nothing, so it leaves the adversary at even odds.

    A bound counts it with the lowest score instead; read as log-odds, that would be the surest belief of all.
    """
    odds = np.where(np.isfinite(trials.score), trials.score, 0.0)
    return Scores(odds[trials.world == 0], odds[trials.world == 1])


def beliefs_of(
    trials: Trials,
    *,
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
    distances = _finite(trials.columns[DISTANCE]) if training.sampling is Sampling.FULL else np.empty(0)
    losses = (_finite(trials.in_world(0, column=LOSS)), _finite(trials.in_world(1, column=LOSS)))
    return estimates.summary(
        log_odds_of(trials),
        epsilon=epsilon,
        delta=delta,
        relation=relation,
        promised=not local,
        expected=belief.exceedance(mechanism, epsilon=epsilon) if epsilon < math.inf else None,
        distances=distances if distances.size else None,
        losses=losses if min(len(world) for world in losses) >= 2 else None,
        confidence=confidence,
    )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Without the trainings that failed."""
    kept: NDArray[np.float64] = values[np.isfinite(values)]
    return kept
