"""Results without trials in the database: each is known by a hash of what it says, so a change is noticed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable


def fingerprint(kind: str, summary: str, report: str) -> str:
    """What the result is known by."""
    return hashlib.sha256("\0".join((kind, summary, report)).encode()).hexdigest()


def keep(database: sqlite3.Connection, kind: str, *, summary: str, report: str) -> str:
    """Keep a result, once."""
    mark = fingerprint(kind, summary, report)
    database.execute(
        "INSERT INTO result (fingerprint, kind, created, name, tags, summary, report) VALUES (?, ?, ?, '', '[]', ?, ?)"
        " ON CONFLICT DO NOTHING",
        (mark, kind, time.time(), summary, report),
    )
    return mark


def label(database: sqlite3.Connection, mark: str, *, name: str | None, tags: Iterable[str]) -> None:
    """What people call the result: a name replaces the one before, tags are added to those that are there."""
    row = database.execute("SELECT name, tags FROM result WHERE fingerprint = ?", (mark,)).fetchone()
    every = list(dict.fromkeys([*json.loads(row["tags"]), *tags]))
    database.execute(
        "UPDATE result SET name = ?, tags = ? WHERE fingerprint = ?",
        (row["name"] if name is None else name, json.dumps(every, ensure_ascii=False), mark),
    )


def is_whole(row: sqlite3.Row) -> bool:
    """Whether the result says what it said when it was kept."""
    return bool(row["fingerprint"] == fingerprint(row["kind"], row["summary"], row["report"]))


def damaged(database: sqlite3.Connection) -> list[str]:
    """A sentence for each result that was changed."""
    rows = database.execute("SELECT fingerprint, kind, summary, report FROM result")
    return [f"result {row['fingerprint'][:12]} is damaged or was changed" for row in rows if not is_whole(row)]
