"""A block's arrays as bytes: little endian, one after the other, with a checksum. No pickle, the same on every machine.

Layout for n trials: trial index (int64 × n), world (int8 × n), score (float64 × n), then each further column
(float64 × n) in the order of its name in the ``columns`` field beside the bytes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from coalmine.store.records import BlockResult

Arrays = tuple[NDArray[np.int64], NDArray[np.int8], NDArray[np.float64], Mapping[str, NDArray[np.float64]]]


def pack(result: BlockResult) -> tuple[bytes, str, int]:
    """The bytes, the names of the further columns as JSON, and the checksum of both."""
    names = sorted(result.columns)
    parts = [
        result.trial.astype("<i8").tobytes(),
        result.world.astype("<i1").tobytes(),
        result.score.astype("<f8").tobytes(),
        *(result.columns[name].astype("<f8").tobytes() for name in names),
    ]
    payload, header = b"".join(parts), json.dumps(names)
    return payload, header, checksum(payload, header)


def checksum(payload: bytes, header: str) -> int:
    """CRC-32 over the header and the bytes: SQLite itself does not notice a flipped bit inside a value."""
    return zlib.crc32(payload, zlib.crc32(header.encode()))


def unpack(payload: bytes, header: str, crc: int, trials: int) -> Arrays:
    """The arrays again. ValueError if the bytes are not those that were stored."""
    if checksum(payload, header) != crc:
        raise ValueError("checksum mismatch")
    names: list[str] = json.loads(header)
    if len(payload) != trials * (17 + 8 * len(names)):
        raise ValueError(f"{len(payload)} bytes for {trials} trials")
    score_at = 9 * trials
    columns = {
        name: np.frombuffer(payload, "<f8", trials, score_at + 8 * trials * (position + 1)).astype(np.float64)
        for position, name in enumerate(names)
    }
    return (
        np.frombuffer(payload, "<i8", trials).astype(np.int64),
        np.frombuffer(payload, "<i1", trials, 8 * trials).astype(np.int8),
        np.frombuffer(payload, "<f8", trials, score_at).astype(np.float64),
        columns,
    )
