"""Batches of every size: what a row adds, and the noise, is the same in each of them."""

import math

import pytest
import torch
from torch.func import functional_call, grad, vmap

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 8.0}
ROWS = 3.0 * torch.randn(64, 5, generator=torch.Generator().manual_seed(0))


def clip(rows):
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


def noise():
    return torch.randn(5)


def probed(total, count=8, **more):
    weight = torch.zeros(5)

    def step(batch):
        weight.sub_(total(batch) / 8)

    return probe(step, state={"weight": weight}, batch=ROWS[:count], **{"learning_rate": 1.0, **OPTIONS, **more})


def unclipped_up_to(size):
    return lambda rows: (rows if len(rows) <= size else clip(rows)).sum(0) + noise()


@pytest.mark.parametrize(("size", "given"), [(1, 2), (1, 8), (2, 6), (3, 8), (7, 12)])
def test_small_batches_that_are_not_clipped_are_found(size, given):
    report = probed(unclipped_up_to(size), given)
    assert report.verdict.outcome is Outcome.REFUTED, report.in_words()


def test_a_row_alone_that_is_not_clipped_is_named():
    (found,) = probed(unclipped_up_to(1)).findings
    assert found.fault == "no clipping"
    assert found.sentence.startswith("In a batch without another row, one row more moves the sum by")


def test_a_row_axis_that_is_dropped_for_a_row_alone_is_found():
    """``squeeze`` takes the axis of rows away where there is one row: then each number is clipped by itself."""

    def total(rows):
        flat = rows.squeeze()
        size = flat.abs() if flat.ndim < 2 else flat.norm(dim=-1, keepdim=True)
        clipped = flat / size.clamp(min=1.0)
        return (clipped if clipped.ndim < 2 else clipped.sum(0)) + noise()

    (found,) = probed(total).findings
    assert found.fault == "sensitivity too large"
    assert 1.2 < found.number <= math.sqrt(5.0) + 1e-3


def test_noise_that_few_rows_do_not_get_is_found():
    (found,) = probed(lambda rows: clip(rows).sum(0) + (0.5 if len(rows) == 3 else 1.0) * noise()).findings
    assert (found.fault, found.number) == ("noise depends on the data", pytest.approx(0.5, rel=1e-3))


def test_a_step_that_does_not_run_with_few_rows_is_not_taken_as_right():
    def total(rows):
        if len(rows) == 2:
            raise ValueError("two rows")
        return clip(rows).sum(0) + noise()

    report = probed(total)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "the step does not run with a batch of 2 rows" in report.in_words()
    assert probed(total, sampling="shuffle").verdict.outcome is Outcome.CONSISTENT  # no such batch is promised


def parts(rows, size=16):
    return max(1, math.ceil(len(rows) / size))


def all_divided(rows):
    return (clip(rows).sum(0) + noise()) / parts(rows)


def rows_divided(rows):
    return clip(rows).sum(0) / parts(rows) + noise()


@pytest.mark.parametrize("total", [all_divided, rows_divided])
@pytest.mark.parametrize("given", [20, 40, 64])
def test_a_divisor_that_follows_the_number_of_parts_is_found(total, given):
    report = probed(total, given)
    assert report.findings, report.in_words()
    names = {one.fault for one in report.findings}
    assert names <= {"divisor depends on the data", "sensitivity too large"}
    assert given == 20 or "divisor depends on the data" in names


def test_noise_that_grows_with_many_rows_is_found():
    (found,) = probed(lambda rows: clip(rows).sum(0) + math.sqrt(parts(rows)) * noise(), 40).findings
    assert (found.fault, found.number) == ("noise depends on the data", pytest.approx(math.sqrt(3.0), rel=1e-3))


def right(rows):
    return clip(rows).sum(0) + noise()


def in_parts(rows):
    return sum((clip(part).sum(0) for part in rows.split(16)), torch.zeros(5)) + noise()


def noise_in_parts(rows):
    return clip(rows).sum(0) + sum(noise() for _ in range(parts(rows))) / math.sqrt(parts(rows))


@pytest.mark.parametrize("total", [right, in_parts, noise_in_parts])
@pytest.mark.parametrize("given", [2, 8, 40])
def test_right_steps_pass(total, given):
    report = probed(total, given, replays=120)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert f"In batches of 1 to {min(given, 12)} rows, a row adds the same" in report.in_words()


def network(group):
    """Rows' gradients of a small network, clipped in groups once there are more rows than in one."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def loss(parameters, x, y):
        return torch.nn.functional.cross_entropy(functional_call(net, parameters, (x[None],)), y[None])

    def step(batch):
        each = vmap(grad(loss), in_dims=(None, 0, 0))({k: v.detach() for k, v in net.named_parameters()}, *batch)
        if len(batch[1]) > group:
            each = {key: torch.stack([part.sum(0) for part in one.split(group)]) for key, one in each.items()}
        size = torch.sqrt(sum(one.flatten(1).pow(2).sum(1) for one in each.values())).clamp(min=1.0)
        for key, one in net.named_parameters():
            total = (each[key] / size.view(-1, *[1] * one.ndim)).sum(0)
            one.grad = (total + torch.randn_like(total)) / 8
        optimizer.step()

    labels = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
    return probe(step, state=[net, optimizer], batch=(ROWS[:40] / 3, labels), **OPTIONS)


def test_groups_that_begin_behind_the_twelfth_row_are_found_in_a_network():
    (found,) = network(16).findings
    assert found.fault in ("rows interact", "sensitivity too large")
    report = network(10**6)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
