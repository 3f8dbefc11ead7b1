"""The belief of one training does not depend on the trainings beside it: a sample of them must come back to the bit."""

import numpy as np
import pytest

from coalmine.adversaries import Scene, adversary
from coalmine.training import Dataset, Mlp, TrainingConfig, train


@pytest.mark.parametrize("part", [[4], [4, 5], [3, 7, 9]])
def test_log_odds_are_the_same_in_any_stack(part):
    rng = np.random.default_rng(0)
    rows = Dataset(rng.uniform(size=(80, 20)).astype(np.float32), rng.integers(0, 10, size=80))
    apart = Dataset(rng.uniform(size=(8, 20)).astype(np.float32), rng.integers(0, 10, size=8))
    config = TrainingConfig(steps=12, clip=1.0, noise_multiplier=0.8, learning_rate=0.3, sample_rate=0.2)
    scene = Scene(
        base=rows, classes=10, network=Mlp(20, hidden=(8,), classes=10), training=config, held_out=apart
    )  # fmt: skip
    attack = adversary("identifiability").craft(scene)

    def scores(trials):
        given = attack.network or scene.network
        return train(
            given, neighbours=attack.neighbours, config=attack.training or config, fingerprint="stack",
            trials=trials, worlds=np.asarray(trials) % 2, observer=attack.distinguisher,
        ).scores  # fmt: skip

    np.testing.assert_array_equal(scores(list(range(16)))[part], scores(part))
