"""What else must not touch a bit: optimizers beside each other, an audience, threads, memory that runs out.

Stacks and orders are tried with every engine in test_engines.py.
"""

from typing import ClassVar

import numpy as np
import pytest
import torch
from engines import CLOSED, data_for
from recorders import Everything, Final
from torch import nn

from coalmine.training import (
    Adam,
    Dataset,
    FromModule,
    Mlp,
    NasrCnn,
    Neighbours,
    PartSums,
    RowGradients,
    Sgd,
    TrainingConfig,
    clipped_sums,
    losses,
    parameter_count,
    services,
    train,
)

TRIALS = np.arange(16)


def run(network, neighbours, config, trials, **options):
    seen = options.pop("observer", None) or Final()
    train(
        network, neighbours=neighbours, config=config, fingerprint="stack", trials=trials,
        worlds=np.asarray(trials) % 2, observer=seen, **options,
    )  # fmt: skip
    return seen


def assert_same(one, other):
    for trial, vector in other.parameters.items():
        assert np.isfinite(vector).all()
        assert one.parameters[trial].tobytes() == vector.tobytes(), f"trial {trial}"


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam()])
def test_optimizers_and_regularizer(optimizer):
    network = CLOSED["tanh"]
    config = TrainingConfig(
        steps=5,
        clip=1.0,
        noise_multiplier=0.7,
        learning_rate=0.1,
        sample_rate=0.4,
        optimizer=optimizer,
        regularizer=0.1,
    )
    neighbours = Neighbours(data_for(network))
    together = run(network, neighbours, config, TRIALS, stack=16)
    assert_same(together, run(network, neighbours, config, TRIALS[3:6], stack=1))


def test_an_audience_and_more_threads_change_nothing():
    network = CLOSED["wide"]
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


def test_out_of_memory_halves_the_stack_and_goes_on(monkeypatch):
    from coalmine.training import trainer

    network = CLOSED["tanh"]
    neighbours = Neighbours(data_for(network))
    config = TrainingConfig(steps=3, clip=1.0, noise_multiplier=0.7, learning_rate=0.1, sample_rate=0.4)
    plain = run(network, neighbours, config, TRIALS, stack=16)
    genuine = trainer._train_stack

    def scarce(job, *, trials, **options):
        if len(trials) > 4:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")
        return genuine(job, trials=trials, **options)

    monkeypatch.setattr(trainer, "_train_stack", scarce)
    seen = Final()
    result = train(
        network, neighbours=neighbours, config=config, fingerprint="stack", trials=TRIALS,
        worlds=TRIALS % 2, observer=seen, stack=16,
    )  # fmt: skip
    assert result.stack == 4
    assert [note.split(":")[0] for note in result.notes] == ["out of memory"] * 2
    assert_same(plain, seen)


def test_a_module_is_asked_with_parameters_that_begin_alike():
    """Where a model's numbers lie in a stack may choose a library's kernel, and with it the last bits."""

    class Places(nn.Linear):
        found: ClassVar[list[int]] = []

        def forward(self, x):
            self.found.append(self.weight.data_ptr() % 64)
            return super().forward(x)

    network = FromModule(Places(4, 3), input_shape=(4,), classes=3)  # 15 numbers: lines of a stack begin everywhere
    Places.found.clear()
    losses(network, torch.zeros(5, 15), x=np.ones((2, 4)), y=[0, 1])
    assert len(Places.found) == 5
    assert len(set(Places.found)) == 1


@pytest.mark.parametrize("name", list(CLOSED))
def test_few_rows_have_the_bits_that_they_have_with_all_padding(name, monkeypatch):
    """Crafters ask about single rows thousands of times; their choice, and so a run's identity, hangs on the bits."""
    network = CLOSED[name]
    monkeypatch.setattr(services.backends, "compiled", lambda **options: False)  # those kernels have no padding
    models = torch.from_numpy(np.random.default_rng(0).normal(size=(17, parameter_count(network))) * 0.3)
    for dtype in ("float32", "float64"):
        config = TrainingConfig(
            steps=3, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, sample_rate=0.3, dtype=dtype
        )  # fmt: skip
        for rows in (1, 3, 40):
            dataset, lines = data_for(network, rows=rows), models.to(getattr(torch, dtype))
            few = clipped_sums(network, lines, dataset=dataset, config=config)
            alone = clipped_sums(network, lines[5:6], dataset=dataset, config=config)
            with monkeypatch.context() as patch:
                patch.setattr(services, "_FEW", 0)
                assert torch.equal(few, clipped_sums(network, lines, dataset=dataset, config=config))
            assert torch.equal(few[5:6], alone)


@pytest.mark.parametrize("name", ["perceptron", "cnn"])
def test_rows_and_parts_that_are_asked_again_are_the_sums_asked_once(name):
    """Stored trials of the crafted adversaries hang on these bits, too."""
    network = {"perceptron": Mlp(13, hidden=(7,), classes=3), "cnn": NasrCnn((1, 28, 28), classes=3)}[name]
    config = TrainingConfig(steps=3, clip=1.0, noise_multiplier=1.0, learning_rate=0.1, sample_rate=0.3)
    dataset, parts = data_for(network, rows=50), [np.arange(0, 50, 7), np.array([3]), np.arange(8, 50)]
    start = np.random.default_rng(0).normal(size=(5, parameter_count(network))) * 0.1
    models, places = torch.from_numpy(start).float(), torch.tensor([4, 2, 2, 0, 4])

    def asked(rows, which=slice(None)):
        some = Dataset(dataset.x[rows], dataset.y[rows])
        return clipped_sums(network, models[which], dataset=some, config=config)

    rows = RowGradients(network, rows=dataset, config=config)
    sums = PartSums(network, dataset=dataset, parts=parts, config=config)
    for _ in range(2):
        found = rows.at(models, places)
        for place, row in enumerate(places.tolist()):
            assert torch.equal(found[place], asked([row], slice(place, place + 1))[0])
        together = sums.at(models)
        for number, part in enumerate(parts):
            assert torch.equal(together[:, number], asked(part))
