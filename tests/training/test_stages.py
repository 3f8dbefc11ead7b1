"""Convolution networks by stages: which networks are chains of stages, and that the kernels compute what they should.

The kernels run on a GPU, or with Triton and ``TRITON_INTERPRET=1`` on a CPU. What every engine must do on a GPU is in
test_engines.py, where these kernels train the networks that are chains of stages.
"""

import numpy as np
import pytest
import reference
import torch
from engines import CLOSED, CUDA, INTERPRETED, data_for, worlds_with
from torch import nn

from coalmine.training import (
    Activation,
    BernauCnn,
    Conv2d,
    Dataset,
    Flatten,
    GroupNorm,
    Linear,
    Mlp,
    NasrCnn,
    Pad2d,
    PartSums,
    Pool2d,
    RowGradients,
    Sequential,
    TrainingConfig,
    clipped_sums,
    compiled_stages,
    module,
    parameter_count,
    stages,
    train,
)
from coalmine.training.backends import SWITCH
from coalmine.training.canary import StackState
from coalmine.training.job import Job
from coalmine.training.modules import Functional
from coalmine.training.products import padded
from coalmine.training.sampling import batches
from coalmine.training.sums import Vectors

ODD = Sequential(
    (3, 11, 9),
    4,
    (
        Conv2d(3, 5, 3, padding=1),
        Activation("sigmoid"),
        Conv2d(5, 7, 3, stride=2, padding=1),
        Activation("relu"),
        Pool2d("avg", 2),
        Pad2d(1, 0, 0, 2),
        Conv2d(7, 6, 2, bias=False),
        Activation("tanh"),
        Flatten(),
        Linear(48, 9),
        Activation("relu"),
        Linear(9, 4),
    ),
)
"""Sides, channels and classes that fill no tile, padding in every form, no activation twice, average pooling."""
NETWORKS = {
    "nasr": NasrCnn(input_shape=(1, 16, 16), classes=3),
    "nasr, tanh": NasrCnn(input_shape=(1, 16, 16), classes=3, activation="tanh"),
    "nasr, colors": NasrCnn(input_shape=(3, 18, 18), classes=3),
    "odd": ODD,
    "bernau": CLOSED["bernau"],
    "perceptron": Mlp(13, hidden=(7, 5), classes=3, activation="tanh"),
    "wide": Mlp(13, hidden=(150, 300), classes=3),
}
needs_kernels = pytest.mark.skipif(not (CUDA or INTERPRETED), reason="needs a CUDA device")
DEVICE = torch.device("cuda" if CUDA else "cpu")


def plain(stage, x, vector):
    """One stage by torch's own operations on its picture with the zeros around it."""
    inputs = stage.channels * stage.kernel[0] * stage.kernel[1]
    weight = vector[stage.place : stage.place + stage.outputs * inputs].view(
        stage.outputs, stage.channels, *stage.kernel
    )
    bias = vector[stage.place + stage.outputs * inputs :][: stage.outputs] if stage.bias else None
    (top, left), (high, wide) = stage.before, x.shape[2:]
    x = nn.functional.pad(x, (left, stage.wide - wide - left, top, stage.high - high - top))
    y = nn.functional.conv2d(x, weight, bias, stride=stage.stride)
    assert tuple(y.shape[2:]) == stage.output
    if stage.groups:
        scale, shift = vector[stage.place + stage.parameters :][: 2 * stage.outputs].view(2, -1)
        y = nn.functional.group_norm(y, stage.groups, scale, shift, stage.epsilon)
    y = {"none": y, "relu": y.relu(), "tanh": y.tanh(), "sigmoid": y.sigmoid()}[stage.activation]
    kind, window, step = stage.pooling
    y = {"max": nn.functional.max_pool2d, "avg": nn.functional.avg_pool2d}[kind](y, window, step)
    assert tuple(y.shape[2:]) == stage.pooled
    return y


@pytest.mark.parametrize("network", [*NETWORKS.values(), NasrCnn(), NasrCnn((3, 32, 32)), BernauCnn()], ids=str)
def test_stages_one_after_the_other_are_the_network(network):
    chain = stages.stages(network)
    norms = sum(2 * stage.outputs for stage in chain if stage.groups)
    assert sum(stage.parameters for stage in chain) + norms == parameter_count(network)
    vector = torch.from_numpy(np.random.default_rng(3).normal(size=parameter_count(network)))
    x = torch.from_numpy(data_for(network, 4).x).double()
    expected = reference.load(network, vector)(x)
    if x.dim() == 2:
        x = x[:, :, None, None]
    for stage in chain:
        x = plain(stage, x, vector)
    np.testing.assert_allclose(x.flatten(1).numpy(), expected.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "network",
    [
        Sequential((1, 4, 4), 2, (Conv2d(1, 4, 2), Activation("relu"), GroupNorm(2, 4), Flatten(), Linear(36, 2))),
        Mlp(13, hidden=(2000,), classes=3),
        Mlp(13, hidden=(7,), classes=200),
        Sequential((5, 3), 3, (Linear(3, 4), Activation("relu"), Flatten(), Linear(20, 3))),
        Sequential((1, 4, 4), 2, (Conv2d(1, 2, 2), Pad2d(1, 2, 0, 1), Activation("sigmoid"), Flatten(), Linear(48, 2))),
        Sequential((1, 7, 7), 3, (Conv2d(1, 3, 2), Pool2d("max", 3), Activation("relu"), Flatten(), Linear(12, 3))),
        Sequential((6,), 3, (Activation("tanh"), Linear(6, 3))),
        Sequential((6,), 3, (Linear(6, 3), Activation("tanh"))),
    ],
    ids=str,
)
def test_other_networks_are_none(network):
    assert stages.stages(network) is None


def summed(network, neighbours, config, trials, worlds, steps=1, device=DEVICE, kind=stages.StageSums):
    """Parameters, drawn rows and clipped sums of each trial, at the last of so many steps from the same models."""
    job = Job(network, neighbours, config, "stages", torch.device("cpu"))
    start = job.initial(trials).float() + 0.1 * torch.randn(1, parameter_count(network), generator=torch.manual_seed(0))
    room = [torch.full((len(trials), padded(start.shape[1])), 7.0, device=device) for _ in range(2)]
    vectors = Vectors(*(part[:, : start.shape[1]] for part in room), np.asarray(worlds), len(trials))
    vectors.parameters.copy_(start)
    job = Job(network, neighbours, config, "stages", device)
    sums = kind(job, vectors, stages.StageTable(job))
    draws = [
        batches(neighbours, world=w, config=config, fingerprint="stages", trial=t)
        for t, w in zip(trials, worlds, strict=True)
    ]
    for step in range(1, steps + 1):
        drawn = [next(draw) for draw in draws]
        sums(drawn, StackState(np.asarray(trials), step, vectors.parameters, None if step == 1 else vectors.gradient))
    return start, drawn, vectors.gradient.cpu()


@needs_kernels
@pytest.mark.parametrize("sampling", ["poisson", "full"])
@pytest.mark.parametrize("name", NETWORKS)
def test_clipped_sums_are_those_of_the_reference(name, sampling):
    network = NETWORKS[name]
    neighbours = worlds_with(network, "example", "replace")
    rate = {"sample_rate": 0.3} if sampling == "poisson" else {}
    config = TrainingConfig(steps=3, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sampling=sampling, **rate)
    start, drawn, found = summed(network, neighbours, config, [4, 7], [0, 1], steps=2)
    for vector, rows, gradient in zip(start, drawn, found, strict=True):
        expected = reference.private_gradient(network, vector.double(), neighbours, rows, config)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6)
        assert np.abs(expected).max() > 1e-3


@pytest.mark.skipif(compiled_stages.kernels is None, reason="needs numba")
@pytest.mark.parametrize("name", ["nasr", "nasr, tanh", "nasr, colors", "bernau"])
def test_clipped_sums_on_a_processor_are_those_of_the_reference(name, monkeypatch):
    """In groups of a few examples, the last of them not full."""
    monkeypatch.setattr(compiled_stages, "_TOGETHER", 4 * 9 * 9 * 64)
    network = NETWORKS[name]
    neighbours = worlds_with(network, "example", "replace")
    config = TrainingConfig(steps=3, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.6)
    start, drawn, found = summed(
        network, neighbours, config, [4, 7], [0, 1], 2, torch.device("cpu"), compiled_stages.CompiledStages
    )
    for vector, rows, gradient in zip(start, drawn, found, strict=True):
        assert rows.size > 8
        expected = reference.private_gradient(network, vector.double(), neighbours, rows, config)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6)


def test_results_by_stages_say_so(monkeypatch):
    """Their last bits differ from those of torch's operations, so a store must tell the two apart."""
    pytest.importorskip("numba", reason="needs numba")
    network = NETWORKS["nasr"]
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.3)

    def precision(kernels):
        monkeypatch.setenv(SWITCH, kernels)
        neighbours = worlds_with(network, "example")
        return train(network, neighbours=neighbours, config=config, fingerprint="s", trials=[0], worlds=[0]).precision

    assert (precision("0"), precision("1")) == ("float32", "float32 compiled stages")


@needs_kernels
@pytest.mark.parametrize("name", ["nasr", "odd", "perceptron"])
def test_a_model_has_the_same_bits_in_any_stack(name):
    network = NETWORKS[name]
    neighbours = worlds_with(network, "example")
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.3)
    _, _, together = summed(network, neighbours, config, [0, 1, 2, 3], [0, 1, 0, 1])
    _, _, apart = summed(network, neighbours, config, [3, 1], [1, 1])
    assert apart[0].numpy().tobytes() == together[3].numpy().tobytes()
    assert apart[1].numpy().tobytes() == together[1].numpy().tobytes()
    assert together[0].numpy().tobytes() != together[1].numpy().tobytes()


@needs_kernels
@pytest.mark.parametrize("canary", ["adaptive example", "memoryless example"])
def test_an_adaptive_canary_has_examples_of_its_own_for_each_model(canary):
    network = NETWORKS["perceptron"]
    neighbours = worlds_with(network, canary)
    config = TrainingConfig(steps=3, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.6)
    trials = [4, 7, 9]
    start, drawn, found = summed(network, neighbours, config, trials, [1, 1, 1], steps=2)
    assert sum(int((rows >= 23).sum()) for rows in drawn) > 1
    for trial, vector, rows, gradient in zip(trials, start, drawn, found, strict=True):
        chosen = neighbours.canary.chosen(vector.double(), trial, 2)
        expected = reference.private_gradient(network, vector.double(), neighbours, rows, config, chosen=chosen)
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6)


@needs_kernels
def test_batches_larger_than_the_lanes_go_through_in_passes(monkeypatch):
    from coalmine.training import batching

    monkeypatch.setattr(batching, "MAX_WIDTH", 32)
    network = NETWORKS["perceptron"]
    neighbours = worlds_with(network, "example", base=data_for(network, 90))
    for sampling, rate in (("poisson", {"sample_rate": 0.6}), ("full", {})):
        config = TrainingConfig(steps=2, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sampling=sampling, **rate)
        start, drawn, found = summed(network, neighbours, config, [4, 7], [0, 1], steps=2)
        for vector, rows, gradient in zip(start, drawn, found, strict=True):
            assert rows.size > 32
            expected = reference.private_gradient(network, vector.double(), neighbours, rows, config)
            np.testing.assert_allclose(gradient.numpy(), expected, rtol=0, atol=1e-6)


def some_models(network, count, scale=0.3):
    """Models in rows that do not lie one after the other in memory, as in a training."""
    size = parameter_count(network)
    room = torch.zeros(count, padded(size))
    room[:, :size] = scale * torch.randn(count, size, generator=torch.manual_seed(1))
    return room.to(DEVICE)[:, :size]


@needs_kernels
@pytest.mark.parametrize("name", ["nasr", "odd", "bernau", "perceptron"])
def test_sums_over_all_rows_are_those_of_the_reference(name, monkeypatch):
    """In several passes, the last one not full, and a few models at a time."""
    monkeypatch.setattr(stages, "_ROWS_BESIDE", 32)
    network = NETWORKS[name]
    neighbours = worlds_with(network, "none", base=data_for(network, 75))
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, batch_size=100)
    job, models = Job(network, neighbours, config, "", DEVICE), some_models(network, 3)
    together = stages.sums_of_all(job, models)
    monkeypatch.setattr(stages, "_BESIDE", 1)
    np.testing.assert_array_equal(stages.sums_of_all(job, models).cpu(), together.cpu())
    for vector, found in zip(models.cpu().double(), together.cpu(), strict=True):
        expected = reference.clipped_sum(network, vector, neighbours, np.arange(75), config.clip).numpy()
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=2e-5)
        assert np.abs(expected).max() > 1.0


@needs_kernels
@pytest.mark.parametrize("name", ["nasr", "perceptron"])
def test_sums_over_parts_are_those_of_the_reference(name, monkeypatch):
    """Parts of other lengths, one of a single row and one of none, in passes that they do not fill."""
    monkeypatch.setattr(stages, "_ROWS_BESIDE", 16)
    network, order = NETWORKS[name], np.random.default_rng(2).permutation(40)
    neighbours = worlds_with(network, "none", base=data_for(network, 40))
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.1)
    job, models = Job(network, neighbours, config, "", DEVICE), some_models(network, 3)
    parts, table = [order[:18], order[18:19], order[:0], order[19:]], stages.StageTable(job)
    there = [torch.from_numpy(part).to(DEVICE) for part in parts]
    together = stages.sums_of_parts(job, table, models, there)
    assert torch.equal(stages.sums_of_parts(job, table, models[1:2], there)[0], together[1])
    assert torch.equal(stages.sums_of_parts(job, table, models.T.contiguous().T, there), together)
    for vector, found in zip(models.cpu().double(), together.cpu(), strict=True):
        for part, mine in zip(parts, found, strict=True):
            expected = reference.clipped_sum(network, vector, neighbours, part, config.clip).numpy()
            np.testing.assert_allclose(mine.numpy(), expected, rtol=0, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", ["nasr", "nasr, colors", "odd", "bernau", "perceptron", "wide"])
def test_gradients_of_single_rows_are_those_of_the_reference(name, monkeypatch):
    """Each model at a row of its own, with the same bits for any models beside it, also where few go together."""
    network, models = NETWORKS[name], some_models(NETWORKS[name], 5, scale=0.05)  # larger ones are too sure of a row
    neighbours = worlds_with(network, "none", base=data_for(network, 3))
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.1)
    job, places = Job(network, neighbours, config, "", DEVICE), torch.tensor([2, 0, 0, 1, 2], device=DEVICE)
    ask = stages.StageGradients(job)
    found = ask(models, places).cpu()
    for vector, row, mine in zip(models.cpu().double(), places.tolist(), found, strict=True):
        expected = reference.clipped_sum(network, vector, neighbours, np.array([row]), config.clip).numpy()
        np.testing.assert_allclose(mine.numpy(), expected, rtol=0, atol=1e-6)
        assert np.linalg.norm(expected) > 0.1
    assert torch.equal(ask(models[3:4], places[3:4]).cpu()[0], found[3])  # in room that five have used
    assert torch.equal(stages.StageGradients(job)(models[1:3], places[1:3]).cpu(), found[1:3])
    monkeypatch.setattr(stages, "_BESIDE", 1)
    assert torch.equal(stages.StageGradients(job)(models, places).cpu(), found)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["nasr", "bernau", "wide"])
def test_rows_and_parts_that_are_asked_again_on_cuda(name):
    """What adversaries ask, beside the sums that a processor makes; more models than are split by the crafters."""
    network, models = NETWORKS[name], some_models(NETWORKS[name], 300, scale=0.05)
    dataset, order = data_for(network, 90), np.random.default_rng(2).permutation(90)
    config = TrainingConfig(steps=1, clip=0.7, noise_multiplier=0.0, learning_rate=0.3, sample_rate=0.1)
    places = torch.arange(300, device=DEVICE) % 90
    rows = RowGradients(network, rows=dataset, config=config)
    sums = PartSums(network, dataset=dataset, parts=[order[:50], order[50:]], config=config)
    found, together, few = rows.at(models, places), sums.at(models), torch.tensor([299, 7], device=DEVICE)
    assert torch.equal(rows.at(models[few], places[few]), found[few])
    assert torch.equal(sums.at(models[few]), together[few])
    for model in (0, 7, 299):
        vector, row = models[model : model + 1].cpu(), [int(places[model])]
        alone = Dataset(dataset.x[row], dataset.y[row])
        expected = clipped_sums(network, vector, dataset=alone, config=config)[0]
        torch.testing.assert_close(found[model].cpu(), expected, rtol=0, atol=2e-6)
        for mine, part in zip(together[model].cpu(), (order[:50], order[50:]), strict=True):
            some = Dataset(dataset.x[part], dataset.y[part])
            expected = clipped_sums(network, vector, dataset=some, config=config)[0]
            torch.testing.assert_close(mine, expected, rtol=0, atol=2e-5)


@needs_kernels
@pytest.mark.parametrize("name", ["nasr", "nasr, colors", "odd", "bernau", "perceptron", "wide"])
def test_answers_are_the_outputs_of_the_networks(name, monkeypatch):
    """At more inputs than are asked together, with the same bits for any models and inputs beside them."""
    monkeypatch.setattr(stages, "_ASKED", 4)
    network, models = NETWORKS[name], some_models(NETWORKS[name], 5)
    inputs = torch.from_numpy(data_for(network, 7).x).float()
    ask = stages.StageAnswers(network, DEVICE)
    found = ask(models, inputs.to(DEVICE)).cpu()
    body = Functional(module(network), device=torch.device("cpu"), dtype=torch.float64)
    for vector, mine in zip(models.cpu().double(), found, strict=True):
        expected = body(body.named(vector), inputs.double())
        torch.testing.assert_close(mine.double(), expected, rtol=0, atol=2e-6 * float(expected.abs().max() + 1))
    assert torch.equal(ask(models[3:4], inputs[5:6].to(DEVICE)).cpu()[0, 0], found[3, 5])
    monkeypatch.setattr(stages, "_BESIDE", 1)
    assert torch.equal(ask(models, inputs.to(DEVICE)).cpu(), found)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("products", ["float32", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["nasr", "odd"])
def test_a_clipped_gradient_never_exceeds_the_clip_whatever_the_products(name, products):
    """One row, clipped hard: what it adds to the sum is at most C long, though the factors were rounded."""
    network, lengths = NETWORKS[name], []
    config = TrainingConfig(
        steps=1, clip=0.5, noise_multiplier=0.0, learning_rate=1.0, sampling="full", products=products
    )
    for seed in range(4):
        neighbours = worlds_with(network, "none", base=data_for(network, 1, seed=seed))
        _, _, found = summed(network, neighbours, config, [seed], [0])
        lengths.append(float(found[0].double().norm()))
    assert 0.49 < max(lengths) <= 0.5 * (1 + 1e-5)
