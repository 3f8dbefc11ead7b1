"""Gaussian blobs from a seed: one centre a class, sizes as asked."""

from __future__ import annotations

import numpy as np

from coalmine import _validate
from coalmine.data.entry import Entry
from coalmine.data.loaded import Arrays


def _generate(
    *,
    rows: int = 1000,
    test_rows: int = 1000,
    features: int = 20,
    classes: int = 2,
    separation: float = 3.0,
    seed: int = 0,
) -> Arrays:
    """Classes in turn; centres of length ``separation`` in random directions, unit noise in every feature.

    The features are not cut to [0, 1]: their scale is that of the noise.
    """
    k = _validate.integer("classes", classes, at_least=2)
    n = _validate.integer("rows", rows, at_least=k)
    m = _validate.integer("test_rows", test_rows, at_least=1)
    d = _validate.integer("features", features, at_least=1)
    length = _validate.non_negative("separation", separation)
    rng = np.random.default_rng([0x424C4F42, _validate.integer("seed", seed, at_least=0)])
    directions = rng.standard_normal((k, d))
    centres = length * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    y = np.concatenate([np.arange(n), np.arange(m)]).astype(np.int64) % k
    x = (centres[y] + rng.standard_normal((n + m, d))).astype(np.float32)
    return Arrays(x[:n], y[:n], x[n:], y[n:])


ENTRY = Entry(
    name="synthetic",
    citation="made by Coalmine from a seed",
    licence="Apache-2.0 (as Coalmine)",
    train_rows=1000,
    test_rows=1000,
    features=20,
    classes=2,
    generate=_generate,
    note="Synthetic Gaussian blobs: no real people.",
)
