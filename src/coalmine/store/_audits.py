"""Audits in the database: what each is, which runs answer it, what people call it, and how it ended."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Mapping
from typing import Any


def record(database: sqlite3.Connection, fingerprint: str, description: str, *, members: Mapping[int, int]) -> None:
    """Keep an audit, once, and its runs (by row) with the trials wanted of each."""
    now = time.time()
    database.execute(
        "INSERT INTO audit (fingerprint, description, created, used) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (fingerprint) DO UPDATE SET used = excluded.used",
        (fingerprint, description, now, now),
    )
    database.executemany(
        "INSERT INTO member (audit, run, wanted) SELECT id, ?, ? FROM audit WHERE fingerprint = ? "
        "ON CONFLICT DO NOTHING",
        [(run, wanted, fingerprint) for run, wanted in members.items()],
    )


def label(database: sqlite3.Connection, fingerprint: str, *, name: str | None, tags: Iterable[str]) -> None:
    """What people call the audit: a name replaces the one before, tags are added to those that are there."""
    row = database.execute(
        "SELECT audit.id, label.name, label.tags FROM audit LEFT JOIN label ON label.audit = audit.id "
        "WHERE fingerprint = ?",
        (fingerprint,),
    ).fetchone()
    there = json.loads(row["tags"]) if row["tags"] else []
    every = list(dict.fromkeys([*there, *tags]))
    database.execute(
        "INSERT OR REPLACE INTO label (audit, name, tags) VALUES (?, ?, ?)",
        (row["id"], (row["name"] or "") if name is None else name, json.dumps(every, ensure_ascii=False)),
    )


def conclude(database: sqlite3.Connection, fingerprint: str, summary: str) -> None:
    """How the audit ended, in the place of an earlier end; with a checksum, so that a changed one is noticed."""
    sealed = json.dumps({"checksum": _checksum(fingerprint, summary), "summary": summary}, ensure_ascii=False)
    database.execute(
        "INSERT OR REPLACE INTO conclusion (audit, summary) SELECT id, ? FROM audit WHERE fingerprint = ?",
        (sealed, fingerprint),
    )


def conclusion(fingerprint: str, sealed: str | None) -> dict[str, Any] | None:
    """How the audit ended; None where that is not known, is of another audit, or was changed since it was kept.

    Whoever lists audits believes it without judging their trials, so what cannot be believed is as good as nothing.
    """
    try:
        found = json.loads(sealed or "null")
        if not isinstance(found, dict) or found.get("checksum") != _checksum(fingerprint, found["summary"]):
            return None
        summary = json.loads(found["summary"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return summary if isinstance(summary, dict) else None


def _checksum(fingerprint: str, summary: str) -> str:
    """Of the summary and of the audit that it is about; the summary itself names its trials and the version."""
    return hashlib.sha256(f"conclusion\0{fingerprint}\0{summary}".encode()).hexdigest()[:16]
