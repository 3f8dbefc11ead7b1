"""Files that are not a store, newer, damaged, full, locked or read-only: a clear error, nothing deleted."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from store_worker import block_result

from coalmine.cli import main
from coalmine.errors import StoreError
from coalmine.store import SCHEMA_VERSION, Store, _database

RUN = "0123456789abcdef"


def filled(path, blocks=50):
    with Store.open(path) as store:
        store.register(RUN, {})
        for index in range(blocks):
            store.put(RUN, index, block_result(index))
    return path


def test_settings_of_the_file(tmp_path):
    with Store.open(tmp_path / "a.db") as store:
        get = lambda name: store._database.execute(f"PRAGMA {name}").fetchone()[0]  # noqa: E731
        assert get("journal_mode") == "wal"
        assert get("user_version") == SCHEMA_VERSION
        assert get("application_id") == 0x636F616C
        store.register(RUN, {})
        assert get("synchronous") == 2  # FULL
        store.claim(RUN, [0])
        store.put(RUN, 0, block_result(0))
        assert get("synchronous") == 2


def test_a_newer_store_is_refused_untouched(tmp_path):
    path = filled(tmp_path / "a.db", 1)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 7")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=rf"newer Coalmine \(store version 7, .* {SCHEMA_VERSION}\); upgrade"):
        Store.open(path)
    assert path.read_bytes() == before


def test_what_is_not_a_store_is_refused_untouched(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("my notes\n" * 1000)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(text)
    assert text.read_text() == "my notes\n" * 1000
    other = tmp_path / "other.db"
    database = sqlite3.connect(other)
    database.execute("CREATE TABLE run (x)")
    database.close()
    before = other.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(other)
    assert other.read_bytes() == before
    with pytest.raises(StoreError, match="this is a folder"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="is not there"):
        Store.open(tmp_path / "no" / "a.db")
    with pytest.raises(StoreError, match="no such file"):
        Store.open(tmp_path / "a.db", create=False)
    assert not (tmp_path / "a.db").exists()


def test_an_empty_file_becomes_a_store(tmp_path):
    path = tmp_path / "a.db"
    path.touch()
    assert filled(path, 1).stat().st_size > 0


@pytest.mark.parametrize("where", ["pages", "header", "truncated"])
def test_a_damaged_file_is_reported_and_kept(tmp_path, where):
    path = filled(tmp_path / "a.db")
    content = bytearray(path.read_bytes())
    if where == "pages":
        content[4096:] = b"\xa5" * (len(content) - 4096)
    elif where == "header":
        content[20:100] = b"\xff" * 80
    else:
        del content[len(content) // 2 :]
    path.write_bytes(content)

    def use():
        with Store.open(path) as store:
            store.scores(RUN)

    with pytest.raises(StoreError, match=r"damaged|not a database"):
        use()
    assert path.read_bytes() == content


def test_one_flipped_bit_in_the_scores_is_noticed(tmp_path):
    path = filled(tmp_path / "a.db")
    content = bytearray(path.read_bytes())
    at = content.index(block_result(17).score.tobytes())
    content[at + 11] ^= 4
    path.write_bytes(content)
    with Store.open(path) as store:
        with pytest.raises(StoreError, match="block 17 is damaged"):
            store.scores(RUN)
        (problem,) = store.verify()
        assert "block 17" in problem
        with pytest.raises(StoreError, match="block 17 is damaged"):
            store.put(RUN, 17, block_result(17))


def test_a_full_disk_loses_nothing_and_goes_on_afterwards(tmp_path):
    path = filled(tmp_path / "a.db", 5)
    with Store.open(path) as store:
        pages = store._database.execute("PRAGMA page_count").fetchone()[0]
        store._database.execute(f"PRAGMA max_page_count = {pages + 2}")
        stored = 5

        def fill():
            nonlocal stored
            for index in range(5, 500):
                store.put(RUN, index, block_result(index))
                stored += 1

        with pytest.raises(StoreError, match="disk is full; free some space"):
            fill()
        assert 5 < stored < 500
        assert store.done(RUN) == set(range(stored))
        store._database.execute("PRAGMA max_page_count = 1000000")
        assert store.put(RUN, stored, block_result(stored)) is True
        assert store.verify() == ()
    with Store.open(path) as store:
        assert store.done(RUN) == set(range(stored + 1))


def test_a_write_limit_of_the_system_loses_nothing(tmp_path):
    """RLIMIT_FSIZE makes write() itself fail, as a real full disk does."""
    path = filled(tmp_path / "a.db", 5)
    code = f"""
import resource, signal, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from store_worker import block_result
from coalmine.store import Store
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
try:
    for index in range(5, 500):
        store.put({RUN!r}, index, block_result(index))
        print(index, flush=True)
except Exception as error:
    print(type(error).__name__, error)
"""
    out = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout
    *stored, last = out.splitlines()
    assert last.startswith("StoreError")
    assert "nothing already stored is lost" in last
    with Store.open(path) as store:
        assert store.done(RUN) == set(range(5 + len(stored)))
        assert store.verify() == ()


def test_a_locked_file_is_waited_for_then_reported(tmp_path, monkeypatch):
    path = filled(tmp_path / "a.db", 1)
    monkeypatch.setattr(_database, "BUSY_SECONDS", 0.2)
    with Store.open(path) as store:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        assert store.done(RUN) == {0}
        with pytest.raises(StoreError, match="another process kept the file locked"):
            store.put(RUN, 1, block_result(1))
        holder.execute("ROLLBACK")
        holder.close()
        assert store.put(RUN, 1, block_result(1)) is True


@pytest.mark.skipif(sys.platform != "linux", reason="changes its user as Linux allows")
def test_a_folder_that_cannot_be_written(request):
    folder = Path(tempfile.mkdtemp())  # not tmp_path: another user must be able to reach it
    request.addfinalizer(lambda: shutil.rmtree(folder))
    path = filled(folder / "old.db", 1)
    path.chmod(0o444)
    folder.chmod(0o555)
    code = """
import os, sys
from coalmine.store import BlockResult, Store
from coalmine.errors import StoreError
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
for name in ("new.db", "old.db"):
    try:
        with Store.open(os.path.join(sys.argv[1], name)) as store:
            store.register("aa" * 8, {})
        print("written")
    except StoreError as error:
        print(error)
"""
    out = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True).stdout
    folder.chmod(0o755)
    new, old = out.splitlines()
    assert "cannot be opened or made; is the folder there, and may you write in it?" in new
    assert "write" in old
    assert "written" not in (new, old)
    assert filled(path, 1) == path


def test_random_damage_never_gives_a_wrong_score_or_a_traceback(tmp_path):
    path = filled(tmp_path / "a.db", 40)
    whole, rng = path.read_bytes(), np.random.default_rng(3)
    expected = np.concatenate([block_result(index).score for index in range(40)])
    outcomes = {"right": 0, "refused": 0}
    for _ in range(120):
        content = bytearray(whole)
        for at in rng.integers(0, len(content), size=rng.integers(1, 40)):
            content[at] ^= 1 << rng.integers(8)
        path.write_bytes(content)
        try:
            with Store.open(path) as store:
                found = store.scores(RUN)
                store.runs()
                store.failures(RUN)
                store.verify()
            if len(found) == 320:  # damage may hide rows, whose blocks are then not done; it must not change a score
                outcomes["right"] += 1
            assert np.array_equal(found.score, expected[found.trial])
        except StoreError:
            outcomes["refused"] += 1
        for extra in ("-wal", "-shm"):
            path.with_name(path.name + extra).unlink(missing_ok=True)
    assert outcomes["refused"] > 40
    assert outcomes["right"] > 0


def test_text_that_is_none_is_damage_and_is_not_quoted(tmp_path, capsys):
    """SQLite's own words would show it, whatever it is."""
    path = tmp_path / "a.db"
    with Store.open(path) as store:
        store.register("c0ffee00c0ffee00", {})
        store.record_audit("beefbeefbeefbeef", {}, members={"c0ffee00c0ffee00": 4}, name="x")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE label SET name = CAST(x'736563726574fffe' AS TEXT)")
    database.close()
    assert main(["runs", "list", "--store", str(path)]) == 2
    words = capsys.readouterr().err
    assert "the file is damaged" in words
    assert "secret" not in words
