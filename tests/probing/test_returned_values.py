"""What a step returns counts as released, of whatever type it is; what cannot be read is named."""

import array
import dataclasses
import functools
import io

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from coalmine.errors import UnsupportedError
from coalmine.probing import plain_tensors
from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 30, "tries": 15, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0}
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Slots:
    __slots__ = ("loss",)

    def __init__(self, loss):
        self.loss = loss


def with_a_property(value):
    return type("Result", (), {"loss": property(lambda _: value)})()


def eight_bits(value):
    return torch.tensor([value]).to(torch.float8_e4m3fn)


def nested(value):
    return torch.nested.nested_tensor([torch.tensor([value]), torch.zeros(2)])


def quantized(value):
    return torch.quantize_per_tensor(torch.tensor([value]), 0.01, 0, torch.qint32)


def step_that_returns(make, weight=None):
    weight = torch.zeros(3) if weight is None else weight

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        return make(float(rows.sum()))

    return step, {"weight": weight}


def probed(make, **options):
    step, state = step_that_returns(make)
    return probe(step, state=state, batch=ROWS, **PROMISE, **OPTIONS, **options)


READ = {
    "items": lambda value: {"loss": value}.items(),
    "values": lambda value: {"loss": value}.values(),
    "slots": Slots,
    "closure": lambda value: lambda: value,
    "partial": lambda value: functools.partial(print, value),
    "range": lambda value: range(int(1000 * value)),
    "slice": lambda value: slice(0, int(1000 * value)),
    "array": lambda value: array.array("d", [value]),
    "structured array": lambda value: np.array([(value,)], dtype=[("loss", "f8")]),
    "series": lambda value: pd.Series([value]),
    "frame": lambda value: pd.DataFrame({"loss": [value]}),
    "sparse matrix": lambda value: scipy.sparse.csr_matrix([[value]]),
    "bytes": lambda value: io.BytesIO(repr(value).encode()),
    "text": lambda value: io.StringIO(repr(value)),
    "memory": lambda value: memoryview(repr(value).encode()),
    "exception": lambda value: ValueError(value),
    "property": with_a_property,
    "distribution": lambda value: torch.distributions.Normal(value, 1.0),
    "sparse tensor": lambda value: torch.tensor([value, 0.0]).to_sparse(),
    "compressed tensor": lambda value: torch.tensor([[value, 0.0]]).to_sparse_csr(),
    "nested tensor": nested,
    "quantized tensor": quantized,
    "eight bits": eight_bits,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", READ)
def test_a_sum_of_the_rows_is_found_in_every_type(kind):
    found = probed(READ[kind]).findings
    assert {one.fault for one in found} == {"exact value returned"}


UNREAD = {
    "list_iterator": lambda value: iter([value]),
    "generator": lambda value: (one for one in [value]),
    "map": lambda value: map(float, [value]),
    "zip": lambda value: zip(["loss"], [value], strict=True),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_what_cannot_be_read_is_named(kind):
    report = probed(UNREAD[kind])
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert f"the step returns a value of type {kind}" in report.in_words()
    inner = probed(lambda value: {"more": [UNREAD[kind](value)], "steps": 1})
    assert f"the step returns returned.more, of type {kind}" in inner.in_words()
    assert probed(UNREAD[kind], kept=("returned",)).verdict.outcome is Outcome.CONSISTENT


@dataclasses.dataclass
class Result:
    weight: torch.Tensor
    steps: int


def test_ordinary_results_pass():
    weight = torch.zeros(3)
    model, optimizer = torch.nn.Linear(3, 1), torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))])
    some = {
        "none": None, "dict": {"steps": 3, "rate": 0.1}, "optimizer": optimizer, "its state": optimizer.state_dict(),
        "model": model, "result": Result(weight, 3), "torch": torch.max(torch.eye(2), 1), "function": print,
        "module": torch, "sentinel": object(), "closure": lambda: weight, "schedule": optimizer.add_param_group,
        "type": float, "number type": torch.float32, "loader": torch.utils.data.DataLoader([1, 2]),
    }  # fmt: skip
    step, state = step_that_returns(lambda value: some, weight)
    report = probe(step, state=state, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [READ[kind] for kind in READ if kind.endswith(("tensor", "bits"))])
@pytest.mark.parametrize("leaks", [False, True])
def test_such_tensors_may_lie_in_the_state(make, leaks):
    weight = torch.zeros(3)
    state = {"weight": weight, "more": make(1.0)}

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        if leaks:
            state["more"] = make(float(rows.sum()))

    report = probe(step, state=state, batch=ROWS, **PROMISE, **OPTIONS)
    assert [one.fault for one in report.findings] == ["unnoised tensor"] * leaks
    assert report.verdict.outcome is (Outcome.REFUTED if leaks else Outcome.CONSISTENT)


def test_a_tensor_that_has_no_numbers_to_read_is_named(monkeypatch):
    def fails(_):
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(torch.Tensor, "to_dense", fails)
    with pytest.raises(UnsupportedError, match=r"returned is a sparse_coo tensor.*no such kernel.*to_dense\(\)"):
        plain_tensors.plain(torch.eye(2).to_sparse(), "returned")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("noised", [True, False])
def test_a_sparse_gradient_enters_an_optimizer(noised):
    table = torch.nn.Embedding(5, 2, sparse=True)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.1)

    def step(tokens):
        total = torch.zeros(5, 2)
        for one in tokens:
            optimizer.zero_grad()
            (3.0 * table(one).sum()).backward()
            gradient = table.weight.grad.to_dense()
            total += gradient / gradient.norm().clamp(min=1.0)
        table.weight.grad = ((total + noised * torch.randn(5, 2)) / 8).to_sparse(1)
        optimizer.step()

    report = probe(step, state=[table, optimizer], batch=torch.tensor([0, 1, 2, 4]), divisor=8.0, **OPTIONS)
    assert ("no noise" in [one.fault for one in report.findings]) is not noised


class Kept:
    """An object whose logs are of types that a step changes in place."""

    def __init__(self, log):
        self.weight, self.log = torch.zeros(3), log

    def step(self, rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        self.weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        if isinstance(self.log, (array.array, bytearray)):
            self.log.append(1)
        else:
            self.log.write(b"step" if isinstance(self.log, io.BytesIO) else "step")


@pytest.mark.parametrize("make", [lambda: array.array("l"), bytearray, io.BytesIO, io.StringIO])
def test_a_log_that_grows_in_place_is_put_back(make):
    trainer = Kept(make())
    report = probe(trainer.step, state=trainer, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    assert not len(trainer.log if isinstance(trainer.log, (array.array, bytearray)) else trainer.log.getvalue())
