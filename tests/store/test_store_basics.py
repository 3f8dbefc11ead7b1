"""Runs, blocks, order, idempotence, failures."""

import numpy as np
import pytest

from coalmine.errors import CoalmineError, InvalidInputError, StoreError
from coalmine.store import BlockResult, Store
from coalmine.store.listing import audits

RUN = "ab" * 32
OTHER = "ac" * 32


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as opened:
        opened.register(RUN, {"seed": 1})
        yield opened


def block(first, n=4, *, device="cpu", shift=0.0, **more):
    trial = np.arange(first, first + n)
    score = more.pop("score", trial / 7 + shift)
    return BlockResult(trial=trial, world=trial % 2, score=score, elapsed=0.5, device=device, **more)


def test_scores_come_back_bit_for_bit_in_the_order_of_the_trial(store):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=12) * 10.0 ** rng.integers(-300, 300, 12)
    scores[:2] = [-0.0, 5e-324]
    order = [2, 0, 1]
    for index in order:
        part = slice(4 * index, 4 * index + 4)
        shuffled = rng.permutation(4)
        trial = np.arange(12)[part][shuffled]
        store.put(
            RUN,
            index,
            BlockResult(
                trial=trial,
                world=trial % 2,
                score=scores[part][shuffled],
                elapsed=0.25,
                device="cpu",
                columns={"loss": trial * 1.5},
            ),
        )
    found = store.scores(RUN)
    assert found.trial.tolist() == list(range(12))
    assert found.score.tobytes() == scores.tobytes()
    assert found.world.tolist() == [0, 1] * 6
    assert found.columns["loss"].tolist() == [1.5 * i for i in range(12)]
    assert found.in_world(1).tolist() == scores[1::2].tolist()
    assert found.in_world(0, column="loss").tolist() == [1.5 * i for i in range(0, 12, 2)]
    assert (found.elapsed, found.devices, len(found), found.failed) == (0.75, ("cpu",), 12, 0)
    assert store.scores(RUN, below=5).trial.tolist() == [0, 1, 2, 3, 4]
    assert store.scores(RUN, below=0).score.size == 0
    with pytest.raises(InvalidInputError, match="loss"):
        found.in_world(0, column="lost")


def test_an_empty_run_has_empty_scores(store):
    found = store.scores(RUN)
    assert (len(found), found.devices, found.elapsed, store.done(RUN)) == (0, (), 0.0, set())
    assert found.trial.dtype == np.int64
    assert found.world.dtype == np.int8
    assert found.score.dtype == np.float64


def test_put_is_idempotent_and_the_first_one_stays(store):
    assert store.put(RUN, 0, block(0)) is True
    assert store.put(RUN, 0, block(0)) is False
    assert store.done(RUN) == {0}
    with pytest.raises(StoreError, match="other scores"):
        store.put(RUN, 0, block(0, shift=1e-12))
    assert store.put(RUN, 0, block(0, device="cuda", shift=1e-12)) is False
    with pytest.raises(StoreError, match="other trials"):
        store.put(RUN, 0, block(0, n=5, device="cuda"))
    assert store.scores(RUN).score.tolist() == (np.arange(4) / 7).tolist()
    assert store.scores(RUN).devices == ("cpu",)


def test_the_same_failure_twice_is_the_same_block(store):
    nan = block(0, score=[0.0, np.nan, 1.0, 2.0], failures={1: "loss is NaN"})
    assert store.put(RUN, 0, nan) is True
    assert store.put(RUN, 0, nan) is False


def test_a_trial_in_two_blocks_is_found(store):
    store.put(RUN, 0, block(0))
    store.put(RUN, 1, block(3))
    with pytest.raises(StoreError, match=r"trial 3 .* twice"):
        store.scores(RUN)


def test_blocks_with_different_columns_are_found(store):
    store.put(RUN, 0, block(0, columns={"loss": np.zeros(4)}))
    store.put(RUN, 1, block(4))
    with pytest.raises(StoreError, match="different columns"):
        store.scores(RUN)


def test_runs_are_found_by_prefix_and_removed_with_their_trials(store):
    store.register(OTHER, {"seed": 2, "name": "µ"})
    store.put(RUN, 0, block(0))
    store.put(OTHER, 0, block(0))
    store.put(OTHER, 1, block(4, device="cuda"))
    assert [run.fingerprint for run in store.runs()] == [RUN, OTHER]
    run = store.run("ac")
    assert (run.blocks, run.trials, run.elapsed, run.devices) == (2, 8, 1.0, ("cpu", "cuda"))
    assert run.description == {"seed": 2, "name": "µ"}
    assert run.to_dict()["devices"] == ["cpu", "cuda"]
    with pytest.raises(StoreError, match="several runs"):
        store.run("a")
    with pytest.raises(StoreError, match=f"no run.*{RUN[:12]}"):
        store.run("ff")
    with pytest.raises(InvalidInputError, match="fingerprint"):
        store.run("a%")
    assert store.remove("ac").trials == 8
    assert [run.fingerprint for run in store.runs()] == [RUN]
    assert store.done(OTHER) == set()
    assert store._database.execute("SELECT count(*) FROM block").fetchone()[0] == 1


def test_what_is_said_of_a_run_is_written_once(store):
    store.put(RUN, 0, block(0))
    store.register(RUN, {"seed": 2})
    assert store.run(RUN).description == {"seed": 1}
    assert store.done(RUN) == {0}
    assert store.knows(RUN)
    assert not store.knows(OTHER)


def test_audits_name_their_runs_and_how_many_trials_each_should_have(store):
    first, second = "01" * 32, "02" * 32
    store.register(OTHER, {"seed": 2})
    store.record_audit(first, {"claim": 1}, members={RUN: 100})
    store.record_audit(second, {"claim": 2}, members={RUN: 64, OTHER: 32})
    assert store.run(RUN).wanted == 100
    assert store.run(OTHER).wanted == 32
    assert store.audit(first) == {"claim": 1}
    assert store.audit(RUN[:6]) == store.audit(OTHER) == {"claim": 2}  # of a run, the last audit that used it
    store.record_audit(first, {"claim": 3}, members={RUN: 100})  # asked again: used now, but written once
    assert store.audit(RUN) == {"claim": 1}
    assert [one.fingerprint for one in audits(store)] == [first, second]
    assert audits(store)[0].used >= audits(store)[0].created
    store.put(RUN, 0, block(0, n=8))
    assert store.run(RUN).trials == 8
    store.remove(RUN)
    assert [one.fingerprint for one in audits(store)] == [first, second]
    with pytest.raises(StoreError, match="is no run of this store"):
        store.audit(RUN)
    assert store.audit(OTHER) == {"claim": 2}


def test_an_audit_of_a_run_that_is_not_there_is_refused_as_a_whole(store):
    with pytest.raises(StoreError, match="register it first"):
        store.record_audit("01" * 32, {}, members={RUN: 16, OTHER: 16})
    assert audits(store) == ()
    assert store.audit(RUN) is None


def test_the_name_of_a_run_is_never_taken_for_that_of_an_audit(store):
    """Both begin with the same digits; what a user types is the beginning of a run's name."""
    store.register(OTHER, {})
    store.record_audit(RUN[:8] + "00" * 28, {"about": "the other run"}, members={OTHER: 4})
    assert store.audit(RUN[:8]) is None


def test_failed_blocks_are_reported_and_not_done(store):
    store.claim(RUN, [0, 1])
    store.fail(RUN, 0, "out of memory")
    store.fail(RUN, 0, "NaN in step 3")
    store.put(RUN, 1, block(4, score=[1.0, np.nan, 2.0, 3.0], failures={5: "diverged"}))
    assert store.done(RUN) == {1}
    assert [(f.block, f.trial, f.reason, f.attempts) for f in store.failures(RUN)] == [
        (0, None, "NaN in step 3", 2),
        (1, 5, "diverged", 1),
    ]
    assert (store.run(RUN).failed_blocks, store.run(RUN).failed_trials) == (1, 1)
    assert store.scores(RUN).failed == 1
    assert store.claim(RUN, [0]) == (0,)
    store.put(RUN, 0, block(0))
    assert [f.block for f in store.failures(RUN)] == [1]
    assert store.done(RUN) == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"world": [0, 1, 2]}, "world = 2"),
        ({"world": [0, 1]}, "world has shape"),
        ({"trial": [0, 0, 1]}, "twice"),
        ({"trial": [0, -1, 1]}, "trial = -1"),
        ({"trial": [0.0, 1.0, 2.0]}, "trial is not allowed"),
        ({"trial": [], "world": [], "score": []}, "trial is empty"),
        ({"score": [0.0, 1.0, float("nan")]}, "score of trial 2 = nan"),
        ({"score": [0.0, 1.0, float("inf")]}, "score of trial 2 = inf"),
        ({"score": ["a", "b", "c"]}, "score is not allowed"),
        ({"failures": {9: "why"}}, "trial 9"),
        ({"failures": {1: "why"}}, "expected NaN"),
        ({"elapsed": -1.0}, "elapsed = -1"),
        ({"device": 3}, "device = 3"),
        ({"columns": {"loss": [1.0]}}, r"loss has shape"),
        ({"world": [[0], [1], [0]]}, "world is not allowed"),
    ],
)
def test_bad_blocks_are_refused(change, message):
    good = {"trial": [0, 1, 2], "world": [0, 1, 0], "score": [0.0, 1.0, 2.0], "elapsed": 1.0, "device": "cpu"}
    BlockResult(**good)
    with pytest.raises(InvalidInputError, match=message):
        BlockResult(**{**good, **change})


def test_bad_arguments_are_refused(store):
    for bad in ("", "xyz", "AB" * 32, "ab", 3, None):
        with pytest.raises(InvalidInputError, match="fingerprint"):
            store.register(bad, {})
    with pytest.raises(InvalidInputError, match="description"):
        store.register(RUN, {"epsilon": float("nan")})
    with pytest.raises(InvalidInputError, match="description"):
        store.register(RUN, {"object": object()})
    with pytest.raises(InvalidInputError, match="block = -1"):
        store.put(RUN, -1, block(0))
    for call in (store.scores, store.failures, store.renew, store.release):
        with pytest.raises(StoreError, match="register it first"):
            call(OTHER)
    with pytest.raises(StoreError, match="register it first"):
        store.put(OTHER, 0, block(0))
    assert issubclass(StoreError, CoalmineError)
    assert issubclass(StoreError, ValueError)
    assert store.done(RUN) == set()


def test_many_blocks_in_one_transaction_and_a_contradiction_spares_the_others(store):
    assert store.put_many(RUN, {0: block(0), 1: block(4)}) == (0, 1)
    store.claim(RUN, [2, 3], limit=2)
    with pytest.raises(StoreError, match="block 1 is stored with other scores"):
        store.put_many(RUN, {2: block(8), 1: block(4, shift=1.0), 3: block(12)})
    assert store.done(RUN) == {0, 1, 2, 3}
    assert store.renew(RUN) == ()
    assert store.scores(RUN).score.tolist() == (np.arange(16) / 7).tolist()
    assert store.put_many(RUN, {}) == ()
