"""A store of the first version opens, keeps its runs, and what cannot be judged from it is refused with the reason."""

import json
import sqlite3

import numpy as np
import pytest

from coalmine import cli
from coalmine.auditing.stored import stored_result
from coalmine.errors import StoreError
from coalmine.store import SCHEMA_VERSION, BlockResult, Store
from coalmine.store.listing import audits

RUN = "c0ffee00c0ffee00"
FIRST_VERSION = """
PRAGMA application_id = 1668243820;
PRAGMA user_version = 1;
CREATE TABLE run (
    id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, description TEXT NOT NULL, created REAL NOT NULL
) STRICT;
CREATE TABLE block (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
    trials INTEGER NOT NULL, failed INTEGER NOT NULL, elapsed REAL NOT NULL, device TEXT NOT NULL,
    created REAL NOT NULL, columns TEXT NOT NULL, failures TEXT, checksum INTEGER NOT NULL, payload BLOB NOT NULL,
    UNIQUE (run, block)
) STRICT;
CREATE TABLE failure (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
    reason TEXT NOT NULL, attempts INTEGER NOT NULL, UNIQUE (run, block)
) STRICT;
CREATE TABLE lease (
    run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
    owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL, expires REAL NOT NULL,
    UNIQUE (run, block)
) STRICT;
INSERT INTO run VALUES (1, 'c0ffee00c0ffee00', '{"identity": {"adversary": {"copies": 1, "name": "clipbkd"},
    "data": {"name": "digits"}}, "trials": 32, "versions": {"coalmine": "0.1.0"}}', 1.7e9);
INSERT INTO block VALUES (1, 0, 4, 1, 0.5, 'cpu float32', 1.7e9, '["accuracy"]', '{"3": "not finite"}', 2674199437,
    X'000000000000000001000000000000000200000000000000030000000000000000010001000000000000D03F000000000000F83F000000000000E0BF000000000000F87F000000000000E03F000000000000E83F000000000000D03F000000000000F87F');
"""


@pytest.fixture
def old(tmp_path):
    """The file as the first version wrote it, bytes of a block included."""
    database = sqlite3.connect(tmp_path / "old.db")
    database.executescript("PRAGMA journal_mode = WAL;" + FIRST_VERSION)
    database.close()
    return tmp_path / "old.db"


def version(path):
    database = sqlite3.connect(path)
    found = database.execute("PRAGMA user_version").fetchone()[0]
    database.close()
    return found


def test_it_opens_and_keeps_its_runs(old):
    assert version(old) == 1
    with Store.open(old) as store:
        assert store.verify() == ()
        trials = store.scores(RUN)
        [run] = store.runs()
    assert trials.score.tolist()[:3] == [0.25, 1.5, -0.5]
    assert np.isnan(trials.score[3])
    assert trials.columns["accuracy"].tolist()[:3] == [0.5, 0.75, 0.25]
    assert (run.fingerprint, run.trials, run.failed_trials, run.devices) == (RUN, 4, 1, ("cpu float32",))
    assert version(old) == SCHEMA_VERSION


def test_it_takes_new_blocks_and_new_audits(old):
    with Store.open(old) as store:
        new = BlockResult(trial=[4, 5], world=[0, 1], score=[0.0, 1.0], elapsed=0.1, device="cpu float32",
                          columns={"accuracy": [1.0, 1.0]})  # fmt: skip
        assert store.put(RUN, 1, new) is True
        store.record_audit("ab" * 32, {"new": True}, members={RUN: 6})
    with Store.open(old) as store:
        assert len(store.scores(RUN)) == 6
        assert store.audit(RUN[:8]) == {"new": True}


def test_its_runs_are_listed_but_not_judged_by_guessing(old, capsys):
    assert cli.main(["runs", "list", "--store", str(old), "--json"]) == 0
    [listed] = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["adversary"], listed["data"]) == ({"copies": 1, "name": "clipbkd"}, "digits")
    with Store.open(old) as store, pytest.raises(StoreError, match=r"made by Coalmine 0\.1\.0 before the facts"):
        stored_result(store, RUN)
    page = old.with_name("page.html")
    for command in (["report", RUN[:8], "-o", str(page)], ["runs", "resume", RUN[:8]]):
        assert cli.main([*command, "--store", str(old)]) == 2
        error = capsys.readouterr().err
        assert "run c0ffee00c0ff has no audit in this store" in error
        assert "run the audit again" in error
        assert error.count("\n") == 1
    assert not page.exists()


def test_two_processes_may_open_it_at_once(old):
    """Both find version 1; the tables are added once."""
    from coalmine.store import _database

    first, second = sqlite3.connect(old, isolation_level=None), sqlite3.connect(old, isolation_level=None)
    _database._extend(first)
    _database._extend(second)
    first.close()
    second.close()
    with Store.open(old) as store:
        assert audits(store) == ()
