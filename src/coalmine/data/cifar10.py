"""CIFAR-10: 60,000 colour pictures of 32 × 32 pixels in 10 classes.

Two forms: lossless sheets of 100 × 100 pictures (WebP, needs Pillow), or the official archive of the binary version.
The official Python version is a pickle and is not read.
"""

from __future__ import annotations

import io
from typing import cast

import numpy as np
from numpy.typing import NDArray

from coalmine.data import _formats
from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.files import needed
from coalmine.data.loaded import Arrays

_SHEETS = {
    "cifar10_train_1.webp": "c865176d1ba041707262d71906b5b2503109b855e34946bcaab6a49820010d6a",
    "cifar10_train_2.webp": "fbfca2c0afde1e7156546ee398f63d7673c4e37b7a75b646f77becd85f41b88a",
    "cifar10_train_3.webp": "a8e8798a4dfaaf6fdd44749500e9d305720bf2d7e54a60c2c5a251bd243c90d8",
    "cifar10_train_4.webp": "5c8782bb2f89a31d8da4a3367230b5ba3f29f35c3c6f8323503093b3001964d0",
    "cifar10_train_5.webp": "5b4ce7f87b5b0e4a172c164ab9018f4e8ebf9181b1db3f1448b531317154c7d9",
    "cifar10_test.webp": "e491c59dfeb353ddac67134ad85c79d4eef5760526ff220eeb891182479e9571",
}
_LABELS = File("cifar10_labels.npz", "sha256:b4f5bb8db0d9df30be17bb35661f3814077d871968ecc4ff7e4afc0995d2aad8")
_ARCHIVE = File(
    "cifar-10-binary.tar.gz",
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
)
_BATCHES = tuple(
    f"cifar-10-batches-bin/{name}.bin" for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
)


def sheet(content: bytes) -> NDArray[np.uint8]:
    """The 10,000 pictures of a sheet, channels first: (10000, 3, 32, 32)."""
    image = needed("PIL.Image").open(io.BytesIO(content), formats=("WEBP",))
    if image.size != (3200, 3200) or image.mode != "RGB":
        raise ValueError(f"a sheet of size {image.size} in mode {image.mode}: expected 3200 × 3200 in RGB")
    # rows of tiles, row in the tile, columns of tiles, column in the tile, colour
    tiles = np.asarray(image).reshape(100, 32, 100, 32, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(10_000, 3, 32, 32)


def _from_sheets(read: Read) -> Arrays:
    labels = cast("dict[str, NDArray[np.uint8]]", _formats.npz(read(_LABELS.name)))
    rows = [_formats.unit_rows(sheet(read(name))) for name in _SHEETS]
    return Arrays(
        np.concatenate(rows[:5]), labels["y_train"].astype(np.int64), rows[5], labels["y_test"].astype(np.int64)
    )


def _from_archive(read: Read) -> Arrays:
    """A batch is 10,000 records of one label byte and 3,072 bytes, channels first."""
    members = _formats.tar_members(read(_ARCHIVE.name), _BATCHES)
    batches = [np.frombuffer(member, np.uint8).reshape(-1, 3073) for member in members]
    train, test = np.concatenate(batches[:5]), batches[5]
    return _formats.pictures(train[:, 1:], train[:, 0], test[:, 1:], test[:, 0])


ENTRY = Entry(
    name="cifar10",
    citation="Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images, "
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; free for research with citation",
    train_rows=50_000,
    test_rows=10_000,
    features=3072,
    classes=10,
    content_hash="9bdd39476655d31f075a81d4b6f2eddc1d810ebdbfd3291395ec87984e49ab42",
    image_shape=(3, 32, 32),
    sources=(
        Source((*(File(name, f"sha256:{digest}") for name, digest in _SHEETS.items()), _LABELS), _from_sheets),
        Source((_ARCHIVE,), _from_archive, folder="cifar10"),
    ),
)
