"""What a step hangs on parameters, on buffers, and on tensors that are the state."""

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("fixed", torch.ones(2))


def trained(hang, kept=()):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        net.weight.grad = (clipped.sum(dim=0) + torch.randn(3)) / 8
        optimizer.step()
        hang(net, rows)

    return probe(step, state={"net": net, "optimizer": optimizer}, batch=ROWS, divisor=8.0, kept=kept, **OPTIONS)


def raw_momentum(net, rows):
    net.weight.raw = 0.9 * getattr(net.weight, "raw", torch.zeros(3)) + rows.sum(dim=0)


def raw_buffer(net, rows):
    net.fixed.seen = [float(rows.sum())]


@pytest.mark.parametrize(("hang", "name"), [(raw_momentum, "weight.raw"), (raw_buffer, "fixed.seen[0]")])
def test_an_attribute_that_shows_a_row_is_named(hang, name):
    report = trained(hang)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert f"the step also changes net.{name}" in report.in_words()
    assert trained(hang, kept=(f"*{name}",)).verdict.outcome is Outcome.CONSISTENT


def test_an_attribute_that_shows_none_passes():
    def count(net, rows):
        net.weight.steps = getattr(net.weight, "steps", 0) + 1

    assert trained(count).verdict.outcome is Outcome.CONSISTENT


def test_it_may_hang_on_a_tensor_that_is_the_state():
    weight = torch.zeros(3)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        weight.raw = rows.sum(dim=0)

    report = probe(step, state={"weight": weight}, batch=ROWS, divisor=8.0, learning_rate=1.0, **OPTIONS)
    assert "the step also changes state['weight'].raw" in report.in_words()
