"""A synthetic stand-in for California housing: the same shape (8 numbers a district), none of its districts.

Eight skewed, correlated features at mean 0 and variance 1, and whether the price is above its median: a smooth function
of them plus noise. A logistic regression is right on about 76 % of fresh rows. Nothing else about the real data is
imitated, so a number measured here is no number about California.
"""

from __future__ import annotations

import numpy as np

from coalmine import _validate
from coalmine.data.entry import Entry
from coalmine.data.loaded import Arrays

FEATURES = 8


def _generate(*, rows: int = 16_512, test_rows: int = 4_128, seed: int = 0) -> Arrays:
    """Rows from one stream of random numbers; the median is that of all of them."""
    n = _validate.integer("rows", rows, at_least=2)
    m = _validate.integer("test_rows", test_rows, at_least=1)
    rng = np.random.default_rng([0x484F5553, _validate.integer("seed", seed, at_least=0)])
    mixing = np.eye(FEATURES) + 0.35 * rng.standard_normal((FEATURES, FEATURES))
    hidden = rng.standard_normal((n + m, FEATURES)) @ mixing
    x = np.concatenate([np.exp(0.5 * hidden[:, :4]), hidden[:, 4:]], axis=1)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    price = x @ rng.standard_normal(FEATURES) + np.sin(2.0 * x[:, 6]) * x[:, 7] + rng.standard_normal(n + m)
    y = (price > np.median(price)).astype(np.int64)
    return Arrays(x[:n].astype(np.float32), y[:n], x[n:].astype(np.float32), y[n:])


ENTRY = Entry(
    name="housing-like",
    citation="made by Coalmine from a seed",
    licence="Apache-2.0 (as Coalmine)",
    train_rows=16_512,
    test_rows=4_128,
    features=FEATURES,
    classes=2,
    generate=_generate,
    note="Synthetic stand-in for California housing (same shape, no real districts): not a result about California.",
    stand_in_for="California housing",
)
