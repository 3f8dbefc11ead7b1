"""Purchase-100: 197,324 shoppers, 600 bits each (bought a product or not), 100 classes.

The source has no split: every fifth row is for testing. No checksum is published; the file is known by its git blob id.
"""

from __future__ import annotations

import dataclasses

from coalmine.data import _formats
from coalmine.data.entry import Entry, File, Read, Source
from coalmine.data.loaded import Arrays

FEATURES = 600
_FILE = File(
    "dataset_purchase.tgz",
    "git-blob:3efa7476ad5ed7ac3e558d28585a186b38fc5f19",
    "https://github.com/privacytrustlab/datasets/raw/master/dataset_purchase.tgz",
)


def _from_archive(read: Read) -> Arrays:
    (text,) = _formats.tar_members(read(_FILE.name), ["dataset_purchase"])
    return _formats.split(*_formats.label_and_bits(text, FEATURES))


_SOURCE = Source((_FILE,), _from_archive)

ENTRY = Entry(
    name="purchase100",
    citation="Shokri et al. (2017), Membership Inference Attacks Against Machine Learning Models, "
    "https://github.com/privacytrustlab/datasets; from Kaggle's Acquire Valued Shoppers Challenge",
    licence="none stated",
    train_rows=157_860,
    test_rows=39_464,
    features=FEATURES,
    classes=100,
    sources=(_SOURCE, dataclasses.replace(_SOURCE, folder="purchase100")),
    instead="use 'purchase-like', a synthetic stand-in of the same shape",
)
