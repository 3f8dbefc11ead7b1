"""Private gradients with σ = 0 against a loop of per-example autograd, step by step along the trainer's own path."""

import numpy as np
import pytest
import reference
from recorders import Everything

from coalmine.training import (
    Dataset,
    ExampleCanary,
    GradientCanary,
    LogisticRegression,
    Mlp,
    Neighbours,
    TrainingConfig,
    parameter_count,
    train,
)
from coalmine.training.compiled import SWITCH
from coalmine.training.sampling import batches

NETWORKS = {
    "logistic": LogisticRegression(7, classes=3),
    "relu": Mlp(7, hidden=(5,), classes=3),
    "tanh": Mlp(7, hidden=(6, 4), classes=3, activation="tanh"),
    "sigmoid": Mlp(7, hidden=(4, 5, 3), classes=2, activation="sigmoid"),
}
SAMPLINGS = {"poisson": {"sample_rate": 0.3}, "shuffle": {"batch_size": 7}, "full": {}}


def data(network, rows=23, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(size=(rows, *network.input_shape)), rng.integers(0, network.classes, size=rows))


def canaries(network):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, *network.input_shape))
    return {
        "example": ExampleCanary(x, [0, 1]),
        "gradient": GradientCanary(rng.normal(size=parameter_count(network)), copies=2),
    }


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("kind", ["example", "gradient"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "kernels"), [("float64", "0"), ("float32", "0"), ("float32", "1")])
def test_private_gradient_is_the_naive_clipped_sum(name, sampling, kind, relation, dtype, kernels, monkeypatch):
    """By torch's operations, and in float32 by the compiled kernels too where numba is installed."""
    monkeypatch.setenv(SWITCH, kernels)
    network = NETWORKS[name]
    base = data(network)
    replaced = (3, 11) if relation == "replace" else ()
    neighbours = Neighbours(base, canary=canaries(network)[kind], relation=relation, replaced=replaced)
    config = TrainingConfig(
        steps=5,
        clip=0.7,
        noise_multiplier=0.0,
        learning_rate=0.3,
        sampling=sampling,
        dtype=dtype,
        **SAMPLINGS[sampling],
    )
    seen = Everything()
    trials, worlds = [4, 7, 9], [0, 1, 1]
    train(network, neighbours=neighbours, config=config, fingerprint="t", trials=trials, worlds=worlds, observer=seen)
    tolerance = 1e-10 if dtype == "float64" else 1e-5
    for trial, world in zip(trials, worlds, strict=True):
        draws = batches(neighbours, world=world, config=config, fingerprint="t", trial=trial)
        for step in range(config.steps):
            expected = reference.clipped_sum(network, seen.before[trial][step], neighbours, next(draws), config.clip)
            expected = expected.numpy() / config.expected_batch(base.rows)
            np.testing.assert_allclose(seen.gradients[trial][step], expected, rtol=0, atol=tolerance)
            np.testing.assert_allclose(
                seen.after[trial][step], seen.before[trial][step] - 0.3 * expected, rtol=0, atol=tolerance
            )
