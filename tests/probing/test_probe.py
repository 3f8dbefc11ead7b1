"""The probe as a whole: small faults in the noise, everything put back, bad input in words, and what it prints."""

from __future__ import annotations

import io
import os
import random
import threading

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import noise
from coalmine.probing.crafter import Crafter
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.probe import probe
from coalmine.probing.snapshot import Snapshot
from coalmine.records import Outcome


def linear_step(*, sizes=(3,), factors=None, draw=torch.randn, **options):
    """Rows clipped to norm 1, added up over several tensors, with noise of 1 (times a factor for each tensor)."""
    tensors = {f"tensor {place}": torch.zeros(size) for place, size in enumerate(sizes)}
    factors = factors or [1.0] * len(sizes)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        parts = clipped.sum(dim=0).split(list(sizes))
        for (_, one), part, factor in zip(tensors.items(), parts, factors, strict=True):
            one.sub_((part + factor * draw(one.shape)) / 8)

    generator = torch.Generator().manual_seed(0)
    given = {
        "state": tensors,
        "batch": torch.randn(4, sum(sizes), generator=generator),
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "divisor": 8,
        "learning_rate": 1.0,
    }
    return PrivateStep(step=step, **{**given, **options})


def measured(report, name):
    return next(one for one in report.measurements if one.name == name)


def test_noise_that_is_a_little_short_in_one_tensor_is_found():
    # 200 runs of 1000 numbers: ×0.95 lies 30 standard deviations below what is promised.
    report = probe(linear_step(sizes=(50, 1000), factors=[1.0, 0.95]), tries=20)
    (found,) = report.findings
    assert found.fault == "noise too small"
    assert found.number == pytest.approx(0.95, abs=0.01)
    assert found.witness == "tensor 1, 1000 numbers over 200 runs"


def test_the_smallest_ratio_that_is_found_is_printed():
    # At level 1e-8 a right step is refuted less often than once in a million.
    report = probe(linear_step(sizes=(50, 1000)), tries=20, level=1e-8)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    ratios = {row["tensor"]: row["smallest_ratio_found"] for row in measured(report, "noise").details["tensors"]}
    assert 0.98 < ratios["tensor 1"] < 1.0
    assert 0.9 < ratios["tensor 0"] < ratios["tensor 1"]
    assert f"Noise ×{ratios['tensor 0']:.3g} or less would be found in every tensor with 200 runs" in report.in_words()


@pytest.mark.parametrize(("numbers", "level"), [(200, 1e-4), (200_000, 1e-5)])
def test_the_smallest_ratio_is_found_nine_times_out_of_ten(numbers, level):
    ratio = noise.smallest_ratio(numbers, level)
    limit = stats.chi2.ppf(level, numbers)  # the sum of squares below which noise is too small
    assert stats.chi2.cdf(limit / ratio**2, numbers) == pytest.approx(0.9, abs=1e-9)


def test_everything_is_put_back_to_the_last_bit():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    seen, generator, numbers = [], torch.Generator().manual_seed(3), np.random.default_rng(4)

    def step(rows):
        seen.append(len(rows))
        optimizer.zero_grad()
        model(rows).sum().backward()
        for one in model.parameters():
            one.grad.add_(torch.randn(one.shape, generator=generator) + float(numbers.normal()) + random.random())
        optimizer.step()

    batch = torch.randn(4, 4)
    step(batch)
    held = [*model.parameters(), *model.buffers(), *(v for one in optimizer.state.values() for v in one.values())]
    before = [one.detach().clone() for one in held]
    gradients = [one.grad.clone() for one in model.parameters()]
    states = generator.get_state(), torch.get_rng_state(), numbers.bit_generator.state, random.getstate()
    probe(step, state=[model, optimizer], batch=batch, clip_norm=1.0, noise_multiplier=1.0, tries=10)
    assert all(torch.equal(a, b) for a, b in zip(held, before, strict=True))
    assert all(torch.equal(one.grad, b) for one, b in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(generator.get_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[1])
    assert (numbers.bit_generator.state, random.getstate()) == states[2:]
    assert seen == [4]


def test_an_expanded_tensor_is_put_back():
    held = torch.arange(3.0).expand(4, 3)
    snapshot = Snapshot({"held": held}, print)
    held.data[0] += 1.0
    snapshot.restore()
    assert torch.equal(held, torch.arange(3.0).expand(4, 3))
    assert held.stride() == (0, 1)


def test_no_negative_label_is_tried_but_those_of_the_batch():
    labels = np.array([[3, 7, -100], [5, -100, -100]])
    crafter = Crafter({"input_ids": np.abs(labels) % 9, "labels": labels})
    rows, size = [values for values, _ in crafter.first()], 1.0
    for _ in range(200):
        values, size = crafter.changed(rows[-1], size)
        rows.append(values)
    tried = {int(one) for values in rows for one in np.ravel(values[1])}
    assert tried == {-100, *range(8)}


def test_the_same_seed_gives_the_same_report():
    first, second = (probe(linear_step(), tries=10, replays=20, seed=5) for _ in range(2))
    assert first.findings == second.findings
    assert measured(first, "noise").details == measured(second, "noise").details


def unseen_draw(shape):
    """The operating system's generator, asked past Python: nothing can play it again."""
    values = np.frombuffer(os.urandom(4 * shape[0]), dtype=np.uint32) / 2.0**32
    return torch.from_numpy(stats.norm.ppf(values + 1e-10).astype(np.float32))


def nothing(rows):
    return None


def makes_a_step():
    return linear_step()


def fails(rows):
    raise RuntimeError("no such layer")


BATCH = torch.eye(3)
PROMISE = {"clip_norm": 1.0, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (
            lambda: probe(nothing, state={"weight": torch.zeros(3)}, batch=BATCH, **PROMISE),
            InvalidInputError,
            "step changes nothing of its state in 4 calls and returns nothing",
        ),
        (
            lambda: probe(nothing, state={"weight": torch.zeros(3)}, batch=BATCH, **PROMISE),
            InvalidInputError,
            r"a batch that no guard of it \(on loss, size\) leaves out",
        ),
        (lambda: probe(linear_step), InvalidInputError, r"batch = None is not allowed"),
        (lambda: probe(makes_a_step), InvalidInputError, r"If it gives a PrivateStep, call it: makes_a_step\(\)"),
        (
            lambda: probe(makes_a_step, batch=BATCH, **PROMISE),
            InvalidInputError,
            "expected a function of a batch: this one takes none",
        ),
        (
            lambda: probe(linear_step(state={"lines": io.StringIO()})),
            UnsupportedError,
            r"state\['lines'\] is of type StringIO, which cannot be copied",
        ),
        (
            lambda: probe(linear_step(state=[torch.zeros(3), threading.Lock()])),
            UnsupportedError,
            r"state\[1\] is of type lock, which cannot be copied",
        ),
        (
            lambda: probe(linear_step(batch=torch.ones(1, 3))),
            InvalidInputError,
            r"batch = '1 row\(s\)' is not allowed: expected at least two rows",
        ),
        (
            lambda: probe(linear_step(draw=unseen_draw)),
            UnsupportedError,
            "step cannot be replayed: .* tensor 0 differs between two runs.* generator that the tape cannot hear",
        ),
        (
            lambda: probe(fails, state=[torch.zeros(3)], batch=BATCH, **PROMISE),
            InvalidInputError,
            "step fails on its own batch: RuntimeError: no such layer",
        ),
        (lambda: probe(linear_step(batch="rows")), InvalidInputError, "batch = str holds no tensor or array"),
        (lambda: probe(linear_step(), noise=3.0), InvalidInputError, "promise = 'noise' is not allowed: expected one"),
        (lambda: probe(nothing, batch=BATCH, noise_multiplier=1.0), InvalidInputError, "clip_norm = None"),
        (lambda: probe(linear_step(), level=1.0), InvalidInputError, "level = 1.0"),
        (lambda: probe(linear_step(), replays=3), InvalidInputError, "replays = 3"),
        (lambda: linear_step(clip_norm=0.0), InvalidInputError, "clip_norm = 0.0"),
        (lambda: linear_step(bounds=(1.0, 0.0)), InvalidInputError, "bounds = "),
        (lambda: PrivateStep(step=3, batch=BATCH, **PROMISE), InvalidInputError, "step = 3"),
    ],
)
def test_bad_input_is_refused_in_words(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize("fixed", [True, False])
def test_microbatches_are_named_and_counted(fixed):
    weight = torch.zeros(5)

    def step(rows):
        if fixed and len(rows) != 6:
            raise ValueError("six rows, no more and no less")
        means = torch.stack([one.mean(dim=0) for one in rows.split(3)]) if len(rows) else rows
        clipped = means / means.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + torch.randn(5)) / 8)

    batch = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    promise = {**PROMISE, "divisor": 8, "learning_rate": 1.0, "sampling": "shuffle"}
    report = probe(step, state={"weight": weight}, batch=batch, replays=20, tries=30, **promise)
    found = next(one for one in report.findings if one.fault == "microbatch clipping")
    assert "groups of about 3" in found.sentence
