"""The same trial has the same bits whatever else is in its stack, in whatever order, with or without an audience."""

import numpy as np
import pytest
import torch
from recorders import Everything, Final

from coalmine.roles import View
from coalmine.training import (
    Adam,
    BernauCnn,
    Dataset,
    ExampleCanary,
    FromModule,
    GradientCanary,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Neighbours,
    Sequential,
    Sgd,
    TrainingConfig,
    alternating_worlds,
    module,
    parameter_count,
    train,
)
from coalmine.training.compiled import SWITCH
from coalmine.training.embedding import Embedding, MeanPositions
from coalmine.training.layers import Linear

TRIALS = np.arange(16)
NETWORKS = {
    "logistic": LogisticRegression(13, classes=3),
    "tanh": Mlp(13, hidden=(7, 5), classes=3, activation="tanh"),
    "sigmoid": Mlp(13, hidden=(9,), classes=10, activation="sigmoid"),
    "wide": Mlp(784, hidden=(32,), classes=2),
    "nasr": NasrCnn(input_shape=(1, 16, 16), classes=3, activation="tanh"),
    "bernau": BernauCnn(input_shape=(1, 12, 12), classes=3, filters=(4, 8), groups=2),
    "tokens": Sequential((6,), 3, (Embedding(11, 5), MeanPositions(), Linear(5, 3))),
    "module": FromModule(module(Mlp(13, hidden=(7,), classes=3, activation="tanh")), input_shape=(13,), classes=3),
}
SAMPLINGS = {"poisson": {"batch_size": 21.5}, "shuffle": {"batch_size": 22}, "full": {}}


def data_for(network, rows=83):
    rng = np.random.default_rng(5)
    shape = (rows, *network.input_shape)
    tokens = isinstance(network, Sequential)
    x = rng.integers(0, 11, size=shape) if tokens else rng.normal(size=shape).astype(np.float32)
    return Dataset(x, rng.integers(0, network.classes, size=rows))


def run(network, neighbours, config, trials, **options):
    seen = options.pop("observer", None) or Final()
    train(
        network, neighbours=neighbours, config=config, fingerprint="stack", trials=trials,
        worlds=alternating_worlds(trials), observer=seen, **options,
    )  # fmt: skip
    return seen


def assert_same(one, other):
    for trial, vector in other.parameters.items():
        assert np.isfinite(vector).all()
        assert one.parameters[trial].tobytes() == vector.tobytes(), f"trial {trial}"


@pytest.mark.parametrize(("dtype", "kernels"), [("float32", "1"), ("float32", "0"), ("float64", "0")])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", NETWORKS)
def test_alone_in_threes_and_all_together(name, sampling, dtype, kernels, monkeypatch):
    monkeypatch.setenv(SWITCH, kernels)
    network = NETWORKS[name]
    base = data_for(network)
    neighbours = Neighbours(base, canary=ExampleCanary(base.x[:2], base.y[:2]))
    config = TrainingConfig(
        steps=4, clip=1.0, noise_multiplier=1.1, learning_rate=0.3, sampling=sampling, dtype=dtype,
        **SAMPLINGS[sampling],
    )  # fmt: skip
    together = run(network, neighbours, config, TRIALS, stack=16)
    assert len({vector.tobytes() for vector in together.parameters.values()}) == 16
    assert_same(together, run(network, neighbours, config, TRIALS[::-1], stack=3))
    assert_same(together, run(network, neighbours, config, TRIALS[5:8], stack=1))


@pytest.mark.parametrize("kind", ["example", "gradient"])
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_canaries_and_relations(kind, relation):
    network = NETWORKS["tanh"]
    base = data_for(network)
    canary = (
        ExampleCanary(base.x[:2] + 1, [0, 1])
        if kind == "example"
        else GradientCanary(np.ones(parameter_count(network)), copies=2)
    )
    neighbours = Neighbours(base, canary=canary, relation=relation, replaced=(1, 2) if relation == "replace" else ())
    config = TrainingConfig(steps=5, clip=1.0, noise_multiplier=0.7, learning_rate=0.3, sample_rate=0.4)
    together = run(network, neighbours, config, TRIALS, stack=16)
    assert_same(together, run(network, neighbours, config, TRIALS[3:6], stack=1))


@pytest.mark.parametrize("optimiser", [Sgd(momentum=0.9), Adam()])
def test_optimisers_and_regulariser(optimiser):
    network = NETWORKS["tanh"]
    config = TrainingConfig(
        steps=5,
        clip=1.0,
        noise_multiplier=0.7,
        learning_rate=0.1,
        sample_rate=0.4,
        optimiser=optimiser,
        regulariser=0.1,
    )
    neighbours = Neighbours(data_for(network))
    together = run(network, neighbours, config, TRIALS, stack=16)
    assert_same(together, run(network, neighbours, config, TRIALS[3:6], stack=1))


def test_an_audience_and_more_threads_change_nothing():
    network = NETWORKS["wide"]
    neighbours = Neighbours(data_for(network))
    config = TrainingConfig(steps=4, clip=1.0, noise_multiplier=0.7, learning_rate=0.1, sample_rate=0.4)
    quiet = run(network, neighbours, config, TRIALS[:4], stack=4)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        watched = run(network, neighbours, config, TRIALS[:4], stack=4, observer=Everything())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert_same(quiet, watched)


def test_answers_to_queries_do_not_depend_on_the_stack():
    network = NETWORKS["sigmoid"]
    base = data_for(network)
    config = TrainingConfig(steps=3, clip=1.0, noise_multiplier=0.7, learning_rate=0.1, sample_rate=0.4)

    class Ask:
        view = View.BLACK_BOX

        def start(self, trials):
            pass

        def finish(self, models):
            assert not hasattr(models, "parameters")
            return models.losses(base.x[:3], base.y[:3])

    results = [
        train(
            network, neighbours=Neighbours(base), config=config, fingerprint="q", trials=TRIALS,
            worlds=alternating_worlds(TRIALS), observer=Ask(), stack=stack,
        )
        for stack in (1, 3, 16)
    ]  # fmt: skip
    assert results[0].scores.shape == (16, 3)
    for result in results[1:]:
        assert result.scores.tobytes() == results[0].scores.tobytes()


def test_a_model_that_diverges_is_named_and_disturbs_nobody():
    network = Mlp(13, hidden=(7,), classes=3)
    base = data_for(network)
    huge = np.zeros(parameter_count(network))
    huge[0] = 1.0

    class Bomb:
        """A gradient that is fine for all trials but one, and NaN for that one."""

        copies = 1

        def start(self, trials):
            self.bad = trials == 3

        def gradients(self, state):
            vectors = torch.zeros_like(state.parameters)
            vectors[self.bad] = float("nan")
            return vectors

    config = TrainingConfig(steps=6, clip=1.0, noise_multiplier=0.7, learning_rate=0.3, sample_rate=0.9)
    worlds = np.ones(16, dtype=int)

    class Score(Final):
        def finish(self, models):
            super().finish(models)
            return models.losses(base.x[:1], base.y[:1])[:, 0]

    def go(canary):
        seen = Score()
        result = train(
            network, neighbours=Neighbours(base, canary=canary), config=config, fingerprint="boom", trials=TRIALS,
            worlds=worlds, observer=seen, stack=16,
        )  # fmt: skip
        return seen, result

    seen, result = go(Bomb())
    assert list(result.failures) == [3]
    assert "not finite at step" in result.failures[3]
    assert np.flatnonzero(~result.succeeded).tolist() == [3]
    assert np.flatnonzero(np.isnan(result.scores)).tolist() == [3]
    calm, fine = go(GradientCanary(np.zeros(parameter_count(network))))
    assert not fine.failures
    for trial in range(16):
        if trial != 3:
            assert seen.parameters[trial].tobytes() == calm.parameters[trial].tobytes()


def test_out_of_memory_halves_the_stack_and_goes_on(monkeypatch):
    from coalmine.training import trainer

    network = NETWORKS["tanh"]
    neighbours = Neighbours(data_for(network))
    config = TrainingConfig(steps=3, clip=1.0, noise_multiplier=0.7, learning_rate=0.1, sample_rate=0.4)
    plain = run(network, neighbours, config, TRIALS, stack=16)
    genuine = trainer._train_stack

    def scarce(*arguments):
        if len(arguments[4]) > 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return genuine(*arguments)

    monkeypatch.setattr(trainer, "_train_stack", scarce)
    seen = Final()
    result = train(
        network, neighbours=neighbours, config=config, fingerprint="stack", trials=TRIALS,
        worlds=alternating_worlds(TRIALS), observer=seen, stack=16,
    )  # fmt: skip
    assert result.stack == 4
    assert [note.split(":")[0] for note in result.notes] == ["out of memory"] * 2
    assert_same(plain, seen)
