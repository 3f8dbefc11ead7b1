"""Rows that the search must come to, and steps that are right although they look odd."""

import numpy as np
import pytest
import torch

from coalmine.probing.crafter import Crafter
from coalmine.probing.probe import probe
from coalmine.records import Outcome

OPTIONS = {"replays": 40, "tries": 30, "level": 1e-8, "clip_norm": 1.0, "noise_multiplier": 1.0}
ROWS = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("threshold", [1.5, 3.0])
def test_gradients_that_are_let_through_up_to_a_threshold_are_found(threshold):
    weight = torch.zeros(6)

    def step(rows):
        norms = rows.norm(dim=1, keepdim=True)
        total = torch.where(norms > threshold, rows / norms, rows).sum(dim=0)
        weight.sub_((total + torch.randn(6)) / 8)

    given = {"state": {"weight": weight}, "batch": 10 * ROWS, "divisor": 8, "learning_rate": 1.0}
    (found,) = probe(step, **given, **OPTIONS).findings
    assert 0.8 * threshold < found.number <= threshold * 1.001


@pytest.mark.parametrize(("threshold", "fault"), [(1.1, ["sensitivity too large"]), (1.0, [])])
def test_a_narrow_range_of_norms_is_found_in_a_network_that_clips_nearly_every_row(threshold, fault):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clip = 0.1

    def step(batch):
        x, y = batch
        hidden = torch.relu(model[0](x))
        out = torch.softmax(model[2](hidden), dim=1) - torch.nn.functional.one_hot(y, 3)
        back = (out @ model[2].weight) * (hidden > 0)
        parts = [back[:, :, None] * x[:, None, :], back, out[:, :, None] * hidden[:, None, :], out]
        norms = torch.cat([one.flatten(1) for one in parts], dim=1).norm(dim=1)
        factors = torch.where(norms > threshold * clip, clip / norms, 1.0)
        for parameter, one in zip(model.parameters(), parts, strict=True):
            total = torch.einsum("i,i...->...", factors, one)
            parameter.grad = (total + clip * torch.randn_like(total)).detach() / 8
        optimizer.step()

    batch = ROWS, torch.tensor([0, 1, 2, 0, 1, 2])
    options = {**OPTIONS, "clip_norm": clip, "tries": 40}
    report = probe(step, state=[model, optimizer], batch=batch, divisor=8, **options)
    assert [one.fault for one in report.findings] == fault, report.in_words()


def test_a_clip_norm_that_follows_a_batch_only_where_its_rows_are_small_is_found():
    weight = torch.zeros(6)

    def step(rows):
        norms = rows.norm(dim=1, keepdim=True)
        bound = norms.median().clamp(max=1.0) if len(rows) else 1.0
        weight.sub_(((rows * (bound / norms).clamp(max=1.0)).sum(dim=0) + torch.randn(6)) / 8)

    given = {"state": {"weight": weight}, "batch": 10 * ROWS, "divisor": 8, "learning_rate": 1.0}
    assert "rows interact" in {one.fault for one in probe(step, **given, **OPTIONS).findings}


def classifier(weights):
    """Rows clipped to norm 1 and then weighed by their class; the batch has classes 0 and 1 of three."""
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch):
        x, y = batch
        apart = torch.softmax(model(x), dim=1).detach() - torch.nn.functional.one_hot(y, 3)
        gradients = torch.cat([apart[:, :, None] * x[:, None, :], apart[:, :, None]], dim=2).flatten(1)
        clipped = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)
        total = (clipped * weights[y, None]).sum(dim=0).reshape(3, 7)
        model.weight.grad = (total[:, :6] + torch.randn(3, 6)) / 8
        model.bias.grad = (total[:, 6] + torch.randn(3)) / 8
        optimizer.step()

    batch = ROWS, torch.tensor([0, 1, 1, 0, 1, 0])
    return probe(step, state=[model, optimizer], batch=batch, divisor=8, **OPTIONS)


def test_a_class_that_is_not_in_the_batch_is_tried():
    (found,) = classifier(torch.tensor([1.0, 1.0, 3.0])).findings
    assert found.fault == "sensitivity too large"
    assert "label 2" in found.witness
    assert found.number == pytest.approx(3.0, rel=1e-3)


def test_a_class_that_fails_and_is_in_no_row_is_no_finding():
    assert classifier(torch.ones(2)).findings == ()


def test_a_sign_after_the_noise_is_not_refuted():
    weight = torch.zeros(12)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_(0.1 * torch.sign(clipped.sum(dim=0) + torch.randn(12)))

    report = probe(step, state={"weight": weight}, batch=torch.cat([ROWS, ROWS], dim=1), divisor=8, **OPTIONS)
    assert report.findings == (), report.in_words()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("noise", "outcome"), [(1.0, Outcome.CONSISTENT), (0.7, Outcome.REFUTED)])
def test_momentum_by_hand_is_no_wrong_divisor(noise, outcome):
    weight, momentum = torch.zeros(6), torch.zeros(6)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        momentum.mul_(0.9).add_((clipped.sum(dim=0) + noise * torch.randn(6)) / 8, alpha=0.1)
        weight.sub_(0.5 * momentum)

    given = {"state": {"weight": weight, "momentum": momentum}, "batch": ROWS, "divisor": 8, "learning_rate": 0.5}
    report = probe(step, **given, **{**OPTIONS, "replays": 200})
    assert report.verdict.outcome is outcome, report.in_words()


def embedded(silent):
    """The vectors of tokens 1 to 7 are trained, that of token 0 (padding) never; ``silent`` has no noise."""
    torch.manual_seed(0)
    model = torch.nn.Embedding(8, 3, padding_idx=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loud = torch.ones(8, 1)
    loud[silent] = 0.0

    def step(tokens):
        counts = torch.nn.functional.one_hot(tokens, 8).sum(dim=1) * (torch.arange(8) > 0)
        gradients = (counts[:, :, None] * torch.ones(3)).flatten(1)
        clipped = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1.0)
        model.weight.grad = (clipped.sum(dim=0).reshape(8, 3) + loud * torch.randn(8, 3)) / 8
        optimizer.step()

    batch = torch.randint(0, 8, (6, 4), generator=torch.Generator().manual_seed(1))
    return probe(step, state=[model, optimizer], batch=batch, divisor=8, **{**OPTIONS, "replays": 200})


def test_a_token_that_no_row_can_train_needs_no_noise():
    report = embedded([0])
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_a_token_that_a_row_can_train_needs_noise():
    assert "noise too small" in {one.fault for one in embedded([0, 5]).findings}


class Tagger:
    """A tag for each token: an embedding, a linear layer, one backward pass a row; −100 is left out of the loss."""

    def __init__(self, *, clipped=True, tags=3):
        torch.manual_seed(0)
        self.table, self.head, self.clipped = torch.nn.Embedding(12, 4), torch.nn.Linear(4, tags), clipped
        self.optimizer = torch.optim.SGD([*self.table.parameters(), *self.head.parameters()], lr=0.1)

    def step(self, batch):
        tokens, tags = batch
        parameters = self.optimizer.param_groups[0]["params"]
        totals = [torch.zeros_like(one) for one in parameters]
        for row, wanted in zip(tokens, tags, strict=True):
            out = self.head(torch.tanh(self.table(row)))
            loss = torch.nn.functional.cross_entropy(out, wanted, reduction="sum")
            gradients = torch.autograd.grad(loss, parameters)
            factor = 0.1 / torch.stack([one.norm() for one in gradients]).norm().clamp(min=0.1)
            for total, one in zip(totals, gradients, strict=True):
                total += one * (factor if self.clipped else 1.0)
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = (total + 0.1 * torch.randn_like(total)) / 8
        self.optimizer.step()


@pytest.mark.parametrize("clipped", [True, False], ids=["right", "not clipped"])
@pytest.mark.parametrize("ignored", [True, False], ids=["some tags left out", "all tags"])
def test_tags_of_tokens_stay_below_the_classes_of_the_model(clipped, ignored):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 12, (6, 4), generator=generator)
    tags = torch.randint(0, 3, (6, 4), generator=generator)
    tags[0] = torch.tensor([0, 1, 2, -100 if ignored else 2])
    tagger = Tagger(clipped=clipped)
    report = probe(
        tagger.step,
        state=[torch.nn.ModuleList([tagger.table, tagger.head]), tagger.optimizer],
        batch=(tokens, tags),
        divisor=8,
        **{**OPTIONS, "clip_norm": 0.1, "tries": 60},
    )
    faults = {one.fault for one in report.findings}
    assert bool(faults & {"no clipping", "sensitivity too large"}) is not clipped, report.in_words()
    assert "step fails on a row" not in faults
    assert clipped is (report.verdict.outcome is Outcome.CONSISTENT), report.in_words()


def test_a_token_with_which_the_step_fails_is_still_found():
    tagger = Tagger()
    inner = tagger.step

    def step(batch):
        if bool((batch[0] == 11).any()):
            raise KeyError("unknown token")
        inner(batch)

    tokens = torch.arange(24).reshape(6, 4) % 10
    tags = torch.arange(24).reshape(6, 4) % 3
    layers = torch.nn.ModuleList([tagger.table, tagger.head])
    options = {**OPTIONS, "clip_norm": 0.1, "tries": 60}
    report = probe(step, state=[layers, tagger.optimizer], batch=(tokens, tags), divisor=8, **options)
    assert [one.fault for one in report.findings] == ["step fails on a row"]


def test_a_tag_beyond_those_of_the_batch_is_a_guess():
    crafter = Crafter((np.arange(8).reshape(2, 4), np.array([[0, 1, 2, -100], [0, 0, 1, 1]])), classes=5, seed=0)
    row, tags = (np.zeros((1, 4), dtype=int), np.full((1, 4), 4))
    assert crafter.guessed([row, tags])  # a class of the model perhaps: if the step fails, the guess was wrong
    assert not crafter.guessed([row, np.full((1, 4), 2)])
    assert not crafter.guessed([np.full((1, 4), 9), np.full((1, 4), -100)])
    tried = {int(value) for values, _ in crafter.first() for value in np.unique(values[1])}
    assert tried == {-100, 0, 1, 2, 3, 4}
