"""Values that follow noise of their own by a curve: they are hidden, or their noise is too small."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 60, "tries": 40, "level": 1e-8}


def adaptive(*, counted=20.0, promised=1.2, curve=torch.exp):
    """A clip norm that follows a noised count of the rows that it does not clip."""
    weight, clip = torch.nn.Parameter(torch.linspace(0.2, 1.4, 5)), torch.tensor(1.5)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    generator = torch.Generator().manual_seed(2)

    def step(batch):
        rows, labels = batch
        gradients = (rows @ weight.detach() - labels)[:, None] * rows
        norms = gradients.norm(dim=1)
        clipped = gradients * (clip / norms.clamp(min=1e-9)).clamp(max=1.0)[:, None]
        weight.grad = (clipped.sum(dim=0) + 1.3 * clip * torch.randn(5)) / 16
        count = (norms <= clip).float().sum()
        if counted:
            count = count + counted * torch.randn(())
        clip.mul_(curve(-0.2 * (count / 16 - 0.5)))
        optimizer.step()

    return {
        "step": step,
        "state": {"weight": weight, "optimizer": optimizer, "clip": clip},
        "batch": (torch.randn(6, 5, generator=generator), torch.randn(6, generator=generator)),
        "clip_norm": 1.5,
        "noise_multiplier": promised,
        "divisor": 16.0,
    }


@pytest.mark.parametrize("curve", [torch.exp, lambda x: torch.sigmoid(x) + 0.5], ids=["exp", "sigmoid"])
def test_a_curve_of_a_noised_count_is_no_leak(curve):
    report = probe(**adaptive(curve=curve), **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_a_count_with_too_little_noise_takes_from_the_noise_multiplier():
    found = probe(**adaptive(counted=0.2), **OPTIONS).findings
    assert [one.fault for one in found] == ["sensitivity too large"]
    assert "With clip released beside the private sum" in found[0].sentence
    assert found[0].number == pytest.approx(0.2, rel=0.05)  # the count moves by 1, its noise is 0.2


def test_a_count_without_noise_is_found():
    found = probe(**adaptive(counted=0.0), **OPTIONS).findings
    assert "unnoised tensor" in {one.fault for one in found}
