"""What is done with the private gradient, against torch.optim and by hand; the regularizer, unclipped."""

import numpy as np
import pytest
import torch
from recorders import Everything

from coalmine.training import (
    Adam,
    Dataset,
    GivenWeights,
    Glorot,
    LogisticRegression,
    Neighbours,
    Sgd,
    TrainingConfig,
    Vector,
    ZeroGradients,
    train,
)

RNG = np.random.default_rng(3)
DATA = Neighbours(Dataset(RNG.normal(size=(30, 4)), RNG.integers(0, 3, size=30)))
NETWORK = LogisticRegression(4, classes=3)


def run(neighbours=DATA, network=NETWORK, trials=(0, 1), **options):
    settings = {"steps": 12, "clip": 0.5, "noise_multiplier": 0.8, "learning_rate": 0.2, "sample_rate": 0.4,
                "dtype": "float64"}  # fmt: skip
    seen = Everything()
    train(
        network, neighbours=neighbours, config=TrainingConfig(**{**settings, **options}), fingerprint="o",
        trials=list(trials), worlds=[0] * len(trials), observer=seen,
    )  # fmt: skip
    return seen


@pytest.mark.parametrize(
    ("optimizer", "twin"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, lr=0.2)),
        (Sgd(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9)),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.2)),
        (Adam(beta1=0.5, beta2=0.9, epsilon=1e-3), lambda p: torch.optim.Adam(p, lr=0.2, betas=(0.5, 0.9), eps=1e-3)),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_updates_are_those_of_torch(optimizer, twin, weight):
    seen = run(optimizer=optimizer, regularizer=weight)
    for trial in (0, 1):
        parameter = torch.nn.Parameter(torch.from_numpy(seen.before[trial][0].copy()))
        other = twin([parameter])
        for step in range(12):
            np.testing.assert_allclose(seen.before[trial][step], parameter.detach().numpy(), rtol=0, atol=1e-12)
            parameter.grad = torch.from_numpy(seen.gradients[trial][step]) + weight * parameter.detach()
            other.step()
            np.testing.assert_allclose(seen.after[trial][step], parameter.detach().numpy(), rtol=0, atol=1e-12)


def test_the_regularizer_is_not_clipped_and_may_be_any_function():
    start = GivenWeights(np.array([100.0, -50.0, 3.0]))
    nothing = {"neighbours": Neighbours(ZeroGradients(rows=10)), "network": Vector(3), "initialization": start,
               "noise_multiplier": 0.0, "steps": 2}  # fmt: skip
    seen = run(**nothing, regularizer=0.5)
    # m ← m·(1 − η·λ), however large m is against C = 0.5.
    np.testing.assert_allclose(seen.after[0][1], start.values * (1 - 0.2 * 0.5) ** 2, rtol=1e-14)
    assert not np.any(seen.gradients[0][0])
    cubic = run(**nothing, regularizer=lambda m: 1e-3 * m**3)
    once = start.values - 0.2 * 1e-3 * start.values**3
    np.testing.assert_allclose(cubic.after[0][0], once, rtol=1e-14)


def test_learning_rate_zero_moves_nothing_but_shows_gradients():
    seen = run(learning_rate=0.0)
    assert seen.after[0][-1].tobytes() == seen.before[0][0].tobytes()
    assert np.any(seen.gradients[0][-1])


def test_starts():
    fixed = run(initialization=Glorot(scale=0))
    assert fixed.before[0][0].tobytes() == fixed.before[1][0].tobytes()
    other = run(initialization=Glorot(scale=0, seed=1))
    assert fixed.before[0][0].tobytes() != other.before[0][0].tobytes()
    drawn, doubled = run(initialization=Glorot(scale=1)), run(initialization=Glorot(scale=2))
    assert drawn.before[0][0].tobytes() != drawn.before[1][0].tobytes()
    np.testing.assert_allclose(2 * drawn.before[0][0], doubled.before[0][0], rtol=1e-14)
    given = run(initialization=GivenWeights(np.arange(15.0)))
    assert given.before[1][0].tolist() == list(range(15))
