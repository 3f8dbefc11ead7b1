"""The store: runs, blocks of trials, and leases, in one SQLite file that several processes may use at once."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError, StoreError
from coalmine.store import _audits, _blob, _database, _results
from coalmine.store._database import SCHEMA_VERSION
from coalmine.store._leases import Owner, held_by_others, is_held, leases
from coalmine.store.records import BlockResult, Failure, Run, Trials, description_text

__all__ = ["SCHEMA_VERSION", "Store"]

_PAYLOAD = "block, trials, elapsed, device, columns, checksum, payload"
"""The fields of a block that its checksum covers, and the checksum."""
_Packed = tuple[BlockResult, bytes, str, int]
"""A block, its bytes, the names of its further columns, and the checksum."""
_ROWS = 4096
"""Rows that are read, or blocks that are looked up, at a time: memory stays small however large the run is."""
LEASE_SECONDS = 60.0
"""How long a claim lasts without a sign of life; a claim of a process that died on this machine ends at once."""


class Store:
    """Trials on disk. Threads may share one Store; every process opens its own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "coalmine.db") as store:
    ...     store.register("c0ffee00", {"seed": 1})
    ...     block = BlockResult(trial=[1, 0], world=[1, 0], score=[2.5, -0.5], elapsed=0.1, device="cpu")
    ...     store.put("c0ffee00", 0, block), store.put("c0ffee00", 0, block)
    ...     store.scores("c0ffee00").score.tolist()
    (True, False)
    [-0.5, 2.5]
    """

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path = path
        self._database = database
        self._lock = threading.RLock()
        self._owner = Owner.here()
        self._file = _database.file_at(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True, read_only: bool = False) -> Self:
        """Open the store at ``path``; make it if it is not there, unless ``create`` is False.

        With ``read_only`` nothing is written, and a store that cannot be written (another's, a read-only disk) opens.
        """
        _validate.instance("store", path, (str, os.PathLike))
        where = Path(path)
        if not _database.check_path(where) and not create:
            raise StoreError(f"store {str(where)!r}: there is no such file; expected the path of a store")
        with _database.explained(where):
            return cls(where, _database.connect(where, read_only=read_only))

    @classmethod
    @contextlib.contextmanager
    def opened(cls, store: Store | str | os.PathLike[str]) -> Iterator[Store]:
        """A store as it is, or the one at a path, which is closed at the end."""
        if isinstance(store, Store):
            yield store
            return
        with cls.open(store) as own:
            yield own

    def close(self) -> None:
        """Give up this process's leases and close the file."""
        with self._lock:
            with contextlib.suppress(StoreError, sqlite3.ProgrammingError), self._writing(durable=False):
                self._database.execute("DELETE FROM lease WHERE owner = ?", (self._owner.name,))
            self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- runs --------------------------------------------------------------------------------------------------

    def register(self, fingerprint: str, description: Mapping[str, Any]) -> None:
        """Make the run known. A description is written once: what is said of a run later does not change it."""
        name, text = _fingerprint(fingerprint), description_text(description)
        with self._writing() as database:
            database.execute(
                "INSERT INTO run (fingerprint, description, created) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (name, text, time.time()),
            )

    def knows(self, fingerprint: str) -> bool:
        """Whether the run is registered."""
        with self._reading() as database:
            row = database.execute("SELECT 1 FROM run WHERE fingerprint = ?", (_fingerprint(fingerprint),)).fetchone()
            return row is not None

    def runs(self) -> tuple[Run, ...]:
        """Every run, the oldest first."""
        with self._reading() as database:
            known = database.execute("SELECT id FROM run ORDER BY created, id").fetchall()
            return tuple(_describe(database, row[0]) for row in known)

    def run(self, prefix: str) -> Run:
        """The one run whose fingerprint begins with ``prefix``."""
        with self._reading() as database:
            return _describe(database, self._find(database, prefix))

    def remove(self, prefix: str) -> Run:
        """Delete the one run that begins with ``prefix``, and all its trials; refused while another process uses it."""
        with self._writing() as database:
            run = self._find(database, prefix)
            busy = [row for row in leases(database, run) if row["owner"] != self._owner.name and is_held(row)]
            if busy:
                raise StoreError(
                    f"run {prefix!r} is being worked on by process {busy[0]['pid']} ({busy[0]['host'].split()[0]}): "
                    f"stop it first, or wait {max(0.0, busy[0]['expires'] - time.time()):.0f} seconds if it has crashed"
                )
            description = _describe(database, run)
            database.execute("DELETE FROM run WHERE id = ?", (run,))
            return description

    # ---- audits ------------------------------------------------------------------------------------------------

    def record_audit(
        self,
        fingerprint: str,
        description: Mapping[str, Any],
        *,
        members: Mapping[str, int],
        name: str | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        """Keep what an audit is, once, and which registered runs answer it, with the trials wanted of each.

        ``name`` and ``tags`` are for people: they are no part of what an audit is, and may be given again.
        """
        audit, text, words = _fingerprint(fingerprint), description_text(description), [str(tag) for tag in tags]
        with self._writing() as database:
            known = {self._known(database, run): wanted for run, wanted in members.items()}
            _audits.record(database, audit, text, members=known)
            if name is not None or words:
                _audits.label(database, audit, name=name, tags=words)

    def keep_conclusion(self, fingerprint: str, summary: Mapping[str, Any]) -> None:
        """Keep how a recorded audit ended, for lists; whoever must be sure judges its trials again."""
        with self._writing() as database:
            _audits.conclude(database, _fingerprint(fingerprint), description_text(summary))

    def audit(self, prefix: str) -> Mapping[str, Any] | None:
        """The description of the audit of that fingerprint, or of the last one used that has a run of that prefix."""
        with self._reading() as database:
            row = None
            if isinstance(prefix, str) and prefix.isascii():
                row = database.execute("SELECT description FROM audit WHERE fingerprint = ?", (prefix,)).fetchone()
            if row is None:
                row = database.execute(
                    "SELECT description FROM audit JOIN member ON member.audit = audit.id WHERE member.run = ? "
                    "ORDER BY used DESC, audit.id DESC LIMIT 1",
                    (self._find(database, prefix),),
                ).fetchone()
            return json.loads(str(row["description"])) if row else None

    # ---- blocks ------------------------------------------------------------------------------------------------

    def put(self, fingerprint: str, block: int, result: BlockResult) -> bool:
        """Store a block in one transaction. True if it was stored, False if it was there already (the first one stays).

        A block that comes twice from the same kind of device must be the same bit for bit, otherwise training is not
        reproducible and an error says so; from another kind of device the scores may differ, the trials may not.
        """
        return bool(self.put_many(fingerprint, {block: result}))

    def put_many(
        self, fingerprint: str, results: Mapping[int, BlockResult], *, made: Mapping[str, str] | None = None
    ) -> tuple[int, ...]:
        """Store several blocks in one transaction, which costs little more than one; return those that were new.

        ``made``: the versions of what made them, kept with these blocks whatever makes the others.
        A block that contradicts the stored one does not keep the others from being stored; the error comes afterwards.
        """
        packed = {
            _validate.integer("block", block, at_least=0): (
                result,
                *_blob.pack(_fingerprint(fingerprint), block, result),
            )
            for block, result in results.items()
        }
        contradictions = []
        with self._writing() as database:
            run = self._known(database, fingerprint)
            there = [block for block in packed if _is_stored(database, run, block)]
            for block in there:
                result, payload, columns, _ = packed[block]
                stored = database.execute(
                    f"SELECT {_PAYLOAD} FROM block WHERE run = ? AND block = ?", (run, block)
                ).fetchone()
                try:
                    self._compare(fingerprint, stored, result, payload, columns)
                except StoreError as error:
                    contradictions.append(error)
            new = [block for block in packed if block not in set(there)] if there else list(packed)
            _insert(database, run, {block: packed[block] for block in new}, made=_database.made_by(database, made))
            for table in ("lease", "failure"):
                database.executemany(
                    f"DELETE FROM {table} WHERE run = ? AND block = ?", [(run, block) for block in packed]
                )
        if contradictions:
            raise contradictions[0]
        return tuple(new)

    def _compare(
        self, fingerprint: str, stored: sqlite3.Row, result: BlockResult, payload: bytes, columns: str
    ) -> None:
        """Refuse a second result of a block that contradicts the stored one."""
        block = stored["block"]
        if stored["device"] == result.device and (stored["payload"], stored["columns"]) == (payload, columns):
            return
        self._check(fingerprint, stored)
        there = _blob.unpack([stored])
        if not (np.array_equal(there.trial, result.trial) and np.array_equal(there.world, result.world)):
            raise StoreError(
                f"block {block} is stored with other trials or worlds: expected the same ones under one fingerprint"
            )
        if stored["device"] == result.device:
            raise StoreError(
                f"block {block} is stored with other scores from the same kind of device ({result.device}): training "
                "is not reproducible, or its fingerprint lacks something that shapes it; the first result stays"
            )

    def fail(self, fingerprint: str, block: int, reason: str) -> None:
        """Note that a block could not be trained. It is not done: the next run of the same audit tries it again."""
        index = _validate.integer("block", block, at_least=0)
        with self._writing() as database:
            run = self._known(database, fingerprint)
            database.execute(
                "INSERT INTO failure (run, block, reason, attempts) VALUES (?, ?, ?, 1) ON CONFLICT (run, block) "
                "DO UPDATE SET reason = excluded.reason, attempts = attempts + 1",
                (run, index, str(reason)),
            )
            database.execute(
                "DELETE FROM lease WHERE run = ? AND block = ? AND owner = ?", (run, index, self._owner.name)
            )

    def failures(self, fingerprint: str) -> tuple[Failure, ...]:
        """Blocks that could not be trained, and trials without a score in stored blocks, in the order of the block."""
        with self._reading() as database:
            run = self._known(database, fingerprint)
            found = [
                Failure(block=row["block"], trial=None, reason=row["reason"], attempts=row["attempts"])
                for row in database.execute("SELECT block, reason, attempts FROM failure WHERE run = ?", (run,))
            ]
            for row in database.execute("SELECT block, failures FROM block WHERE run = ? AND failed > 0", (run,)):
                found += [
                    Failure(block=row["block"], trial=int(trial), reason=reason, attempts=1)
                    for trial, reason in json.loads(str(row["failures"])).items()
                ]
        return tuple(sorted(found, key=lambda one: (one.block, -1 if one.trial is None else one.trial)))

    def done(self, fingerprint: str, *, among: Iterable[int] | None = None) -> set[int]:
        """The indices of the blocks that are stored, or of those ``among`` some; empty for a run that is not known."""
        with self._reading() as database:
            known = "SELECT block FROM block JOIN run ON run.id = run WHERE fingerprint = ?"
            if among is None:
                return {row[0] for row in database.execute(known, (_fingerprint(fingerprint),))}
            text = json.dumps([int(block) for block in among])
            rows = database.execute(f"{known} AND block IN (SELECT value FROM json_each(?))", (fingerprint, text))
            return {row[0] for row in rows}

    def scores(self, fingerprint: str, *, below: int | None = None, blocks: Iterable[int] | None = None) -> Trials:
        """The stored trials in the order of the trial index; with ``below`` only those with a smaller index.

        Every block that is read has its checksum tested; a damaged block or a trial that is stored twice is an error.
        With ``blocks`` only those are read. Time and devices are those of the blocks that were read.
        """
        limit = None if below is None else _validate.integer("below", below, at_least=0)
        parts = [_blob.unpack(rows) for rows in self._pages(fingerprint, below=limit, blocks=blocks)]
        found = _blob.join(parts or [_blob.unpack([])])
        if not (found.trial[1:] > found.trial[:-1]).all():
            found = found.take(np.argsort(found.trial, kind="stable"))
            if (found.trial[1:] == found.trial[:-1]).any():
                twice = int(found.trial[1:][found.trial[1:] == found.trial[:-1]][0])
                raise StoreError(f"store {str(self.path)!r}: trial {twice} of run {fingerprint!r} is stored twice")
        return found.take(slice(None if limit is None else int(np.searchsorted(found.trial, limit))))

    def parts(self, fingerprint: str, *, below: int) -> Iterator[Trials]:
        """What :meth:`scores` gives, some thousand blocks at a time, in the order of their first trial."""
        for rows in self._pages(fingerprint, below=_validate.integer("below", below, at_least=0)):
            found = _blob.unpack(rows)
            yield found.take(found.trial < below)

    def _pages(
        self, fingerprint: str, *, below: int | None = None, blocks: Iterable[int] | None = None
    ) -> Iterator[list[sqlite3.Row]]:
        """The rows of blocks, checked, a page at a time; stored blocks never change, so nor does what is read."""
        where, given = "run = ? AND (first, block) > (?, ?)", list[int | str]()
        if below is not None:
            where, given = f"{where} AND first < ?", [*given, below]
        if blocks is not None:
            where = f"{where} AND block IN (SELECT value FROM json_each(?))"
            given = [*given, json.dumps([int(block) for block in blocks])]
        last, columns = (-2, -1), None
        while True:
            with self._reading() as database:
                run = self._known(database, fingerprint)
                rows = database.execute(
                    f"SELECT {_PAYLOAD}, first FROM block INDEXED BY block_first WHERE {where} ORDER BY first, block "
                    f"LIMIT {_ROWS}",
                    (run, *last, *given),
                ).fetchall()
            if not rows:
                return
            for row in rows:
                self._check(fingerprint, row)
                if row["columns"] != (columns := columns or row["columns"]):
                    raise StoreError(
                        f"store {str(self.path)!r}: the blocks of run {fingerprint!r} have different columns"
                    )
            yield rows
            last = rows[-1]["first"], rows[-1]["block"]

    def verify(self) -> tuple[str, ...]:
        """All that is wrong with the file: SQLite's own check, blocks and results. Empty if all is well."""
        with self._reading() as database:
            problems = [row[0] for row in database.execute("PRAGMA integrity_check") if row[0] != "ok"]
            for row in database.execute(f"SELECT fingerprint, {_PAYLOAD} FROM block LEFT JOIN run ON run.id = run"):
                try:
                    self._check(row["fingerprint"], row)
                except StoreError as error:
                    problems.append(str(error))
            return (*problems, *_results.damaged(database))

    # ---- leases ------------------------------------------------------------------------------------------------

    def claim(
        self, fingerprint: str, blocks: Iterable[int], *, limit: int = 1, seconds: float = LEASE_SECONDS
    ) -> tuple[int, ...]:
        """Take up to ``limit`` of ``blocks``, in their order, that are neither stored nor held by another live process.

        A claim keeps two processes from training the same block at once. It ends with :meth:`put`, :meth:`fail`,
        :meth:`release` or :meth:`close`, when its process dies, or ``seconds`` after the last :meth:`renew`. Losing one
        costs double work, never a wrong store: whoever stores the block first wins.
        """
        wanted = _validate.integer("limit", limit, at_least=1)
        expires = time.time() + _validate.positive("seconds", seconds)
        owner, remaining = self._owner, iter(blocks)
        taken: list[int] = []
        while len(taken) < wanted:
            # Nobody can write while this one does, so what may be long (many stored blocks) is looked through before.
            candidates = self._free(fingerprint, remaining, wanted - len(taken))
            if not candidates:
                break
            with self._writing(durable=False) as database:
                run = self._known(database, fingerprint)
                held = held_by_others(leases(database, run), owner)
                free = (one for one in candidates if one not in held and not _is_stored(database, run, one))
                now = list(itertools.islice(free, wanted - len(taken)))
                database.executemany(
                    "INSERT OR REPLACE INTO lease (run, block, owner, host, pid, started, expires)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(run, block, owner.name, owner.host, owner.pid, owner.started, expires) for block in now],
                )
            taken += now
        return tuple(taken)

    def _free(self, fingerprint: str, blocks: Iterator[int], wanted: int) -> list[int]:
        """The next blocks, about ``wanted``, that are neither stored nor held by anybody, this Store included."""
        found: list[int] = []
        with self._reading() as database:
            rows = leases(database, self._known(database, fingerprint))
            mine = {row["block"] for row in rows if row["owner"] == self._owner.name}
            held = mine | held_by_others(rows, self._owner)
            size = wanted + 16
            while len(found) < wanted:
                names = [_validate.integer("block", block, at_least=0) for block in itertools.islice(blocks, size)]
                if not names:
                    break
                size = min(2 * size, _ROWS)
                stored = self.done(fingerprint, among=names)
                found += [one for one in dict.fromkeys(names) if one not in stored and one not in held]
        return found

    def renew(self, fingerprint: str, *, seconds: float = LEASE_SECONDS) -> tuple[int, ...]:
        """A sign of life: extend this Store's leases on the run; return the blocks it still holds."""
        expires = time.time() + _validate.positive("seconds", seconds)
        with self._writing(durable=False) as database:
            run = self._known(database, fingerprint)
            mine = (run, self._owner.name)
            database.execute("UPDATE lease SET expires = ? WHERE run = ? AND owner = ?", (expires, *mine))
            rows = database.execute("SELECT block FROM lease WHERE run = ? AND owner = ? ORDER BY block", mine)
            return tuple(row["block"] for row in rows)

    def say(self, fingerprint: str, status: str) -> None:
        """Leave word beside this Store's leases on the run of where its blocks are being played, for people."""
        with self._writing(durable=False) as database:
            mine = (self._known(database, fingerprint), self._owner.name)
            database.execute("UPDATE lease SET status = ? WHERE run = ? AND owner = ?", (str(status), *mine))

    def release(self, fingerprint: str) -> None:
        """Give up this Store's leases on the run."""
        with self._writing(durable=False) as database:
            run = self._known(database, fingerprint)
            database.execute("DELETE FROM lease WHERE run = ? AND owner = ?", (run, self._owner.name))

    @contextlib.contextmanager
    def keeping(self, fingerprint: str, *, seconds: float = LEASE_SECONDS) -> Iterator[None]:
        """While inside, a thread renews this Store's leases, so that a long block is not taken for a dead one."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(seconds / 4):
                # A missed beat costs at most double work; the thread that trains meets the same trouble and reports it.
                with contextlib.suppress(StoreError):
                    self.renew(fingerprint, seconds=seconds)

        thread = threading.Thread(target=beat, name="coalmine-store-leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            with contextlib.suppress(StoreError):
                self.release(fingerprint)

    # ---- below -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite's errors explained and one unchanging picture of the file."""
        with self._lock, _database.explained(self.path):
            self._same_process()
            inside = self._database.in_transaction  # another reading of the same thread
            if inside:
                yield self._database
                return
            self._same_file()
            self._database.execute("BEGIN")
            try:
                yield self._database
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    @contextlib.contextmanager
    def _writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """The connection inside one transaction, committed at the end, and on the disk by then if ``durable``."""
        with self._lock, _database.explained(self.path):
            self._same_process()
            self._same_file()
            _database.set_durable(self._database, durable)
            with _database.transaction(self._database):
                yield self._database

    def _same_process(self) -> None:
        """SQLite forbids to carry a connection into a forked process: its locks would not hold."""
        if os.getpid() != self._owner.pid:
            raise StoreError(f"store {str(self.path)!r} was opened in another process: open it anew in each process")

    def _same_file(self) -> None:
        """A file that was deleted can still be written to; all of it would be gone when this process ends."""
        if _database.file_at(self.path) != self._file:
            raise StoreError(
                f"store {str(self.path)!r} was deleted, moved or replaced while it was in use: put the file back, or "
                "run the same command again to start a new store; nothing more was written to the old one"
            )

    def _known(self, database: sqlite3.Connection, fingerprint: str) -> int:
        """The row of a registered run."""
        row = database.execute("SELECT id FROM run WHERE fingerprint = ?", (_fingerprint(fingerprint),)).fetchone()
        if row is None:
            raise StoreError(f"store {str(self.path)!r} has no run {fingerprint!r}: register it first")
        return int(row["id"])

    def _find(self, database: sqlite3.Connection, prefix: str) -> int:
        """The row of the one run that begins with ``prefix``."""
        if not isinstance(prefix, str) or not re.fullmatch("[0-9a-f]+", prefix):
            allowed = (
                "the first characters of a run's fingerprint (0-9, a-f), or a name (coalmine runs list shows both)"
            )
            raise _validate.reject("run", prefix, allowed)
        rows = database.execute("SELECT id, fingerprint FROM run ORDER BY created, id").fetchall()
        fitting = [row for row in rows if row["fingerprint"].startswith(prefix)]
        if len(fitting) == 1:
            return int(fitting[0]["id"])
        names = ", ".join(row["fingerprint"][:12] for row in (fitting or rows)[:5]) or "none: the store is empty"
        problem = "stands for several runs" if fitting else "is no run of this store"
        raise StoreError(f"store {str(self.path)!r}: {prefix!r} {problem}; runs: {names}")

    def _check(self, fingerprint: str, row: sqlite3.Row) -> None:
        """An error that names the block, if it is damaged."""
        try:
            _blob.check(fingerprint, row)
        except ValueError as error:
            raise StoreError(
                f"store {str(self.path)!r}: block {row['block']} is damaged ({error}); nothing was deleted: restore "
                "the file from a copy, or remove the run and train it again"
            ) from None


def _fingerprint(value: object) -> str:
    """A fingerprint: 8 to 128 hexadecimal digits in lower case."""
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{8,128}", value):
        raise InvalidInputError(f"fingerprint = {value!r} is not allowed: expected 8 to 128 digits of 0-9, a-f")
    return value


def _is_stored(database: sqlite3.Connection, run: int, block: int) -> bool:
    """Whether the block is done."""
    return database.execute("SELECT 1 FROM block WHERE run = ? AND block = ?", (run, block)).fetchone() is not None


def _insert(database: sqlite3.Connection, run: int, packed: Mapping[int, _Packed], *, made: int | None) -> None:
    """New rows for blocks."""
    now = time.time()
    rows = []
    for block, (result, payload, columns, checksum) in packed.items():
        reasons = {str(trial): why for trial, why in sorted(result.failures.items())}
        text = json.dumps(reasons) if reasons else None
        about = (run, block, int(result.trial.size), len(reasons), result.elapsed, result.device, now)
        rows.append((*about, columns, text, checksum, payload, int(result.trial.min()), made))
    database.executemany(
        "INSERT INTO block (run, block, trials, failed, elapsed, device, created, columns, failures, checksum, payload,"
        " first, made) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _describe(database: sqlite3.Connection, run: int) -> Run:
    """A run with its counts."""
    row = database.execute("SELECT fingerprint, description, created FROM run WHERE id = ?", (run,)).fetchone()
    counts = database.execute(
        "SELECT count(*) AS blocks, coalesce(sum(trials), 0) AS trials, coalesce(sum(failed), 0) AS failed_trials,"
        " coalesce(sum(elapsed), 0.0) AS elapsed FROM block WHERE run = ?",
        (run,),
    ).fetchone()
    wanted = database.execute("SELECT coalesce(max(wanted), 0) FROM member WHERE run = ?", (run,)).fetchone()[0]
    devices = database.execute("SELECT DISTINCT device FROM block WHERE run = ? ORDER BY device", (run,)).fetchall()
    failed = database.execute("SELECT count(*) FROM failure WHERE run = ?", (run,)).fetchone()[0]
    made = database.execute(
        "SELECT versions, count(*) AS blocks FROM block JOIN made ON made.id = made WHERE run = ? GROUP BY made.id",
        (run,),
    ).fetchall()
    return Run(
        fingerprint=row["fingerprint"],
        description=_database.table(row["description"]),
        created=row["created"],
        **counts,
        wanted=max(wanted, counts["trials"]),
        failed_blocks=failed,
        devices=tuple(device["device"] for device in devices),
        made=tuple((_database.table(row["versions"]), row["blocks"]) for row in made),
    )
