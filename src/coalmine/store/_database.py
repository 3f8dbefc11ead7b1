"""The SQLite file below the store: its schema, its settings, and its errors in words that a user can act on."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import struct
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from coalmine.errors import StoreError

APPLICATION_ID = 0x636F616C
"""In the file's header, so that another program's database is never taken for a store ("coal" in ASCII)."""
SCHEMA_VERSION = 5
"""Raised whenever the tables change in a way that an older Coalmine would misread."""
BUSY_SECONDS = 60.0
"""How long to wait for another process that is writing; a write takes milliseconds."""

_DAMAGED = (
    "the file is damaged; nothing was deleted: restore it from a copy, or recover what is left with "
    "'sqlite3 FILE .recover', or start a new store under another path"
)

_SCHEMA = (
    """CREATE TABLE run (
        id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, description TEXT NOT NULL, created REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE block (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
        trials INTEGER NOT NULL, failed INTEGER NOT NULL, elapsed REAL NOT NULL, device TEXT NOT NULL,
        created REAL NOT NULL, columns TEXT NOT NULL, failures TEXT, checksum INTEGER NOT NULL, payload BLOB NOT NULL,
        first INTEGER NOT NULL DEFAULT -1, made INTEGER REFERENCES made (id), UNIQUE (run, block)
    ) STRICT""",
    """CREATE TABLE failure (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
        reason TEXT NOT NULL, attempts INTEGER NOT NULL, UNIQUE (run, block)
    ) STRICT""",
    """CREATE TABLE lease (
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, block INTEGER NOT NULL,
        owner TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL, expires REAL NOT NULL,
        UNIQUE (run, block)
    ) STRICT""",
)
_AUDITS = (
    """CREATE TABLE audit (
        id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, description TEXT NOT NULL, created REAL NOT NULL,
        used REAL NOT NULL
    ) STRICT""",
    """CREATE TABLE member (
        audit INTEGER NOT NULL REFERENCES audit (id) ON DELETE CASCADE,
        run INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE, wanted INTEGER NOT NULL, UNIQUE (audit, run)
    ) STRICT""",
)
"""What came with version 2: audits, and which runs belong to them."""
_MADE = "CREATE TABLE made (id INTEGER PRIMARY KEY, versions TEXT NOT NULL UNIQUE) STRICT"
_FIRST = "CREATE INDEX block_first ON block (run, first, block)"
"""What came with version 3: which versions made a block, and its smallest trial, to read a few trials of many."""
_LABELS = (
    """CREATE TABLE label (
        audit INTEGER PRIMARY KEY REFERENCES audit (id) ON DELETE CASCADE, name TEXT NOT NULL, tags TEXT NOT NULL
    ) STRICT""",
    """CREATE TABLE conclusion (
        audit INTEGER PRIMARY KEY REFERENCES audit (id) ON DELETE CASCADE, summary TEXT NOT NULL
    ) STRICT""",
    "ALTER TABLE lease ADD COLUMN status TEXT NOT NULL DEFAULT ''",
)
"""What came with version 4: what people call an audit, how it ended, and where its blocks are being played."""
_RESULTS = """CREATE TABLE result (
        id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, created REAL NOT NULL,
        name TEXT NOT NULL, tags TEXT NOT NULL, summary TEXT NOT NULL, report TEXT NOT NULL
    ) STRICT"""
"""What came with version 5: results without trials. A report is long and comes last, so that lists need not read it."""


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into a :class:`StoreError` that names the file, the cause and what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(f"store {str(path)!r}: {_advice(error)}") from error
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"store {str(path)!r}: {_DAMAGED} (text that cannot be read: {error})") from error


def table(text: object) -> dict[str, Any]:
    """A JSON object from the file. Call within :func:`explained`."""
    found = json.loads(str(text))
    if not isinstance(found, dict):
        raise json.JSONDecodeError("expected an object", str(text), 0)
    return found


def check_path(path: Path) -> bool:
    """Whether there is a file of that name; a folder, or a name that no file can have, is refused."""
    if str(path) == ":memory:" or str(path).startswith("file:"):
        raise StoreError(
            f"store {str(path)!r}: this is SQLite's name for something else; expected the path of a file, because what "
            "is done must stay done"
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:  # too long, no right to look, a part that is no folder, a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"store {str(path)!r}: {reason}; give the path of a file") from None
    if stat.S_ISDIR(mode):
        raise StoreError(f"store {str(path)!r}: this is a folder; expected the path of a file")
    if not stat.S_ISREG(mode):
        raise StoreError(f"store {str(path)!r}: this is a device or a pipe; expected the path of a file")
    return True


def _advice(error: sqlite3.Error) -> str:
    """What went wrong and what to do, by SQLite's (primary) error code."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    safe = "nothing already stored is lost"
    advice = {
        sqlite3.SQLITE_NOTADB: "the file is not a database; give another path (it was not touched)",
        sqlite3.SQLITE_CORRUPT: _DAMAGED,
        sqlite3.SQLITE_FULL: f"the disk is full; free some space and run the same command again: {safe}",
        sqlite3.SQLITE_IOERR: f"the disk could not be read or written (full, removed or faulty?); {safe}, "
        "run the same command again when it is back",
        sqlite3.SQLITE_READONLY: "the file or its folder cannot be written; give another path, or the right to write",
        sqlite3.SQLITE_CANTOPEN: "the file cannot be opened or made; is the folder there, and may you write in it?",
        sqlite3.SQLITE_PERM: "no permission to use the file; give another path, or the right to write there",
        sqlite3.SQLITE_BUSY: f"another process kept the file locked for {BUSY_SECONDS:.0f} seconds; try again: {safe}",
        sqlite3.SQLITE_LOCKED: f"the file is locked; try again: {safe}",
    }.get(primary if primary is not None else -1)
    if advice is None and "decode to UTF-8" in str(error):  # SQLite's words quote the text, which may be anything
        return f"{_DAMAGED} (text that cannot be read)"
    return f"{advice} (SQLite: {error})" if advice else f"SQLite reports: {error}"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """An open connection to a store at ``path``, made if it is not there. Call within :func:`explained`.

    A new store is for its owner's eyes alone. With ``read_only`` nothing is ever written to a store that is there, and
    one in a place that cannot be written opens too.
    """
    there = check_path(path)
    if not path.parent.is_dir():
        raise StoreError(f"store {str(path)!r}: the folder {str(path.parent)!r} is not there; make it first")
    if not there:
        with contextlib.suppress(OSError):  # SQLite meets the same trouble and explains it
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # its -wal and -shm files get the same rights
    if not (read_only and there):
        return _connect(path, path)
    try:
        return _unwritten(path, "mode=ro")
    except sqlite3.OperationalError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            raise
    # On a disk that nobody can write SQLite cannot even make the files by which readers take turns.
    log = path.with_name(path.name + "-wal")
    if log.exists() and log.stat().st_size > 0:
        raise StoreError(
            f"store {str(path)!r}: it was not closed, and this place cannot be written: copy it together with "
            f"{log.name!r} to a folder that can be"
        )
    return _unwritten(path, "mode=ro&immutable=1")


def _connect(path: Path, target: Path | str) -> sqlite3.Connection:
    # Threads share the connection under the store's own lock; transactions are begun and ended by name.
    options: dict[str, Any] = {"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False}
    database: sqlite3.Connection = sqlite3.connect(target, uri=isinstance(target, str), **options)
    database.row_factory = sqlite3.Row
    try:
        _prepare(database, path)
    except BaseException:
        database.close()
        raise
    return database


def _unwritten(path: Path, how: str) -> sqlite3.Connection:
    """A connection that cannot write; a store of an older version is copied into memory and extended there."""
    name = f"file:{urllib.parse.quote(str(path.resolve()))}?{how}"
    with contextlib.closing(sqlite3.connect(name, uri=True, timeout=BUSY_SECONDS)) as source:
        if _is_ready(source, path) and source.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
            return _connect(path, name)
        copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        source.backup(copy)
    copy.row_factory = sqlite3.Row
    _prepare(copy, path)
    return copy


def _prepare(database: sqlite3.Connection, path: Path) -> None:
    """Check whose file it is, make the tables in a new one, and set what every connection needs."""
    database.execute("PRAGMA foreign_keys = ON")
    if not _is_ready(database, path):
        _create(database, path)
    if database.execute("PRAGMA user_version").fetchone()[0] < SCHEMA_VERSION:
        _extend(database)
    database.execute("PRAGMA fullfsync = ON")
    set_durable(database, True)


def set_durable(database: sqlite3.Connection, durable: bool) -> None:
    """Whether a commit returns only after the log is on the disk (FULL), so that "done" outlives a power cut.

    Otherwise (NORMAL) the file stays consistent, but a power cut may forget the last commits: good enough for leases.
    """
    database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")


def _is_ready(database: sqlite3.Connection, path: Path) -> bool:
    """True for a store of this version, False for an empty file; anything else is refused untouched."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version = database.execute("PRAGMA user_version").fetchone()[0]
    tables = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return False
    if application != APPLICATION_ID:
        raise StoreError(
            f"store {str(path)!r}: the file is a database of another program; give another path (it was not touched)"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"store {str(path)!r}: written by a newer Coalmine (store version {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade Coalmine, or give another path"
        )
    return True


def _create(database: sqlite3.Connection, path: Path) -> None:
    """Make the tables in one transaction; a second process that makes them at the same time finds them made."""
    for attempt in range(200):
        try:
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # Switching to WAL needs the file alone for a moment, and SQLite does not always wait for that by itself.
            if getattr(error, "sqlite_errorcode", 0) & 0xFF != sqlite3.SQLITE_BUSY or attempt == 199:
                raise
            time.sleep(0.02)
    with transaction(database):
        if _is_ready(database, path):
            return
        for statement in (_MADE, *_SCHEMA, *_AUDITS, _FIRST, *_LABELS, _RESULTS):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _extend(database: sqlite3.Connection) -> None:
    """Bring an older store up to date: its runs and blocks stay as they are, and what is new is added."""
    with transaction(database):
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:  # another process was faster
            return
        if version < 2:
            for statement in _AUDITS:
                database.execute(statement)
        if version < 3:
            database.execute(_MADE)
            database.execute("ALTER TABLE block ADD COLUMN first INTEGER NOT NULL DEFAULT -1")
            database.execute("ALTER TABLE block ADD COLUMN made INTEGER REFERENCES made (id)")
            database.create_function("first_trial", 2, _first_trial, deterministic=True)
            database.execute("UPDATE block SET first = first_trial(payload, trials)")
            database.execute(_FIRST)
        if version < 4:
            for statement in _LABELS:
                database.execute(statement)
        database.execute(_RESULTS)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _first_trial(payload: object, trials: object) -> int:
    """The smallest trial of a block, which begins with its trials; -1, so that it is always read, if it is damaged."""
    if not isinstance(payload, bytes) or not isinstance(trials, int) or not 0 < 8 * trials <= len(payload):
        return -1
    return int(min(struct.unpack_from(f"<{trials}q", payload)))


def file_at(path: Path) -> tuple[int, int] | None:
    """Which file is at that path, so that another one under the same name is told from it; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def made_by(database: sqlite3.Connection, versions: Mapping[str, str] | None) -> int | None:
    """The row that holds these versions."""
    if versions is None:
        return None
    text = json.dumps(dict(sorted(versions.items())))
    database.execute("INSERT INTO made (versions) VALUES (?) ON CONFLICT DO NOTHING", (text,))
    return int(database.execute("SELECT id FROM made WHERE versions = ?", (text,)).fetchone()["id"])


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. The lock to write is taken at the start, so that what is read inside stays true until the end."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        # SQLite may have rolled back by itself (a full disk does that).
        if database.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
        raise
