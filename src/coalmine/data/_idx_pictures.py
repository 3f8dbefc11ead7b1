"""MNIST and Fashion-MNIST: the same four files, the same shape."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from coalmine.data import _formats
from coalmine.data.entry import File, Read, Source
from coalmine.data.records import Arrays

_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def sources(name: str, *, repacked: File, base_url: str, md5: tuple[str, str, str, str]) -> tuple[Source, Source]:
    """One .npz file, or the four official files in a folder of their own (their names are the same for both sets)."""
    official = tuple(
        File(f"{part}-ubyte.gz", f"md5:{digest}", f"{base_url}{part}-ubyte.gz")
        for part, digest in zip(_PARTS, md5, strict=True)
    )

    def from_npz(read: Read) -> Arrays:
        arrays = _formats.npz(read(repacked.name))
        return _formats.pictures(*(cast("NDArray[np.uint8]", arrays[field]) for field in Arrays._fields))

    def from_idx(read: Read) -> Arrays:
        return _formats.pictures(*(_formats.idx(read(file.name)) for file in official))

    return Source((repacked,), from_npz), Source(official, from_idx, folder=name)
