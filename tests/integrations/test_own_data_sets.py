"""Neighbours of a torch data set: both worlds are of one kind, and nothing that is read there misses the canary."""

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from coalmine import DpSgd, audit_function, neighbours
from coalmine.auditing.config import Execution
from coalmine.errors import GameStoppedError, InvalidInputError
from coalmine.integrations import ready
from coalmine.integrations.fitting import MissesCanaryError
from coalmine.integrations.rows import check_neighbours
from coalmine.integrations.travel import opened, sealed


class Held:
    def __init__(self, rows):
        self.rows = rows


class Scaled:
    """As a transform is: an object with numbers of its own."""

    def __init__(self, by):
        self.by = torch.tensor([by])

    def __call__(self, row):
        return row * self.by


class Pictures(Dataset):
    """As those of torchvision: rows and labels are attributes, and so is much else."""

    url = "https://example.org"

    def __init__(self, rows=20):
        self.data, self.targets = torch.zeros(rows, 1), [0] * rows
        self.classes, self.class_to_idx = ["cat", "dog"], {"cat": 0, "dog": 1}
        self.mean, self.train, self.scale = torch.zeros(3), True, 255
        self.rows, self.larger = rows, np.zeros(100)
        self.transform, self.held, self.held_by_name = Scaled(1.0), Held(self.data), {"train": {"x": self.data}}
        self.inner = ConcatDataset([self.data])

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), self.targets[index]

    def __getitems__(self, indices):
        return [self[index] for index in indices]

    def all_rows(self):
        return self.data


CANARY = (torch.ones(1), 1)


def total(dataset, seed, sigma=2.0, ask="classes"):
    """A right step, which reads something of the data set besides its rows."""
    getattr(dataset, ask)
    return float(sum(row.clamp(-1, 1) for row, _ in dataset)) + sigma * np.random.default_rng(seed).normal()


def by_a_fast_path(dataset, seed):
    """Only where there is one: the rows at once, as many loops do."""
    rows = dataset.data if hasattr(dataset, "data") else torch.stack([row for row, _ in dataset])
    return float(rows.clamp(-1, 1).sum()) + 2.0 * np.random.default_rng(seed).normal()


def score(model):
    return model


def play(tmp_path, train, **options):
    return audit_function(
        train, score, worlds=neighbours(Pictures(), CANARY), store=tmp_path / "trials.db", trials=400,
        claim_dpsgd=DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1), **options,
    )  # fmt: skip


def test_a_right_training_that_reads_the_names_of_the_classes_is_not_refuted(tmp_path):
    """World 1 was a ConcatDataset, which has none: every training failed there."""
    result = play(tmp_path, total, confidence=0.999, execution=Execution(engine="inline"))
    assert sum(result.strongest.failed) == 0
    assert result.verdict.outcome != "refuted"


@pytest.mark.parametrize(
    "train",
    [
        functools.partial(total, ask="data"),
        by_a_fast_path,
        functools.partial(ready.guarded, functools.partial(total, ask="data")),
    ],
)
def test_a_training_that_would_miss_the_canary_stops_the_game(tmp_path, train):
    with pytest.raises(GameStoppedError, match=r"\.data of Pictures would miss the canary .*coalmine\.Worlds\("):
        play(tmp_path, train)


@pytest.mark.parametrize("which", ["world0", "world1"])
def test_what_cannot_miss_the_canary_is_passed_on_in_both_worlds(which):
    data = Pictures()
    world = getattr(neighbours(data, CANARY), which)
    for name in ("classes", "class_to_idx", "mean", "train", "scale", "transform", "url"):
        assert getattr(world, name) is getattr(data, name)
    assert not hasattr(world, "nothing_of_the_kind")
    for name in ("data", "targets", "rows", "larger", "held", "held_by_name", "inner", "all_rows"):
        with pytest.raises(MissesCanaryError, match=rf"\.{name} of Pictures would miss the canary"):
            getattr(world, name)
    with pytest.raises(MissesCanaryError, match=r"\.transform = … of Pictures would miss"):
        world.transform = None
    with pytest.raises(MissesCanaryError, match=r"the items \[slice.*expected the number of one item"):
        world[2:5]
    world.note = "mine"
    assert opened(sealed(world)).note == "mine"


def test_items_are_those_of_the_data_set_and_the_canary():
    worlds = neighbours(Pictures(5), CANARY, copies=2)
    assert (len(worlds.world0), len(worlds.world1), worlds.world1[-1], worlds.world1[4][1]) == (5, 7, CANARY, 0)
    assert [label for _, label in worlds.world1] == [0] * 5 + [1, 1]
    with pytest.raises(IndexError):
        worlds.world1[7]
    batches = [labels.tolist() for _, labels in DataLoader(worlds.world1, batch_size=4)]
    assert batches == [[0] * 4, [0, 1, 1]]
    assert check_neighbours(worlds)
    replaced = neighbours(Subset(Pictures(5), [0, 1, 2]), CANARY, relation="replace", row=-2)
    assert [label for _, label in replaced.world1] == [0, 1, 0]
    assert type(replaced.world0) is type(replaced.world1)
    with pytest.raises(InvalidInputError, match="row = 3 is not allowed"):
        neighbours(Subset(Pictures(5), [0, 1, 2]), CANARY, relation="replace", row=3)
