"""A divisor or a learning rate that was promised wrongly is told from noise or clipping that is wrong."""

import pytest
import torch

from coalmine.probing.probe import probe

OPTIONS = {"replays": 100, "tries": 30, "clip_norm": 1.0, "noise_multiplier": 1.0}


def step_with(noise=1.0, clip=1.0):
    weight = torch.zeros(20)

    def step(rows):
        clipped = rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
        weight.sub_((clipped.sum(dim=0) + noise * torch.randn(20)) / 16)

    return {"step": step, "state": {"weight": weight}, "batch": 3.0 * torch.eye(20)[:4], "learning_rate": 1.0}


@pytest.mark.parametrize(("divisor", "factor"), [(8, 0.5), (32, 2.0)])
def test_a_wrong_divisor_is_named(divisor, factor):
    (one,) = probe(**step_with(), divisor=divisor, **OPTIONS).findings
    assert one.fault == "wrong divisor"
    assert one.number == pytest.approx(factor, rel=1e-3)
    assert f"Rows and noise are both ×{factor:g} of what is promised: check divisor or learning_rate." == one.sentence


@pytest.mark.parametrize(
    ("wrong", "fault"), [({"noise": 0.5}, "noise too small"), ({"clip": 2.0}, "sensitivity too large")]
)
def test_one_of_them_alone_keeps_its_name(wrong, fault):
    found = probe(**step_with(**wrong), divisor=16, **OPTIONS).findings
    assert fault in {one.fault for one in found}
    assert "wrong divisor" not in {one.fault for one in found}


def test_noise_that_a_wrong_divisor_explains_is_not_called_as_promised():
    report = probe(**step_with(), divisor=8, **OPTIONS)
    assert {one.name: one.result for one in report.measurements}["noise"] == "not as promised: wrong divisor"
