"""A synthetic stand-in for Purchase-100: the same shape (600 bits, 100 classes), none of its people.

Product j has a popularity s_j between 0 and 0.5 (few products are common, most are rare). A class likes a tenth of the
products: its members buy those with probability s_j + 0.2, the others with probability s_j, each on its own. A logistic
regression on 10,000 rows is right on about 85 % of fresh rows: well, not perfectly. Nothing else about the real data is
imitated, so a number measured here is no number about Purchase-100.
"""

from __future__ import annotations

import numpy as np

from coalmine import _validate
from coalmine.data.entry import Entry
from coalmine.data.loaded import Arrays

FEATURES, CLASSES = 600, 100


def _generate(*, rows: int = 20_000, test_rows: int = 10_000, seed: int = 0) -> Arrays:
    """Rows from one stream of random numbers, the classes in turn."""
    n = _validate.integer("rows", rows, at_least=CLASSES)
    m = _validate.integer("test_rows", test_rows, at_least=1)
    rng = np.random.default_rng([0x50555243, _validate.integer("seed", seed, at_least=0)])
    share = 0.5 * rng.random(FEATURES) ** 3
    liked = rng.random((CLASSES, FEATURES)) < 0.1
    probability = share + np.where(liked, 0.2, 0.0)
    y = np.concatenate([np.arange(n), np.arange(m)]) % CLASSES
    x = np.empty((n + m, FEATURES), dtype=np.float32)
    for start in range(0, n + m, 4096):
        part = slice(start, start + 4096)
        x[part] = rng.random(x[part].shape) < probability[y[part]]
    return Arrays(x[:n], y[:n].astype(np.int64), x[n:], y[n:].astype(np.int64))


ENTRY = Entry(
    name="purchase-like",
    citation="made by Coalmine from a seed",
    licence="Apache-2.0 (as Coalmine)",
    train_rows=20_000,
    test_rows=10_000,
    features=FEATURES,
    classes=CLASSES,
    generate=_generate,
    note="Synthetic stand-in for Purchase-100 (same shape, no real shoppers): not a result about Purchase-100.",
    stand_in_for="purchase100",
)
