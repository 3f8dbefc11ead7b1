"""A row may stand anywhere in a batch: its influence is measured in front of the batch and amid it too."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def clip(rows):
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


def first_unclipped(rows):
    return clip(rows[1:]).sum(0) + rows[:1].sum(0)


def first_twice(rows):
    return clip(rows).sum(0) + clip(rows[:1]).sum(0)


def relative_to_first(rows):
    return clip(rows - 0.5 * rows[:1]).sum(0)


def stops_at_a_large_row(rows):
    large = (rows.abs().amax(dim=1) > 1e4).nonzero()
    return clip(rows[: int(large[0])] if len(large) else rows).sum(0)


def at_most_six(rows):
    return clip(rows[:6]).sum(0)


def stops_at_nan(rows):
    bad = (~rows.isfinite()).any(dim=1).nonzero()
    return clip(rows[: int(bad[0])] if len(bad) else rows).sum(0)


def in_two_halves(rows):
    return clip(rows[::2]).sum(0) + clip(rows[1::2]).sum(0)


def probed(total, **more):
    weight = torch.zeros(5)

    def step(rows):
        weight.sub_((total(rows) + torch.randn(5)) / 8)

    return probe(step, state={"weight": weight}, batch=ROWS, **PROMISE, **OPTIONS, **more)


@pytest.mark.parametrize("total", [first_unclipped, first_twice, relative_to_first, stops_at_a_large_row, at_most_six])
def test_a_row_in_another_place_that_moves_too_much_is_found(total):
    report = probed(total)
    found = next(one for one in report.findings if one.fault == "sensitivity too large")
    assert found.number > 1.2
    assert found.witness.endswith(("; first in the batch", "; amid the batch"))


def test_a_row_of_nan_that_takes_others_with_it_is_found():
    assert probed(stops_at_nan).verdict.outcome is Outcome.CONSISTENT  # it is promised that there is none
    assert [one.fault for one in probed(stops_at_nan, nonfinite_rows=True).findings] == ["step left out"]


def shuffled(rows):
    return clip(rows[torch.randperm(len(rows))]).sum(0)


@pytest.mark.parametrize("total", [in_two_halves, shuffled])
def test_an_order_that_changes_no_influence_passes(total):
    report = probed(total)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
