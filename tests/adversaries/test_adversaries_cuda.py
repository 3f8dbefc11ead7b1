"""The ladder on a GPU: every adversary plays there, and the shortcut has the same law as on a CPU."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.crafters.adaptive import AdaptiveExamples
from coalmine.adversaries.crafters.background import OwnBackground
from coalmine.training import (
    Dataset,
    GaussianSteps,
    Glorot,
    Mlp,
    NasrCnn,
    StackState,
    TrainingConfig,
    parameter_count,
    train,
)

LADDER = (
    *("api", "static-poison", "intermediate-poison", "adaptive-poison", "gradient", "malicious-dataset"),
    *("crafted-row", "crafted-row-steps", "adaptive-row", "crafted-gradient"),
)
PART = np.array([17, 4, 5, 22, 9])
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def scene(network, shape, *, rows=80, initialization=None):
    rng = np.random.default_rng(0)
    base = Dataset(rng.uniform(size=(rows, *shape)).astype(np.float32), rng.integers(0, 10, size=rows))
    config = TrainingConfig(
        steps=10, clip=1.0, noise_multiplier=0.8, learning_rate=0.3, sample_rate=0.2,
        initialization=initialization or Glorot(scale=0.0),
    )  # fmt: skip
    return Scene(base=base, classes=10, network=network, training=config)


@pytest.mark.parametrize(("name", "copies"), [*((name, 1) for name in LADDER), *((name, 3) for name in LADDER[6:])])
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_every_adversary_plays_on_a_gpu(name, copies, kind):
    """The worlds are those of the CPU; scores are finite and the same in a second run."""
    given = scene(Mlp(20, hidden=(8,), classes=10), (20,)) if kind == "mlp" else scene(
        NasrCnn((1, 28, 28), classes=10), (1, 28, 28)
    )  # fmt: skip
    options = {"shadows": 2, "ascent_steps": 2} if "poison" in name else {}
    if copies > 1:  # fewer shadow trainings: the choice is tried with one copy
        options = {"copies": copies, "norms": (2.5,), "labels": 1, "shadows": 1}
    if name == "crafted-row" and (kind, copies) != ("mlp", 1):  # the search is a processor's, and takes a minute
        options["tried"] = 8
    attack = adversary(name, **options).craft(given)
    found = [
        train(
            attack.network or given.network, neighbours=attack.neighbours, config=attack.training or given.training,
            fingerprint="gpu", trials=trials, worlds=trials % 2, observer=attack.distinguisher, device="cuda",
        )
        for trials in (np.arange(24), np.arange(24), PART)
    ]  # fmt: skip
    assert found[0].succeeded.all()
    np.testing.assert_array_equal(found[0].scores, found[1].scores)
    np.testing.assert_array_equal(found[0].scores[PART], found[2].scores)  # in another stack
    assert np.unique(found[0].scores).size > 12


@pytest.mark.parametrize("name", LADDER[7:])
def test_backgrounds_of_the_models_own_are_those_of_any_stack(name):
    """80 and 2,400 rows in 64 parts, models from starts of their own."""
    for rows in (80, 2400):
        given = scene(NasrCnn((1, 28, 28), classes=10), (1, 28, 28), rows=rows, initialization=Glorot())
        options = {"copies": 2, "norms": (2.5,), "labels": 1, "shadows": 1, "background": "own"}
        attack = adversary(name, **options).craft(given)
        whole, part = (
            train(
                given.network, neighbours=attack.neighbours, config=given.training, fingerprint="gpu", trials=trials,
                worlds=trials % 2, observer=attack.distinguisher, device="cuda",
            ).scores
            for trials in (np.arange(24), PART)
        )  # fmt: skip
        np.testing.assert_array_equal(whole[PART], part)
        assert np.unique(whole).size > 12


def test_a_background_of_many_models_on_cuda_is_that_of_a_few():
    """More than are looked at together, so a split lies between them; directions differ from model to model."""
    network = NasrCnn((1, 28, 28), classes=10)
    given = scene(network, (1, 28, 28), rows=130)
    generator = torch.Generator("cuda").manual_seed(0)
    models = 0.05 * torch.randn((300, parameter_count(network)), device="cuda", generator=generator)
    gradients = torch.randn(models.shape, device="cuda", generator=generator)

    def looked(which):
        background = OwnBackground(
            given.base, network=network, training=given.training, noise=0.64, every=1, stream=np.random.default_rng(0)
        )
        background.renew(1, models[which])
        return background.total, background.whiten(gradients[which]), background.strengths(gradients[which])

    some = torch.tensor([299, 7, 256], device="cuda")
    for whole, few in zip(looked(slice(None)), looked(some), strict=True):
        assert torch.equal(whole[some], few)
        assert not torch.equal(few[0], few[1])


@pytest.mark.parametrize("sign", ["lower", "raise"])
def test_adaptive_examples_are_those_of_a_processor(sign):
    """Recorded on a GPU and replayed for other models, beside one model after the other on a CPU; tanh has no kinks."""
    network = NasrCnn((1, 16, 16), classes=3, activation="tanh")
    rng = np.random.default_rng(0)
    rows = Dataset(rng.uniform(size=(20, 1, 16, 16)), rng.integers(0, 3, size=20))
    canary = AdaptiveExamples(
        network, query=(rows.x[0], 1), data=rows, clip=0.5, rate=0.3, sign=sign, steps=2, step_rate=0.05
    )
    on_gpu = copy.deepcopy(canary)  # it holds what it has recorded
    for number in range(2):
        models = 0.2 * torch.from_numpy(rng.normal(size=(5, parameter_count(network))))
        state = StackState(np.arange(5), 1, models, None)
        x, y = canary.examples(state)
        found, labels = on_gpu.examples(StackState(state.trials, 1, models.to("cuda"), None))
        torch.testing.assert_close(found.cpu(), x, rtol=0, atol=1e-9)
        assert torch.equal(labels.cpu(), y), number
        assert (found.cpu()[:, 0] - torch.from_numpy(rows.x[0])).abs().amax() > 1e-3


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.1, 0.8, 60), (256 / 60000, 0.6, 3000), (0.3, 0.1, 20)])
def test_the_shortcut_has_the_same_law_on_a_gpu(rate, sigma, steps):
    """Two-sample Kolmogorov-Smirnov; a right program fails with a chance below 4e-6. Blocks do not touch each other."""
    shortcut = GaussianSteps(sample_rate=rate, sigma=sigma, steps=steps)
    trials = np.arange(8000)
    worlds = (trials % 2).astype(np.int8)
    gpu = shortcut.scores(trials, worlds=worlds, fingerprint="law", device="cuda")
    cpu = shortcut.scores(trials, worlds=worlds, fingerprint="law", device="cpu")
    for world in (0, 1):
        assert stats.ks_2samp(gpu[world::2], cpu[world::2]).pvalue > 1e-6
    some = np.array([4001, 17, 16])
    np.testing.assert_array_equal(
        shortcut.scores(some, worlds=worlds[some], fingerprint="law", device="cuda"), gpu[some]
    )
