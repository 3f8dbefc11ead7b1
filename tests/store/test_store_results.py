"""Results without trials: kept once and whole, found again, never changed unnoticed; older stores get the table."""

import signal
import sqlite3
import stat
import subprocess
import sys

import pytest

from coalmine.errors import InvalidInputError, StoreError
from coalmine.store import SCHEMA_VERSION, Store, results

SUMMARY = {"subject": "a step", "outcome": "refuted", "size": 2}


def kept(store, number=0, **labels):
    return results.keep(store, "probe", summary=SUMMARY, report={"number": number}, **labels)


def changed(path, statement):
    database = sqlite3.connect(path)
    with database:
        database.execute(statement)
    database.close()


def test_a_result_is_kept_listed_read_and_removed(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as store:
        first, second = kept(store, 1), kept(store, 2, name="nightly", tags=["a", "b"])
        assert [one.fingerprint for one in results.every(store)] == [second, first]
        entry = results.find(store, second[:10])
        assert (entry.kind, entry.name, entry.tags, entry.summary) == ("probe", "nightly", ("a", "b"), SUMMARY)
        assert results.read(store, second).report == {"number": 2}
        assert results.find(store, "ab" * 32) is None
        assert store.verify() == ()
        assert results.remove(store, first).fingerprint == first
        assert len(results.every(store)) == 1
        with pytest.raises(StoreError, match="has no result"):
            results.read(store, first)
    assert stat.S_IMODE((tmp_path / "coalmine.db").stat().st_mode) == 0o600


def test_the_same_again_changes_its_labels_alone(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as store:
        mark = kept(store, name="first", tags=["a"])
        [before] = results.every(store)
        assert kept(store, tags=["b"]) == mark
        assert kept(store, name="second") == mark
        [after] = results.every(store)
    assert (after.name, after.tags, after.created) == ("second", ("a", "b"), before.created)


def test_wrong_input_is_refused_in_words(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as store:
        with pytest.raises(InvalidInputError, match="kind ="):
            results.keep(store, "audit", summary={}, report={})
        with pytest.raises(InvalidInputError, match="plain JSON types"):
            results.keep(store, "probe", summary={}, report={"nan": float("nan")})
        with pytest.raises(InvalidInputError, match="name ="):
            kept(store, name="a\nb")
        with pytest.raises(InvalidInputError, match="result ="):
            results.read(store, "'; DROP TABLE result; --")
        assert results.find(store, "'; DROP TABLE result; --") is None
        assert results.every(store) == ()
        marks = [kept(store, number) for number in range(40)]
        digit = next(mark[0] for mark in marks if sum(other[0] == mark[0] for other in marks) > 1)
        with pytest.raises(StoreError, match="stands for several results"):
            results.find(store, digit)
        store.register(marks[0][:20] + 44 * "0", {})
        assert results.find(store, marks[0]).fingerprint == marks[0]
        with pytest.raises(StoreError, match=r"stands for run .* and probe result .*: give more of it"):
            results.find(store, marks[0][:20])


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE result SET report = '{\"number\": 3}'",
        "UPDATE result SET summary = replace(summary, 'refuted', 'consistent')",
        "UPDATE result SET kind = 'one-run'",
    ],
)
def test_a_result_that_was_changed_is_refused(tmp_path, statement):
    path = tmp_path / "coalmine.db"
    with Store.open(path) as store:
        mark = kept(store)
    changed(path, statement)
    with Store.open(path, read_only=True) as store:
        with pytest.raises(StoreError, match="damaged or was changed"):
            results.read(store, mark)
        assert store.verify() == (f"result {mark[:12]} is damaged or was changed",)


def as_version_four(path):
    with Store.open(path) as store:
        store.register("c0ffee00", {})
        store.record_audit("ab" * 32, {"old": True}, members={"c0ffee00": 4}, name="before")
    changed(path, "DROP TABLE result")
    changed(path, "PRAGMA user_version = 4")


def version(path):
    database = sqlite3.connect(path)
    found = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return found


def test_a_store_of_version_four_gets_the_table_and_keeps_what_it_has(tmp_path):
    path = tmp_path / "coalmine.db"
    as_version_four(path)
    with Store.open(path, read_only=True) as store:
        assert results.every(store) == ()
        with pytest.raises(StoreError):
            store.audit("ffff")
    assert version(path) == 4  # read-only: extended in memory alone
    with Store.open(path) as store:
        mark = kept(store)
        assert store.audit("ab" * 32) == {"old": True}
        assert results.read(store, mark).report == {"number": 0}
        assert store.verify() == ()
    assert version(path) == SCHEMA_VERSION == 5


KEEPER = """
import sys
from coalmine.store import Store, results
with Store.open(sys.argv[1]) as store:
    for number in range(10**6):
        print(results.keep(store, "probe", summary={}, report={"number": number, "long": "x" * 20000}), flush=True)
"""


def test_a_killed_process_leaves_whole_results(tmp_path):
    path = tmp_path / "coalmine.db"
    with subprocess.Popen([sys.executable, "-c", KEEPER, path], stdout=subprocess.PIPE, text=True) as keeper:
        said = [keeper.stdout.readline().strip() for _ in range(5)]
        keeper.kill()
        said += keeper.communicate()[0].split()
    assert keeper.returncode == -signal.SIGKILL
    with Store.open(path) as store:
        there = {one.fingerprint for one in results.every(store)}
        assert store.verify() == ()
    whole = {one for one in said if len(one) == 64}
    assert whole <= there
    assert len(there) <= len(whole) + 1


def test_a_result_is_found_by_its_name(tmp_path):
    with Store.open(tmp_path / "coalmine.db") as store:
        first = results.keep(store, "probe", summary={"outcome": "refuted"}, report={"n": 1}, name="nightly")
        assert results.called(store, "nightly").fingerprint == first
        assert results.called(store, first[:10]).fingerprint == first
        assert results.find(store, "nightly") is None
        assert results.called(store, "weekly") is None
        second = results.keep(store, "probe", summary={"outcome": "refuted"}, report={"n": 2}, name="nightly")
        with pytest.raises(StoreError, match="2 results are called 'nightly'") as caught:
            results.called(store, "nightly")
        assert first[:12] in str(caught.value)
        assert second[:12] in str(caught.value)
