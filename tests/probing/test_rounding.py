"""Updates as small as the spacing of floating-point numbers: rounding is no fault of a step, and is named.

Fixed seeds; every probe runs at level 1e-8, so that a right step is refuted by a statistical test once in 10⁸ times.
"""

import pytest
import torch

from coalmine.probing import half_precision
from coalmine.probing.bench import on_bench
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.probe import probe
from coalmine.probing.resolution import spacing
from coalmine.records import Outcome

OPTIONS = {"replays": 60, "tries": 40, "level": 1e-8}


def rows_and_labels(dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(6, 5, generator=generator).to(dtype), torch.randn(6, generator=generator).to(dtype)


def clipped_sum(weight, batch):
    """Clipped gradients of a linear regression, added up."""
    rows, labels = batch
    gradients = (rows @ weight - labels)[:, None] * rows
    return (gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0)


def by_hand(*, rate, divisor=16.0, dtype=torch.float32, noise=1.0, value=1.0):
    """A plain loop: the parameter itself is all that shows the private sum."""
    weight = (value * torch.linspace(0.6, 1.4, 5)).to(dtype)

    def step(batch):
        weight.sub_(rate * (clipped_sum(weight, batch) + noise * torch.randn(5).to(dtype)) / divisor)

    return {
        "step": step,
        "state": {"weight": weight},
        "batch": rows_and_labels(dtype),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "divisor": divisor,
        "learning_rate": rate,
    }


def with_optimizer(kind, rate, noise=1.0):
    """The same with a torch optimizer, whose gradient shows the private sum whatever the learning rate is."""
    weight = torch.nn.Parameter(torch.linspace(0.2, 1.4, 5))
    optimizer = kind([weight], lr=rate)

    def step(batch):
        weight.grad = (clipped_sum(weight.detach(), batch) + noise * torch.randn(5)) / 16
        optimizer.step()

    return {
        "step": step,
        "state": {"weight": weight, "optimizer": optimizer},
        "batch": rows_and_labels(),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "divisor": 16.0,
    }


@pytest.mark.parametrize(
    "step",
    [
        by_hand(rate=1e-4, divisor=4096.0),
        by_hand(rate=1e-3, divisor=256.0),
        by_hand(rate=1e-5, divisor=4096.0, value=100.0),
        by_hand(rate=0.5, dtype=torch.bfloat16),
    ],
    ids=["tiny", "small", "below all spacing", "bfloat16"],
)
def test_updates_that_rounding_hides_are_named_and_not_found(step):
    report = probe(**step, **OPTIONS)
    assert report.findings == (), report.in_words()
    if report.verdict.outcome is Outcome.INCONCLUSIVE:
        assert "at this learning rate" in report.in_words()


def test_an_update_below_all_spacing_is_inconclusive():
    report = probe(**by_hand(rate=1e-5, divisor=4096.0, value=100.0), **OPTIONS)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "too small to measure at this learning rate: next to it, float32 rounds" in report.in_words()


@pytest.mark.parametrize("rate", [1e-4, 1e-5, 1e-6, 1e-7])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_shows_the_private_sum_at_any_learning_rate(kind, rate):
    report = probe(**with_optimizer(kind, rate), **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_too_little_noise_is_found_at_any_learning_rate(kind):
    report = probe(**with_optimizer(kind, 1e-6, noise=0.5), **OPTIONS)
    assert [one.fault for one in report.findings] == ["noise too small"]


def test_missing_noise_is_found_where_the_update_can_be_seen():
    found = probe(**by_hand(rate=1e-3, noise=1e-9), **OPTIONS).findings
    assert {"no noise", "noise too small"} & {one.fault for one in found}


def test_double_precision_with_noise_in_single_precision_passes():
    report = probe(**by_hand(rate=0.5, dtype=torch.float64), **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_the_spacing_is_that_of_the_type():
    values = torch.tensor([1.0, 3.0, 1e-3])
    expected = torch.nextafter(values, torch.tensor(float("inf"))) - values
    assert torch.equal(torch.from_numpy(spacing(values)).float(), expected)
    assert spacing(torch.tensor([1.0], dtype=torch.bfloat16)).item() == 2.0**-7


def test_sums_in_half_precision_are_named_as_what_they_may_be():
    weight = torch.nn.Parameter(torch.zeros(40))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.grad = (clipped.sum(0).half().float() + torch.randn(40)) / 8
        optimizer.step()

    batch = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    given = {"batch": batch, "clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 8.0}
    report = probe(step, state=[weight, optimizer], **given, replays=40, tries=20, level=1e-8)
    said = [one.sentence for one in report.findings if one.fault == "rows interact"]
    assert all("So little may be rounding" in one for one in said), report.in_words()
    assert said


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=["half precision", "single precision"])
def test_rows_that_half_precision_does_not_add_up_come_with_a_word_about_rounding(kind):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(batch):
        rows, labels = batch
        gradients = (rows @ weight.detach() - labels)[:, None] * rows
        clipped = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.grad = (clipped.to(kind).sum(dim=0).float() + torch.randn(5)) / 16
        optimizer.step()

    state = {"weight": weight, "optimizer": optimizer}
    promise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 16}
    report = probe(step, state=state, batch=rows_and_labels(), **promise, **OPTIONS)
    if kind is torch.float32:
        assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
        return
    assert "rows interact" in {one.fault for one in report.findings}
    said = [one.sentence for one in report.findings if one.fault == "rows interact"]
    assert all("may be rounding" in one for one in said), report.in_words()
    assert all(
        one.look_at.startswith("the precision in which rows are added up; then")
        for one in report.findings
        if one.fault == "rows interact"
    )


def test_rows_that_interact_in_half_precision_for_another_reason_do_not():
    """The mean of the batch taken off: far more than rounding."""
    weight = torch.zeros(5)

    def step(batch):
        rows = batch[0].bfloat16()
        centered = (rows - rows.mean(dim=0) if len(rows) else rows).float()
        weight.sub_((clipped_sum(weight, (centered, batch[1])) + torch.randn(5)) / 16)

    promise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 16, "learning_rate": 1.0}
    report = probe(step, state={"weight": weight}, batch=rows_and_labels(), **promise, **OPTIONS)
    assert report.verdict.outcome is Outcome.REFUTED
    assert "may be rounding" not in report.in_words()


@pytest.mark.parametrize(
    ("kind", "excess", "told"),
    [(torch.bfloat16, 0.03, True), (torch.bfloat16, 0.3, False), (torch.float16, 0.03, False), (None, 0.001, False)],
)
def test_the_word_about_rounding_fits_the_type(kind, excess, told):
    def step(rows):
        return (rows if kind is None else rows.to(kind)).sum(dim=0)

    given = PrivateStep(step=step, batch=torch.randn(4, 5), clip_norm=1.0, noise_multiplier=1.0)
    with on_bench(given) as bench:
        base = bench.world()
        bench.record(base)
        assert bool(half_precision.word(bench, base, excess)) is told
