"""Bad input: the message names the thing, the value given, and what is allowed."""

import numpy as np
import pytest
from torch import nn

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.roles import Observer
from coalmine.training import (
    Adam,
    Conv2d,
    Dataset,
    Embedding,
    ExampleCanary,
    FromModule,
    GivenWeights,
    Glorot,
    GradientCanary,
    GradientRows,
    GroupNorm,
    Linear,
    LogisticRegression,
    MeanPositions,
    Mlp,
    NasrCnn,
    Neighbours,
    Pool2d,
    Sequential,
    Sgd,
    TrainingConfig,
    Vector,
    ZeroGradients,
    train,
)

GOOD = {"steps": 3, "clip": 1.0, "noise_multiplier": 1.0, "learning_rate": 0.1, "sample_rate": 0.5}
X, Y = np.zeros((6, 4)), np.array([0, 1, 0, 1, 0, 1])


def go(network=None, *, neighbours=None, config=None, **options):
    options = {"fingerprint": "bad", "trials": [0, 1], "worlds": [0, 1], **options}
    return train(
        network or Mlp(4), neighbours=neighbours or Neighbours(Dataset(X, Y)),
        config=config or TrainingConfig(**GOOD), **options,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("steps", [0, -1, 1.5, "3", None, float("nan")]),
        ("clip", [0, -1, float("inf"), float("nan"), "1"]),
        ("noise_multiplier", [-0.1, float("nan"), float("inf"), None]),
        ("learning_rate", [-1, float("nan"), "fast"]),
        ("sample_rate", [-0.1, 1.1, float("nan"), "half"]),
        ("regularizer", [-1, float("nan"), "l2"]),
        ("dtype", ["float16", 32, None]),
        ("sampling", ["uniform", 3]),
        ("optimizer", ["adam", None]),
        ("initialization", ["zero", 0.0]),
        ("products", ["float16", True]),
    ],
)
def test_config_names_the_option_the_value_and_the_range(name, values):
    for value in values:
        with pytest.raises(InvalidInputError, match=rf"{name}.*expected|{name}"):
            TrainingConfig(**{**GOOD, name: value})


@pytest.mark.parametrize(
    "options",
    [
        {"sample_rate": 0.1, "batch_size": 5},
        {"sample_rate": None},
        {"sampling": "full"},
        {"sampling": "shuffle"},
        {"sampling": "shuffle", "sample_rate": None},
        {"sampling": "shuffle", "sample_rate": None, "batch_size": 2.5},
        {"sample_rate": None, "batch_size": 0},
    ],
)
def test_rate_and_batch_must_fit_the_sampling(options):
    with pytest.raises(InvalidInputError, match="expected"):
        TrainingConfig(**{**GOOD, **options})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Dataset([[np.nan, 1.0]], [0]), r"x\[0, 0\] = nan"),
        (lambda: Dataset([[np.inf, 1.0]], [0]), r"x\[0, 0\] = inf"),
        (lambda: Dataset(X, Y[:5]), "5 labels: expected 6"),
        (lambda: Dataset(X, -Y), r"y\[1\] = -1"),
        (lambda: Dataset(X, Y + 0.5), "whole numbers"),
        (lambda: Dataset(X, Y[:, None]), "one label for each row"),
        (lambda: Dataset(X[0], Y[:4]), r"x has shape \(4,\)"),
        (lambda: Dataset(X[:0], Y[:0]), "0 rows"),
        (lambda: Dataset([["a"]], [0]), "expected numbers"),
        (lambda: ExampleCanary(X[:2], [0, 1], copies=3), "copies = 3"),
        (lambda: ExampleCanary(X[:2], [0]), "one row for each"),
        (lambda: ExampleCanary([0.0, np.nan], 1), r"canary x\[1\] = nan"),
        (lambda: ExampleCanary(X[0], 1, copies=0), "copies = 0"),
        (lambda: GradientRows([[0, 1]], [[1.0]]), "expected whole numbers"),
        (lambda: GradientRows([[-1]], [[1.0]]), "parameter numbers"),
        (lambda: GradientCanary([]), "gradient is empty"),
        (lambda: GradientCanary([1.0, np.nan]), r"gradient\[1\]"),
        (lambda: Neighbours(Dataset(X, Y), canary=ExampleCanary(X[0, :3], 1)), r"canary x has rows of shape \(3,\)"),
        (lambda: Neighbours(Dataset(X, Y), replaced=[0]), "replaced"),
        (lambda: Neighbours(Dataset(X, Y), canary=ExampleCanary(X[0], 1), relation="replace"), "1 different rows"),
        (
            lambda: Neighbours(Dataset(X, Y), canary=ExampleCanary(X[:2], [0, 1]), relation="replace", replaced=[2, 2]),
            "2 different rows",
        ),
        (
            lambda: Neighbours(Dataset(X, Y), canary=ExampleCanary(X[0], 1), relation="replace", replaced=[6]),
            r"replaced\[0\] = 6",
        ),
        (lambda: Neighbours(Dataset(X, Y), relation="near"), "relation = 'near'"),
        (lambda: Neighbours(X), "base"),
        (lambda: Neighbours(Dataset(X, Y), canary=X[0]), "canary = .* expected an object of type ExampleCanary"),
        (lambda: Neighbours(ZeroGradients(rows=5), canary=ExampleCanary(X[0], 1)), "expected a gradient"),
        (lambda: ZeroGradients(rows=0), "rows = 0"),
        (lambda: Mlp(0), "inputs = 0"),
        (lambda: Mlp(3, hidden=(0,)), r"hidden\[0\] = 0"),
        (lambda: Mlp(3, classes=1), "classes = 1"),
        (lambda: Mlp(3, activation="gelu"), "activation = 'gelu'"),
        (lambda: Vector(0), "size = 0"),
        (lambda: Glorot(scale=-1), "scale = -1"),
        (lambda: GivenWeights([np.nan]), "initial weights"),
        (lambda: Sgd(momentum=1.0), "momentum = 1.0"),
        (lambda: Adam(beta2=-0.1), "beta2 = -0.1"),
    ],
)
def test_each_part_checks_itself(make, words):
    with pytest.raises(InvalidInputError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trials": [0, 0]}, "same number twice"),
        ({"trials": [-1, 0]}, "trials"),
        ({"trials": []}, "trials"),
        ({"worlds": [0, 2]}, "0 or 1"),
        ({"worlds": [0]}, "0 or 1 for each of the 2"),
        ({"fingerprint": 3}, "fingerprint = 3"),
        ({"device": "tpu"}, "device = 'tpu'"),
        ({"stack": 0}, "stack = 0"),
        ({"observer": object()}, "observer = .* expected an object of type Observer"),
        ({"network": Mlp(5)}, r"rows of shape \(4,\): the network expects \(5,\)"),
        ({"neighbours": Neighbours(Dataset(X, Y * 2))}, r"y\[1\] = 2.*0 to 1"),
        ({"neighbours": Neighbours(Dataset(X, Y), canary=ExampleCanary(X[0], 5))}, r"canary y\[0\] = 5"),
        ({"neighbours": Neighbours(Dataset(X, Y), canary=GradientCanary([1.0]))}, "1 entries"),
        ({"neighbours": Neighbours(Dataset(X, Y), canary=GradientRows([[10**6]], [[1.0]]))}, "parameters 0 to"),
        ({"config": TrainingConfig(**GOOD, initialization=GivenWeights([1.0]))}, "initial weights has 1 entries"),
        ({"config": TrainingConfig(**{**GOOD, "sample_rate": None, "batch_size": 7})}, "at most the number of rows, 6"),
        ({"network": Sequential((4,), 2, (Linear(4, 3), Linear(4, 2)))}, r"Linear\(4, 2\) got inputs of shape \(3,\)"),
        ({"network": Sequential((4,), 2, (Linear(4, 3),))}, r"output has shape \(3,\)"),
        ({"network": Sequential((4,), 2, (Conv2d(1, 2, 3),))}, r"Conv2d.*got inputs of shape \(4,\)"),
        ({"network": Sequential((4,), 2, (GroupNorm(3, 4), Linear(4, 2)))}, "GroupNorm"),
        ({"network": Sequential((1, 2, 2), 2, (Pool2d("max", 3),))}, "Pool2d.*does not fit a side of 2"),
        ({"network": Sequential((4, 4), 2, (Embedding(3, 2),))}, "Embedding.*token numbers"),
    ],
)
def test_parts_that_do_not_fit_together_are_named(options, words):
    with pytest.raises(InvalidInputError, match=words):
        go(**options)


def test_tokens_and_numbers_are_told_apart():
    network = Sequential((4,), 2, (Embedding(3, 2), MeanPositions(), Linear(2, 2)))
    with pytest.raises(InvalidInputError, match="token"):
        go(network)  # not whole numbers
    with pytest.raises(InvalidInputError, match="token numbers 0 to 2"):
        go(network, neighbours=Neighbours(Dataset(np.full((6, 4), 3), Y)))


def test_an_observer_must_give_a_score_for_each_trial():
    class Wrong(Observer):
        view = "final_model"

        def finish(self, models):
            return np.zeros(7)

    with pytest.raises(
        InvalidInputError,
        match=r"Wrong\.finish gave scores of shape \(7,\): expected one number for each of the 2 trials",
    ):
        go(observer=Wrong())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "layer 1, BatchNorm1d,.*mixes"),
        (nn.Sequential(nn.Linear(4, 4), nn.SyncBatchNorm(4)), "layer 1, SyncBatchNorm"),
        (nn.Sequential(nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True))), r"layer 0\.0, InstanceNorm1d"),
        (nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), "layer 1, Dropout"),
    ],
)
def test_layers_that_mix_examples_are_refused_by_name(body, words):
    with pytest.raises(UnsupportedError, match=words):
        FromModule(body, input_shape=(4,), classes=2)


class Mixer(nn.Module):
    """Mixes examples in plain arithmetic, where no layer's name gives it away."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x - x.mean(0, keepdim=True))


def test_mixing_without_a_known_layer_is_found_by_trying():
    rng = np.random.default_rng(0)
    network = FromModule(Mixer(), input_shape=(4,), classes=2)
    with pytest.raises(UnsupportedError, match="mixes the examples"):
        go(network, neighbours=Neighbours(Dataset(rng.normal(size=(6, 4)), Y)))
    wrong = FromModule(nn.Linear(4, 3), input_shape=(4,), classes=2)
    with pytest.raises(InvalidInputError, match=r"shape \(4, 3\)"):
        go(wrong)
    with pytest.raises(InvalidInputError, match="requires a gradient"):
        FromModule(nn.Linear(4, 2).requires_grad_(False), input_shape=(4,), classes=2)


def test_cuda_that_is_not_there_is_refused():
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(InvalidInputError, match=r"device = 'cuda'.*no CUDA device"):
        go(device="cuda")


def test_queries_are_checked():
    class Ask(Observer):
        view = "black_box"

        def __init__(self, x, y):
            self.x, self.y = x, y

        def finish(self, models):
            return models.losses(self.x, self.y)

    for x, y, words in (
        (np.zeros((2, 3)), [0, 1], r"x has shape \(2, 3\)"),
        (np.zeros((2, 4)), [0, 2], r"y\[1\] = 2"),
        (np.zeros((2, 4)), [0], "1 labels: expected 2"),
        (np.full((1, 4), np.nan), [0], "nan"),
    ):
        with pytest.raises(InvalidInputError, match=words):
            go(observer=Ask(x, y))


def test_pictures_must_have_the_shape_the_network_wants():
    with pytest.raises(InvalidInputError, match=r"the network expects \(1, 28, 28\)"):
        go(NasrCnn(), neighbours=Neighbours(Dataset(np.zeros((6, 28, 28)), Y)))
    assert LogisticRegression(4).classes == 2
