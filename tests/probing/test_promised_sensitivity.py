"""A sensitivity that is promised takes the place of the clip norm, for the rows and for the noise."""

import pytest
import torch

from coalmine.probing.private_step import PrivateStep
from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 60, "tries": 40, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.2}
ROWS = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))


def clip(rows, bound=1.0):
    return rows / (rows.norm(dim=1, keepdim=True) / bound).clamp(min=1.0)


def by_layer(rows):
    return torch.cat([clip(part) for part in rows.split(5, dim=1)], dim=1)


def no_clipping(rows):
    return rows


def halved(rows):
    return clip(rows, 0.5)


def probed(clipped, noise, sensitivity, **more):
    weight = torch.zeros(20)

    def step(rows):
        weight.sub_((clipped(rows).sum(0) + 1.2 * noise * torch.randn(20)) / 8)

    given = {"state": {"weight": weight}, "batch": ROWS, "divisor": 8.0, "learning_rate": 1.0}
    return probe(step, sensitivity=sensitivity, **{**given, **OPTIONS, **more})


@pytest.mark.parametrize(
    ("clipped", "noise", "sensitivity", "outcome"),
    [
        (by_layer, 1.0, 2.0, Outcome.REFUTED),  # four layers move by 2 together, and noise is there for 1
        (by_layer, 2.0, 2.0, Outcome.CONSISTENT),
        (no_clipping, 1.0, 1e6, Outcome.REFUTED),
        (no_clipping, 1e6, 1e9, Outcome.REFUTED),
        (halved, 0.5, 0.5, Outcome.CONSISTENT),
        (halved, 0.4, 0.5, Outcome.REFUTED),
        (clip, 0.5, 0.5, Outcome.REFUTED),
        (clip, 2.0, 2.0, Outcome.CONSISTENT),
    ],
)
def test_noise_must_be_enough_for_the_promised_sensitivity(clipped, noise, sensitivity, outcome):
    report = probed(clipped, noise, sensitivity)
    assert report.verdict.outcome is outcome, report.in_words()


def test_a_sensitivity_that_no_row_comes_near_is_not_taken_as_clipping():
    report = probed(no_clipping, 1e9, 1e9)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert "no row came closer to what is allowed (1e+09)" in report.in_words()


def test_without_a_divisor_the_measured_influence_counts():
    report = probed(no_clipping, 1.0, 1e6, divisor=None, learning_rate=None)
    assert report.verdict.outcome is Outcome.REFUTED, report.in_words()


@pytest.mark.parametrize(("sensitivity", "noise"), [(None, 1.2), (2.0, 1.2), (4.0, 2.4)])
def test_where_rows_are_replaced_noise_counts_in_clip_norms_at_least(sensitivity, noise):
    given = {"clip_norm": 1.0, "noise_multiplier": 1.2, "relation": "replace", "sensitivity": sensitivity}
    assert PrivateStep(step=print, batch=ROWS, **given).noise == pytest.approx(noise)
