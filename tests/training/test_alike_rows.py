"""Rows that all have the same gradient: drawn, clipped and summed as any rows are."""

import math

import numpy as np
import pytest
import torch

from coalmine.errors import InvalidInputError
from coalmine.roles import Observer
from coalmine.training import (
    AlikeRows,
    Dataset,
    ExampleCanary,
    GivenWeights,
    GradientCanary,
    Neighbours,
    TrainingConfig,
    Vector,
    train,
)


class Pull:
    """Every row pulls towards ``goal`` at step 2 and does nothing at the others."""

    def __init__(self, goal, size=1.0):
        self.goal, self.size = torch.as_tensor(goal), size

    def __call__(self, parameters, step):
        return self.size * (parameters - self.goal.to(parameters)) * (step == 2)


class Keep(Observer):
    view = "final_model"

    def finish(self, models):
        return models.parameters.double().numpy().copy()


def config(**changes):
    settings = {"steps": 3, "clip": 1.0, "noise_multiplier": 0.0, "learning_rate": 1.0, "sample_rate": 0.5}
    return TrainingConfig(**{**settings, "initialization": GivenWeights([0.25, 0.0]), "dtype": "float64", **changes})


def run(base, *, canary=None, trials=8, world=0, settings=None, stack=None):
    return train(
        Vector(2), neighbours=Neighbours(base, canary=canary), config=settings or config(), fingerprint="alike",
        trials=range(trials), worlds=[world] * trials, observer=Keep(), stack=stack,
    ).scores  # fmt: skip


def test_with_full_batches_it_is_gradient_descent():
    base = AlikeRows(rows=50, gradient=Pull([0.75, 0.5]))
    final = run(base, settings=config(sampling="full", sample_rate=None))
    np.testing.assert_allclose(final, [[0.75, 0.5]] * 8)


def test_each_row_is_clipped():
    base = AlikeRows(rows=50, gradient=Pull([0.25, 8.0]))
    final = run(base, settings=config(sampling="full", sample_rate=None))
    np.testing.assert_allclose(final, [[0.25, 1.0]] * 8)


def test_the_number_drawn_is_binomial():
    base = AlikeRows(rows=400, gradient=Pull([0.25, 1.0]))
    drawn = run(base, trials=2000)[:, 1] * 200.0  # the share of the expected batch
    np.testing.assert_allclose(drawn, drawn.round(), atol=1e-9)
    assert abs(drawn.mean() - 200.0) < 6.0 * 10.0 / math.sqrt(2000)
    assert abs(drawn.std() / 10.0 - 1.0) < 6.0 / math.sqrt(4000)


def test_the_canary_is_drawn_on_its_own():
    base = AlikeRows(rows=400, gradient=Pull([0.25, 0.0]))
    final = run(base, canary=GradientCanary([0.0, -1.0]), trials=2000, world=1)
    uses = final[:, 1] * 200.0
    # Uses before the second step are pulled back with all else: what is left is a share of one of them.
    assert uses.max() <= 2.2
    assert abs(uses.mean() - 1.0) < 0.1  # steps 2 and 3, each with probability 1/2: six standard errors


def test_stacking_changes_nothing():
    base = AlikeRows(rows=400, gradient=Pull([0.3, 0.7], size=0.8))
    settings = config(noise_multiplier=1.0, dtype="float32")
    one = run(base, canary=GradientCanary([0.0, -1.0]), world=1, settings=settings, stack=1)
    np.testing.assert_array_equal(one, run(base, canary=GradientCanary([0.0, -1.0]), world=1, settings=settings))


def test_bad_input():
    with pytest.raises(InvalidInputError, match="rows = 0"):
        AlikeRows(rows=0, gradient=Pull([0.0, 0.0]))
    with pytest.raises(InvalidInputError, match="canary is an example"):
        Neighbours(AlikeRows(rows=5, gradient=Pull([0.0, 0.0])), canary=ExampleCanary([0.0], 1))
    with pytest.raises(InvalidInputError, match="the base data gave gradients of shape"):
        run(AlikeRows(rows=5, gradient=lambda parameters, step: parameters[:, :1]))
    with pytest.raises(InvalidInputError, match="sampling = 'shuffle'"):
        run(
            AlikeRows(rows=5, gradient=Pull([0.0, 0.0])),
            settings=config(sampling="shuffle", sample_rate=None, batch_size=2),
        )
    assert Neighbours(Dataset([[0.0]], [0])).copies == 0
