"""A block's arrays as bytes: little endian, one after the other, with a checksum. No pickle, the same on every machine.

Layout for n trials: trial index (int64 × n), world (int8 × n), score (float64 × n), then each further column
(float64 × n) in the order of its name in the ``columns`` field beside the bytes.
"""

from __future__ import annotations

import itertools
import json
import operator
import sqlite3
import zlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coalmine.store.records import BlockResult, Trials

_Number = TypeVar("_Number", np.int64, np.int8, np.float64)


def pack(fingerprint: str, block: int, result: BlockResult) -> tuple[bytes, str, int]:
    """The bytes, the names of the further columns as JSON, and the checksum."""
    names = sorted(result.columns)
    parts = [
        result.trial.astype("<i8").tobytes(),
        result.world.astype("<i1").tobytes(),
        result.score.astype("<f8").tobytes(),
        *(result.columns[name].astype("<f8").tobytes() for name in names),
    ]
    payload, columns, trials = b"".join(parts), json.dumps(names), int(result.trial.size)
    return payload, columns, _checksum(payload, fingerprint, block, trials, result.elapsed, result.device, columns)


def _checksum(payload: bytes, *about: object) -> int:
    """CRC-32 over the bytes and what they belong to: SQLite itself does not notice a flipped bit inside a value."""
    return zlib.crc32(payload, zlib.crc32(repr(about).encode()))


def check(fingerprint: str, row: sqlite3.Row) -> None:
    """ValueError if a stored block is not as it was stored; the row has all the fields of a block."""
    payload, trials, columns = row["payload"], row["trials"], row["columns"]
    about = (fingerprint, row["block"], trials, row["elapsed"], row["device"], columns)
    if not isinstance(payload, bytes) or row["checksum"] != _checksum(payload, *about):
        raise ValueError("its checksum is wrong")


def unpack(rows: Sequence[sqlite3.Row]) -> Trials:
    """The trials of checked blocks again, one block after the other; all have the same columns."""
    names: list[str] = json.loads(rows[0]["columns"]) if rows else []
    parts = []
    for trials, alike in itertools.groupby(rows, key=operator.itemgetter("trials")):  # nearly always one group
        fields = [("trial", "<i8", trials), ("world", "<i1", trials), ("score", "<f8", trials)]
        layout = np.dtype([*fields, *((f"column {name}", "<f8", trials) for name in names)])
        parts.append(np.frombuffer(b"".join(row["payload"] for row in alike), layout))

    def joined(field: str, kind: type[_Number]) -> NDArray[_Number]:
        return np.concatenate([np.empty(0, kind), *(part[field].ravel() for part in parts)], dtype=kind)

    return Trials(
        trial=joined("trial", np.int64),
        world=joined("world", np.int8),
        score=joined("score", np.float64),
        columns={name: joined(f"column {name}", np.float64) for name in names},
        devices=tuple(sorted({row["device"] for row in rows})),
        elapsed=float(sum(row["elapsed"] for row in rows)),
    )


def join(parts: Sequence[Trials]) -> Trials:
    """Several of :func:`unpack`, one after the other."""
    return Trials(
        trial=np.concatenate([one.trial for one in parts]),
        world=np.concatenate([one.world for one in parts]),
        score=np.concatenate([one.score for one in parts]),
        columns={name: np.concatenate([one.columns[name] for one in parts]) for name in parts[0].columns},
        devices=tuple(sorted({device for one in parts for device in one.devices})),
        elapsed=sum(one.elapsed for one in parts),
    )
