"""The whole audit on tiny trainings: identity, reuse, failures, the ceiling without noise, the verdict."""

import math

import numpy as np
import pytest

from coalmine import bounds, data
from coalmine.auditing.config import Execution
from coalmine.auditing.facts import AttackFacts
from coalmine.auditing.proof import prove, scores_of
from coalmine.auditing.run import Game, game_of
from coalmine.auditing.setting import prepare
from coalmine.auditing.stored import stored_result
from coalmine.errors import InvalidInputError, StoreError, UnsupportedError
from coalmine.records import Outcome, Relation, Scores
from coalmine.store import Store, Trials


def test_the_same_audit_twice_trains_nothing_the_second_time(play, settings, trained):
    first = play(settings())
    assert sorted(trained) == [0, 1, 2, 3]
    trained.clear()
    second = play(settings())
    assert trained == []
    assert first.to_dict() == second.to_dict()


def test_more_trials_reuse_all_and_fewer_use_the_first(play, settings, trained):
    few = play(settings()).adversaries[0]
    trained.clear()
    more = play(settings(audit={"trials": 100})).adversaries[0]
    assert sorted(trained) == [4, 5, 6]
    assert more.run == few.run
    assert (sum(few.bound.trials), sum(more.bound.trials)) == (64, 100)
    np.testing.assert_array_equal(more.scores.world0[:32], few.scores.world0)
    np.testing.assert_array_equal(more.scores.world1[:32], few.scores.world1)
    trained.clear()
    again = play(settings()).adversaries[0]
    assert trained == []
    np.testing.assert_array_equal(again.scores.world1, few.scores.world1)


@pytest.fixture
def name_of(settings):
    """The run's name under a config with some values changed."""

    def name(**change):
        made = settings(**change)
        return game_of(prepare(made), made.adversary[0], trials=made.audit.trials).run

    return name


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
def test_what_is_audited_is_in_the_fingerprint(change, name_of):
    assert name_of(**change) != name_of()


@pytest.mark.parametrize(
    "change",
    [{"audit": {"trials": 1000}}, {"audit": {"confidence": 0.9}}, {"audit": {"delta": 1e-6}},
     {"audit": {"claim_epsilon": 1.0}}, {"audit": {"control": True}}],
    ids=str,
)  # fmt: skip
def test_how_it_is_run_and_judged_is_not(change, name_of):
    assert name_of(**change) == name_of()


def test_a_target_epsilon_depends_on_delta_through_the_noise(name_of):
    target = {"training": {"noise_multiplier": None, "target_epsilon": 4.0}}
    assert name_of(**target) != name_of(**target, audit={"delta": 1e-6})


def test_any_number_of_workers_gives_the_same_bits(play, settings, tmp_path):
    results = [
        play(settings(), store=tmp_path / f"{workers}.db", execution=Execution(workers=workers)).adversaries[0]
        for workers in (1, 2)
    ]
    for world in ("world0", "world1"):
        np.testing.assert_array_equal(getattr(results[0].scores, world), getattr(results[1].scores, world))
    assert results[0].run == results[1].run


def test_without_noise_and_from_a_fixed_start_the_bound_is_exactly_the_ceiling(play, settings):
    """Perfect separation: 500 + 500 trials choose the threshold, 500 + 500 fresh ones give ln(1/p − 1), 4.541916."""
    made = settings(
        data={"rows": 20}, training={"noise_multiplier": 0.0, "sampling": "full", "sample_rate": None, "steps": 3,
                                     "learning_rate": 1.0, "initialization": 0.0}, audit={"trials": 2000},
        adversaries=({"name": "clipbkd"},),
    )  # fmt: skip
    result = play(made)
    scores = result.adversaries[0].scores
    assert scores.world1.min() > scores.world0.max()
    bound = bounds.lower_bound(scores, delta=0.0, confidence=0.99, threshold=bounds.HoldOut())
    upper = 1.0 - 0.005 ** (1.0 / 500)  # Clopper–Pearson for 0 of 500 at 0.5 % a side
    assert bound.epsilon == pytest.approx(math.log(1.0 / upper - 1.0), abs=1e-9)
    assert round(bound.epsilon, 6) == 4.541916
    assert bound.epsilon == bound.ceiling
    assert result.guarantee.epsilon == math.inf
    assert result.heuristic is None
    assert result.verdict.outcome is Outcome.INCONCLUSIVE  # nothing is promised, so nothing can be refuted
    assert result.claim is None
    assert result.to_dict()["guarantee"]["epsilon"] == "infinity"


def test_poisson_batches_separate_the_worlds_too(play, settings):
    made = settings(
        data={"rows": 20}, training={"noise_multiplier": 0.0, "steps": 40, "learning_rate": 0.5, "initialization": 0.0},
        adversaries=({"name": "clipbkd", "copies": 8},),
    )  # fmt: skip
    scores = play(made).adversaries[0].scores
    assert scores.world1.min() > scores.world0.max()


def test_when_every_training_of_a_world_diverges_the_audit_ends_with_the_reason(settings, play, tmp_path):
    made = settings(
        model={"kind": "mlp", "hidden": [4]}, training={"learning_rate": 1e6, "regularizer": 1e6, "steps": 6},
        adversaries=({"name": "membership"},),
    )  # fmt: skip
    with pytest.raises(InvalidInputError, match=r"every training of membership failed \(.*not finite"):
        play(made)
    with Store.open(tmp_path / "a.db") as store:
        [run] = store.runs()
        reasons = {one.reason for one in store.failures(run.fingerprint)}
        with pytest.raises(InvalidInputError, match="every training of membership failed"):
            stored_result(store, run.fingerprint)
    assert run.failed_trials == 64
    assert all("not finite" in reason for reason in reasons)


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


def test_copies_are_counted_in_the_steps_of_a_relation():
    both = [AttackFacts(name="one", relation=relation, copies=4) for relation in Relation]
    assert [one.copies_under(Relation.ADD_REMOVE) for one in both] == [4, 8]
    assert both[1].copies_under(Relation.REPLACE) == 4


def test_replaced_rows_are_charged_as_two_and_reported_both_ways():
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(size=500), rng.normal(size=500) + 6.0)
    added = AttackFacts(name="added", relation=Relation.ADD_REMOVE, copies=4)
    swapped = AttackFacts(name="swapped", relation=Relation.REPLACE, copies=2)
    one, _ = prove(scores, added, delta=1e-5, confidence=0.99)
    first, others = prove(scores, swapped, delta=1e-5, confidence=0.99)
    assert first.epsilon == one.epsilon
    assert first.copies == 4
    assert first.relation is Relation.ADD_REMOVE
    replaced = [other for other in others if other.relation is Relation.REPLACE]
    assert [other.method for other in replaced] == ["clopper_pearson", "gdp"]
    assert all(other.copies == 2 for other in replaced)
    assert replaced[0].epsilon > first.epsilon


def test_relabelled_worlds_are_judged_at_twice_the_distance(play, settings):
    made = settings(adversaries=({"name": "clipbkd", "copies": 2, "world0": "relabelled"},))
    only = play(made).adversaries[0]
    assert (only.relation, only.copies, only.bound.copies) == (Relation.REPLACE, 2, 4)
    assert only.assumed.copies == 4


def test_the_level_is_shared_so_that_all_bounds_hold_together(play, settings):
    two = settings(adversaries=({"name": "membership"}, {"name": "clipbkd"}))
    result = play(two)
    for one in result.adversaries:
        assert one.bound.confidence == pytest.approx(0.995)
        assert all(other.confidence == pytest.approx(0.995) for other in one.others)
    alone = play(settings(adversaries=({"name": "membership"},)))
    assert alone.adversaries[0].bound.confidence == pytest.approx(0.99)
    assert alone.adversaries[0].run == result.adversaries[0].run


def test_a_claim_below_the_evidence_is_refuted(play, settings):
    """Almost no noise, fixed start: the bound is far above 0.1, far below the guarantee."""
    strong = {
        "training": {"noise_multiplier": 0.1, "steps": 10, "learning_rate": 1.0, "initialization": 0.0,
                     "sampling": "full", "sample_rate": None},
        "adversaries": ({"name": "clipbkd"},),
        "audit": {"trials": 128},
    }  # fmt: skip
    held = play(settings(**strong))
    assert held.verdict.outcome is Outcome.INCONCLUSIVE  # so little noise promises next to nothing
    assert 0.5 < held.strongest.bound.epsilon < held.guarantee.epsilon
    strong["audit"] = {"trials": 128, "claim_epsilon": 0.1}
    refuted = play(settings(**strong))
    assert (refuted.verdict.outcome, refuted.claim.epsilon) == (Outcome.REFUTED, 0.1)
    assert refuted.guarantee.epsilon == held.guarantee.epsilon  # a claim is no guarantee
    strong["audit"] = {"trials": 128, "claim_epsilon": 1.5 * held.strongest.bound.epsilon}
    assert play(settings(**strong)).verdict.outcome is not Outcome.REFUTED


def test_accuracy_is_that_of_the_models_without_canary(play, settings, tmp_path):
    made = settings(training={"noise_multiplier": 0.0, "steps": 30, "learning_rate": 1.0})
    with Store.open(tmp_path / "a.db") as store:
        result = play(made, store=store)
        kept = store.scores(result.adversaries[0].run)
    assert result.accuracy == pytest.approx(kept.in_world(0, column="accuracy").mean())
    assert 0.8 < result.accuracy <= 1.0
    assert result.to_dict()["accuracy"] == result.accuracy


@pytest.mark.parametrize(("kind", "name"), [("cnn-nasr-2021", "NasrCnn"), ("cnn-bernau-2021", "BernauCnn")])
def test_a_convolutional_network_is_what_it_says_and_plays(play, settings, kind, name, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 784), dtype=np.float32), np.arange(40) % 10
    pictures = data.LoadedData(
        name="pictures", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], classes=10,
        image_shape=(1, 28, 28), citation="", licence="",
    )  # fmt: skip
    monkeypatch.setattr(data, "load", lambda name, *, data_dir: pictures)
    made = settings(data={"name": f"pictures for {kind}", "rows": None}, model={"kind": kind},
                    training={"steps": 1}, audit={"trials": 4})  # fmt: skip
    assert type(prepare(made).network).__name__ == name
    assert len(play(made).adversaries[0].scores.world0) == 2


@pytest.mark.parametrize("kind", ["cnn-nasr-2021", "cnn-bernau-2021"])
def test_pictures_too_small_for_a_convolution_are_named_before_training(settings, kind):
    with pytest.raises(UnsupportedError, match=rf"model.kind = '{kind}' does not fit pictures of \(1, 8, 8\)"):
        prepare(settings(data={"name": "digits"}, model={"kind": kind}))


def test_convolution_needs_pictures(settings):
    with pytest.raises(UnsupportedError, match="needs pictures"):
        prepare(settings(model={"kind": "cnn-bernau-2021"}))


def test_a_missing_gpu_is_named(play, settings):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(InvalidInputError, match="device = 'cuda'"):
        play(settings(), execution=Execution(device="cuda"))


def test_a_store_without_trials_of_an_audit_has_no_result(settings, play, tmp_path, monkeypatch):
    """The audit is known before its first block is played."""
    monkeypatch.setattr(Game, "play", lambda *_, **__: None)
    with pytest.raises(StoreError, match="no trials of this audit yet"):
        play(settings())
    with Store.open(tmp_path / "a.db") as store, pytest.raises(StoreError, match="no trials of this audit yet"):
        stored_result(store, store.runs()[0].fingerprint)
