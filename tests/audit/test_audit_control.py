"""The positive control of a built-in audit, and what few trials may say."""

import pytest

from coalmine.auditing.run import CONTROL
from coalmine.errors import InvalidInputError
from coalmine.records import Outcome
from coalmine.store import Store

ONE_STEP = {"steps": 1, "sampling": "full", "sample_rate": None, "noise_multiplier": 1.0}
EASY = {"training": ONE_STEP, "adversaries": ({"name": "malicious-dataset"},), "audit": {"trials": 1000}}


def runs(tmp_path):
    """What was attacked: the name, and the share of the noise that was left."""
    with Store.open(tmp_path / "a.db") as store:
        attacks = [run.description["attack"] for run in store.runs()]
    return [(one["name"], one["control"]) for one in attacks]


def test_where_it_costs_no_training_the_control_is_played_without_a_word(settings, play, tmp_path):
    """One step with noise 1, the best attack there is: half the noise is refuted, so the verdict is worth something."""
    result = play(settings(**EASY))
    assert result.verdict.outcome is Outcome.CONSISTENT
    assert result.strongest.judgement.control is True
    assert [one.name for one in result.adversaries] == ["malicious-dataset"]  # the control is no attack of the audit
    assert "The positive control was caught" in result.in_words()
    assert runs(tmp_path) == [("malicious-dataset", 1.0), ("malicious-dataset", CONTROL)]


def test_it_may_be_left_out(settings, play, tmp_path):
    result = play(settings(**{**EASY, "audit": {"trials": 1000, "control": False}}))
    assert result.strongest.judgement.control is None
    assert result.verdict.outcome is Outcome.CONSISTENT
    assert runs(tmp_path) == [("malicious-dataset", 1.0)]


def test_noise_that_has_no_half_is_audited_without_a_control(settings, play, tmp_path):
    """σ = 0.0015 may be claimed, half of it may not; the name and the value are the user's own."""
    little = {**EASY, "training": {**ONE_STEP, "noise_multiplier": 0.0015}}
    assert play(settings(**little)).verdict == "inconclusive"
    assert runs(tmp_path) == [("malicious-dataset", 1.0)]
    with pytest.raises(InvalidInputError, match=r"noise_multiplier = 0.0015 is too small .* at least 0.002, or audit"):
        play(settings(**{**little, "audit": {"trials": 1000, "control": True}}))


def test_where_it_costs_trainings_it_is_played_on_request(settings, play, tmp_path, trained):
    quiet = {"training": {**ONE_STEP, "noise_multiplier": 4.0}, "adversaries": ({"name": "clipbkd"},)}
    before = play(settings(**quiet))
    assert before.strongest.judgement.control is None
    assert sorted(trained) == [0, 1, 2, 3]
    trained.clear()
    after = play(settings(**quiet, audit={"control": True}))
    assert sorted(trained) == [0, 1, 2, 3]  # of the control alone
    assert after.strongest.run == before.strongest.run
    assert after.strongest.judgement.control is False
    assert after.verdict.outcome is Outcome.INCONCLUSIVE
    assert any("positive control was not caught" in reason for reason in after.verdict.reasons)
    assert runs(tmp_path) == [("clipbkd", 1.0), ("clipbkd", CONTROL)]


def test_without_noise_or_without_a_claim_there_is_no_control(settings, play, tmp_path):
    for noise in ({"noise_multiplier": 0.0}, {"noise_scale": "local"}):
        made = settings(training={**ONE_STEP, **noise}, audit={"control": True}, adversaries=({"name": "clipbkd"},))
        assert play(made).verdict.outcome is Outcome.INCONCLUSIVE
    assert {share for _, share in runs(tmp_path)} == {1.0}


@pytest.mark.parametrize("trials", [16, 64])
def test_few_trials_against_an_epsilon_say_how_many_would_do(settings, play, trials):
    result = play(settings(audit={"trials": trials, "claim_epsilon": 4.0}))
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.verdict.ceiling < 4.0
    assert result.verdict.ceiling == max(one.bound.ceiling for one in result.adversaries)
    assert "trials would do" in result.in_words()
