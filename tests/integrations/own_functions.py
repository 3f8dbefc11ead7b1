"""Functions as a user would write them: right ones, and ones that go wrong in every way."""

import os
import time

import numpy as np

from coalmine import neighbours


def worlds():
    return neighbours(np.zeros(3), 1.0)


def train(dataset, seed, sigma=0.1):
    return dataset.sum() + sigma * np.random.default_rng(seed).normal()


def score(model):
    return model


def score_with_canary(model, canary):
    return model * canary


def train_from_global_state(dataset, seed):
    return dataset.sum() + np.random.normal()  # noqa: NPY002


def train_from_one_of_two_starts(dataset, seed, apart):
    return train(dataset, seed, sigma=2.0) + apart * (seed % 2)


def train_raises(dataset, seed):
    raise ValueError("boom")


def train_raises_sometimes(dataset, seed):
    if seed % 4 == 0:
        raise ValueError("an unlucky seed")
    return train(dataset, seed)


def train_exits(dataset, seed):
    raise SystemExit(3)


def train_runs_out_of_memory(dataset, seed):
    raise MemoryError


def train_hangs_late(dataset, seed):
    """Hangs after forty trainings, counted by files in a folder; never where no folder is named."""
    folder = os.environ.get("COUNT_IN")
    if folder:
        if len(os.listdir(folder)) >= 40:
            time.sleep(600)
        with open(f"{folder}/{seed}", "w"):
            pass
    return train(dataset, seed)


def train_kills_its_process(dataset, seed):
    os._exit(7)


def train_changes_its_data(dataset, seed):
    dataset += 1.0
    return dataset.sum()


def train_without_seed(dataset):
    return dataset.sum()


def score_nan(model):
    return float("nan")


def score_nan_sometimes(model):
    return model if model > 0 else float("nan")


def score_two(model):
    return [model, model]


def score_nothing(model):
    return None


def score_with_three(model, canary, other):
    return 0.0


def random_worlds():
    return np.random.default_rng().normal(size=3), np.zeros(4)


def wrong_worlds():
    return 1, 2, 3


class Opaque:
    pass
