"""Columns of floats that hold few whole numbers: masks, labels and weights, which the batch cannot tell apart."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
ONES, HALF = torch.ones(6), (torch.arange(6) % 2).float()


def weighed(column, change=lambda one: one, *, before=False, promise=PROMISE):
    """A step that multiplies each row by its number in a column, after it was clipped or before."""
    weight = torch.zeros(3)

    def step(batch):
        rows, given = batch
        factor = change(given)[:, None]
        rows = rows * factor if before else rows
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_(((clipped if before else clipped * factor).sum(dim=0) + torch.randn(3)) / 8)

    return probe(step, state={"weight": weight}, batch=(ROWS, column), **promise, **OPTIONS)


@pytest.mark.parametrize("promise", [PROMISE, {}])
@pytest.mark.parametrize("column", [ONES, HALF])
def test_a_weight_that_may_be_any_number_is_not_passed(column, promise):
    report = weighed(column, promise=promise)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "in batch[1] moves the sum by" in report.in_words()
    assert "hand it over as truth values (bool)" in report.in_words()


def test_a_weight_that_the_batch_shows_to_be_one_is_refuted():
    assert weighed(torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 3.0])).verdict.outcome is Outcome.REFUTED


def only_ones_and_zeros(given):
    if not bool(((given == 0.0) | (given == 1.0)).all()):
        raise ValueError("a mask holds 0 or 1")
    return given


@pytest.mark.parametrize(
    ("column", "change", "said"),
    [
        (ONES.bool(), lambda one: one.float(), ""),
        (ONES, lambda one: one.clamp(0.0, 1.0), "move the sum no further"),
        (HALF, lambda one: (one > 0.0).float(), "move the sum no further"),
        (HALF, only_ones_and_zeros, "the step takes no other numbers there"),
    ],
)
def test_a_mask_passes(column, change, said):
    report = weighed(column, change)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    measured = [one.sentence for one in report.measurements if one.name == "other values"]
    assert len(measured) == bool(said)
    assert all(said in one for one in measured)


def test_a_weight_before_clipping_and_a_label_pass():
    assert weighed(ONES, before=True).verdict.outcome is Outcome.CONSISTENT
    model = torch.nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        sums = [torch.zeros_like(one) for one in model.parameters()]
        for row, label in zip(*batch, strict=True):
            model.zero_grad()
            torch.nn.functional.binary_cross_entropy_with_logits(model(row)[0], label).backward()
            size = torch.stack([one.grad.norm() for one in model.parameters()]).norm().clamp(min=1.0)
            for total, one in zip(sums, model.parameters(), strict=True):
                total += one.grad / size
        for total, one in zip(sums, model.parameters(), strict=True):
            one.grad = (total + torch.randn_like(total)) / 8
        optimizer.step()

    report = probe(step, state=[model, optimizer], batch=(ROWS, HALF), divisor=8.0, **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
