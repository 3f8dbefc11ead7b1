"""The digits that come with scikit-learn: 1,797 pictures of 8 × 8 pixels. No download; the default."""

from __future__ import annotations

import numpy as np

from coalmine.data import _formats
from coalmine.data.entry import Entry
from coalmine.data.files import needed
from coalmine.data.records import Arrays


def _generate() -> Arrays:
    """Every fifth picture is for testing; a pixel counts 0 to 16 and is divided by 16 (exact in float32)."""
    bunch = needed("sklearn.datasets").load_digits()
    arrays = _formats.split(bunch.data.astype(np.uint8), bunch.target.astype(np.int64))
    return arrays._replace(x_train=arrays.x_train / np.float32(16), x_test=arrays.x_test / np.float32(16))


ENTRY = Entry(
    name="digits",
    citation="Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, doi:10.24432/C50P49 (its test "
    "part, as in scikit-learn)",
    licence="CC BY 4.0",
    train_rows=1438,
    test_rows=359,
    features=64,
    classes=10,
    content_hash="835579911fd9e974721d72d33556bc989f6fdb30dca2f9e327e467b2ba5f4f9e",
    image_shape=(1, 8, 8),
    generate=_generate,
)
