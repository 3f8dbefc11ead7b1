"""Who sees what, and canaries that are chosen anew each step."""

import numpy as np
import pytest
import reference
import torch
from recorders import Everything, Final

from coalmine.roles import Iterate, Models, Queries, View
from coalmine.training import (
    Dataset,
    ExampleCanary,
    Mlp,
    Neighbours,
    TrainingConfig,
    parameter_count,
    train,
)
from coalmine.training.sampling import batches

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


class Watcher:
    """Notes every call."""

    def __init__(self, view):
        self.view = view
        self.calls = []

    def start(self, trials):
        self.calls.append(("start", trials.tolist()))

    def observe(self, iterate):
        assert isinstance(iterate, Iterate)
        self.calls.append(("observe", iterate.step))

    def finish(self, models):
        self.calls.append(("finish", models.trials.tolist()))
        self.models = models
        return np.arange(len(models.trials), dtype=float)


@pytest.mark.parametrize("view", list(View))
def test_each_view_is_shown_its_own_and_no_more(view):
    watcher = Watcher(view)
    result, _, _ = run(watcher)
    steps = [("observe", s) for s in (1, 2, 3, 4)] if view is View.ALL_ITERATES else []
    expected = []
    for part in ([2, 3], [8]):
        expected += [("start", part), *steps, ("finish", part)]
    assert watcher.calls == expected
    assert result.scores.tolist() == [0.0, 1.0, 0.0]
    assert isinstance(watcher.models, Queries)
    assert isinstance(watcher.models, Models) == (view is not View.BLACK_BOX)
    public = {name for name in dir(watcher.models) if not name.startswith("_")}
    black_box = {"trials", "logits", "losses"}
    assert public == (black_box if view is View.BLACK_BOX else black_box | {"parameters", "initial_parameters"})


def test_iterates_follow_one_another_and_end_at_the_final_model():
    seen = Everything()
    run(seen, noise_multiplier=1.0)
    for trial in TRIALS:
        for step in range(3):
            assert seen.after[trial][step].tobytes() == seen.before[trial][step + 1].tobytes()
        assert seen.after[trial][-1].tobytes() == seen.parameters[trial].tobytes()


def test_initial_parameters_are_where_training_started():
    class Start(Everything):
        def finish(self, models):
            self.initial = {
                t: v.numpy() for t, v in zip(models.trials.tolist(), models.initial_parameters, strict=True)
            }
            for trial, vector in self.initial.items():
                assert vector.tobytes() == self.before[trial][0].tobytes()

    run(Start())


def test_no_observer_no_scores():
    result, _, _ = run(None)
    assert result.scores is None
    assert result.succeeded.all()
    assert (result.precision, result.device, result.notes) == ("float64", "cpu", ())


class MovingExample:
    """The canary's two rows depend on the step, the trial and the current model."""

    copies = 2

    def start(self, trials):
        self.log = {}

    def examples(self, state):
        assert (state.step == 1) == (state.private_gradient is None)
        x = torch.stack(
            [
                torch.stack([p[:5] * state.step, p[5:10] + int(t)])
                for t, p in zip(state.trials, state.parameters, strict=True)
            ]
        )
        y = torch.tensor([[state.step % 3, int(t) % 3] for t in state.trials])
        for i, t in enumerate(state.trials.tolist()):
            self.log[t, state.step] = (x[i].numpy().copy(), y[i].numpy())
        LOG.update(self.log)
        return x, y


LOG = {}


class MovingGradient:
    """A vector that depends on the model; too long, so it must be clipped."""

    copies = 2

    def start(self, trials):
        pass

    def gradients(self, state):
        return 50 * state.parameters + state.step


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize("sampling", [{"sample_rate": 0.5}, {"sampling": "full", "sample_rate": None}])
def test_an_adaptive_example_is_the_example_it_says(sampling, relation):
    LOG.clear()
    seen = Everything()
    _, neighbours, config = run(seen, MovingExample(), relation, (4, 2) if relation == "replace" else (), **sampling)
    for trial, world in zip(TRIALS, WORLDS, strict=True):
        draws = batches(neighbours, world=world, config=config, fingerprint="see", trial=trial)
        for step in range(4):
            x, y = LOG[trial, step + 1]
            fixed = Neighbours(BASE, canary=ExampleCanary(x, y))
            expected = reference.clipped_sum(NETWORK, seen.before[trial][step], fixed, next(draws), config.clip)
            expected = expected.numpy() / config.expected_batch(BASE.rows)
            np.testing.assert_allclose(seen.gradients[trial][step], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_an_adaptive_gradient_is_clipped_and_counted(relation):
    seen = Everything()
    replaced = (4, 2) if relation == "replace" else ()
    _, neighbours, config = run(seen, MovingGradient(), relation, replaced)
    drawn = 0
    for trial, world in zip(TRIALS, WORLDS, strict=True):
        draws = batches(neighbours, world=world, config=config, fingerprint="see", trial=trial)
        for step in range(4):
            rows = next(draws)
            before = seen.before[trial][step]
            times = int((rows >= BASE.rows).sum())
            drawn += times
            expected = reference.clipped_sum(NETWORK, before, neighbours, rows[rows < BASE.rows], config.clip)
            vector = torch.from_numpy(50 * before + step + 1)
            expected = (expected + times * reference.clip_to(vector, config.clip)).numpy()
            expected /= config.expected_batch(BASE.rows)
            np.testing.assert_allclose(seen.gradients[trial][step], expected, rtol=0, atol=1e-10)
    assert drawn > 3


def test_an_adaptive_canary_may_use_autograd():
    class Ascent(MovingExample):
        copies = 1

        def examples(self, state):
            with torch.enable_grad():
                point = torch.zeros(5, dtype=torch.float64, requires_grad=True)
                loss = (torch.tanh(state.parameters[:, :20].view(-1, 4, 5) @ point)).sum()
                (slope,) = torch.autograd.grad(loss, point)
            return slope.expand(len(state.trials), 1, 5), torch.zeros((len(state.trials), 1), dtype=torch.long)

    result, _, _ = run(Final(), Ascent())
    assert result.succeeded.all()


def test_an_adaptive_canary_of_the_wrong_shape_is_named():
    class Wrong(MovingExample):
        def examples(self, state):
            return torch.zeros(len(state.trials), 5), torch.zeros(len(state.trials))

    with pytest.raises(ValueError, match=r"canary gave inputs of shape \(2, 5\).*expected \(2, 2, 5\)"):
        run(Final(), Wrong())

    class Short(MovingGradient):
        def gradients(self, state):
            return state.parameters[:, :3]

    class Unknown(MovingExample):
        def examples(self, state):
            x, y = super().examples(state)
            return x, y + 3

    with pytest.raises(ValueError, match="expected 0 to 2"):
        run(Final(), Unknown())
    with pytest.raises(ValueError, match=rf"gradients of shape \(2, 3\): expected \(2, {parameter_count(NETWORK)}\)"):
        run(Final(), Short())
