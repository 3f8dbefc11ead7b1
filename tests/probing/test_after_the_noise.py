"""What comes after the noise is harmless: such a step is never refuted, and what cannot be measured is said."""

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


def largest(noised):
    return noised * (noised.abs() >= noised.abs().median())


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "after",
    [
        largest,
        lambda noised: noised * (noised.abs() > 0.02),
        lambda noised: noised / noised.norm(),
        lambda noised: noised.half().float(),
    ],
    ids=["largest", "threshold", "norm", "half precision"],
)
def test_what_is_no_longer_the_noised_sum_is_said_to_be_so(after, seed):
    report = probed(after, seed=seed)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert "what is released is" in report.in_words()
    assert "hand over the optimizer" not in report.in_words()  # it was


@pytest.mark.parametrize(
    "weights",
    [lambda weight: weight.clamp_(min=0.0), lambda weight: weight.mul_(weight.abs() >= weight.abs().median())],
    ids=["not negative", "pruned"],
)
def test_weights_that_are_changed_after_the_step_are_not_refuted(weights):
    report = probed(weights=weights)
    assert report.findings == (), report.in_words()


@pytest.mark.parametrize("seed", [0, 1])
def test_weights_of_several_tensors_that_are_held_at_zero_are_not_refuted(seed):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(1)
    batch = torch.randn(10, 4, generator=generator), torch.randint(0, 3, (10,), generator=generator)

    def step(rows):
        totals = [torch.zeros_like(one) for one in net.parameters()]
        for x, y in zip(*rows, strict=True):
            loss = torch.nn.functional.cross_entropy(net(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(net.parameters()))
            length = torch.sqrt(sum(one.square().sum() for one in gradients))
            for total, one in zip(totals, gradients, strict=True):
                total.add_(one / length.clamp(min=1.0))
        for one, total in zip(net.parameters(), totals, strict=True):
            one.grad = (total + 1.1 * torch.randn_like(total)) / 8
        optimizer.step()
        with torch.no_grad():
            for one in net.parameters():
                one.clamp_(min=0.0)

    report = probe(step, state={"net": net, "optimizer": optimizer}, batch=batch, seed=seed, **PROMISE)
    assert report.findings == (), report.in_words()


def test_a_threshold_in_one_tensor_of_two_leaves_it_open():
    weights = [torch.nn.Parameter(torch.zeros(40)), torch.nn.Parameter(torch.zeros(3))]
    optimizer = torch.optim.SGD(weights, lr=0.5)
    rows = torch.randn(10, 43, generator=torch.Generator().manual_seed(1))

    def step(rows):
        clipped = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0)
        first, second = ((part + 1.1 * torch.randn(len(part))) / 8 for part in (clipped[:40], clipped[40:]))
        weights[0].grad, weights[1].grad = first * (first.abs() > 0.02), second
        optimizer.step()

    report = probe(step, state={"weights": weights, "optimizer": optimizer}, batch=rows, **PROMISE)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()


def test_a_threshold_hides_no_tensor_without_noise():
    report = probed(largest, returned=lambda rows: rows.sum())
    assert "exact value returned" in names(report)


def test_a_mask_hides_no_fault():
    assert "noise too small" in names(probed(lambda noised: noised * MASK, noise=0.9))
    # Noise that is masked alone leaves rows bare.
    bare = probed(before=lambda total: total, after=lambda noised: noised, noise=1.1 * MASK)
    assert {"noise too small", "unnoised tensor"} <= names(bare)
    assert "exact value returned" in names(probed(lambda noised: noised * MASK, returned=lambda rows: rows.sum()))


@pytest.mark.parametrize("seed", range(4))
def test_a_second_clipping_of_the_noised_sum_that_acts_now_and_then_is_no_missing_noise(seed):
    """The norm of the noise is about 4.9; the recorded one may lie below the limit, so that nothing seems to bend."""

    def after(noised):
        return noised * (5.2 / 8 / noised.norm()).clamp(max=1.0)

    report = probed(after, seed=seed)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE, report.in_words()
    assert names(probed(seed=seed, noise=1.0)) == {"noise too small"}
