"""Lists of what a store holds: names and tags, ends, progress, workers, and pages of trials."""

import json
import os
import sqlite3
import time

import numpy as np
import pytest

from coalmine.errors import InvalidInputError
from coalmine.store import BlockResult, Store, listing

RUN, AUDIT = "c0ffee00c0ffee00", "beefbeefbeefbeef"


def block(number, *, size=10, failed=()):
    trial = np.arange(number * size, (number + 1) * size)
    score = trial / 10.0
    score[list(failed)] = np.nan
    lost = {int(trial[place]): "no memory" for place in failed}
    return BlockResult(
        trial=trial, world=trial % 2, score=score, elapsed=2.0, device=f"cpu {number % 2}", failures=lost
    )


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "a.db") as opened:
        opened.register(RUN, {})
        opened.record_audit(AUDIT, {"what": "an audit"}, members={RUN: 45})
        yield opened


def test_names_are_replaced_and_tags_added_without_another_audit(store):
    (entry,) = listing.audits(store)
    assert (entry.name, entry.tags, entry.conclusion) == ("", (), None)
    assert entry.members == {RUN: 45}
    store.record_audit(AUDIT, {"what": "an audit"}, members={RUN: 45}, name="first", tags=["a", "b"])
    store.record_audit(AUDIT, {"what": "an audit"}, members={RUN: 45}, tags=["b", "c"])
    (entry,) = listing.audits(store)
    assert (entry.name, entry.tags) == ("first", ("a", "b", "c"))
    store.record_audit(AUDIT, {"what": "an audit"}, members={RUN: 45}, name="second")
    (entry,) = listing.audits(store)
    assert (entry.fingerprint, entry.name, entry.tags) == (AUDIT, "second", ("a", "b", "c"))
    assert store.audit(AUDIT) == {"what": "an audit"}


def test_how_it_ended_is_kept_and_replaced(store):
    store.keep_conclusion(AUDIT, {"outcome": "consistent"})
    store.keep_conclusion(AUDIT, {"outcome": "refuted"})
    assert listing.audits(store)[0].conclusion == {"outcome": "refuted"}
    with pytest.raises(InvalidInputError):
        store.keep_conclusion(AUDIT, {"epsilon": float("nan")})


CHANGED = {
    "another verdict": lambda text: text.replace("refuted", "consistent"),
    "a form without checksum": lambda text: json.dumps({"outcome": "consistent"}),
    "no text": lambda text: json.dumps({"checksum": json.loads(text)["checksum"], "summary": 5}),
    "no JSON": lambda text: text[:-1],
    "a list": lambda text: "[1]",
    "deep JSON": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("how", CHANGED)
def test_an_end_that_was_changed_by_hand_is_not_told(store, how):
    store.keep_conclusion(AUDIT, {"outcome": "refuted"})
    with sqlite3.connect(store.path) as database:
        (text,) = database.execute("SELECT summary FROM conclusion").fetchone()
        database.execute("UPDATE conclusion SET summary = ?", (CHANGED[how](text),))
    database.close()
    assert listing.audits(store)[0].conclusion is None


def test_the_end_of_another_audit_is_not_told(store):
    other = "facefacefaceface"
    store.record_audit(other, {"what": "another"}, members={RUN: 45})
    store.keep_conclusion(AUDIT, {"outcome": "refuted"})
    store.keep_conclusion(other, {"outcome": "consistent"})
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE conclusion SET summary = (SELECT max(summary) FROM conclusion)")
    database.close()
    known = [one.conclusion for one in listing.audits(store)]
    assert sorted(map(bool, known)) == [False, True]


def test_progress_counts_trials_failures_and_what_came_lately(store):
    before = time.time()
    store.put_many(RUN, {0: block(0, failed=(1,)), 1: block(1), 3: block(3)})
    store.fail(RUN, 2, "no such file")
    found = listing.progress(store, [RUN, "abcdabcd"])
    assert found["abcdabcd"] == listing.Progress()
    mine = found[RUN]
    assert (mine.trials, mine.failed, mine.failed_blocks, mine.elapsed) == (30, 1, 1, 6.0)
    assert mine.devices == ("cpu 0", "cpu 1")
    assert mine.recent == 30
    assert before <= mine.first <= mine.last <= time.time()
    assert listing.progress(store, [RUN], window=1e-9)[RUN].recent == 0


def test_workers_are_those_that_hold_leases(store):
    assert listing.workers(store) == ()
    store.claim(RUN, range(5), limit=3)
    store.say(RUN, "3 nodes")
    (worker,) = listing.workers(store, [RUN])
    assert (worker.run, worker.pid, worker.blocks, worker.status) == (RUN, os.getpid(), 3, "3 nodes")
    assert listing.workers(store, ["abcdabcd"]) == ()
    store.release(RUN)
    assert listing.workers(store) == ()


@pytest.mark.parametrize(("start", "count"), [(0, 7), (5, 10), (9, 1), (10, 10), (25, 100), (40, 5), (0, 1000)])
def test_a_page_of_trials_is_a_slice_of_all(store, start, count):
    store.put_many(RUN, {number: block(number) for number in (0, 1, 3)})
    whole = store.scores(RUN)
    part, total = listing.trials(store, RUN, start=start, count=count)
    assert total == 30
    assert part.trial.tolist() == whole.trial[start : start + count].tolist()
    assert part.score.tolist() == whole.score[start : start + count].tolist()


def test_changes_are_noticed_from_another_connection(store):
    with Store.open(store.path, read_only=True) as reader:
        before = listing.changes(reader)
        assert listing.changes(reader) == before
        store.put(RUN, 0, block(0))
        assert listing.changes(reader) != before


def test_runs_without_an_audit_are_named(store):
    store.register("abcdabcd", {})
    assert listing.unclaimed(store) == ("abcdabcd",)


def test_labels_that_somebody_changed_by_hand_are_left_out(store):
    store.record_audit(AUDIT, {"what": "an audit"}, members={RUN: 45}, name="a", tags=["b"])
    database = sqlite3.connect(store.path)
    with database:
        database.execute("UPDATE label SET tags = '5'")
    database.close()
    assert listing.audits(store)[0].tags == ()
