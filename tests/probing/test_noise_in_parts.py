"""Noise that is added in parts: k draws of σC/√k are as good as one of σC, if k does not follow the rows unseen.

What is asked of the sums is exact; the tests of size have level 1e-6, with fixed seeds.
"""

import math
import re

import numpy as np
import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

SIGMA, CLIP = 1.3, 0.7
OPTIONS = {"replays": 120, "tries": 12, "level": 1e-6, "clip_norm": CLIP, "noise_multiplier": SIGMA, "divisor": 8}
ROWS = 3.0 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


def by_count(rows):
    return list(torch.tensor_split(rows, 3))


def by_four_of_three(rows):
    return [rows[:4], rows[4:8], rows[8:]]


def by_four(rows):
    return [rows[start : start + 4] for start in range(0, max(len(rows), 1), 4)]


def by_row(rows):
    return [rows[start : start + 1] for start in range(max(len(rows), 1))]


def probed(split, size, *, flat=False, batch=ROWS):
    """A weight and a bias; each part of a batch is clipped, summed and given noise of ``size(parts)``·σC."""
    weight, bias = torch.zeros(5), torch.zeros(1)

    def step(rows):
        parts = split(rows)
        total = torch.zeros(6)
        for part in parts:
            gradients = torch.cat([part, torch.ones(len(part), 1)], dim=1)
            total += (gradients * (CLIP / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0)
            noise = torch.randn(6) if flat else torch.cat([torch.randn(5), torch.randn(1)])
            total += SIGMA * CLIP * size(len(parts)) * noise
        weight.sub_(total[:5] / 8)
        bias.sub_(total[5:] / 8)

    return probe(step, state={"weight": weight, "bias": bias}, batch=batch, learning_rate=1.0, **OPTIONS)


@pytest.mark.parametrize(
    ("split", "flat"), [(by_count, False), (by_four_of_three, False), (by_four, False), (by_four, True), (by_row, True)]
)
def test_noise_that_adds_up_to_the_promise_is_right(split, flat):
    report = probed(split, lambda parts: 1.0 / math.sqrt(parts), flat=flat)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize("split", [by_count, by_four_of_three])
def test_noise_divided_by_the_number_of_parts_is_too_small(split):
    (found,) = probed(split, lambda parts: 1.0 / parts).findings
    assert found.fault == "noise too small"
    assert found.number == pytest.approx(1.0 / math.sqrt(3.0), rel=0.3)


@pytest.mark.parametrize(("split", "parts", "flat"), [(by_four, 2, False), (by_row, 8, True)])
def test_noise_for_each_part_of_a_batch_that_grows_is_named(split, parts, flat):
    (found,) = probed(split, lambda _: 1.0 / math.sqrt(parts), flat=flat).findings
    assert found.fault == "noise depends on the data"
    there = int(re.search(rf"the sum of (\d+) draws? instead of {parts},", found.sentence)[1])
    assert found.number == pytest.approx(math.sqrt(there / parts), rel=1e-3)


def test_too_little_noise_in_parts_that_follow_the_rows_is_found_too():
    found = {one.fault for one in probed(by_four, lambda parts: 1.0 / parts).findings}
    assert found == {"noise depends on the data", "noise too small"}


def test_an_empty_batch_without_parts_has_no_noise():
    report = probed(lambda rows: by_four(rows) if len(rows) else [], lambda parts: 1.0 / math.sqrt(parts))
    assert [one.fault for one in report.findings] == ["empty batch"]


@pytest.mark.parametrize(("size", "fault"), [(1 / math.sqrt(2.0), "noise depends on the data"), (None, None)])
def test_noise_of_numpy_in_parts(size, fault):
    weight, rng = np.zeros(4), np.random.default_rng(3)

    def step(rows):
        starts = range(0, max(len(rows), 1), 4)
        total = np.zeros(4)
        for start in starts:
            part = rows[start : start + 4]
            total += (part * np.minimum(CLIP / np.linalg.norm(part, axis=1, keepdims=True), 1.0)).sum(axis=0)
            total += rng.normal(0.0, SIGMA * CLIP * (size or 1.0 / math.sqrt(len(starts))), 4)
        weight[:] -= total / 8

    report = probe(step, state={"weight": weight}, batch=ROWS[:, :4].numpy(), learning_rate=1.0, **OPTIONS)
    assert [one.fault for one in report.findings] == ([fault] if fault else []), report.in_words()


@pytest.mark.parametrize(("parts", "fault"), [(4, "noise depends on the data"), (1, "noise before clipping")])
def test_a_loop_that_steps_for_each_part_is_told_from_noise_for_each_row(parts, fault):
    """Parts of four, each with a step of its own; or noise in each row's gradient, clipped with it."""
    weight = torch.nn.Parameter(torch.randn(5, generator=torch.Generator().manual_seed(1)))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(rows):
        total = torch.zeros(5)
        for start in range(0, max(len(rows), 1), parts):
            part = rows[start : start + parts]
            gradients = torch.tanh(part @ weight.detach())[:, None] * part
            if parts == 1:
                gradients = gradients + SIGMA * CLIP * torch.randn(5)
            clipped = gradients * (CLIP / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
            if parts == 1:
                total += clipped.sum(dim=0)
                continue
            weight.grad = (clipped.sum(dim=0) + SIGMA * CLIP * torch.randn(5)) / 8
            optimizer.step()
        if parts == 1:
            weight.grad = total / 8
            optimizer.step()

    report = probe(step, state={"weight": weight, "optimizer": optimizer}, batch=ROWS, **OPTIONS)
    assert fault in {one.fault for one in report.findings}, report.in_words()
