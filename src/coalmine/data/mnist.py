"""MNIST and Fashion-MNIST: 70,000 grey pictures each of 28 × 28 pixels, in the same four files."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from coalmine.data import _formats
from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.loaded import Arrays

_PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _entry(
    name: str, *, citation: str, licence: str, content: str, repacked: str, base_url: str, md5: tuple[str, ...]
) -> Entry:
    """One .npz file, or the four official files in a folder of their own (their names are the same for both sets)."""
    one = File(f"{name.replace('-', '_')}.npz", f"sha256:{repacked}")
    official = tuple(
        File(f"{part}-ubyte.gz", f"md5:{digest}", f"{base_url}{part}-ubyte.gz")
        for part, digest in zip(_PARTS, md5, strict=True)
    )

    def from_npz(read: Read) -> Arrays:
        arrays = _formats.npz(read(one.name))
        return _formats.pictures(*(cast("NDArray[np.uint8]", arrays[field]) for field in Arrays._fields))

    def from_idx(read: Read) -> Arrays:
        return _formats.pictures(*(_formats.idx(read(file.name)) for file in official))

    return Entry(
        name=name,
        citation=citation,
        licence=licence,
        train_rows=60_000,
        test_rows=10_000,
        features=784,
        classes=10,
        content_hash=content,
        image_shape=(1, 28, 28),
        sources=(Source((one,), from_npz), Source(official, from_idx, folder=name)),
    )


MNIST = _entry(
    "mnist",
    citation="LeCun, Cortes, Burges, The MNIST database, http://yann.lecun.com/exdb/mnist/",
    licence="none stated (commonly given as CC BY-SA 3.0)",
    content="a4ea8d714a06aed1e3d10d5c27fa296dcdb4fd6575143fe8a6f5432b70a7331c",
    repacked="06af5dfe73b70e3bc1c36439982b18a8d76803db9b544f6fdf838a37fbb01b64",
    base_url="https://ossci-datasets.s3.amazonaws.com/mnist/",
    md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = _entry(
    "fashion-mnist",
    citation="Xiao, Rasul, Vollgraf (2017), Fashion-MNIST, https://github.com/zalandoresearch/fashion-mnist",
    licence="MIT",
    content="81f09e9017d14fd3b5890f5c5f5d14e6d6ff52e69017e5963e9520474c98548a",
    repacked="5b6d2c4c694a91887af8ab7d039c04f80af3c29378d731c93a538d2e831aa469",
    base_url="https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
    md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
