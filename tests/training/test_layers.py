"""Every layer with a closed form against per-example autograd on the equivalent torch module."""

import numpy as np
import pytest
import reference
import torch
from engines import ENGINES, data_for
from recorders import Final
from torch import nn

from coalmine.training import (
    Activation,
    BernauCnn,
    Conv2d,
    Embedding,
    ExampleCanary,
    Flatten,
    GroupNorm,
    Linear,
    MeanPositions,
    Mlp,
    NasrCnn,
    Neighbours,
    Pad2d,
    Pool2d,
    Sequential,
    module,
    parameter_count,
)
from coalmine.training.networks import check_layers

CHAINS = {
    "linear without bias": Sequential((6,), 3, (Linear(6, 4, bias=False), Activation("tanh"), Linear(4, 3))),
    "two activations": Sequential(
        (6,), 3, (Activation("sigmoid"), Linear(6, 4), Activation("sigmoid"), Activation("tanh"), Linear(4, 3))
    ),
    "linear at positions, direct norm": Sequential(
        (5, 3), 3, (Linear(3, 4), Activation("relu"), Flatten(), Linear(20, 3))
    ),
    "linear at positions, ghost norm": Sequential(
        (2, 12), 3, (Linear(12, 11), Activation("tanh"), Flatten(), Linear(22, 3))
    ),
    "convolution": Sequential((2, 6, 7), 3, (Conv2d(2, 3, 3, stride=2, padding=1), Flatten(), Linear(36, 3))),
    "two convolutions, no bias": Sequential(
        (2, 7, 6),
        3,
        (Conv2d(2, 3, 3, bias=False), Activation("tanh"), Conv2d(3, 4, 2, stride=2), Flatten(), Linear(16, 3)),
    ),
    "overlapping max pooling": Sequential(
        (1, 7, 7), 3, (Conv2d(1, 3, 2), Pool2d("max", 3, 1), Activation("sigmoid"), Flatten(), Linear(48, 3))
    ),
    "average pooling": Sequential(
        (1, 7, 7), 3, (Conv2d(1, 3, 2), Activation("relu"), Pool2d("avg", 2), Flatten(), Linear(27, 3))
    ),
    "padding before an activation": Sequential(
        (1, 4, 4), 3, (Conv2d(1, 2, 2), Pad2d(1, 2, 0, 1), Activation("sigmoid"), Flatten(), Linear(48, 3))
    ),
    "group norm": Sequential(
        (2, 5, 5), 3, (Conv2d(2, 4, 3), GroupNorm(2, 4), Activation("relu"), Flatten(), Linear(36, 3))
    ),
    "group norm on features": Sequential((6,), 3, (Linear(6, 12), GroupNorm(2, 12), Activation("tanh"), Linear(12, 3))),
    "norm first": Sequential((2, 5, 5), 3, (GroupNorm(1, 2), Conv2d(2, 3, 3), Flatten(), Linear(27, 3))),
    "embedding": Sequential((8,), 3, (Embedding(5, 4), MeanPositions(), Activation("tanh"), Linear(4, 3))),
    "embedding, linear at positions": Sequential(
        (6,), 3, (Embedding(5, 4), Linear(4, 3), Activation("relu"), MeanPositions(), Linear(3, 3))
    ),
    "nasr-2021": NasrCnn(input_shape=(1, 20, 20), classes=3, activation="tanh"),
    "bernau-2021": BernauCnn(input_shape=(1, 12, 12), classes=3, filters=(4, 8), groups=2),
}


@pytest.mark.parametrize("engine", ["closed64", "closed32"])
@pytest.mark.parametrize("name", CHAINS)
def test_clipped_sums_equal_a_loop_of_autograd(name, engine, monkeypatch):
    engine, network = ENGINES[engine], CHAINS[name]
    engine.need(monkeypatch)
    extra = data_for(network, 2, tokens=5, seed=1)
    neighbours = Neighbours(data_for(network, 11, tokens=5), canary=ExampleCanary(extra.x, extra.y))
    for clip in (0.05, 2.0, 1e3):  # everything clipped, some, nothing
        config = engine.config(steps=2, clip=clip, sample_rate=0.5)
        for steps in engine.trace(network, neighbours, config, [0, 1], [0, 1]).values():
            for step in steps:
                expected = reference.private_gradient(network, step.before, neighbours, step.rows, config)
                scale = max(1.0, float(np.abs(expected).max()))
                np.testing.assert_allclose(step.gradient, expected, rtol=0, atol=engine.tolerance * scale)


@pytest.mark.parametrize("name", CHAINS)
def test_black_box_answers_are_the_modules(name):
    network, engine = CHAINS[name], ENGINES["closed64"]
    base = data_for(network, 9, tokens=5)

    class Ask(Final):
        def finish(self, models):
            super().finish(models)
            self.logits = models.logits(base.x)

    seen, _ = engine.train(network, Neighbours(base), engine.config(steps=1), [3, 5], [0, 0], observer=Ask())
    for i, trial in enumerate((3, 5)):
        x = torch.from_numpy(base.x)
        logits = reference.load(network, seen.parameters[trial])(x.double() if x.is_floating_point() else x)
        np.testing.assert_allclose(seen.logits[i], logits.detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CHAINS)
def test_parameters_are_those_of_the_module(name):
    network = CHAINS[name]
    check_layers(network)
    built = module(network)
    assert parameter_count(network) == sum(p.numel() for p in built.parameters())


def test_glorot_start_has_the_right_spread():
    from coalmine.training.networks import glorot

    for network in (Mlp(300, hidden=(200,), classes=2), NasrCnn()):
        vector = torch.from_numpy(glorot(network, scale=0.5, generator=np.random.default_rng(0)))
        built = reference.load(network, vector)
        for parameter in built.parameters():
            if parameter.dim() == 1:
                assert not parameter.any()
                continue
            n = parameter.numel()
            # The sample's standard deviation is within 6 of its standard errors: fails once in 10^9.
            fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(parameter)
            spread = 0.5 * (2.0 / (fan_in + fan_out)) ** 0.5
            assert abs(float(parameter.detach().std()) / spread - 1) < 6 / (2 * n) ** 0.5


def test_known_modules_become_layers_and_others_are_named():
    from coalmine.errors import InvalidInputError

    body = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)
    )
    network = Sequential.from_module(body, input_shape=(1, 8, 8), classes=3)
    assert parameter_count(network) == sum(p.numel() for p in body.parameters())
    check_layers(network)
    with pytest.raises(InvalidInputError, match=r"layer 1, BatchNorm1d"):
        Sequential.from_module(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), input_shape=(4,), classes=4)
