"""What beliefs make of trainings that failed: nothing was seen, so nothing may be counted as known."""

import numpy as np
import pytest

from coalmine.auditing.facts import AttackFacts, Subject
from coalmine.auditing.persons import beliefs_of
from coalmine.auditing.proof import log_odds_of, scores_of
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Relation
from coalmine.roles import DISTANCE, LOSS
from coalmine.store import Trials

FULL = DpSgd(sample_rate=1.0, noise_multiplier=4.0, steps=4, sampling="full")


def trials(score):
    score = np.asarray(score, dtype=float)
    columns = {LOSS: score.copy(), DISTANCE: np.where(np.isnan(score), np.nan, 0.5)}
    return Trials(
        trial=np.arange(score.size),
        world=np.arange(score.size) % 2,
        score=score,
        columns=columns,
        devices=(),
        elapsed=0.0,
    )


def found(given):
    attack = AttackFacts(name="identifiability", relation=Relation.ADD_REMOVE, copies=1, log_odds=True)
    subject = Subject(name="synthetic", own=False, ran=FULL)
    return beliefs_of(given, attack, subject=subject, delta=1e-5, confidence=0.99)


def test_a_failed_training_is_no_certainty():
    """World 0 fails eight times of ten; the lowest score, read as log-odds, would be eight sure and right beliefs."""
    given = trials([-9.0, 0.5, *([np.nan, -0.5] * 8), 0.1, 0.2])
    assert log_odds_of(given).world0.tolist() == [-9.0, *[0.0] * 8, 0.1]
    beliefs = found(given)
    assert beliefs.wins.count == 3 + 8 / 2  # world 0 once, world 1 twice, and a coin toss for each that failed
    assert beliefs.exceeded.count == 1
    assert {one.method: one.epsilon for one in beliefs.estimates}["largest belief"] == 9.0
    assert scores_of(given).world0.min() == -10.0  # the bound still counts them, below all others


def test_when_all_trainings_fail_nothing_is_known():
    beliefs = found(trials([np.nan] * 8))
    assert beliefs.advantage == 0.0
    assert beliefs.exceeded.count == 0
    assert beliefs.loss_wins is None
    assert [one.method for one in beliefs.estimates] == ["largest belief", "advantage"]


def test_an_audit_whose_trainings_all_fail_says_so(settings, play):
    made = settings(
        data={"name": "digits", "rows": 20}, model={"kind": "mlp", "hidden": [4]}, audit={"trials": 16},
        training={"learning_rate": 1e6, "regularizer": 1e6, "steps": 6, "sampling": "full", "sample_rate": None,
                  "noise_multiplier": 2.0},
        adversaries=({"name": "identifiability"},),
    )  # fmt: skip
    with pytest.raises(InvalidInputError, match="every training of identifiability failed"):
        play(made)
