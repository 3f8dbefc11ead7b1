"""A step that writes into its batch, which may share its memory with the data."""

import numpy as np
import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def written(write, batch=ROWS):
    weight = torch.zeros(3)

    def step(given):
        rows = torch.as_tensor(given).clone()
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        if len(given):
            write(given)

    before = batch.copy() if isinstance(batch, np.ndarray) else batch.clone()
    report = probe(step, state={"weight": weight}, batch=batch, **PROMISE, **OPTIONS)
    assert np.array_equal(before, batch)
    return report


def add_the_mean(rows):
    rows += 0.1 * rows.mean(0)


def halve(rows):
    rows *= 0.5


@pytest.mark.parametrize("batch", [ROWS, ROWS.numpy()])
def test_what_other_rows_put_into_a_row_is_named(batch):
    report = written(add_the_mean, batch)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "the step writes into batch, and what it writes into one row depends on other rows" in report.in_words()


def test_a_row_that_is_changed_by_itself_passes():
    report = written(halve)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert "follows from that row alone" in report.in_words()
    untouched = written(lambda rows: None)
    assert all(one.name != "the batch itself" for one in untouched.measurements)
