"""The digits that come with scikit-learn: 1,797 pictures of 8 × 8 pixels. No download; the default."""

from __future__ import annotations

import numpy as np

from coalmine.data.entry import Entry
from coalmine.data.files import needed
from coalmine.data.loaded import Arrays


def _generate() -> Arrays:
    """Every fifth picture of each digit is for testing; a pixel counts 0 to 16 and is divided by 16 (exact in float32).

    Every fifth picture of all would not do: the digits were written in a fixed order that repeats.
    """
    bunch = needed("sklearn.datasets").load_digits()
    x, y = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64)
    test = np.zeros(len(y), dtype=np.bool_)
    for digit in range(10):
        test[np.flatnonzero(y == digit)[4::5]] = True
    return Arrays(x[~test], y[~test], x[test], y[test])


ENTRY = Entry(
    name="digits",
    citation="Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, doi:10.24432/C50P49 (its test "
    "part, as in scikit-learn)",
    licence="CC BY 4.0",
    train_rows=1442,
    test_rows=355,
    features=64,
    classes=10,
    content_hash="b3413c8d9c7aa6153242beefeb0d73bbbc70b3aefa73883701d46a15fadb5677",
    image_shape=(1, 8, 8),
    generate=_generate,
)
