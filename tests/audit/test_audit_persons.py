"""What beliefs make of trainings that failed: nothing was seen, so nothing may be counted as known."""

import numpy as np
import pytest

from coalmine.adversaries.distinguishers.likelihood import DISTANCE, LOSS
from coalmine.auditing.config import Execution, parse
from coalmine.auditing.persons import beliefs_of, log_odds_of
from coalmine.auditing.proof import scores_of
from coalmine.auditing.run import audit
from coalmine.records import Relation
from coalmine.store import Trials
from coalmine.training import TrainingConfig

FULL = TrainingConfig(steps=4, clip=1.0, noise_multiplier=4.0, learning_rate=0.1, sampling="full")


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
    return beliefs_of(given, relation=Relation.ADD_REMOVE, training=FULL, sample_rate=1.0, delta=1e-5, confidence=0.99)


def test_a_failed_training_is_no_certainty():
    """World 0 fails eight times of ten; the lowest score, read as log-odds, would be eight sure and right beliefs."""
    given = trials([-9.0, 0.5, *([np.nan, -0.5] * 8), 0.1, 0.2])
    assert log_odds_of(given).world0.tolist() == [-9.0, *[0.0] * 8, 0.1]
    beliefs = found(given)
    assert beliefs.wins.count == 3 + 8 / 2  # world 0 once, world 1 twice, and a coin toss for each that failed
    assert beliefs.exceeded.count == 1
    assert {one.method: one.epsilon for one in beliefs.estimates}["largest belief"] == 9.0
    assert scores_of(given).world0.min() == -10.0  # the bound still counts them, below all others


def test_when_all_trainings_fail_nothing_is_known(tmp_path):
    beliefs = found(trials([np.nan] * 8))
    assert beliefs.advantage == 0.0
    assert beliefs.exceeded.count == 0
    assert beliefs.loss_wins is None
    assert [one.method for one in beliefs.estimates] == ["largest belief", "advantage"]
    settings = parse(
        {
            "data": {"name": "digits", "rows": 20},
            "model": {"kind": "mlp", "hidden": [4]},
            "training": {"learning_rate": 1e30, "steps": 6, "sampling": "full", "noise_multiplier": 2.0},
            "audit": {"trials": 16},
            "adversary": [{"name": "identifiability"}],
        }
    )
    result = audit(settings, store=tmp_path / "a.db", execution=Execution(workers=1)).adversaries[0]
    assert result.failed == 16
    assert result.bound.epsilon == 0.0
    assert result.beliefs is not None
    assert result.beliefs.advantage == pytest.approx(0.0)
