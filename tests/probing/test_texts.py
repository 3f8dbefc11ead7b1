"""Exact values that are no plain numbers: in texts, sets, names of keys, lengths of lists; and texts that are right."""

import datetime
import decimal
import json
import types

import pytest
import torch

from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 20, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 2.0}
PROMISE = {"divisor": 8.0, "learning_rate": 1.0, "batch": torch.eye(3)}


def probed(returns=lambda loss, weight: None, *, state=None, keep=lambda loss, weight: None):
    weight = torch.zeros(3)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + 2.0 * torch.randn(3)) / 8)
        loss = float(rows.nan_to_num(0, 0, 0).sum())
        keep(loss, weight)
        return returns(loss, weight)

    return probe(step, state={"weight": weight, **(state or {})}, **PROMISE, **OPTIONS)


@pytest.mark.parametrize(
    "returns",
    [
        lambda loss, _: f"loss {loss:.4f}",
        lambda loss, _: {"line": json.dumps({"loss": loss})},
        lambda loss, _: str(loss).encode(),
        lambda loss, _: types.SimpleNamespace(loss=loss),
        lambda loss, _: {loss},
        lambda loss, _: decimal.Decimal(loss),
        lambda loss, _: complex(0.0, loss),
        lambda loss, _: None if loss <= 3.0 else 1.0,
        lambda loss, _: [0.0] * int(min(max(loss, 0.0), 50.0)),
        lambda loss, _: "good" if loss <= 3.0 else "bad",
    ],
    ids=["text", "JSON", "bytes", "namespace", "set", "decimal", "complex", "None or number", "length", "word"],
)
def test_an_exact_value_of_any_kind_is_found(returns):
    assert {one.fault for one in probed(returns).findings} == {"exact value returned"}


def test_a_text_that_is_kept_in_the_state_is_found():
    log, counts = [], {}
    report = probed(state={"log": log}, keep=lambda loss, _: log.append(f"loss {loss:.4f}"))
    assert [one.fault for one in report.findings] == ["unnoised tensor"]
    report = probed(state={"counts": counts}, keep=lambda loss, _: counts.update({f"{loss:.1f}": 1}))
    assert {one.fault for one in report.findings} == {"unnoised tensor"}


def test_a_text_that_is_kept_elsewhere_is_named():
    log = []
    report = probed(keep=lambda loss, _: log.append(f"loss {loss:.4f}"))
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "the step also changes log[0], which is not in state" in report.in_words()


@pytest.mark.parametrize(
    "returns",
    [
        lambda _, weight: str(weight.tolist()),
        lambda _, weight: f"norm {float(weight.norm()):.3f}",
        lambda _, weight: "step done",
        lambda _, weight: {"weights": weight.clone(), "note": None},
    ],
    ids=["numbers of the release", "rounded", "words", "tensor"],
)
def test_a_text_that_follows_from_the_release_is_not_refuted(returns):
    report = probed(returns)
    assert report.findings == (), report.in_words()


def test_sets_and_dates_may_be_in_the_state():
    seen, day = set(), datetime.date(2026, 1, 1)
    report = probed(state={"seen": seen, "day": day}, keep=lambda loss, _: seen.add(round(loss, 3)))
    assert {one.fault for one in report.findings} == {"unnoised tensor"}
    assert seen == set()
    report = probed(state={"seen": seen, "day": day}, keep=lambda _, weight: seen.add("a step"))
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
