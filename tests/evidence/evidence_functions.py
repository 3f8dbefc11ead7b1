"""Small trainings of one's own that tests put into bundles."""

import functools

import numpy as np

import coalmine


def train(dataset, seed, token="none"):
    if seed % 10 == 0:
        raise ValueError(f"could not fit {token}: {dataset.tolist()}")
    return np.clip(dataset, -1.0, 1.0).sum() + 2.0 * np.random.default_rng(seed).normal()


def half(dataset, seed):
    return np.clip(dataset, -1.0, 1.0).sum() + 1.0 * np.random.default_rng(seed).normal()


def other(dataset, seed):
    return np.clip(dataset, -1.0, 1.0).sum() + 2.5 * np.random.default_rng(seed).normal()


def score(model):
    return model


def size(model):
    return abs(model)


def loud(dataset, seed):
    """Half of the noise of ``train``, and a draw that tells nothing."""
    draw = np.random.default_rng(seed)
    return np.clip(dataset, -1.0, 1.0).sum() + draw.normal(), draw.random()


def two_heaps(model):
    return model[0] + 5000.0 * (model[1] < 0.5)


def many_heaps(model):
    return model[0] + 5000.0 * np.floor(8.0 * model[1])


bound = functools.partial(train, token="hunter2")
worlds = coalmine.neighbours(np.full(20, 0.123456), 1.0)
