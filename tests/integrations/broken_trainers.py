"""DP-SGD small enough to see through, and the same with one bug at a time.

Rows are gradients (a linear loss), so worst-case data is written down directly. A model is the list of all private
gradients, ``[steps, dimensions]``: an adversary that sees every iterate knows just these.
"""

from __future__ import annotations

import numpy as np

from coalmine import neighbours
from coalmine.records import Relation

CLIP = 1.0
DIMENSIONS = 4
CANARY = 10.0 * np.eye(DIMENSIONS)[0]


def clipped(gradients, clip=CLIP):
    norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-12))


def train(dataset, seed, *, sigma, steps=1, rate=1.0, bug=""):
    """Poisson-sampled DP-SGD with expected batch size as the divisor, or with ``bug``."""
    rng = np.random.default_rng(seed)
    expected = 10.0 * rate
    released = []
    frozen = rng.normal(size=dataset.shape[1])
    for step in range(steps):
        if bug == "fixed batches":
            batch = np.arange(len(dataset)) % steps == (len(dataset) - 1 - step) % steps
        else:
            batch = rng.random(len(dataset)) < rate
        rows = dataset[batch]
        if bug == "two batches for one noise":
            rows = np.concatenate([rows, dataset[rng.random(len(dataset)) < rate]])
        noise = sigma * CLIP * rng.normal(size=dataset.shape[1])
        if bug == "no noise":
            noise = 0.0 * noise
        elif bug == "half the noise":
            noise = 0.5 * noise
        elif bug == "noise on the last layer only":
            noise[: DIMENSIONS // 2] = 0.0
        elif bug == "the same noise every step":
            noise = sigma * CLIP * frozen
        if bug == "clipping disabled":
            total = rows.sum(axis=0) + noise
        elif bug == "noise before clipping":
            total = clipped(rows + sigma * CLIP * rng.normal(size=rows.shape)).sum(axis=0)
        elif bug == "NaN from the canary":
            total = (clipped(rows) + np.where(np.abs(rows) > 5.0, np.nan, 0.0)).sum(axis=0) + noise
        else:
            total = clipped(rows).sum(axis=0) + noise
        divisor = max(len(rows), 1) if bug == "realised batch as the divisor" else expected
        released.append(total / divisor)
    return np.stack(released)


def flat_worlds():
    """Three rows with no gradient at all; the canary alone moves anything."""
    return neighbours(np.zeros((3, DIMENSIONS)), CANARY)


def lone_worlds():
    """One row without gradient."""
    return neighbours(np.zeros((1, DIMENSIONS)), CANARY)


def wide_worlds():
    """One row without gradient in many dimensions: the size of the noise can be read off."""
    return neighbours(np.zeros((1, 50)), 10.0 * np.eye(50)[0])


def many_worlds():
    """Nineteen rows, so that fixed batches of one row take twenty steps; the canary is the last row."""
    return neighbours(np.zeros((19, DIMENSIONS)), CANARY)


def replaced_worlds():
    """The last row against its opposite: the sum of clipped gradients moves by 2C."""
    base = np.zeros((3, DIMENSIONS))
    base[-1] = -CANARY
    return neighbours(base, CANARY, relation=Relation.REPLACE)


def mean_score(model):
    return model[:, 0].mean()


def size_score(model):
    """Less noise speaks for world 1, where the divisor is larger."""
    return -np.square(model[:, 1:]).sum()


def first_step_score(model):
    """The step whose batch holds the last row."""
    return model[0, 0]


def spread_score(model):
    """With one noise vector for all steps, steps differ by the canary alone."""
    return np.ptp(model[:, 0])


def nan_score(model):
    """A broken model is itself the sign."""
    return 1.0 if np.isnan(model).any() else 0.0
