"""The whole audit on tiny trainings: identity, reuse, failures, the ceiling without noise, the verdict."""

import math

import numpy as np
import pytest

from coalmine import bounds, data
from coalmine.auditing import config
from coalmine.auditing import run as audits
from coalmine.auditing.config import Execution
from coalmine.auditing.proof import distance, prove, scores_of
from coalmine.auditing.run import audit
from coalmine.auditing.setting import prepare
from coalmine.errors import InvalidInputError, StoreError, UnsupportedError
from coalmine.game import BuiltInTask
from coalmine.records import Relation, Scores
from coalmine.store import Store, Trials

ONE = Execution(workers=1)


def settings(*overrides, adversaries=({"name": "clipbkd", "copies": 2},), **sections):
    tree = {
        "data": {"name": "synthetic", "rows": 60},
        "model": {"kind": "logistic"},
        "training": {"steps": 4, "sample_rate": 0.5, "noise_multiplier": 1.0},
        "audit": {"trials": 64},
        "adversary": list(adversaries),
    }
    for section, values in sections.items():
        tree[section] = {**tree[section], **values}
    return config.parse(tree)


@pytest.fixture
def trained(monkeypatch):
    """Counts the blocks that are really played."""
    blocks = []
    play = BuiltInTask.play

    def counting(self, wanted):
        blocks.extend(wanted)
        return play(self, wanted)

    monkeypatch.setattr(BuiltInTask, "play", counting)
    return blocks


def test_the_same_audit_twice_trains_nothing_the_second_time(tmp_path, trained):
    first = audit(settings(), store=tmp_path / "a.db", execution=ONE)
    assert sorted(trained) == [0, 1, 2, 3]
    trained.clear()
    second = audit(settings(), store=tmp_path / "a.db", execution=ONE)
    assert trained == []
    assert first.to_dict() == second.to_dict()


def test_more_trials_reuse_all_and_fewer_use_the_first(tmp_path, trained):
    few = audit(settings(), store=tmp_path / "a.db", execution=ONE).adversaries[0]
    trained.clear()
    more = audit(settings(audit={"trials": 100}), store=tmp_path / "a.db", execution=ONE).adversaries[0]
    assert sorted(trained) == [4, 5, 6]
    assert more.fingerprint == few.fingerprint
    assert (sum(few.bound.trials), sum(more.bound.trials)) == (64, 100)
    np.testing.assert_array_equal(more.scores.world0[:32], few.scores.world0)
    np.testing.assert_array_equal(more.scores.world1[:32], few.scores.world1)
    trained.clear()
    again = audit(settings(), store=tmp_path / "a.db", execution=ONE).adversaries[0]
    assert trained == []
    np.testing.assert_array_equal(again.scores.world1, few.scores.world1)


def fingerprint(made):
    return audits.fingerprint(audits._identity(prepare(made), made.adversary[0]))


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"noise_multiplier": 1.1}},
        {"training": {"clip": 1.1}},
        {"training": {"steps": 5}},
        {"training": {"sample_rate": 0.6}},
        {"training": {"learning_rate": 0.2}},
        {"training": {"momentum": 0.5}},
        {"training": {"regularizer": 0.1}},
        {"training": {"initialization": 0.0}},
        {"training": {"dtype": "float64"}},
        {"training": {"sampling": "full", "sample_rate": None}},
        {"model": {"kind": "mlp"}},
        {"model": {"kind": "mlp", "hidden": [8]}},
        {"data": {"rows": 61}},
        {"data": {"name": "digits"}},
        {"audit": {"seed": 1}},
        {"adversaries": ({"name": "clipbkd", "copies": 3},)},
        {"adversaries": ({"name": "clipbkd", "copies": 2, "world0": "relabelled"},)},
        {"adversaries": ({"name": "membership"},)},
    ],
    ids=str,
)
def test_what_is_audited_is_in_the_fingerprint(change):
    assert fingerprint(settings(**change)) != fingerprint(settings())


@pytest.mark.parametrize(
    "change",
    [{"audit": {"trials": 1000}}, {"audit": {"confidence": 0.9}}, {"audit": {"delta": 1e-6}},
     {"audit": {"claim_epsilon": 1.0}}],
    ids=str,
)  # fmt: skip
def test_how_it_is_run_and_judged_is_not(change):
    assert fingerprint(settings(**change)) == fingerprint(settings())


def test_a_target_epsilon_depends_on_delta_through_the_noise():
    target = {"training": {"noise_multiplier": None, "target_epsilon": 4.0}}
    assert fingerprint(settings(**target)) != fingerprint(settings(**target, audit={"delta": 1e-6}))


def test_any_number_of_workers_gives_the_same_bits(tmp_path):
    results = [
        audit(settings(), store=tmp_path / f"{workers}.db", execution=Execution(workers=workers)).adversaries[0]
        for workers in (1, 2)
    ]
    for world in ("world0", "world1"):
        np.testing.assert_array_equal(getattr(results[0].scores, world), getattr(results[1].scores, world))
    assert results[0].fingerprint == results[1].fingerprint


def test_without_noise_and_from_a_fixed_start_the_bound_is_exactly_the_ceiling(tmp_path):
    """Perfect separation: 500 + 500 trials choose the threshold, 500 + 500 fresh ones give ln(1/p − 1), 4.541916."""
    made = settings(
        data={"rows": 20}, training={"noise_multiplier": 0.0, "sampling": "full", "sample_rate": None, "steps": 3,
                                     "learning_rate": 1.0, "initialization": 0.0}, audit={"trials": 2000},
        adversaries=({"name": "clipbkd"},),
    )  # fmt: skip
    result = audit(made, store=tmp_path / "a.db", execution=ONE)
    scores = result.adversaries[0].scores
    assert scores.world1.min() > scores.world0.max()
    bound = bounds.lower_bound(scores, delta=0.0, confidence=0.99, threshold=bounds.HoldOut())
    upper = 1.0 - 0.005 ** (1.0 / 500)  # Clopper–Pearson for 0 of 500 at 0.5 % a side
    assert bound.epsilon == pytest.approx(math.log(1.0 / upper - 1.0), abs=1e-9)
    assert round(bound.epsilon, 6) == 4.541916
    assert bound.epsilon == bound.ceiling
    assert result.guarantee.epsilon == math.inf
    assert result.heuristic is None
    assert result.verdict == "consistent"
    assert result.to_dict()["guarantee"]["epsilon"] == "infinity"


def test_poisson_batches_separate_the_worlds_too(tmp_path):
    made = settings(
        data={"rows": 20}, training={"noise_multiplier": 0.0, "steps": 40, "learning_rate": 0.5, "initialization": 0.0},
        adversaries=({"name": "clipbkd", "copies": 8},),
    )  # fmt: skip
    scores = audit(made, store=tmp_path / "a.db", execution=ONE).adversaries[0].scores
    assert scores.world1.min() > scores.world0.max()


def test_a_diverging_training_fails_counts_lowest_and_the_audit_ends(tmp_path):
    made = settings(
        model={"kind": "mlp", "hidden": [4]}, training={"learning_rate": 1e30, "steps": 6},
        adversaries=({"name": "membership"},),
    )  # fmt: skip
    with Store.open(tmp_path / "a.db") as store:
        result = audit(made, store=store, execution=ONE)
        reasons = {one.reason for one in store.failures(result.adversaries[0].fingerprint)}
    assert result.adversaries[0].failed == 64
    assert all("not finite" in reason for reason in reasons)
    assert result.adversaries[0].bound.epsilon == 0.0
    assert result.verdict == "consistent"
    assert result.accuracy is None


def trials(score):
    score = np.asarray(score, dtype=float)
    return Trials(
        trial=np.arange(score.size), world=np.arange(score.size) % 2, score=score, columns={}, devices=(), elapsed=0.0
    )


@pytest.mark.parametrize("offset", [0.0, -1e17, 1e30])
def test_a_failed_trial_has_the_lowest_score(offset):
    scores = scores_of(trials([offset, np.nan, 2 * abs(offset) + 1.0, 3 * abs(offset) + 2.0]))
    assert scores.world1[0] < scores.world0.min()
    assert scores.world1[0] < scores.world1[1]
    assert np.isfinite(scores.world1).all()


def test_all_failed_trials_prove_nothing():
    scores = scores_of(trials([np.nan] * 40))
    assert bounds.lower_bound(scores, delta=1e-5, confidence=0.99).epsilon == 0.0


def test_distance():
    assert distance(Relation.ADD_REMOVE, 4) == 4
    assert distance(Relation.REPLACE, 4) == 8


def test_replaced_rows_are_charged_as_two_and_reported_both_ways():
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(size=500), rng.normal(size=500) + 6.0)
    one, _ = prove(scores, delta=1e-5, confidence=0.99, relation=Relation.ADD_REMOVE, copies=4)
    first, others = prove(scores, delta=1e-5, confidence=0.99, relation=Relation.REPLACE, copies=2)
    assert first.epsilon == one.epsilon
    assert first.copies == 4
    assert first.relation is Relation.ADD_REMOVE
    replaced = [other for other in others if other.relation is Relation.REPLACE]
    assert [other.method for other in replaced] == ["clopper_pearson", "gdp"]
    assert all(other.copies == 2 for other in replaced)
    assert replaced[0].epsilon > first.epsilon


def test_relabelled_worlds_are_judged_at_twice_the_distance(tmp_path):
    made = settings(adversaries=({"name": "clipbkd", "copies": 2, "world0": "relabelled"},))
    only = audit(made, store=tmp_path / "a.db", execution=ONE).adversaries[0]
    assert (only.relation, only.copies, only.bound.copies) == (Relation.REPLACE, 2, 4)
    assert only.assumed.copies == 4


def test_the_level_is_shared_so_that_all_bounds_hold_together(tmp_path):
    two = settings(adversaries=({"name": "membership"}, {"name": "clipbkd"}))
    result = audit(two, store=tmp_path / "a.db", execution=ONE)
    for one in result.adversaries:
        assert one.bound.confidence == pytest.approx(0.995)
        assert all(other.confidence == pytest.approx(0.995) for other in one.others)
    alone = audit(settings(adversaries=({"name": "membership"},)), store=tmp_path / "a.db", execution=ONE)
    assert alone.adversaries[0].bound.confidence == pytest.approx(0.99)
    assert alone.adversaries[0].fingerprint == result.adversaries[0].fingerprint


def test_a_claim_below_the_evidence_is_refuted(tmp_path):
    """Almost no noise, fixed start: the bound is far above 0.1, far below the guarantee."""
    strong = {
        "training": {"noise_multiplier": 0.1, "steps": 10, "learning_rate": 1.0, "initialization": 0.0,
                     "sampling": "full", "sample_rate": None},
        "adversaries": ({"name": "clipbkd"},),
        "audit": {"trials": 128},
    }  # fmt: skip
    held = audit(settings(**strong), store=tmp_path / "a.db", execution=ONE)
    assert held.verdict == "consistent"
    assert 0.5 < held.strongest.bound.epsilon < held.guarantee.epsilon
    strong["audit"] = {"trials": 128, "claim_epsilon": 0.1}
    refuted = audit(settings(**strong), store=tmp_path / "a.db", execution=ONE)
    assert (refuted.verdict, refuted.claim) == ("refuted", 0.1)
    strong["audit"] = {"trials": 128, "claim_epsilon": held.strongest.bound.epsilon}
    assert audit(settings(**strong), store=tmp_path / "a.db", execution=ONE).verdict == "consistent"


def test_accuracy_is_that_of_the_models_without_canary(tmp_path):
    made = settings(training={"noise_multiplier": 0.0, "steps": 30, "learning_rate": 1.0})
    with Store.open(tmp_path / "a.db") as store:
        result = audit(made, store=store, execution=ONE)
        kept = store.scores(result.adversaries[0].fingerprint)
    assert result.accuracy == pytest.approx(kept.in_world(0, column="accuracy").mean())
    assert 0.8 < result.accuracy <= 1.0
    assert result.to_dict()["accuracy"] == result.accuracy


@pytest.mark.parametrize(("kind", "name"), [("cnn-nasr-2021", "NasrCnn"), ("cnn-bernau-2021", "BernauCnn")])
def test_a_convolutional_network_is_what_it_says_and_plays(kind, name, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 784), dtype=np.float32), np.arange(40) % 10
    pictures = data.DataSet(
        name="pictures", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], classes=10,
        image_shape=(1, 28, 28), citation="", licence="",
    )  # fmt: skip
    monkeypatch.setattr(data, "load", lambda name, *, data_dir: pictures)
    made = settings(data={"name": f"pictures for {kind}", "rows": None}, model={"kind": kind},
                    training={"steps": 1}, audit={"trials": 4})  # fmt: skip
    assert type(prepare(made).network).__name__ == name
    assert len(audit(made, store=tmp_path / "a.db", execution=ONE).adversaries[0].scores.world0) == 2


@pytest.mark.parametrize("kind", ["cnn-nasr-2021", "cnn-bernau-2021"])
def test_pictures_too_small_for_a_convolution_are_named_before_training(kind):
    with pytest.raises(UnsupportedError, match=rf"model.kind = '{kind}' does not fit pictures of \(1, 8, 8\)"):
        prepare(settings(data={"name": "digits"}, model={"kind": kind}))


def test_convolution_needs_pictures():
    with pytest.raises(UnsupportedError, match="needs pictures"):
        prepare(settings(model={"kind": "cnn-bernau-2021"}))


def test_a_missing_gpu_is_named(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InvalidInputError, match="device = 'cuda'"):
        audit(settings(), store=tmp_path / "a.db", execution=Execution(device="cuda"))


def test_reading_without_training(tmp_path):
    with pytest.raises(StoreError, match="no trials of this audit yet"):
        audit(settings(), store=tmp_path / "a.db", execution=ONE, train=False)
    done = audit(settings(), store=tmp_path / "a.db", execution=ONE)
    assert audit(settings(), store=tmp_path / "a.db", execution=ONE, train=False).to_dict() == done.to_dict()
