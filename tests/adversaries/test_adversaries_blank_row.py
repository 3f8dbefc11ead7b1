"""`blank-row`: its label, and that it is the row of zeros whose loss is asked."""

import numpy as np
import pytest

from coalmine.adversaries import Scene, adversary
from coalmine.errors import CoalmineError
from coalmine.training import (
    Dataset,
    Embedding,
    Flatten,
    GivenWeights,
    Glorot,
    Linear,
    LogisticRegression,
    Sequential,
    TrainingConfig,
)

ROWS = Dataset(np.ones((8, 2), dtype=np.float32), [0, 0, 0, 1, 1, 1, 1, 2])


def scene(initialization, **changes):
    training = TrainingConfig(
        steps=3, sample_rate=0.5, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, initialization=initialization
    )
    return Scene(
        **{"base": ROWS, "classes": 3, "network": LogisticRegression(2, classes=3), "training": training, **changes}
    )


def test_the_label_is_the_least_likely_one_at_a_given_start():
    start = np.zeros(9)
    start[6:] = [0.5, -2.0, 1.0]  # the biases
    attack = adversary("blank-row").craft(scene(GivenWeights(start)))
    canary = attack.neighbours.canary
    assert canary.y.tolist() == [1]
    assert not canary.x.any()
    assert attack.distinguisher._y.tolist() == [1]


def test_without_a_given_start_it_is_that_of_the_data():
    assert adversary("blank-row").craft(scene(Glorot(scale=1.0))).neighbours.canary.y.tolist() == [2]


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({"label": -1}, {}, "label = -1"),
        ({"label": 3}, {}, "label = 3 is not allowed: expected a label from 0 to 2"),
        (
            {},
            {
                "base": Dataset(np.zeros((4, 2), dtype=np.int64), [0, 1, 2, 0]),
                "network": Sequential((2,), 3, (Embedding(5, 2), Flatten(), Linear(4, 3))),
            },
            "tokens have no zero",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, changes, words):
    with pytest.raises(CoalmineError) as caught:
        adversary("blank-row", **options).craft(scene(Glorot(), **changes))
    assert words in str(caught.value)
