"""No observer at all, and what an adaptive canary may and may not give.

Who sees what, and what adaptive canaries do, is tried with every engine in test_engines.py.
"""

import numpy as np
import pytest
import torch
from engines import MovingExample, MovingGradient
from recorders import Final

from coalmine.training import (
    AdaptiveExample,
    ChosenExample,
    Dataset,
    Mlp,
    Neighbours,
    TrainingConfig,
    parameter_count,
    train,
)

RNG = np.random.default_rng(9)
BASE = Dataset(RNG.normal(size=(19, 5)), RNG.integers(0, 3, size=19))
NETWORK = Mlp(5, hidden=(4,), classes=3, activation="tanh")
SETTINGS = {"steps": 4, "clip": 0.6, "noise_multiplier": 0.0, "learning_rate": 0.3, "dtype": "float64"}
TRIALS, WORLDS = [2, 3, 8], [1, 0, 1]


def run(observer, canary=None, relation="add_remove", replaced=(), **options):
    config = TrainingConfig(**{**SETTINGS, "sample_rate": 0.5, **options})
    neighbours = Neighbours(BASE, canary=canary, relation=relation, replaced=replaced)
    result = train(
        NETWORK, neighbours=neighbours, config=config, fingerprint="see", trials=TRIALS, worlds=WORLDS,
        observer=observer, stack=2,
    )  # fmt: skip
    return result, neighbours, config


def test_no_observer_no_scores():
    result, _, _ = run(None)
    assert result.scores is None
    assert result.succeeded.all()
    assert (result.precision, result.device, result.notes) == ("float64", "cpu", ())


def test_an_adaptive_canary_may_use_autograd():
    class Ascent(MovingExample):
        copies = 1

        def examples(self, state):
            with torch.enable_grad():
                point = torch.zeros(5, dtype=torch.float64, requires_grad=True)
                loss = (torch.tanh(state.parameters[:, :20].view(-1, 4, 5) @ point)).sum()
                (slope,) = torch.autograd.grad(loss, point)
            return slope.expand(len(state.trials), 1, 5), torch.zeros((len(state.trials), 1), dtype=torch.long)

    result, _, _ = run(Final(), Ascent(NETWORK))
    assert result.succeeded.all()


def test_an_adaptive_canary_of_the_wrong_shape_is_named():
    class Wrong(MovingExample):
        def examples(self, state):
            return torch.zeros(len(state.trials), 5), torch.zeros(len(state.trials))

    with pytest.raises(ValueError, match=r"canary gave inputs of shape \(2, 5\).*expected \(2, 2, 5\)"):
        run(Final(), Wrong(NETWORK))

    class Short(MovingGradient):
        def gradients(self, state):
            return state.parameters[:, :3]

    class Unknown(MovingExample):
        def examples(self, state):
            x, y = super().examples(state)
            return x, y + 3

    with pytest.raises(ValueError, match="expected 0 to 2"):
        run(Final(), Unknown(NETWORK))
    with pytest.raises(ValueError, match=rf"gradients of shape \(2, 3\): expected \(2, {parameter_count(NETWORK)}\)"):
        run(Final(), Short(NETWORK))


class Turns(ChosenExample):
    """Two examples in turn, each trial at its own beat."""

    def choose(self, state):
        return (state.trials + state.step) % 2


class GivenTurns(AdaptiveExample):
    """The same examples, handed over anew each step."""

    def __init__(self, chosen):
        self.chosen, self.copies = chosen, chosen.copies

    def examples(self, state):
        places = np.repeat(((state.trials + state.step) % 2)[:, None], self.copies, axis=1)
        return self.chosen.x[places], self.chosen.y[places]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize(
    "changes",
    [{}, {"sampling": "full", "sample_rate": None}, {"relation": "replace"}],
    ids=["poisson", "full", "replace"],
)
def test_an_example_chosen_among_known_ones_is_trained_on_as_if_it_were_handed_over(changes, dtype, copies):
    """In float32 the first goes through compiled kernels where there are any, the second never does.

    Three copies of two examples need places of their own.
    """
    rng = np.random.default_rng(7)
    chosen = Turns(3.0 * rng.normal(size=(2, 5)), [2, 0], copies=copies)
    if "relation" in changes:
        changes = {**changes, "replaced": tuple(range(3, 3 + copies))}
    seen = {}
    for name, canary in (("chosen", chosen), ("handed over", GivenTurns(chosen)), ("none", None)):
        options = changes if canary is not None or "relation" not in changes else {}
        observer = Final()
        run(observer, canary, dtype=dtype, **options)
        seen[name] = np.stack([observer.parameters[trial] for trial in TRIALS])
    # Noise is 0, so that both kinds of kernels have the same random numbers.
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(seen["chosen"], seen["handed over"], rtol=tolerance, atol=tolerance)
    assert np.abs(seen["chosen"] - seen["none"])[np.array(WORLDS) == 1].max() > 0.01


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("places", [[0, 2], [-1, 0], [0], [0.0, 1.0]])
def test_a_choice_that_is_none_is_refused(places, dtype):
    class Wrong(Turns):
        def choose(self, state):
            return np.array(places)

    with pytest.raises(ValueError, match="expected the place, 0 to 1, of an example for each of the 2 models"):
        run(Final(), Wrong(np.zeros((2, 5)), [2, 0]), dtype=dtype)
