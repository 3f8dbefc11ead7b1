"""Who holds a lease on a block, and whether it still counts."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
import sqlite3
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import psutil

_ENDED = "ended"


@dataclasses.dataclass(frozen=True)
class Owner:
    """One open store in one process. ``host`` also tells containers apart; ``started`` tells a reused pid apart."""

    name: str
    host: str
    pid: int
    started: str

    @classmethod
    def here(cls) -> Owner:
        """The owner for this process, with a name of its own."""
        pid = os.getpid()
        return cls(name=uuid.uuid4().hex, host=_host(), pid=pid, started=_started(pid))


def leases(database: sqlite3.Connection, run: int) -> list[sqlite3.Row]:
    """Every lease on the run, ended ones included."""
    return database.execute(
        "SELECT block, owner, host, pid, started, expires FROM lease WHERE run = ?", (run,)
    ).fetchall()


def held_by_others(rows: Iterable[sqlite3.Row], owner: Owner) -> set[int]:
    """The blocks that another owner holds; each owner is looked for once, however many blocks it holds."""
    dead = functools.cache(_is_dead)
    now = time.time()
    return {
        row["block"]
        for row in rows
        if row["owner"] != owner.name
        and row["expires"] > now
        and not dead(host=row["host"], pid=row["pid"], started=row["started"])
    }


def is_held(lease: sqlite3.Row) -> bool:
    """A lease counts until it expires or its process is known to be dead."""
    if lease["expires"] <= time.time():
        return False
    return not _is_dead(host=lease["host"], pid=lease["pid"], started=lease["started"])


def _is_dead(*, host: str, pid: int, started: str) -> bool:
    """True only if the process is known to be gone: it was on this host and its pid is free or another process's."""
    if host != _host():
        return False
    try:
        now = _started(pid)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    # The clock may be set while a process runs; a pid is not used again within a second.
    return now == _ENDED or (bool(started) and abs(float(now) - float(started)) > 1.0)


def _host() -> str:
    """The machine's name, its current boot and, on Linux, the pid namespace (a container counts pids of its own)."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        pass
    return " ".join(parts)


def _started(pid: int) -> str:
    """When the process began, in seconds; "ended" for a zombie."""
    process = psutil.Process(pid)
    return _ENDED if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) else repr(process.create_time())
