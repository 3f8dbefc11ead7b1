"""What a store holds, read a little at a time: for pages that list thousands of runs, or watch one as it grows.

Every function takes an open :class:`~coalmine.store.Store` and only reads.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from coalmine import _validate
from coalmine.errors import StoreError
from coalmine.store import _audits, _database
from coalmine.store._leases import is_held
from coalmine.store.records import Trials
from coalmine.store.sqlite import Store


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """An audit in a list: when, what people call it, its runs with the trials wanted of each, and how it ended."""

    kind: ClassVar[str] = "audit"

    fingerprint: str
    created: float
    used: float
    name: str
    tags: tuple[str, ...]
    members: Mapping[str, int]
    conclusion: Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is. ``recent`` trials were stored since ``since``, the start of a window or the run's first block.

    Times are in seconds since 1970; ``last`` is when the newest block was stored (0: none yet).
    """

    trials: int = 0
    failed: int = 0
    failed_blocks: int = 0
    elapsed: float = 0.0
    first: float = 0.0
    last: float = 0.0
    recent: int = 0
    since: float = 0.0
    devices: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Worker:
    """A process that holds leases on a run: where it is, how many blocks it has under way, and what it says."""

    run: str
    host: str
    pid: int
    blocks: int
    status: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """Where some trials in a row come from: the first of them, how many, their time, the device, what made them."""

    first: int
    trials: int
    elapsed: float
    device: str
    versions: Mapping[str, str]


def changes(store: Store) -> int:
    """A number that differs once another process has changed the store since this Store last looked."""
    with store._reading() as database:
        return int(database.execute("PRAGMA data_version").fetchone()[0])


def audits(store: Store) -> tuple[AuditEntry, ...]:
    """Every audit, the last one used first, without its description."""
    with store._reading() as database:
        members: dict[int, dict[str, int]] = {}
        for row in database.execute(
            "SELECT audit, fingerprint, wanted FROM member JOIN run ON run.id = member.run ORDER BY member.rowid"
        ):
            members.setdefault(row["audit"], {})[row["fingerprint"]] = row["wanted"]
        rows = database.execute(
            "SELECT audit.id, fingerprint, created, used, name, tags, summary FROM audit "
            "LEFT JOIN label ON label.audit = audit.id LEFT JOIN conclusion ON conclusion.audit = audit.id "
            "ORDER BY used DESC, audit.id DESC"
        ).fetchall()
        return tuple(
            AuditEntry(
                fingerprint=row["fingerprint"],
                created=row["created"],
                used=row["used"],
                name=row["name"] or "",
                tags=texts(row["tags"]),
                members=members.get(row["id"], {}),
                conclusion=_audits.conclusion(row["fingerprint"], row["summary"]),
            )
            for row in rows
        )


def audit_called(store: Store, word: str) -> AuditEntry | None:
    """The one audit of that name, or whose fingerprint begins so (four characters or more); an error if several."""
    found = [one for one in audits(store) if one.name == word or (len(word) >= 4 and one.fingerprint.startswith(word))]
    if len(found) > 1:
        raise StoreError(
            f"{len(found)} audits are called {_validate.shown(word)} in store {str(store.path)!r}: give the beginning "
            f"of a fingerprint: {', '.join(one.fingerprint[:12] for one in found)}"
        )
    return found[0] if found else None


def texts(text: str | None) -> tuple[str, ...]:
    """A JSON list of texts; empty for anything else."""
    found = json.loads(text) if text else []
    return tuple(str(one) for one in found) if isinstance(found, list) else ()


def descriptions(store: Store, fingerprints: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The descriptions of these audits."""
    with store._reading() as database:
        rows = database.execute(
            "SELECT fingerprint, description FROM audit WHERE fingerprint IN (SELECT value FROM json_each(?))",
            (json.dumps(list(fingerprints)),),
        ).fetchall()
        return {row["fingerprint"]: _database.table(row["description"]) for row in rows}


def unclaimed(store: Store) -> tuple[str, ...]:
    """Runs that belong to no audit, the newest first: older versions made them, or a program of one's own."""
    with store._reading() as database:
        rows = database.execute(
            "SELECT fingerprint FROM run WHERE id NOT IN (SELECT run FROM member) ORDER BY created DESC, id DESC"
        )
        return tuple(row["fingerprint"] for row in rows)


def progress(store: Store, runs: Iterable[str], *, window: float = 120.0) -> dict[str, Progress]:
    """How far each of these runs is; one without a block yet is there too."""
    names, now = list(runs), time.time()
    found = {name: Progress() for name in names}
    chosen = "SELECT value FROM json_each(?)"
    with store._reading() as database:
        rows = database.execute(
            "SELECT fingerprint, sum(trials) AS trials, sum(failed) AS failed, sum(elapsed) AS elapsed, "
            "min(block.created) AS first, max(block.created) AS last, "
            "sum(CASE WHEN block.created > ? THEN trials ELSE 0 END) AS recent, "
            "json_group_array(DISTINCT device) AS devices FROM run JOIN block ON block.run = run.id "
            f"WHERE fingerprint IN ({chosen}) GROUP BY run.id",
            (now - window, json.dumps(names)),
        ).fetchall()
        failed = database.execute(
            "SELECT fingerprint, count(*) AS blocks FROM run JOIN failure ON failure.run = run.id "
            f"WHERE fingerprint IN ({chosen}) GROUP BY run.id",
            (json.dumps(names),),
        ).fetchall()
    for row in rows:
        counts = {name: row[name] for name in ("trials", "failed", "elapsed", "first", "last", "recent")}
        devices = tuple(sorted(json.loads(row["devices"])))
        found[row["fingerprint"]] = Progress(**counts, since=max(row["first"], now - window), devices=devices)
    for row in failed:
        name = row["fingerprint"]
        found[name] = dataclasses.replace(found[name], failed_blocks=row["blocks"])
    return found


def origins(store: Store, run: str, *, below: int) -> tuple[Origin, ...]:
    """Where the trials of a run with a smaller index come from, block by block, in the order of their first trial."""
    with store._reading() as database:
        rows = database.execute(
            "SELECT first, trials, elapsed, device, versions FROM block JOIN run ON run.id = block.run "
            "LEFT JOIN made ON made.id = block.made WHERE fingerprint = ? AND first < ? ORDER BY first, block",
            (run, below),
        ).fetchall()
        return tuple(
            Origin(**{**row, "versions": _database.table(row["versions"]) if row["versions"] else {}}) for row in rows
        )


def workers(store: Store, runs: Iterable[str] | None = None) -> tuple[Worker, ...]:
    """The live processes that play these runs, or any run."""
    with store._reading() as database:
        rows = database.execute(
            "SELECT fingerprint, owner, host, pid, started, max(expires) AS expires, count(*) AS blocks, "
            "max(status) AS status FROM lease JOIN run ON run.id = lease.run GROUP BY lease.run, owner"
        ).fetchall()
    wanted = None if runs is None else set(runs)
    return tuple(
        Worker(
            run=row["fingerprint"],
            host=row["host"].split(" ")[0],
            pid=row["pid"],
            blocks=row["blocks"],
            status=row["status"],
        )
        for row in rows
        if (wanted is None or row["fingerprint"] in wanted) and is_held(row)
    )


def trials(store: Store, run: str, *, start: int, count: int) -> tuple[Trials, int]:
    """``count`` stored trials of a run from the ``start``-th on, in the order of their blocks; and how many there are.

    Only the blocks that hold them are read.
    """
    with store._reading() as database:
        rows = database.execute(
            "SELECT block, trials FROM block JOIN run ON run.id = block.run WHERE fingerprint = ? "
            "ORDER BY first, block",
            (run,),
        ).fetchall()
    ends = np.cumsum([row["trials"] for row in rows], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    begin, end = min(start, total), min(start + count, total)
    low, high = int(np.searchsorted(ends, begin, side="right")), int(np.searchsorted(ends, end, side="left"))
    blocks: Sequence[int] = [row["block"] for row in rows[low : high + 1]] if end > begin else []
    found = store.scores(run, blocks=blocks)
    before = int(ends[low - 1]) if low else 0
    return found.take(slice(begin - before, end - before)), total
