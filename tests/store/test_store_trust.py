"""A store that is deleted, replaced, read-only, foreign or very large."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from store_worker import block_result
from test_store_first_version import FIRST_VERSION
from test_store_first_version import RUN as OLD

from coalmine.cli import main
from coalmine.errors import StoreError
from coalmine.store import BlockResult, Store, _database
from coalmine.store._blob import _checksum, pack

RUN = "0123456789abcdef"


def filled(path, blocks=20):
    with Store.open(path) as store:
        store.register(RUN, {"versions": {"coalmine": "1"}})
        store.put_many(RUN, {index: block_result(index) for index in range(blocks)})
    return path


@pytest.mark.parametrize("name", [":memory:", "file:a.db", "file::memory:?cache=shared"])
def test_names_that_mean_something_else_to_sqlite_are_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="expected the path of a file"):
        Store.open(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["deleted", "replaced", "moved"])
def test_a_store_that_goes_away_during_a_run_is_noticed(tmp_path, how):
    path = filled(tmp_path / "a.db")
    with Store.open(path) as store:
        if how == "deleted":
            path.unlink()
        elif how == "replaced":
            shutil.copy(path, tmp_path / "b.db")
            (tmp_path / "b.db").replace(path)
        else:
            path.rename(tmp_path / "c.db")
        for use in (
            lambda: store.put(RUN, 50, block_result(50)),
            lambda: store.claim(RUN, [50]),
            lambda: store.scores(RUN),
        ):
            with pytest.raises(StoreError, match="was deleted, moved or replaced while it was in use"):
                use()


def test_each_block_keeps_the_versions_that_made_it(tmp_path):
    path = filled(tmp_path / "a.db", blocks=2)
    with Store.open(path) as store:
        store.put_many(RUN, {2: block_result(2), 3: block_result(3)}, made={"coalmine": "1", "numpy": "2"})
        store.register(RUN, {"versions": {"coalmine": "2"}})
        store.put_many(RUN, {4: block_result(4)}, made={"coalmine": "2"})
        run = store.run(RUN)
    assert run.description == {"versions": {"coalmine": "1"}}
    assert run.made == (({"coalmine": "1", "numpy": "2"}, 2), ({"coalmine": "2"}, 1))


# ---- where nothing can be written -------------------------------------------------------------------------------


@pytest.fixture
def read_only(monkeypatch):
    """SQLite as it is on a read-only disk (root may write anywhere): only what is opened as immutable opens."""
    connect = _database.sqlite3.connect

    class Refused(_database.sqlite3.OperationalError):
        sqlite_errorcode = _database.sqlite3.SQLITE_CANTOPEN

    def refuse(target, *args, **options):
        if "immutable=1" in str(target) or str(target) == ":memory:":
            return connect(target, *args, **options)
        raise Refused("unable to open database file")

    monkeypatch.setattr(_database.sqlite3, "connect", refuse)


def test_a_store_on_a_read_only_disk_is_listed_and_read(tmp_path, read_only, capsys):
    path = tmp_path / "ünder way?.db"
    made = subprocess.run(
        [sys.executable, "-c", "import sys\nfrom test_store_trust import filled\nfilled(sys.argv[1])", str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}, check=False,
    )  # fmt: skip
    assert made.returncode == 0
    with Store.open(path, create=False, read_only=True) as store:
        assert len(store.scores(RUN)) > 0
        with pytest.raises(StoreError, match="cannot be written"):
            store.put(RUN, 50, block_result(50))
    with pytest.raises(StoreError, match="cannot be opened or made"):
        Store.open(path)
    assert main(["runs", "list", "--store", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["run"] == RUN
    assert main(["runs", "show", RUN[:6], "--store", str(path)]) == 0


def test_an_older_store_on_a_read_only_disk_is_read_too(tmp_path, read_only):
    path = tmp_path / "old.db"
    script = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1])\nd.executescript(sys.argv[2])\nd.close()"
    subprocess.run([sys.executable, "-c", script, str(path), FIRST_VERSION], check=True)
    before = path.read_bytes()
    with Store.open(path, create=False, read_only=True) as store:
        assert len(store.scores(OLD)) == 4
    assert path.read_bytes() == before


def test_a_store_that_was_not_closed_says_what_to_copy(tmp_path, read_only):
    path = tmp_path / "a.db"
    path.write_bytes(b"")
    (tmp_path / "a.db-wal").write_bytes(b"something")
    with pytest.raises(StoreError, match=r"copy it together with 'a\.db-wal'"):
        Store.open(path, create=False, read_only=True)


# ---- a store from anybody ---------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\x08\u202eevil"


def test_control_characters_of_a_foreign_store_never_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        attack = {"name": EVIL, "options": {EVIL: EVIL}}
        identity = {"data": {"name": EVIL}, EVIL: EVIL}
        store.register(RUN, {"identity": identity, "attack": attack, "versions": {EVIL: EVIL}})
        score = [0.0, float("nan")]
        block = BlockResult(
            trial=[0, 1], world=[0, 1], score=score, elapsed=0.1, device=EVIL, failures={1: EVIL}
        )  # fmt: skip
        store.put_many(RUN, {0: block}, made={"coalmine": EVIL})
        store.fail(RUN, 1, EVIL)
    for command in (["list"], ["list", "--json"], ["show", RUN], ["show", RUN, "--json"]):
        assert main(["runs", *command, "--store", str(path)]) == 0
        shown = capsys.readouterr()
        bad = {sign for sign in shown.out + shown.err if sign != "\n" and not sign.isprintable()}
        assert bad == set(), command
        assert "evil" in shown.out
        if "--json" in command:
            json.loads(shown.out)


# ---- many trials ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A run of 100,000 blocks of two trials."""
    path = tmp_path_factory.mktemp("many") / "a.db"
    with Store.open(path) as store:
        store.register(RUN, {})
        database = store._database
        database.execute("BEGIN")
        one = BlockResult(trial=[0, 1], world=[0, 1], score=[0.0, 1.0], elapsed=0.1, device="cpu")
        _, columns, _ = pack(RUN, 0, one)
        rows = []
        for block in range(100_000):
            payload = np.array([2 * block, 2 * block + 1], "<i8").tobytes() + b"\0\1" + one.score.tobytes()
            checksum = _checksum(payload, RUN, block, 2, 0.1, "cpu", columns)
            rows.append((block, columns, checksum, payload, 2 * block))
        database.executemany(
            "INSERT INTO block (run, block, trials, failed, elapsed, device, created, columns, checksum, payload,"
            " first) VALUES (1, ?, 2, 0, 0.1, 'cpu', 0.0, ?, ?, ?, ?)",
            rows,
        )
        database.execute("COMMIT")
    return path


def _peak():
    """The most that this process has held, in kB, since ``5`` was last written into its ``clear_refs``."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read as Linux writes it")
def test_reading_a_few_of_many_trials_is_cheap(many):
    with Store.open(many) as store:
        store.scores(RUN, below=10)
        Path("/proc/self/clear_refs").write_text("5")
        before = _peak()
        began = time.process_time()
        trials = store.scores(RUN, below=1000)
        assert time.process_time() - began < 0.1
        assert _peak() - before < 20_000
        assert trials.trial.tolist() == list(range(1000))
        assert sum(len(part) for part in store.parts(RUN, below=5001)) == 5001


def test_claiming_past_many_stored_blocks_never_holds_the_lock_for_long(many):
    with Store.open(many) as store:
        held = []
        writing = store._writing

        def timed(**options):
            @contextlib.contextmanager
            def inside():
                with writing(**options) as database:
                    began = time.process_time()
                    yield database
                    held.append(time.process_time() - began)

            return inside()

        store._writing = timed
        assert store.claim(RUN, range(200_000), limit=3) == (100_000, 100_001, 100_002)
        assert held
        assert max(held) < 0.05
        store.release(RUN)
