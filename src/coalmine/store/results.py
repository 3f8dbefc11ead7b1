"""Results that need no trials: a probe of a step, one training with canaries. They are written once and then only read.

Every function takes an open :class:`~coalmine.store.Store`.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from coalmine import _validate
from coalmine._validate import counted
from coalmine.errors import StoreError
from coalmine.store import _database, _results
from coalmine.store.listing import AuditEntry, audit_called, texts
from coalmine.store.records import description_text
from coalmine.store.sqlite import Store

KINDS = ("probe", "one-run")
_LISTED = "fingerprint, kind, created, name, tags, summary"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResultEntry:
    """A result in a list. ``summary``: what it is about, what is claimed, and how it ended."""

    members: ClassVar[Mapping[str, int]] = {}
    """A result has no runs."""

    fingerprint: str
    kind: str
    created: float
    name: str
    tags: tuple[str, ...]
    summary: Mapping[str, Any]

    @property
    def used(self) -> float:
        """When it was kept."""
        return self.created

    @property
    def conclusion(self) -> Mapping[str, Any]:
        """How it ended."""
        return self.summary


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(ResultEntry):
    """A result with its whole report, as plain JSON types."""

    report: Mapping[str, Any]


def check(store: Store | str | os.PathLike[str]) -> None:
    """Refuse a store that cannot be written before anything takes time."""
    with Store.opened(store):
        pass


def keep(
    store: Store,
    kind: str,
    *,
    summary: Mapping[str, Any],
    report: Mapping[str, Any],
    name: str | None = None,
    tags: Iterable[str] = (),
) -> str:
    """Keep a result in one transaction; the same one again changes its name and tags alone.

    ``summary`` are a few values for lists, ``report`` all that is shown of it; ``tags`` are added to those that it has.
    Gives its fingerprint.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(f"{folder}/coalmine.db") as store:
    ...     mark = keep(store, "probe", summary={"outcome": "refuted"}, report={"level": 1e-4}, name="nightly")
    ...     [(one.name, one.summary["outcome"]) for one in every(store)], read(store, mark[:8]).report
    ([('nightly', 'refuted')], {'level': 0.0001})
    """
    _validate.choice("kind", kind, KINDS)
    called = None if name is None else _validate.label("name", name)
    labels = _validate.labels("tags", tags)
    short, long = description_text(summary), description_text(report)
    with store._writing() as database:
        mark = _results.keep(database, kind, summary=short, report=long)
        _results.label(database, mark, name=called, tags=labels)
    return mark


def every(store: Store) -> tuple[ResultEntry, ...]:
    """Every result, the newest first, without its report."""
    with store._reading() as database:
        rows = database.execute(f"SELECT {_LISTED} FROM result ORDER BY created DESC, id DESC").fetchall()
        return tuple(_entry(row) for row in rows)


def find(store: Store, prefix: str) -> ResultEntry | None:
    """The one result whose fingerprint begins with ``prefix``, or None; an error if there are several, or a run too."""
    if not isinstance(prefix, str) or not re.fullmatch("[0-9a-f]+", prefix):
        return None
    with store._reading() as database:
        found = _found(store, database, prefix)
        runs = "SELECT fingerprint FROM run WHERE substr(fingerprint, 1, ?) = ?"
        run = database.execute(runs, (len(prefix), prefix)).fetchone()
        if found is not None and run is not None:
            names = f"run {run['fingerprint'][:12]} and {found.kind} result {found.fingerprint[:12]}"
            raise StoreError(f"store {str(store.path)!r}: {prefix!r} stands for {names}: give more of it")
        return found


def called(store: Store, word: str) -> ResultEntry | None:
    """The result that ``word`` finds, or the one of that name; an error if several have it, or an audit has it too."""
    found = find(store, word)
    named = [] if found is not None else [one for one in every(store) if one.name and one.name == word]
    if named and audit_called(store, word) is not None:
        raise StoreError(
            f"a result and an audit are called {_validate.shown(word)} in store {str(store.path)!r}: give the "
            f"beginning of a fingerprint, {', '.join(one.fingerprint[:12] for one in named)} for the result"
        )
    if len(named) > 1:
        raise StoreError(
            f"{len(named)} results are called {_validate.shown(word)} in store {str(store.path)!r}: give the beginning "
            f"of a fingerprint: {', '.join(one.fingerprint[:12] for one in named)}"
        )
    return named[0] if named else found


def read(store: Store, prefix: str) -> Result:
    """A result with its report; an error if there is none, or if it was changed after it was kept."""
    with store._reading() as database:
        found = _found(store, database, prefix)
        if found is None:
            raise StoreError(f"store {str(store.path)!r} has no result {prefix!r}")
        row = database.execute(
            "SELECT kind, fingerprint, summary, report FROM result WHERE fingerprint = ?", (found.fingerprint,)
        ).fetchone()
        if not _results.is_whole(row):
            raise StoreError(
                f"store {str(store.path)!r}: result {found.fingerprint[:12]} is damaged or was changed after it was "
                "kept; nothing was deleted: restore the file from a copy"
            )
        return Result(**vars(found), report=_database.table(row["report"]))


def remove(store: Store, prefix: str) -> ResultEntry:
    """Delete the one result that begins with ``prefix``."""
    with store._writing() as database:
        found = _found(store, database, prefix)
        if found is None:
            raise StoreError(f"store {str(store.path)!r} has no result {prefix!r}")
        database.execute("DELETE FROM result WHERE fingerprint = ?", (found.fingerprint,))
        return found


def _found(store: Store, database: sqlite3.Connection, prefix: str) -> ResultEntry | None:
    if not isinstance(prefix, str) or not re.fullmatch("[0-9a-f]+", prefix):
        raise _validate.reject("result", prefix, "the first characters of a result's fingerprint (0-9, a-f)")
    rows = database.execute(
        f"SELECT {_LISTED} FROM result WHERE substr(fingerprint, 1, ?) = ? LIMIT 5", (len(prefix), prefix)
    ).fetchall()
    if len(rows) > 1:
        names = ", ".join(row["fingerprint"][:12] for row in rows)
        raise StoreError(f"store {str(store.path)!r}: {prefix!r} stands for several results: {names}")
    return _entry(rows[0]) if rows else None


def _entry(row: sqlite3.Row) -> ResultEntry:
    return ResultEntry(**{**row, "tags": texts(row["tags"]), "summary": _database.table(row["summary"])})


def part(tree: Any, key: str) -> dict[str, Any]:
    """A table within a table; empty where there is none."""
    found = tree.get(key) if isinstance(tree, dict) else None
    return found if isinstance(found, dict) else {}


def number(value: Any) -> float | None:
    """A number of a summary, infinite ones included; None for anything else."""
    if value == "infinity":
        return math.inf
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def faults_of(entry: AuditEntry | ResultEntry) -> list[str]:
    """What a probe found."""
    found = (entry.conclusion or {}).get("faults")
    return [str(one) for one in found] if isinstance(found, list) else []


def size_of(entry: AuditEntry | ResultEntry) -> str:
    """How many measures a probe took, or how many canaries there were; empty where that is not known."""
    count = (entry.conclusion or {}).get("size")
    if not isinstance(count, int):
        return ""
    return counted(count, "measure") if entry.kind == "probe" else counted(count, "canary", "canaries")
