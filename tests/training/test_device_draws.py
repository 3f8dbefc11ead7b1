"""Batches that a GPU draws itself: with Triton's interpreter these run on a CPU too."""

import numpy as np
import pytest
import torch
from engines import CUDA, INTERPRETED, data_for, worlds_with

from coalmine.training import LogisticRegression, TrainingConfig
from coalmine.training.device_draws import DeviceDraws
from coalmine.training.job import Job, Share

DEVICE = torch.device("cuda" if CUDA else "cpu")
NETWORK = LogisticRegression(3, classes=2)
pytestmark = pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")


def drawn(canary, relation, trials, *, steps=6, **rate):
    """For each trial (the odd ones in world 1) and step the rows of the base data and of the canary."""
    neighbours = worlds_with(NETWORK, canary, relation, base=data_for(NETWORK, 40))
    config = TrainingConfig(steps=steps, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, **rate)
    job = Job(NETWORK, neighbours, config, "draws", DEVICE)
    draws = DeviceDraws(Share(job, trials, [trial % 2 for trial in trials]), device=DEVICE)
    found = {trial: [] for trial in trials}
    for step in range(1, steps + 1):
        index, counts, times = (part.cpu().numpy() for part in (draws.drawn(step).index, draws.count, draws.times))
        for i, trial in enumerate(trials):
            found[trial].append((index[i, : counts[i]].copy(), int(times[i])))
    draws.check()
    return found


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_rows_of_a_gradient_are_counted_and_those_of_examples_listed(relation):
    """The two kinds of canary draw the same slots."""
    trials = list(range(12))
    gradient = drawn("gradient", relation, trials, sample_rate=0.3)
    example = drawn("example", relation, trials, sample_rate=0.3)
    seen = 0
    for trial in trials:
        for (rows, times), (listed, none) in zip(gradient[trial], example[trial], strict=True):
            own = listed >= 40
            assert none == 0
            assert rows.tolist() == listed[~own].tolist()
            assert times == own.sum()
            assert times == 0 or trial % 2 == 1
            seen += times
    assert seen > 0


def test_a_trial_draws_the_same_beside_any_others():
    together = drawn("example", "add_remove", [0, 1, 2, 3, 4], sample_rate=0.3)
    apart = drawn("example", "add_remove", [3, 9], sample_rate=0.3)
    assert [rows.tolist() for rows, _ in apart[3]] == [rows.tolist() for rows, _ in together[3]]
    assert [rows.tolist() for rows, _ in apart[9]] != [rows.tolist() for rows, _ in together[3]]


def test_full_batches_have_every_row_of_their_world():
    found = drawn("example", "replace", [0, 1], steps=2, sampling="full")
    inside = np.arange(40)
    inside[[3, 11]] = [40, 41]
    for rows, _ in found[0]:
        assert rows.tolist() == list(range(40))
    for rows, _ in found[1]:
        assert rows.tolist() == inside.tolist()
