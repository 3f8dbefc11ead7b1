"""What an audit of a user's own training may say: its power, its doubts, its controls, and which trials are whose.

Seeds are fixed (see ``fixed_seeds``) wherever a verdict depends on scores: it is the same on every run.
"""

import functools
import re

import numpy as np
import own_functions as own
import pytest

from coalmine import audit_function, neighbours
from coalmine.auditing.config import Execution
from coalmine.auditing.stored import stored_result
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Outcome
from coalmine.store import Store
from coalmine.store.listing import audits

ONE = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)


def play(tmp_path, train=own.right, score=own.score, *, worlds=own.worlds, trials=320, **options):
    claim = {} if "claim_epsilon" in options else {"claim_dpsgd": ONE}
    options = {**claim, "store": tmp_path / "trials.db", **options}
    if "workers" not in options:
        options["execution"] = Execution(engine="inline")  # starting a process takes a second
    return audit_function(train, score, worlds=worlds, trials=trials, **options)


def said(result):
    return "; ".join(result.verdict.reasons)


# ---- power ------------------------------------------------------------------------------------------------------


def test_a_right_training_is_consistent_and_the_words_say_what_would_have_been_refuted(tmp_path, fixed_seeds):
    result = play(tmp_path, control=own.half_noise)
    assert result.verdict.outcome is Outcome.CONSISTENT
    assert result.verdict.power.probability >= 0.8
    power = re.search(r"A training with half of this noise .* with probability (0\.\d\d)", result.in_words())
    assert float(power[1]) <= result.verdict.power.probability


def test_without_a_control_nothing_is_consistent(tmp_path, fixed_seeds):
    """The words say what was seen, why that is not enough, and what to do."""
    result = play(tmp_path)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "nothing contradicts the claim, but no control was played" in said(result)
    assert "--control-train" in said(result)


@pytest.mark.parametrize("control", [None, "half"])
def test_drawn_rows_that_spread_the_scores_do_not_stand_in_for_noise(tmp_path, fixed_seeds, control):
    """No noise at all, but rows are drawn: the scores look like those of the claim, which only a control can tell."""
    rate, steps, claimed = 0.5, 8, 1.5
    rows = np.random.default_rng(5).normal(size=(70, 8))
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))

    def train(dataset, seed, sigma=0.0):
        draw = np.random.default_rng(seed)
        drawn = draw.random((steps, len(dataset))) < rate
        return (drawn @ dataset).sum(axis=0)[0] + sigma * draw.normal(size=steps).sum()

    result = play(
        tmp_path, train, worlds=neighbours(rows, np.eye(8)[0]), trials=600,
        control=functools.partial(train, sigma=claimed / 2) if control else None,
        claim_dpsgd=DpSgd(sample_rate=rate, noise_multiplier=claimed, steps=steps),
    )  # fmt: skip
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.strongest.judgement.share == 0.5  # a perfect attack would have refuted half of the noise


@pytest.mark.parametrize("trials", [16, 64])
def test_few_trials_are_inconclusive_and_say_how_many_would_do(tmp_path, trials):
    result = play(tmp_path, trials=trials, claim_epsilon=4.0)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.verdict.outcome.exit_code == 3
    assert result.verdict.ceiling < 4.0
    assert re.search(rf"With {trials} trials .*: about [\d,]+ trials would do", result.in_words())


@pytest.mark.parametrize(
    ("claim", "worlds"),
    [
        (DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4, sampling="shuffle"), own.worlds),
        (DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4, relation="replace"), own.worlds),
    ],
    ids=["shuffled batches", "rows that are replaced, and worlds that add one"],
)
def test_a_claim_that_cannot_be_tested_is_refused_before_any_training(tmp_path, monkeypatch, claim, worlds):
    monkeypatch.setattr(own, "CALLS", [])
    with pytest.raises((InvalidInputError, UnsupportedError)):
        play(tmp_path, own.train_noting_its_calls, claim_dpsgd=claim, worlds=worlds(), delta=1e-13)
    assert own.CALLS == []
    with Store.open(tmp_path / "trials.db") as store:
        assert (store.runs(), audits(store)) == ((), ())


# ---- doubts -----------------------------------------------------------------------------------------------------


def test_a_score_that_points_the_wrong_way_says_nothing(tmp_path, fixed_seeds):
    result = play(tmp_path, score=own.wrong_way)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert "larger in world 0 than in world 1" in said(result)
    assert "give the score the other sign" in result.in_words()


def test_failures_in_one_world_are_told_by_world_and_never_consistent(tmp_path):
    """Half of the trainings fail with the canary, none without. Which half follows from the seeds."""
    for claim in ({"claim_dpsgd": ONE}, {"claim_epsilon": 5.0}):
        result = play(tmp_path, own.train_dislikes_the_canary, trials=160, **claim)
        lost = result.strongest.failed
        assert lost[0] == 0
        assert 40 > lost[1] / 2 > 10
        assert result.verdict.outcome is not Outcome.CONSISTENT
        assert f"0 of 80 trainings failed in world 0 and {lost[1]} of 80 in world 1" in said(result)
        assert result.strongest.notes[0].startswith("trial ")


def test_failing_with_the_canary_alone_may_be_the_refutation(tmp_path):
    """It fails in half of world 1 and never in world 0: noise 8 does not allow that, whatever the scores say."""
    claim = DpSgd(sample_rate=1.0, noise_multiplier=8.0, steps=1)
    result = play(tmp_path, own.train_dislikes_the_canary, trials=160, claim_dpsgd=claim)
    assert result.verdict.outcome is Outcome.REFUTED
    assert result.strongest.judgement.test == "failures"
    assert "so whether a training fails gives the world away" in said(result)


def test_every_training_of_one_world_failing_is_the_largest_leak(tmp_path):
    result = play(tmp_path, own.train_refuses_the_canary, trials=160)
    assert result.verdict.outcome is Outcome.REFUTED
    assert "0 of 80 trainings failed in world 0 and 80 of 80 in world 1" in said(result)
    assert result.strongest.bound.epsilon > 1.0  # proved by which trainings failed
    assert any("comes from which trainings failed" in note for note in result.strongest.notes)
    with Store.open(tmp_path / "trials.db") as store:
        assert stored_result(store, result.strongest.run).to_json() == result.to_json()


# ---- controls ---------------------------------------------------------------------------------------------------


def test_a_control_that_is_refuted_is_told(tmp_path, fixed_seeds):
    result = play(tmp_path, control=own.half_noise)
    assert result.verdict.outcome is Outcome.CONSISTENT
    assert result.strongest.judgement.control is True
    assert "The positive control was caught" in result.in_words()
    assert len(result.adversaries) == 1
    with Store.open(tmp_path / "trials.db") as store:
        assert [run.trials for run in store.runs()] == [320, 320]
        assert stored_result(store, result.strongest.run).to_json() == result.to_json()


@pytest.mark.parametrize(("sigma", "far"), [(0.5, None), (0.2, "d′ = "), (0.0, "without any overlap")])
def test_a_control_that_is_far_more_broken_is_said_to_show_no_smaller_faults(tmp_path, fixed_seeds, sigma, far):
    result = play(tmp_path, control=functools.partial(own.train, sigma=sigma))
    assert result.verdict.outcome is Outcome.CONSISTENT
    words = [reason for reason in result.verdict.reasons if "faults as large as its own" in reason]
    assert len(words) == (far is not None)
    assert all(far in one for one in words)


def test_a_control_that_stays_green_makes_it_inconclusive(tmp_path, fixed_seeds):
    """The twin is not broken at all, so nothing shows that this audit would have seen a fault."""
    result = play(tmp_path, control=own.right_again)
    assert result.verdict.outcome is Outcome.INCONCLUSIVE
    assert result.strongest.judgement.control is False
    assert "positive control was not caught" in result.in_words()


def test_a_control_does_not_share_trials_with_the_training(tmp_path, fixed_seeds):
    result = play(tmp_path, control=own.half_noise, trials=64)
    with Store.open(tmp_path / "trials.db") as store:
        first, second = store.runs()
        assert result.strongest.run == first.fingerprint
        assert not np.array_equal(store.scores(first.fingerprint).score, store.scores(second.fingerprint).score)


# ---- several scores ---------------------------------------------------------------------------------------------


def test_several_scores_share_the_level_and_each_is_an_attack(tmp_path, fixed_seeds):
    both = play(tmp_path, score={"plain": own.score, "blind": own.score_zero}, control=own.half_noise)
    plain, blind = both.adversaries
    assert [one.label for one in both.adversaries] == ["own training (score=plain)", "own training (score=blind)"]
    assert plain.run == blind.run  # one training for both
    assert [one.judgement.level for one in both.adversaries] == pytest.approx([0.005, 0.005])
    assert [one.bound.confidence for one in both.adversaries] == pytest.approx([0.995, 0.995])
    assert np.ptp(blind.scores.world1) == 0.0
    # Each score has its own control: the same score of the twin.
    assert (plain.judgement.control, blind.judgement.control) == (True, False)
    assert both.verdict.outcome is Outcome.CONSISTENT
    with Store.open(tmp_path / "trials.db") as store:
        assert stored_result(store, plain.run).to_json() == both.to_json()


def test_one_of_several_scores_is_enough_to_refute(tmp_path, fixed_seeds):
    result = play(tmp_path, own.half_noise, {"blind": own.score_zero, "plain": own.score})
    assert result.verdict.outcome is Outcome.REFUTED
    assert [one.judgement.refuted for one in result.adversaries] == [False, True]


# ---- whose trials -----------------------------------------------------------------------------------------------


def test_two_lambdas_of_one_module_do_not_share_trials(tmp_path):
    """They have one name and one source text; what they do differs."""
    trains = [lambda dataset, seed: own.train(dataset, seed, sigma=1.0),
              lambda dataset, seed: own.train(dataset, seed, sigma=2.0)]  # fmt: skip
    results = [play(tmp_path, train, trials=32) for train in trains]
    assert len({one.strongest.run for one in results}) == 2
    again = play(tmp_path, trains[0], trials=32)
    assert again.strongest.run == results[0].strongest.run
    assert again.strongest.scores.world0.tolist() == results[0].strongest.scores.world0.tolist()


@pytest.mark.parametrize(
    "train",
    [own.Trainer(2.0).fit, own.Trainer(2.0), lambda dataset, seed: own.train(dataset, seed, sigma=2.0)],
    ids=["method", "object", "lambda"],
)
def test_methods_objects_and_lambdas_work_in_workers(tmp_path, train):
    there = play(tmp_path, train, trials=48, workers=2)
    here = play(tmp_path, train, trials=48, store=tmp_path / "here.db")
    assert there.strongest.run == here.strongest.run
    assert there.strongest.scores.world0.tolist() == here.strongest.scores.world0.tolist()
    assert sum(there.strongest.bound.trials) == 48


def test_objects_that_hold_other_values_do_not_share_trials(tmp_path):
    runs = {play(tmp_path, train, trials=16).strongest.run for sigma in (1.0, 2.0)
            for train in (own.Trainer(sigma).fit, own.Trainer(sigma))}  # fmt: skip
    assert len(runs) == 4


def test_a_second_question_to_the_same_trials_does_not_change_the_first_answer(tmp_path, fixed_seeds):
    first = play(tmp_path, own.half_noise)
    second = play(tmp_path, own.half_noise, claim_epsilon=100.0)
    assert first.strongest.run == second.strongest.run
    assert (first.verdict.outcome, second.verdict.outcome) == (Outcome.REFUTED, Outcome.INCONCLUSIVE)
    with Store.open(tmp_path / "trials.db") as store:
        assert len(store.runs()) == 1
        stored = [stored_result(store, one.fingerprint) for one in audits(store)]
    assert [one.to_json() for one in stored] == [second.to_json(), first.to_json()]
