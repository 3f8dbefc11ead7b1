"""What counts as released: objects without a state dict, what a step keeps elsewhere; and what a batch may be."""

import datetime
import time

import pytest
import torch

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
ROWS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


class Trainer:
    """A class that holds only tensors, numbers and lists, and perhaps keeps what it should not."""

    def __init__(self, keeps=""):
        self.weight, self.mean, self.steps, self.log, self.cache = torch.zeros(3), torch.zeros(3), 0, [], {}
        self.keeps = keeps

    def step(self, rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        self.weight.sub_((clipped.sum(dim=0) + torch.randn(3)) / 8)
        self.steps += 1
        if self.keeps == "mean":
            self.mean.mul_(0.9).add_(rows.sum(dim=0))
        if self.keeps == "rebound":
            self.mean = 0.9 * self.mean + rows.sum(dim=0)
        if self.keeps == "log":
            self.log.append(float(rows.sum()))
        if self.keeps == "cache":
            self.cache["first"] = rows[:1].clone()


PROMISE = {"divisor": 8.0, "learning_rate": 1.0}


@pytest.mark.parametrize("keeps", ["mean", "rebound", "log", "cache"])
def test_what_an_object_that_is_state_holds_counts(keeps):
    trainer = Trainer(keeps)
    found = probe(trainer.step, state=trainer, batch=ROWS, **PROMISE, **OPTIONS).findings
    assert [one.fault for one in found] == ["unnoised tensor"]
    assert (trainer.steps, trainer.log, trainer.cache) == (0, [], {})


@pytest.mark.parametrize(
    ("keeps", "name"), [("mean", "mean"), ("rebound", "mean"), ("log", "log[0]"), ("cache", "cache['first']")]
)
def test_what_is_kept_outside_the_state_is_named(keeps, name):
    trainer = Trainer(keeps)
    given = {"state": {"weight": trainer.weight}, "batch": ROWS, **PROMISE, **OPTIONS}
    report = probe(trainer.step, **given)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert f"the step also changes {name}, which is not in state" in report.in_words()
    assert f'kept=("{name}",)' in report.in_words()
    assert probe(trainer.step, kept=(name,), **given).verdict.outcome is Outcome.CONSISTENT


@pytest.mark.parametrize("state", ["object", None])
def test_a_right_object_of_tensors_passes(state):
    trainer = Trainer()
    report = probe(trainer.step, state=trainer if state else None, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


@pytest.mark.parametrize(
    "batch",
    [list(ROWS), [(row, torch.tensor(1)) for row in ROWS], [{"x": row} for row in ROWS], [row.numpy() for row in ROWS]],
    ids=["tensors", "pairs", "dicts", "arrays"],
)
def test_a_list_of_rows_is_refused_in_words(batch):
    with pytest.raises(InvalidInputError, match=r"list of 4 items that look like rows.*Stack the rows"):
        probe(Trainer().step, batch=batch, **OPTIONS)


def test_columns_of_one_shape_come_in_a_tuple():
    trainer = Trainer()
    report = probe(
        lambda batch: trainer.step(torch.stack(batch, dim=1)),
        state=trainer,
        batch=tuple(ROWS[:, column].clone() for column in range(3)),
        **PROMISE,
        **OPTIONS,
    )
    assert report.findings == (), report.in_words()


def right_but(keep):
    """A right step that does one thing more."""
    trainer = Trainer()

    def step(rows):
        trainer.step(rows)
        return keep(trainer)

    return step, trainer


def now(trainer):
    trainer.mean = torch.tensor(time.time(), dtype=torch.float64)


def seconds(trainer):
    trainer.steps = time.perf_counter() - trainer.steps


@pytest.mark.parametrize(
    ("keep", "name"),
    [
        (now, "mean"),
        (seconds, "steps"),
        (lambda _: time.time(), "returned"),
        (lambda _: {"at": time.perf_counter()}, "returned.at"),
        (lambda _: {"at": datetime.datetime.now(datetime.UTC)}, "returned.at"),
        (lambda _: f"at {time.perf_counter()}", "returned"),
        (lambda _: int(40 * time.time()), "returned"),
    ],
)
def test_a_clock_is_named_and_never_a_leak(keep, name):
    step, trainer = right_but(keep)
    given = {"state": trainer, "batch": ROWS, **PROMISE, **OPTIONS}
    with pytest.raises(UnsupportedError, match=rf"{name} differs between two runs. It follows a clock, or"):
        probe(step, **given)
    assert probe(step, kept=(name,), **given).verdict.outcome is Outcome.CONSISTENT


def test_a_clock_outside_the_state_is_no_row():
    def part(trainer):
        trainer.steps = time.perf_counter() % 1e-3

    step, trainer = right_but(part)
    report = probe(step, state={"weight": trainer.weight}, batch=ROWS, **PROMISE, **OPTIONS)
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "trainer.steps, which is not in state and differs between two runs" in report.in_words()


@pytest.mark.parametrize("kept", ["cache.row[1]", "cache.row[*", "cache*"])
def test_brackets_in_what_is_kept_stand_for_themselves(kept):
    weight, cache = torch.zeros(5), {}

    def step(rows):
        total = (rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)).sum(dim=0)
        weight.sub_((total + torch.randn(5)) / 8)
        cache["row[1]"] = total

    promise = {"clip_norm": 1.0, "noise_multiplier": 1.0, "divisor": 8, "learning_rate": 1.0}
    given = {"state": {"weight": weight, "cache": cache}, "batch": torch.eye(5), "replays": 40, "tries": 20}
    assert probe(step, kept=("cache.row1",), **promise, **given).verdict.outcome is Outcome.REFUTED
    report = probe(step, kept=(kept,), **promise, **given)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
