"""Noise from several lines: what a step draws at another line where a batch is small, or later, is the same noise."""

import numpy as np
import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.probing.tape import Tape
from coalmine.records import Outcome

OPTIONS = {
    "replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 8.0,
    "learning_rate": 1.0,
}  # fmt: skip
ROWS = 3.0 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


def clip(rows):
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


def small(rows, most, scale=1.0):
    """Another way through the step for small batches, with a line of noise of its own."""
    if len(rows) <= most:
        total = torch.zeros(5)
        for row in rows:
            total += row / row.norm().clamp(min=1.0)
        return total + scale * torch.randn(5)
    return clip(rows).sum(0) + torch.randn(5)


def dropped(rows, most, scale=1.0):
    """The same with a mask for each row, which each way draws by itself."""
    if len(rows) <= most:
        mask = torch.bernoulli(torch.full((len(rows), 5), 0.5))
        return clip(mask * rows).sum(0) + scale * torch.randn(5)
    mask = torch.bernoulli(torch.full((len(rows), 5), 0.5))
    return clip(mask * rows).sum(0) + torch.randn(5)


def flat(rows, most, scale=1.0):
    """Noise in another shape: there are no draws that were recorded in its place."""
    if len(rows) <= most:
        return clip(rows).sum(0) + scale * torch.randn(5, 1)[:, 0]
    return clip(rows).sum(0) + torch.randn(5)


def probed(total, **more):
    weight = torch.zeros(5)

    def step(batch):
        weight.sub_(total(batch) / 8)

    return probe(step, state={"weight": weight}, batch=ROWS, **{**OPTIONS, **more})


@pytest.mark.parametrize("most", [0, 1, 4])
@pytest.mark.parametrize("way", [small, dropped, flat])
def test_noise_of_another_line_for_small_batches_is_noise(way, most):
    report = probed(lambda rows: way(rows, most))
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize("scale", [0.0, 0.5])
@pytest.mark.parametrize("most", [0, 1, 4])
@pytest.mark.parametrize("way", [small, dropped, flat])
def test_less_noise_at_another_line_is_found(way, most, scale):
    report = probed(lambda rows: way(rows, most, scale))
    assert report.verdict.outcome is Outcome.REFUTED, report.in_words()
    assert {one.fault for one in report.findings} <= {"step left out", "noise depends on the data", "empty batch"}


@pytest.mark.parametrize("most", [0, 1, 4, 7])
@pytest.mark.parametrize("line", ["own", "shared"])
def test_noise_from_a_known_seed_for_small_batches_is_found(line, most):
    """On the tape it is noise like any other: only new draws show that there are none."""

    def total(rows):
        known = torch.Generator().manual_seed(0) if len(rows) <= most else None
        if line == "own" and known is not None:
            return clip(rows).sum(0) + torch.randn(5, generator=known)
        return clip(rows).sum(0) + torch.randn(5, generator=known)

    (found,) = probed(total).findings
    assert found.fault == "noise from a known seed"
    assert found.sentence.startswith("For an empty batch, the noise in weight is the same in every run")


def test_numpy_draws_at_another_line_are_noise():
    weight, generator = np.zeros(5), np.random.default_rng(0)

    def step(rows):
        if len(rows) == 0:
            weight[:] -= generator.normal(size=5) / 8
            return
        clipped = rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
        weight[:] -= (clipped.sum(0) + generator.normal(size=5)) / 8

    report = probe(step, state={"weight": weight}, batch=ROWS.numpy(), **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize(("later", "outcome"), [(1.0, Outcome.CONSISTENT), (0.5, Outcome.REFUTED)])
def test_noise_of_another_line_from_a_later_step_on(later, outcome):
    weight, state = torch.zeros(5), {"steps": torch.zeros(1)}

    def step(rows):
        state["steps"] += 1
        if float(state["steps"]) <= 2:
            total = clip(rows).sum(0) + torch.randn(5)
        else:
            total = clip(rows).sum(0) + later * torch.randn(5)
        weight.sub_(total / 8)

    report = probe(step, state={"weight": weight, **state}, batch=ROWS, kept=("steps",), **OPTIONS)
    assert report.verdict.outcome is outcome, report.in_words()


def test_a_tape_plays_what_was_recorded_at_another_line():
    def draws(second):
        if second:
            return torch.randn(3), torch.randn(3)
        return torch.randn(3), torch.randn(3)

    tape = Tape()
    with tape.record():
        recorded = draws(False)
    for again in (False, True):
        with tape.replay():
            assert all(torch.equal(one, other) for one, other in zip(recorded, draws(again), strict=True))
        with tape.silence():
            assert not torch.cat(draws(again)).any()
        with tape.scale(0.5):
            assert torch.equal(torch.cat(draws(again)), 0.5 * torch.cat(recorded))
    with tape.replay():  # more than was recorded is new, and the same in every run
        first = torch.cat([*draws(True), torch.randn(3)])
    with tape.replay():
        second = torch.cat([*draws(True), torch.randn(3)])
    assert torch.equal(first, second)
    assert not torch.equal(first[:3], first[6:])
