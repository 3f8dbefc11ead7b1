"""Location-30: 5,010 users of a location service, 446 bits each (visited a region or a kind of place), 30 classes.

The source has no split: every fifth row is for testing.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from coalmine.data import _formats
from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.loaded import Arrays

FEATURES = 446
_PACKED = File("location30.npz", "sha256:8a5018ff10be8d5f52b44b18ac7e5f4200d6e92ec61410d910301ad5820ba4f0")
_OFFICIAL = File(
    "dataset_location.tgz",
    "sha256:927203f85a868f8ee17a0ded1dc61699efe602167beabe34fbf45b4b1de94b33",
    "https://github.com/privacytrustlab/datasets/raw/master/dataset_location.tgz",
)


def _from_npz(read: Read) -> Arrays:
    arrays = _formats.npz(read(_PACKED.name))
    if int(arrays["n_features"]) != FEATURES:
        raise ValueError(f"{int(arrays['n_features'])} features: expected {FEATURES}")
    bits = np.unpackbits(cast("NDArray[np.uint8]", arrays["x_packed"]), axis=1, count=FEATURES)
    return _formats.split(bits, arrays["y"].astype(np.int64))


def _from_archive(read: Read) -> Arrays:
    (text,) = _formats.tar_members(read(_OFFICIAL.name), ["bangkok"])
    return _formats.split(*_formats.label_and_bits(text, FEATURES))


ENTRY = Entry(
    name="location30",
    citation="Shokri et al. (2017), Membership Inference Attacks Against Machine Learning Models, "
    "https://github.com/privacytrustlab/datasets; check-ins of Yang et al.",
    licence="none stated",
    train_rows=4008,
    test_rows=1002,
    features=FEATURES,
    classes=30,
    content_hash="e1eb3bd05db38030ab5dce18c6ea3d4686b400cf32455957ba5f08db3471e957",
    sources=(
        Source((_PACKED,), _from_npz),
        Source((_OFFICIAL,), _from_archive, folder="location30"),
    ),
)
