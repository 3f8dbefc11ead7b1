"""A block's arrays as bytes: little endian, one after the other, with a checksum. No pickle, the same on every machine.

Layout for n trials: trial index (int64 × n), world (int8 × n), score (float64 × n), then each further column
(float64 × n) in the order of its name in the ``columns`` field beside the bytes.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coalmine.store.records import BlockResult

Arrays = tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float64], Mapping[str, NDArray[np.float64]]]


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


def unpack(fingerprint: str, row: sqlite3.Row) -> Arrays:
    """The arrays again. ValueError if a stored block is not as it was stored; the row has all the fields of a block."""
    payload, trials, columns = row["payload"], row["trials"], row["columns"]
    about = (fingerprint, row["block"], trials, row["elapsed"], row["device"], columns)
    if not isinstance(payload, bytes) or row["checksum"] != _checksum(payload, *about):
        raise ValueError("its checksum is wrong")
    names: list[str] = json.loads(columns)
    score_at = 9 * trials
    extra = {
        name: np.frombuffer(payload, "<f8", trials, score_at + 8 * trials * (position + 1)).astype(np.float64)
        for position, name in enumerate(names)
    }
    return (
        np.frombuffer(payload, "<i8", trials).astype(np.int64),
        np.frombuffer(payload, "<i1", trials, 8 * trials).astype(np.int8),
        np.frombuffer(payload, "<f8", trials, score_at).astype(np.float64),
        extra,
    )
