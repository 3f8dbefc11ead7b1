"""Formats that several data sets share. All is read from memory and checked; nothing is unpickled or executed."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coalmine.data.loaded import Arrays


def npz(content: bytes) -> dict[str, NDArray[np.generic]]:
    """The arrays of an .npz file; one that would need pickle is refused."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def idx(content: bytes) -> NDArray[np.uint8]:
    """An array of bytes in the gzipped IDX format of MNIST: 0, 0, type 8, the number of axes, their lengths, data."""
    raw = gzip.decompress(content)
    if raw[:3] != b"\x00\x00\x08" or len(raw) < 4:
        raise ValueError("not an IDX file of bytes")
    axes = raw[3]
    shape = np.frombuffer(raw, ">u4", axes, 4).astype(int)
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if data.size != shape.prod():
        raise ValueError(f"an IDX file of shape {shape.tolist()} with {data.size} bytes")
    return data.reshape(shape)


def tar_members(content: bytes, names: Sequence[str]) -> list[bytes]:
    """Members of a gzipped tar archive, read in memory in one pass: nothing is unpacked to disk."""
    found: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if name in names and member.isfile():
                stream = archive.extractfile(member)
                found[name] = stream.read() if stream else b""
    absent = [name for name in names if name not in found]
    if absent:
        raise ValueError(f"the archive has no file {absent[0]!r}")
    return [found[name] for name in names]


def label_and_bits(text: bytes, features: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Lines "label,0,1,…": the bits and the labels, which count from 1 in the file and from 0 here."""
    lines = [line.partition(b",") for line in text.splitlines()]
    width = 2 * features - 1
    wrong = next((number for number, line in enumerate(lines, start=1) if len(line[2]) != width), None)
    if wrong is not None or not lines:
        raise ValueError(f"line {wrong or 1} is not a label and {features} bits")
    table = np.frombuffer(b"".join(line[2] for line in lines), np.uint8).reshape(len(lines), width)
    bits = table[:, ::2] - np.uint8(ord("0"))
    if bits.max() > 1 or (table[:, 1::2] != ord(",")).any():
        raise ValueError(f"some line is not a label and {features} bits")
    return bits, np.array([int(line[0].strip(b'"')) - 1 for line in lines], dtype=np.int64)


def pictures(
    x_train: NDArray[np.uint8], y_train: NDArray[np.uint8], x_test: NDArray[np.uint8], y_test: NDArray[np.uint8]
) -> Arrays:
    """Pictures of bytes as rows in [0, 1]: each pixel divided by 255."""
    return Arrays(unit_rows(x_train), y_train.astype(np.int64), unit_rows(x_test), y_test.astype(np.int64))


def unit_rows(x: NDArray[np.uint8]) -> NDArray[np.float32]:
    """One flattened row a picture, bytes 0…255 to [0, 1]."""
    rows = x.reshape(len(x), -1).astype(np.float32)
    rows /= np.float32(255)
    return rows


def split(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Arrays:
    """Training and test rows where the source has no split: every fifth row is for testing, the order stays."""
    test = np.arange(len(y)) % 5 == 4
    return Arrays(x[~test].astype(np.float32), y[~test], x[test].astype(np.float32), y[test])
