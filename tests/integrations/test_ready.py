"""Ready canaries and scores: distinct rows in the data's own types, and scores that tell real faults."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import coalmine
from coalmine.auditing.config import Execution
from coalmine.errors import InvalidInputError
from coalmine.integrations import ready
from coalmine.records import DpSgd

RNG = np.random.default_rng(0)
X = torch.from_numpy(RNG.normal(size=(30, 5)).astype(np.float32))
Y = torch.from_numpy((RNG.random(30) < 0.4).astype(np.int64))


def make_model(normalized=False):
    torch.manual_seed(0)
    middle = [torch.nn.BatchNorm1d(4)] if normalized else []
    return torch.nn.Sequential(torch.nn.Linear(5, 4), *middle, torch.nn.Tanh(), torch.nn.Linear(4, 2))


make_normalized = functools.partial(make_model, normalized=True)


def train(dataset, seed, *, sigma=1.0, build=make_model, steps=2, iterates=False, careful=True):
    """Full-batch DP-SGD on summed gradients, C = 1; running statistics of batch normalization are released too."""
    model, generator = build(), torch.Generator().manual_seed(seed)
    shown = []
    for _ in range(steps):
        total = [torch.zeros_like(one) for one in model.parameters()]
        model.train()
        model(dataset[0])  # a forward pass over all rows, as batch normalization needs it
        model.eval()
        for x, y in zip(*dataset, strict=True):
            loss = torch.nn.functional.cross_entropy(model(x[None]), y[None])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([one.reshape(-1) for one in gradients]).norm()
            if not careful and not torch.isfinite(norm):
                raise FloatingPointError("a gradient is not finite")
            for one, gradient in zip(total, gradients, strict=True):
                one += torch.nan_to_num(gradient / norm.clamp(min=1.0))
        with torch.no_grad():
            for one, value in zip(model.parameters(), total, strict=True):
                one -= 0.1 * (value + sigma * torch.randn(value.shape, generator=generator))
        shown.append({name: value.clone() for name, value in model.state_dict().items()})
    return shown if iterates else model


def played(trained, canary, build=make_model, trials=24):
    """All scores of a few trainings in both worlds."""
    found = []
    for world in (0, 1):
        data = (X, Y) if world == 0 else (torch.cat([X, canary[0][None]]), torch.cat([Y, canary[1][None]]))
        found.append([ready.scores(trained(data, 2 * n + world), canary, make_model=build) for n in range(trials)])
    return found


def separated(found, name):
    """Every score of world 1 above every one of world 0: by chance once in 32,247,603,683,100 for 24 + 24."""
    return min(one[name] for one in found[1]) > max(one[name] for one in found[0])


def test_canaries_are_new_rows_in_the_types_of_the_data():
    rows = ready.canaries(TensorDataset(X, Y), make_model=make_model)
    assert {"far", "far, negative", "blank", "rare direction", "mislabeled", "layer 0", "layer 2"} <= set(rows)
    whole = [torch.cat([x, y[None].float()]) for x, y in [*rows.values(), *zip(X, Y, strict=True)]]
    assert len({tuple(one.tolist()) for one in whole}) == len(whole)
    for x, y in rows.values():
        assert x.shape == (5,)
        assert x.dtype == X.dtype
        assert y.dtype == Y.dtype
    worlds = coalmine.neighbours((X, Y), rows["far"])
    assert worlds.world1[0].shape == (31, 5)


def test_a_row_for_a_layer_has_its_gradient_there():
    rows = ready.canaries((X, Y), make_model=make_model)
    for layer in ("0", "2"):
        x, y = rows[f"layer {layer}"]
        model = make_model()
        torch.nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        squares = {name: float((one.grad**2).sum()) for name, one in model.named_parameters()}
        share = sum(v for name, v in squares.items() if name.startswith(layer)) / sum(squares.values())
        assert share > 0.8


def test_numpy_and_numbers_as_labels_are_taken():
    rows = ready.canaries((X.numpy(), X[:, 0].numpy()))
    assert rows["mislabeled"][1] > 3.0
    assert rows["far"][0].dtype == np.float32


def test_the_scores_tell_missing_noise():
    canary = ready.canaries((X, Y))["far"]
    found = played(functools.partial(train, sigma=0.02), canary)
    assert separated(found, "along")
    assert all(one["failed"] == 0.0 for world in found for one in world)
    quiet = played(functools.partial(train, sigma=3.0), canary)
    assert not separated(quiet, "along")


def test_the_trajectory_is_read_where_all_iterates_are_released():
    canary = ready.canaries((X, Y))["far"]
    found = played(functools.partial(train, sigma=0.05, iterates=True), canary, trials=8)
    assert separated(found, "trajectory")
    assert "trajectory" not in ready.scores(train((X, Y), 0), canary, make_model=make_model)


def test_buffers_tell_batch_normalization():
    canary = ready.canaries((X, Y))["far"]
    found = played(functools.partial(train, sigma=5.0, build=make_normalized), canary, build=make_normalized)
    assert separated(found, "buffers")
    assert not separated(found, "along")


def test_a_training_that_fails_is_a_score():
    careless = functools.partial(ready.guarded, functools.partial(train, careful=False))
    infinite = (torch.full((5,), float("inf")), torch.tensor(0))
    found = played(careless, infinite, trials=8)
    assert [one["failed"] for one in found[0]] == [0.0] * 8
    assert [one["failed"] for one in found[1]] == [1.0] * 8
    assert ready.scores(ready.Failed("why"), infinite, make_model=make_model, only="failed") == 1.0
    assert ready.scores(ready.Failed("why"), infinite, make_model=make_model, only="along") == -1e300


def test_named_scores_play_an_audit(tmp_path):
    canary = ready.canaries((X, Y))["far"]
    named = ready.named_scores(make_model=make_model)
    assert set(named) == {"along", "loss", "norm", "failed"}
    assert set(ready.named_scores(make_model=make_normalized, iterates=True)) == set(ready.SCORES)
    result = coalmine.audit_function(
        functools.partial(ready.guarded, functools.partial(train, sigma=0.1, steps=1)),
        named,
        worlds=coalmine.neighbours((X, Y), canary),
        claim_dpsgd=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1),
        trials=96,
        store=tmp_path / "trials.db",
        execution=Execution(engine="inline"),
    )
    assert str(result.verdict) == "refuted"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ready.canaries(X), "a pair"),
        (lambda: ready.canaries((X, Y[:3])), "a pair"),
        (lambda: ready.canaries((X, Y), far=-1.0), "far = -1.0"),
        (lambda: ready.scores(3, (X[0], Y[0]), make_model=make_model), "expected a module"),
        (lambda: ready.scores({}, (X[0], Y[0]), make_model=make_model), "no parameter"),
        (lambda: ready.scores({}, (X[0], Y[0]), make_model=make_model, only="best"), "one of along"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
