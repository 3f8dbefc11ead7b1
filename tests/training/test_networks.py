"""Every layer and network against per-example autograd on the equivalent torch module, and the modules path too."""

import numpy as np
import pytest
import reference
import torch
from recorders import Everything
from torch import nn

from coalmine.training import (
    BernauCnn,
    Dataset,
    ExampleCanary,
    FromModule,
    GivenWeights,
    Glorot,
    Head,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Neighbours,
    Sequential,
    TrainingConfig,
    module,
    parameter_count,
    train,
)
from coalmine.training.convolution import Conv2d, GroupNorm, Pad2d, Pool2d
from coalmine.training.embedding import Embedding, MeanPositions
from coalmine.training.layers import Activation, Flatten, Linear
from coalmine.training.networks import check_layers
from coalmine.training.sampling import batches

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
    "head": Head(9, classes=3),
}


class Attention(nn.Module):
    """Something without a closed form here, with a weight used twice."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        h = self.norm(x)
        pairs = torch.softmax(self.mix(h) @ self.mix(x).transpose(1, 2), -1)
        return self.out((pairs @ h).mean(1))


def data_for(network, rows, seed=0):
    rng = np.random.default_rng(seed)
    shape = (rows, *network.input_shape)
    tokens = isinstance(network, Sequential) and isinstance(network.chain[0], Embedding)
    x = rng.integers(0, 5, size=shape) if tokens else rng.normal(size=shape)
    return Dataset(x, rng.integers(0, network.classes, size=rows))


def private_gradients(network, dtype, clip, start=Glorot(), rate=0.5, fingerprint="net"):  # noqa: B008
    """Train two steps with σ = 0; yield each step's private gradient with what the slow loop says."""
    base = data_for(network, rows=11)
    extra = data_for(network, rows=2, seed=1)
    neighbours = Neighbours(base, canary=ExampleCanary(extra.x, extra.y))
    config = TrainingConfig(
        steps=2, clip=clip, noise_multiplier=0, learning_rate=0.2, sample_rate=rate, dtype=dtype, initialisation=start
    )
    seen = Everything()
    train(
        network,
        neighbours=neighbours,
        config=config,
        fingerprint=fingerprint,
        trials=[0, 1],
        worlds=[0, 1],
        observer=seen,
    )
    for trial in (0, 1):
        draws = batches(neighbours, world=trial, config=config, fingerprint=fingerprint, trial=trial)
        for step in range(2):
            rows = next(draws)
            expected = reference.clipped_sum(network, seen.before[trial][step], neighbours, rows, clip).numpy()
            yield seen.gradients[trial][step], expected / config.expected_batch(base.rows)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CHAINS)
def test_clipped_sums_equal_a_loop_of_autograd(name, dtype):
    tolerance = 1e-10 if dtype == "float64" else 1e-5
    for clip in (0.05, 2.0, 1e3):  # everything clipped, some, nothing
        for found, expected in private_gradients(CHAINS[name], dtype, clip):
            scale = max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_any_other_module_goes_through_torch_func(dtype):
    torch.manual_seed(0)
    network = FromModule(Attention(), input_shape=(5, 4), classes=3)
    for found, expected in private_gradients(network, dtype, 0.5):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("network", [Mlp(6, hidden=(5,), classes=3), CHAINS["group norm"], CHAINS["convolution"]])
def test_the_module_path_agrees_with_the_closed_forms(network):
    torch.manual_seed(1)
    other = FromModule(module(network), input_shape=network.input_shape, classes=network.classes)
    start = GivenWeights(other.weights())
    for (found, _), (same, _) in zip(
        private_gradients(network, "float64", 0.3, start), private_gradients(other, "float64", 0.3, start), strict=True
    ):
        np.testing.assert_allclose(found, same, rtol=0, atol=1e-12)


def test_a_batch_larger_than_the_width_goes_through_in_passes(monkeypatch):
    from coalmine.training import batching

    monkeypatch.setattr(batching, "MAX_WIDTH", 32)
    network = Mlp(4, hidden=(3,), classes=3)
    base = data_for(network, rows=150)
    for sampling, options in (("poisson", {"sample_rate": 0.6}), ("full", {}), ("shuffle", {"batch_size": 70})):
        config = TrainingConfig(
            steps=2, clip=0.4, noise_multiplier=0, learning_rate=0.2, dtype="float64", sampling=sampling, **options
        )
        neighbours = Neighbours(base, canary=ExampleCanary(base.x[0] + 1, 1), relation="replace", replaced=[40])
        seen = Everything()
        train(
            network, neighbours=neighbours, config=config, fingerprint="w", trials=[0, 1], worlds=[0, 1], observer=seen
        )
        for trial in (0, 1):
            rows = next(batches(neighbours, world=trial, config=config, fingerprint="w", trial=trial))
            assert rows.size > 32
            expected = reference.clipped_sum(network, seen.before[trial][0], neighbours, rows, 0.4).numpy()
            expected /= config.expected_batch(150)
            np.testing.assert_allclose(seen.gradients[trial][0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CHAINS)
def test_black_box_answers_are_the_modules(name):
    network = CHAINS[name]
    base = data_for(network, rows=9)
    config = TrainingConfig(steps=1, clip=1, noise_multiplier=1, learning_rate=0.1, sample_rate=0.5, dtype="float64")

    class Ask(Everything):
        def finish(self, models):
            super().finish(models)
            self.logits = models.logits(base.x)
            self.losses = models.losses(base.x, base.y)

    seen = Ask()
    train(
        network,
        neighbours=Neighbours(base),
        config=config,
        fingerprint="q",
        trials=[3, 5],
        worlds=[0, 0],
        observer=seen,
    )
    for i, trial in enumerate((3, 5)):
        built = reference.load(network, seen.parameters[trial])
        x = torch.from_numpy(base.x)
        logits = built(x)
        np.testing.assert_allclose(seen.logits[i], logits.detach().numpy(), rtol=0, atol=1e-12)
        losses = nn.functional.cross_entropy(logits, torch.from_numpy(base.y), reduction="none")
        np.testing.assert_allclose(seen.losses[i], losses.detach().numpy(), rtol=0, atol=1e-12)


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
    assert LogisticRegression(5).layers() == Head(5).layers()
