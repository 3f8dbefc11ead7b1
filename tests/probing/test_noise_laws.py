"""Noise of laws that look normal, and normal noise that is drawn in another way.

Tests of chance have level 1e-6, with fixed seeds.
"""

import math

import pytest
import torch

from coalmine.probing.probe import probe

ROWS = 3.0 * torch.randn(6, 400, generator=torch.Generator().manual_seed(0))


def probed(noise, *, numbers=400):
    weight = torch.zeros(numbers)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + noise(numbers)) / 8)

    given = {"state": {"weight": weight}, "batch": ROWS[:, :numbers], "divisor": 8, "learning_rate": 1.0}
    return probe(step, **given, clip_norm=1.0, noise_multiplier=1.0, replays=200, tries=12, level=1e-6)


def sum_of_twelve(numbers):
    return torch.rand(12, numbers).sum(dim=0) - 6.0


def sum_in_a_loop(numbers):
    return sum(torch.rand(numbers) for _ in range(12)) - 6.0


def truncated(numbers):
    """Drawn again beyond 1.5, and brought to variance 1."""
    drawn = torch.randn(numbers)
    while bool((drawn.abs() > 1.5).any()):
        drawn = torch.where(drawn.abs() > 1.5, torch.randn(numbers), drawn)
    return drawn / math.sqrt(0.5515)


def box_muller(numbers):
    radius = torch.sqrt(-2.0 * torch.log(1.0 - torch.rand(numbers)))
    return radius * torch.cos(2.0 * math.pi * torch.rand(numbers))


@pytest.mark.parametrize("noise", [sum_of_twelve, sum_in_a_loop, truncated])
def test_noise_that_is_nearly_normal_is_named(noise):
    report = probed(noise)
    assert [one.fault for one in report.findings] == ["noise is not normal"], report.in_words()


def test_a_sum_of_uniform_draws_is_seen_not_inferred():
    (found,) = probed(sum_of_twelve).findings
    assert found.level == 0.0
    assert "a sum of uniform draws" in found.sentence


def test_normal_noise_from_uniform_draws_is_not_refuted():
    assert probed(box_muller).findings == ()
