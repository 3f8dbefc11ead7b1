"""Rows behind the first twelve of the batch: a step may treat them in another way."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))


def clip(rows):
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


def probed(total, rows, **more):
    weight = torch.zeros(5)

    def step(batch):
        weight.sub_(total(batch) / 8)

    return probe(step, state={"weight": weight}, batch=ROWS[:rows], **{**PROMISE, **OPTIONS, **more})


def second_part_unclipped(rows):
    return clip(rows[:16]).sum(0) + rows[16:].sum(0) + torch.randn(5)


def second_part_thrice(rows):
    return clip(rows[:16]).sum(0) + 3.0 * clip(rows[16:]).sum(0) + torch.randn(5)


def less_noise_with_many(rows):
    return clip(rows).sum(0) + (0.8 if len(rows) > 16 else 1.0) * torch.randn(5)


def in_parts(rows):
    return sum(clip(part).sum(0) for part in rows.split(16)) + torch.randn(5) if len(rows) else torch.randn(5)


@pytest.mark.parametrize(
    ("total", "fault"),
    [
        (second_part_unclipped, "sensitivity too large"),
        (second_part_thrice, "sensitivity too large"),
        (less_noise_with_many, "noise too small"),
    ],
)
def test_a_fault_that_only_many_rows_show_is_found(total, fault):
    (found,) = probed(total, 32, replays=200, level=1e-4).findings
    assert found.fault == fault
    assert found.sentence.startswith("With all 32 rows of the batch at once, ")


@pytest.mark.parametrize(
    ("rows", "which"), [(32, "all 32 rows of the batch"), (200, "the first 128 rows of the 200 in the batch")]
)
def test_right_steps_pass_and_the_report_says_how_many_rows_were_used(rows, which):
    report = probed(in_parts, rows)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert f"With {which} at once, a row behind the first 12 is clipped" in report.in_words()


def test_a_batch_that_is_used_whole_needs_no_word():
    assert "whole batch" not in {one.name for one in probed(in_parts, 12).measurements}


def test_a_step_that_fails_on_the_whole_batch_is_not_taken_as_right():
    def total(rows):
        if len(rows) > 20:
            raise ValueError("too many")
        return clip(rows).sum(0) + torch.randn(5)

    report = probed(total, 32)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "does not run with all 32 rows" in report.in_words()
