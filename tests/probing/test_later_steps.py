"""Faults that the first step does not have: noise in some steps only, noise that shrinks, a clip norm that grows."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
ROWS = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))


class Trainer:
    """A step counter, and what follows it: the factor before the noise, the clip norm, the learning rate."""

    def __init__(self, *, noise=lambda t: 1.0, clip=lambda t: 1.0, rate=lambda t: 1.0):
        self.weight, self.steps = torch.zeros(10), 0
        self.noise, self.clip, self.rate = noise, clip, rate

    def step(self, rows):
        call, self.steps = self.steps, self.steps + 1
        clipped = rows / (rows.norm(dim=1, keepdim=True) / self.clip(call)).clamp(min=1.0)
        noised = clipped.sum(dim=0) + (self.noise(call) * torch.randn(10) if self.noise(call) else 0.0)
        self.weight = self.weight - self.rate(call) * noised / 8


def probed(**schedules):
    trainer = Trainer(**schedules)
    return probe(trainer.step, state=trainer, batch=ROWS, divisor=8, learning_rate=1.0, **OPTIONS)


@pytest.mark.parametrize(
    ("schedules", "fault", "step"),
    [
        ({"noise": lambda t: float(t % 2 == 0)}, "noise too small", 2),
        ({"noise": lambda t: float(t % 4 != 3)}, "noise too small", 4),
        ({"noise": lambda t: 0.9**t}, "noise too small", 8),
        ({"clip": lambda t: 1.0 if t < 5 else 3.0}, "sensitivity too large", 6),
    ],
    ids=["every other step", "all but every fourth", "decays", "clip norm grows"],
)
def test_a_fault_of_a_later_step_is_found(schedules, fault, step):
    (found,) = probed(**schedules).findings
    assert found.fault == fault
    assert f"step {step}" in found.witness


@pytest.mark.parametrize(
    "schedules",
    [
        {"rate": lambda t: (1 + t) ** -0.5},
        {"noise": lambda t: 0.8**t, "clip": lambda t: 0.8**t},
        {"noise": lambda t: 1.0 + t},
    ],
    ids=["learning rate", "clip norm with its noise", "more noise"],
)
def test_a_schedule_that_keeps_the_noise_multiplier_passes(schedules):
    report = probed(**schedules)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert "In steps 2 to 8 too, noise hides a row as well as promised." in report.in_words()


class Remembers:
    """A linear model with squared loss, and for each row what was kept of it when it first came."""

    def __init__(self, *, stale):
        self.weight, self.kept, self.stale = torch.zeros(10), {}, stale

    def step(self, rows):
        errors = rows @ self.weight - 1.0
        gradients = errors[:, None] * rows
        norms = gradients.norm(dim=1)
        known = [self.kept.setdefault(tuple(row.tolist()), norm) for row, norm in zip(rows, norms, strict=True)]
        used = torch.stack(known) if self.stale and known else norms
        clipped = gradients * (1.0 / used.clamp(min=1e-12)).clamp(max=1.0)[:, None]
        self.weight -= (clipped.sum(dim=0) + torch.randn(10)) / 8


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stale", [True, False], ids=["its first norm clips a row", "the norm is only logged"])
def test_what_is_kept_of_a_row_must_not_let_it_move_a_later_step_further(stale, seed):
    trainer = Remembers(stale=stale)
    promise = {"state": {"weight": trainer.weight}, "batch": ROWS, "divisor": 8, "learning_rate": 1.0}
    report = probe(trainer.step, kept=("kept*",), seed=seed, **promise, **OPTIONS)
    assert [one.fault for one in report.findings] == ["sensitivity too large"] * stale, report.in_words()
    if stale:
        assert "in an earlier step too" in report.findings[0].witness
    else:
        assert "Rows that earlier steps have seen were tried too." in report.in_words()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("counts", [True, False], ids=["rows below it are counted", "it is fixed"])
def test_a_clip_norm_that_follows_a_count_without_noise_is_found_even_where_it_is_kept(counts, seed):
    """The row that moves most is clipped, and such rows are not counted: one that is not clipped shows it."""
    weight, kept = torch.zeros(10), {"clip": 1.0}

    def step(rows):
        clip, norms = kept["clip"], rows.norm(dim=1)
        clipped = rows * (clip / norms.clamp(min=1e-9)).clamp(max=1.0)[:, None]
        weight.sub_((clipped.sum(dim=0) + clip * torch.randn(10)) / 8)
        if counts:
            kept["clip"] = clip * float(torch.exp(-0.02 * ((norms < clip).sum() - 4)))

    batch = torch.randn(8, 10, generator=torch.Generator().manual_seed(seed))
    promise = {"batch": batch, "divisor": 8, "learning_rate": 1.0, "kept": ("kept*",)}
    report = probe(step, state={"weight": weight}, seed=seed, **promise, **OPTIONS)
    assert [one.fault for one in report.findings] == ["carried over between steps"] * counts, report.in_words()


def test_later_steps_that_were_not_compared_are_not_called_as_promised():
    report = probed(noise=lambda t: 0.3)
    later = {one.name: one.result for one in report.measurements}["later steps"]
    assert (str(report.verdict), later) == ("refuted", "not as promised: noise or rows in the first step")
