"""The store: runs, blocks of trials, and leases, in one SQLite file that several processes may use at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError, StoreError
from coalmine.store import _blob, _database
from coalmine.store._database import SCHEMA_VERSION
from coalmine.store._leases import Owner, is_held, leases
from coalmine.store.records import BlockResult, Failure, Run, Trials, description_text

__all__ = ["SCHEMA_VERSION", "Store"]

_PAYLOAD = "block, trials, elapsed, device, columns, checksum, payload"
"""The fields of a block that its checksum covers, and the checksum."""
_Packed = tuple[BlockResult, bytes, str, int]
"""A block, its bytes, the names of its further columns, and the checksum."""
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

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = True) -> Self:
        """Open the store at ``path``; make it if it is not there, unless ``create`` is False."""
        _validate.instance("store", path, (str, os.PathLike))
        where = Path(path)
        if not _database.check_path(where) and not create:
            raise StoreError(f"store {str(where)!r}: there is no such file; give the path of a store (--store PATH)")
        with _database.explained(where):
            return cls(where, _database.connect(where))

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def record_audit(self, fingerprint: str, description: Mapping[str, Any], *, members: Mapping[str, int]) -> None:
        """Keep what an audit is, once, and which registered runs answer it, with the trials wanted of each."""
        name, text, now = _fingerprint(fingerprint), description_text(description), time.time()
        with self._writing() as database:
            database.execute(
                "INSERT INTO audit (fingerprint, description, created, used) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (fingerprint) DO UPDATE SET used = excluded.used",
                (name, text, now, now),
            )
            audit = database.execute("SELECT id FROM audit WHERE fingerprint = ?", (name,)).fetchone()["id"]
            for run, wanted in members.items():
                database.execute(
                    "INSERT INTO member (audit, run, wanted) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    (audit, self._known(database, run), wanted),
                )

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

    def audits(self) -> tuple[Mapping[str, Any], ...]:
        """Every audit, the last one used first: its fingerprint, description, runs, and when it was made and used."""
        with self._reading() as database:
            rows = database.execute("SELECT * FROM audit ORDER BY used DESC, id DESC").fetchall()
            return tuple(
                {
                    "fingerprint": row["fingerprint"],
                    "description": json.loads(str(row["description"])),
                    "created": row["created"],
                    "used": row["used"],
                }
                for row in rows
            )

    # ---- blocks ------------------------------------------------------------------------------------------------

    def put(self, fingerprint: str, block: int, result: BlockResult) -> bool:
        """Store a block in one transaction. True if it was stored, False if it was there already (the first one stays).

        A block that comes twice from the same kind of device must be the same bit for bit, otherwise training is not
        reproducible and an error says so; from another kind of device the scores may differ, the trials may not.
        """
        return bool(self.put_many(fingerprint, {block: result}))

    def put_many(self, fingerprint: str, results: Mapping[int, BlockResult]) -> tuple[int, ...]:
        """Store several blocks in one transaction, which costs little more than one; return those that were new.

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
            _insert(database, run, {block: packed[block] for block in new})
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
        trial, world, _, _ = _blob.unpack([stored])
        if not (np.array_equal(trial, result.trial) and np.array_equal(world, result.world)):
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

    def done(self, fingerprint: str) -> set[int]:
        """The indices of the blocks that are stored; empty for a run that is not known."""
        with self._reading() as database:
            rows = database.execute(
                "SELECT block FROM block JOIN run ON run.id = run WHERE fingerprint = ?", (_fingerprint(fingerprint),)
            )
            return {row["block"] for row in rows}

    def scores(self, fingerprint: str, *, below: int | None = None, blocks: Collection[int] | None = None) -> Trials:
        """The stored trials in the order of the trial index; with ``below`` only those with a smaller index, with
        ``blocks`` those of these blocks alone.

        Every block's checksum is tested; a damaged block or a trial that is stored twice is an error.
        """
        limit = None if below is None else _validate.integer("below", below, at_least=0)
        with self._reading() as database:
            run = self._known(database, fingerprint)
            rows = database.execute(f"SELECT {_PAYLOAD} FROM block WHERE run = ? ORDER BY block", (run,)).fetchall()
        rows = [row for row in rows if blocks is None or row["block"] in blocks]
        for row in rows:
            self._check(fingerprint, row)
        if len({row["columns"] for row in rows}) > 1:
            raise StoreError(f"store {str(self.path)!r}: the blocks of run {fingerprint!r} have different columns")
        trial, world, score, columns = _blob.unpack(rows)
        order = np.argsort(trial, kind="stable")
        trial = trial[order]
        if (trial[1:] == trial[:-1]).any():
            twice = int(trial[1:][trial[1:] == trial[:-1]][0])
            raise StoreError(f"store {str(self.path)!r}: trial {twice} of run {fingerprint!r} is stored twice")
        if limit is not None:
            order = order[: np.searchsorted(trial, limit)]
            trial = trial[: order.size]
        return Trials(
            trial=trial,
            world=world[order],
            score=score[order],
            columns={name: values[order] for name, values in columns.items()},
            devices=tuple(sorted({row["device"] for row in rows})),
            elapsed=float(sum(row["elapsed"] for row in rows)),
        )

    def verify(self) -> tuple[str, ...]:
        """All that is wrong with the file: SQLite's own check, then every block's checksum. Empty if all is well."""
        with self._reading() as database:
            problems = [row[0] for row in database.execute("PRAGMA integrity_check") if row[0] != "ok"]
            for row in database.execute(f"SELECT fingerprint, {_PAYLOAD} FROM block LEFT JOIN run ON run.id = run"):
                try:
                    self._check(row["fingerprint"], row)
                except StoreError as error:
                    problems.append(str(error))
        return tuple(problems)

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
        taken: list[int] = []
        with self._writing(durable=False) as database:
            run = self._known(database, fingerprint)
            held = {row["block"] for row in leases(database, run) if row["owner"] == self._owner.name or is_held(row)}
            for block in blocks:
                if len(taken) == wanted:
                    break
                index = _validate.integer("block", block, at_least=0)
                if index not in held and not _is_stored(database, run, index):
                    taken.append(index)
                    held.add(index)
            owner = self._owner
            database.executemany(
                "INSERT OR REPLACE INTO lease (run, block, owner, host, pid, started, expires)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(run, block, owner.name, owner.host, owner.pid, owner.started, expires) for block in taken],
            )
        return tuple(taken)

    def renew(self, fingerprint: str, *, seconds: float = LEASE_SECONDS) -> tuple[int, ...]:
        """A sign of life: extend this Store's leases on the run; return the blocks it still holds."""
        expires = time.time() + _validate.positive("seconds", seconds)
        with self._writing(durable=False) as database:
            run = self._known(database, fingerprint)
            mine = (run, self._owner.name)
            database.execute("UPDATE lease SET expires = ? WHERE run = ? AND owner = ?", (expires, *mine))
            rows = database.execute("SELECT block FROM lease WHERE run = ? AND owner = ? ORDER BY block", mine)
            return tuple(row["block"] for row in rows)

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
            _database.set_durable(self._database, durable)
            with _database.transaction(self._database):
                yield self._database

    def _same_process(self) -> None:
        """SQLite forbids to carry a connection into a forked process: its locks would not hold."""
        if os.getpid() != self._owner.pid:
            raise StoreError(f"store {str(self.path)!r} was opened in another process: open it anew in each process")

    def _known(self, database: sqlite3.Connection, fingerprint: str) -> int:
        """The row of a registered run."""
        row = database.execute("SELECT id FROM run WHERE fingerprint = ?", (_fingerprint(fingerprint),)).fetchone()
        if row is None:
            raise StoreError(f"store {str(self.path)!r} has no run {fingerprint!r}: register it first")
        return int(row["id"])

    def _find(self, database: sqlite3.Connection, prefix: str) -> int:
        """The row of the one run that begins with ``prefix``."""
        if not isinstance(prefix, str) or not re.fullmatch("[0-9a-f]+", prefix):
            raise _validate.reject("run", prefix, "the first characters of a run's fingerprint (0-9, a-f)")
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


def _insert(database: sqlite3.Connection, run: int, packed: Mapping[int, _Packed]) -> None:
    """New rows for blocks."""
    now = time.time()
    rows = []
    for block, (result, payload, columns, checksum) in packed.items():
        reasons = {str(trial): why for trial, why in sorted(result.failures.items())}
        text = json.dumps(reasons) if reasons else None
        about = (run, block, int(result.trial.size), len(reasons), result.elapsed, result.device, now)
        rows.append((*about, columns, text, checksum, payload))
    database.executemany(
        "INSERT INTO block (run, block, trials, failed, elapsed, device, created, columns, failures, checksum, payload)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )


def _describe(database: sqlite3.Connection, run: int) -> Run:
    """A run with its counts."""
    row = database.execute("SELECT fingerprint, description, created FROM run WHERE id = ?", (run,)).fetchone()
    counts = database.execute(
        "SELECT count(*) AS blocks, coalesce(sum(trials), 0) AS trials, coalesce(sum(failed), 0) AS failed,"
        " coalesce(sum(elapsed), 0.0) AS elapsed FROM block WHERE run = ?",
        (run,),
    ).fetchone()
    wanted = database.execute("SELECT coalesce(max(wanted), 0) FROM member WHERE run = ?", (run,)).fetchone()[0]
    devices = database.execute("SELECT DISTINCT device FROM block WHERE run = ? ORDER BY device", (run,)).fetchall()
    failed = database.execute("SELECT count(*) FROM failure WHERE run = ?", (run,)).fetchone()[0]
    return Run(
        fingerprint=row["fingerprint"],
        description=_database.table(row["description"]),
        created=row["created"],
        blocks=counts["blocks"],
        trials=counts["trials"],
        wanted=max(wanted, counts["trials"]),
        failed_blocks=failed,
        failed_trials=counts["failed"],
        elapsed=counts["elapsed"],
        devices=tuple(device["device"] for device in devices),
    )
