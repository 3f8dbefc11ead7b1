"""What comes after the noise is harmless: such a step is never refuted, and where it cannot be measured that is said."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

PROMISE = {"clip_norm": 1.0, "noise_multiplier": 1.1, "divisor": 8}
ROWS = torch.randn(10, 20, generator=torch.Generator().manual_seed(1))
MASK = (torch.arange(20) % 2).float()


def probed(after=lambda noised: noised, *, before=lambda total: total, weights=None, noise=1.1, seed=0, returned=None):
    """A right step in one tensor, with something done after the noise (or, which is wrong, before it)."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(0.1 * torch.randn(20))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.grad = after((before(clipped.sum(dim=0)) + noise * torch.randn(20)) / 8)
        optimizer.step()
        if weights is not None:
            with torch.no_grad():
                weights(weight)
        return None if returned is None else returned(clipped)

    state = {"weight": weight, "optimizer": optimizer}
    return probe(step, state=state, batch=ROWS, seed=seed, **PROMISE)


def names(report):
    return {one.fault for one in report.findings}


@pytest.mark.parametrize("seed", [0, 1])
def test_numbers_behind_a_fixed_mask_do_not_count(seed):
    report = probed(lambda noised: noised * MASK, seed=seed)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert "noise can hide the row from every one" in report.in_words()


def test_a_random_mask_with_its_own_coin_is_not_refuted():
    report = probed(lambda noised: noised * (torch.rand(20) < 0.5))
    assert report.findings == (), report.in_words()


def test_a_mask_hides_no_fault():
    assert "noise too small" in names(probed(lambda noised: noised * MASK, noise=0.9))
    # Noise that is masked alone leaves rows bare.
    bare = probed(before=lambda total: total, after=lambda noised: noised, noise=1.1 * MASK)
    assert {"noise too small", "unnoised tensor"} <= names(bare)
    assert "exact value returned" in names(probed(lambda noised: noised * MASK, returned=lambda rows: rows.sum()))
