"""The adversaries of last-iterate-2024: their worlds, what they see, and both roads to a score."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.adversaries import Scene, adversary, encoding_law
from coalmine.adversaries.hidden_state import Scheduled
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.roles import Observer, View
from coalmine.training import (
    Adam,
    AlikeRows,
    Dataset,
    Glorot,
    LogisticRegression,
    Mlp,
    Sgd,
    TrainingConfig,
    ZeroGradients,
    parameter_count,
    train,
)

LOCAL = {"noise_scale": "local", "sampling": "full", "sample_rate": None}
SHUFFLE = {"sampling": "shuffle", "sample_rate": None, "batch_size": 25}
NAMES = ("last-iterate-gradient", "last-iterate-input", "hidden-state", "encoding", "pathological-regularizer")


def scene(*, rows=100, network=None, seed=0, **changes):
    generator = np.random.default_rng(5)
    base = Dataset(generator.normal(size=(rows, 4)).astype(np.float32), generator.integers(0, 3, rows))
    settings = {"steps": 6, "clip": 1.5, "noise_multiplier": 0.7, "learning_rate": 0.7, "sample_rate": 0.3}
    training = TrainingConfig(**{**settings, **changes})
    return Scene(base=base, classes=3, network=network or Mlp(4, hidden=(3,), classes=3), training=training, seed=seed)


def play(where, attack, *, trials=3000, fingerprint="the long road"):
    """Scores by training, world 0 and world 1."""
    worlds = np.arange(trials) % 2
    result = train(
        attack.network or where.network, neighbours=attack.neighbours, config=attack.training or where.training,
        fingerprint=fingerprint, trials=range(trials), worlds=worlds, observer=attack.distinguisher,
    )  # fmt: skip
    assert not result.failures
    return result.scores[worlds == 0], result.scores[worlds == 1]


def draw(attack, *, trials=3000):
    """Scores by the shortcut."""
    worlds = (np.arange(trials) % 2).astype(np.int8)
    scores = attack.shortcut.scores(np.arange(trials), worlds=worlds, fingerprint="the short road", device="cpu")
    return scores[worlds == 0], scores[worlds == 1]


@pytest.mark.parametrize("name", NAMES)
def test_they_see_the_final_model_alone(name):
    where = scene()
    attack = adversary(name).craft(where)
    assert adversary(name).threat.view == attack.distinguisher.view == View.FINAL_MODEL
    seen = []

    class Spy(Observer):
        view = attack.distinguisher.view

        def observe(self, iterate):
            raise AssertionError("the steps are hidden")

        def finish(self, models):
            seen.append(models)
            return attack.distinguisher.finish(models)

    train(
        attack.network or where.network, neighbours=attack.neighbours, config=attack.training or where.training,
        fingerprint="spy", trials=[0, 1], worlds=[0, 1], observer=Spy(),
    )  # fmt: skip
    assert seen[0].parameters.shape[0] == 2


@pytest.mark.parametrize(
    ("name", "options", "changes"),
    [
        ("last-iterate-gradient", {"data": "zero-gradient"}, {}),
        ("last-iterate-gradient", {"data": "zero-gradient"}, {"regularizer": 0.5}),
        ("last-iterate-gradient", {"data": "zero-gradient"}, {"regularizer": 0.4, "optimizer": Sgd(momentum=0.6)}),
        ("pathological-regularizer", {}, {}),
        ("pathological-regularizer", {"v": 1.5}, {}),
        ("encoding", {}, {}),
        ("encoding", {"batch_size": 8000.0, "amplification": 40.0}, {}),
        ("encoding", {"form": "one-bit", "threshold": 1.0}, {}),
        ("encoding", {"form": "one-bit", "threshold": 0.4, "batch_size": 5000.0}, {}),
    ],
)
def test_both_roads_have_the_same_law(name, options, changes):
    """Kolmogorov-Smirnov, 1500 against 1500 scores in each world: a right program fails with chance 1e-7 a world."""
    where = scene(**changes)
    attack = adversary(name, **options).craft(where)
    trained, drawn = play(where, attack), draw(attack)
    for world in (0, 1):
        assert stats.ks_2samp(trained[world], drawn[world], method="asymp").pvalue > 1e-7
    # The test is not blind: it tells the worlds apart.
    assert stats.ks_2samp(trained[0], drawn[1], method="asymp").pvalue < 1e-7


@pytest.mark.parametrize("form", ["linear", "one-bit"])
def test_the_repeaters_do_what_they_are_for(form):
    """No gradient is clipped, cells to come are cleared, signs are kept, and the record is that of every step."""
    where = scene(steps=12)
    options = {"threshold": 0.5} if form == "one-bit" else {}
    attack = adversary("encoding", form=form, **options).craft(where)
    base, canary, law = attack.neighbours.base, attack.neighbours.canary, attack.shortcut
    assert isinstance(base, AlikeRows)
    unit = where.training.learning_rate * where.training.clip / law.batch
    norms, cells, written = [], [], []

    class Watch(Observer):
        view = View.ALL_ITERATES

        def observe(self, iterate):
            norms.append(np.linalg.norm(base.gradient(iterate.previous, iterate.step).numpy(), axis=1).max())
            now = iterate.parameters.numpy() / unit
            written.append(now[:, iterate.step - 1].copy())
            cells.append(now.copy())

        def finish(self, models):
            return attack.distinguisher.finish(models)

    train(
        attack.network, neighbours=attack.neighbours, config=attack.training, fingerprint="objectives",
        trials=range(400), worlds=np.arange(400) % 2, observer=Watch(),
    )  # fmt: skip
    assert max(norms) < where.training.clip  # never clipped
    final, first = cells[-1], np.stack(written, axis=1)
    to_come = cells[5][:, 6:]  # after step 6 the cells of steps 7, … hold the noise of step 6 alone
    assert abs(to_come.std() / law.noise - 1.0) < 0.08  # 2400 values: more than 5 standard errors
    if form == "linear":
        np.testing.assert_allclose(final[:, :-1] / law.amplification, first[:, :-1], atol=0.15)
    else:
        np.testing.assert_array_equal(final[:, :-1] > 0.0, first[:, :-1] >= law.threshold)
        assert (abs(abs(final[:, :-1]) / law.amplification - 1.0) < 0.5).all()
    np.testing.assert_array_equal(final[:, -1], first[:, -1])
    assert canary.copies == 1


def test_linear_reads_what_the_standard_analysis_sees():
    """The score is the sum of one likelihood ratio a step: mean and spread of N(A, σ²) cells, by integration."""
    law = encoding_law.choose(form="linear", steps=200, sample_rate=0.1, noise=1.0)
    grid = np.linspace(-12.0, 13.0, 200_001)
    ratio = np.log1p(0.1 * np.expm1(grid - 0.5))
    weight0 = stats.norm.pdf(grid) * (grid[1] - grid[0])
    weight1 = (0.9 * stats.norm.pdf(grid) + 0.1 * stats.norm.pdf(grid - 1.0)) * (grid[1] - grid[0])
    generator = np.random.default_rng(0)
    for canary, weight in ((False, weight0), (True, weight1)):
        mean = float((ratio * weight).sum())
        variance = float((ratio**2 * weight).sum()) - mean**2
        scores = np.asarray([law.draw(generator, canary=canary) for _ in range(4000)])
        # Six standard errors, and one per cent for the noise that the construction adds.
        error = 6.0 * math.sqrt(200 * variance / 4000)
        assert abs(scores.mean() - 200 * mean) < error + 0.01 * abs(200 * mean)
        assert abs(scores.var() / (200 * variance) - 1.0) < 6.0 * math.sqrt(3.0 / 4000) + 0.02


def test_a_score_does_not_depend_on_what_is_drawn_with_it():
    for name, options in (
        ("last-iterate-gradient", {"data": "zero-gradient"}),
        ("encoding", {}),
        ("encoding", {"form": "one-bit"}),
        ("pathological-regularizer", {}),
    ):
        shortcut = adversary(name, **options).craft(scene()).shortcut
        trials, worlds = np.arange(40), (np.arange(40) % 2).astype(np.int8)
        together = shortcut.scores(trials, worlds=worlds, fingerprint="x", device="cpu")
        apart = [
            shortcut.scores(trials[i : i + 1], worlds=worlds[i : i + 1], fingerprint="x", device="cpu")[0]
            for i in reversed(range(40))
        ]
        np.testing.assert_array_equal(together, apart[::-1])


def test_the_dirac_canary_counts_its_uses():
    """Without noise and other gradients, the score is how often the canary was drawn."""
    where = scene(noise_multiplier=0.0, steps=50)
    attack = adversary("last-iterate-gradient", data="zero-gradient").craft(where)
    assert isinstance(attack.neighbours.base, ZeroGradients)
    world0, world1 = play(where, attack, trials=200)
    assert (world0 == 0.0).all()
    np.testing.assert_allclose(world1, world1.round(), atol=1e-4)
    assert abs(world1.mean() - 15.0) < 6.0 * math.sqrt(50 * 0.21 / 100)  # six standard errors


def test_a_first_model_that_is_not_known_is_noise():
    """The paper's test reads the final model alone: with one fixed start nothing changes but a constant."""
    where = scene(initialization=Glorot(scale=0.0))
    attacks = [adversary("last-iterate-gradient", coordinate=1, start=s).craft(where) for s in ("known", "unknown")]
    known, unknown = (np.concatenate(play(where, attack, trials=40)) for attack in attacks)
    np.testing.assert_allclose(unknown - known, (unknown - known)[0], atol=1e-4)
    drawn = scene(initialization=Glorot(scale=50.0), learning_rate=1e-3)
    attacks = [adversary("last-iterate-gradient", coordinate=1, start=s).craft(drawn) for s in ("known", "unknown")]
    spreads = [np.std(play(drawn, attack, trials=200)[0]) for attack in attacks]
    assert spreads[1] > 100 * spreads[0]


def test_the_dirac_canary_on_natural_data_is_a_valid_gradient():
    where = scene()
    attack = adversary("last-iterate-gradient").craft(where)
    gradient = attack.neighbours.canary.gradient
    assert np.count_nonzero(gradient) == 1
    assert np.linalg.norm(gradient) == where.training.clip
    assert attack.network is None
    assert attack.training is None
    drawn = {adversary("last-iterate-gradient").craft(scene(seed=seed)).notes for seed in range(8)}
    assert len(drawn) > 1
    assert adversary("last-iterate-gradient", coordinate=3).craft(where).neighbours.canary.gradient[3] == 1.5
    assert adversary("last-iterate-gradient", coordinate=-1).craft(where).neighbours.canary.gradient[26] == 1.5


@pytest.mark.parametrize("data", ["natural", "blank"])
def test_the_flipped_row_is_in_world_1_alone(data):
    where = scene()
    attack = adversary("last-iterate-input", data=data, row=7).craft(where)
    base, canary = attack.neighbours.base, attack.neighbours.canary
    np.testing.assert_array_equal(canary.x[0], where.base.x[7])
    assert canary.y[0] != where.base.y[7]
    assert base.rows == where.base.rows - 1
    if data == "blank":
        assert not base.x.any()
        assert set(base.y.tolist()) == {int(where.base.y[7])}
    else:
        np.testing.assert_array_equal(base.x, np.delete(where.base.x, 7, axis=0))
    labels = {
        int(adversary("last-iterate-input", row=7).craft(scene(seed=s)).neighbours.canary.y[0]) for s in range(40)
    }
    assert labels == {0, 1, 2} - {int(where.base.y[7])}  # each of two labels: missed with chance 2^-39


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("last-iterate-gradient", {}),
        ("last-iterate-input", {}),
        ("last-iterate-input", {"data": "blank"}),
        ("hidden-state", {}),
        ("hidden-state", {"coordinate": "random"}),
        ("hidden-state", {"every": 3}),
    ],
)
def test_a_larger_score_speaks_for_world_1(name, options):
    where = scene(noise_multiplier=0.0, steps=30, rows=40)
    world0, world1 = play(where, adversary(name, **options).craft(where), trials=64)
    assert world1.mean() > world0.mean()


def test_the_least_moved_coordinate_is_one_that_the_data_leaves_alone():
    """A feature that is always 0 moves no weight: such a weight is chosen, and is as good as zero-gradient data."""
    where = scene(network=LogisticRegression(4, classes=3), learning_rate=0.2, steps=10)
    x = where.base.x.copy()
    x[:, 2] = 0.0
    where = dataclasses.replace(where, base=Dataset(x, where.base.y))
    attack = adversary("hidden-state").craft(where)
    place = int(np.flatnonzero(attack.neighbours.canary.gradient)[0])
    assert place in (2, 6, 10)  # weights of class 0, 1, 2 for the third feature
    world0, world1 = play(where, attack, trials=2000)
    # N(0, σ²T) and Binomial(T, q) + N(0, σ²T), as in Theorem 1; the chance of a false failure is 1e-7.
    generator = np.random.default_rng(1)
    spread = 0.7 * math.sqrt(10)
    ideal = generator.binomial(10, 0.3, size=20_000) + spread * generator.normal(size=20_000)
    assert stats.kstest(world0, stats.norm(0.0, spread).cdf).pvalue > 1e-7
    assert stats.ks_2samp(world1, ideal, method="asymp").pvalue > 1e-7


def test_every_third_step_is_every_third_step():
    where = scene(steps=7)
    attack = adversary("hidden-state", coordinate="random", every=3).craft(where)
    canary = attack.neighbours.canary
    assert isinstance(canary, Scheduled)
    used = []

    class State:
        trials = np.arange(2)
        parameters = torch.zeros((2, parameter_count(where.network)))
        private_gradient = None

    for step in range(1, 8):
        State.step = step
        gradients = canary.gradients(State())
        assert gradients.shape == State.parameters.shape
        used.append(float(gradients.norm(dim=1).max()))
    assert used == [0.0, 0.0, 1.5, 0.0, 0.0, 1.5, 0.0]


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("last-iterate-gradient", {"data": "blank"}, "data = 'blank'"),
        ("last-iterate-gradient", {"coordinate": 1.5}, "coordinate = 1.5"),
        ("last-iterate-input", {"data": "zero-gradient"}, "data = 'zero-gradient'"),
        ("last-iterate-input", {"label": 1.5}, "label = 1.5"),
        ("hidden-state", {"coordinate": "best"}, "coordinate = 'best'"),
        ("hidden-state", {"every": 0}, "every = 0"),
        ("hidden-state", {"simulations": 0}, "simulations = 0"),
        ("encoding", {"form": "two-bit"}, "form = 'two-bit'"),
        ("encoding", {"batch_size": -1.0}, "batch_size = -1.0"),
        ("encoding", {"amplification": float("inf")}, "amplification = inf"),
        ("encoding", {"threshold": 1.0}, "threshold = 1.0"),
        ("encoding", {"delta": 0.0}, "delta = 0.0"),
        ("pathological-regularizer", {"v": 1.0}, "v = 1.0"),
        ("pathological-regularizer", {"v": "large"}, "v = 'large'"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(InvalidInputError) as caught:
        adversary(name, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "changes", "words"),
    [
        ("encoding", {"batch_size": 100.0}, {}, "would be clipped"),
        ("encoding", {"batch_size": 15.0, "form": "one-bit"}, {}, "would be clipped"),
        ("encoding", {"batch_size": 500.0, "form": "one-bit"}, {}, "would be off by up to"),
        ("encoding", {"amplification": 3.0}, {}, "amplification = 3.0"),
        ("encoding", {"amplification": 1.0, "form": "one-bit"}, {}, "turn a stored sign round"),
        ("encoding", {"threshold": 100.0, "form": "one-bit"}, {}, "threshold = 100.0"),
        ("encoding", {}, {"steps": 1000}, "1000 steps do not fit a model of 27 parameters"),
        ("encoding", {}, {"optimizer": Sgd(momentum=0.9)}, "plain SGD"),
        ("encoding", {}, LOCAL, "made for one example"),
        ("last-iterate-gradient", {"data": "zero-gradient"}, LOCAL, "made for one example"),
        ("encoding", {}, {"learning_rate": 0.0}, "learning_rate = 0.0"),
        ("encoding", {}, {"noise_multiplier": 0.0}, "needs noise"),
        ("pathological-regularizer", {}, {"steps": 1000}, "1000 steps do not fit a model of 27 parameters"),
        ("pathological-regularizer", {"v": 1e60}, {}, "v = 1e+60"),
        ("pathological-regularizer", {}, {"optimizer": Adam()}, "plain SGD"),
        ("last-iterate-gradient", {"data": "zero-gradient"}, {"regularizer": 2.0}, "from 0 to 1"),
        ("last-iterate-gradient", {"data": "zero-gradient"}, {"optimizer": Adam()}, "made for SGD"),
        ("last-iterate-gradient", {"data": "zero-gradient"}, SHUFFLE, "needs poisson or full"),
        ("encoding", {}, SHUFFLE, "poisson or full"),
        ("pathological-regularizer", {}, SHUFFLE, "poisson or full"),
        ("last-iterate-gradient", {"data": "zero-gradient", "coordinate": 0}, {}, "coordinate = 0"),
        ("last-iterate-gradient", {"coordinate": 27}, {}, "coordinate = 27"),
        ("last-iterate-gradient", {"coordinate": -28}, {}, "coordinate = -28"),
        ("last-iterate-gradient", {}, {"learning_rate": 0.0}, "learning_rate = 0.0"),
        ("last-iterate-input", {"row": 100}, {}, "row = 100"),
        ("last-iterate-input", {"label": 3}, {}, "label = 3"),
        ("hidden-state", {"every": 7}, {}, "every = 7"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(name, options, changes, words):
    with pytest.raises((InvalidInputError, UnsupportedError)) as caught:
        adversary(name, **options).craft(scene(**changes))
    assert words in str(caught.value)


def test_scores_that_hold_every_step_are_not_read_as_a_last_iterate():
    """Read so, they would prove more than is true: the linear form at q = 0.01 leaks far more than the heuristic."""
    kept = {name: adversary(name).craft(scene()).evidence for name in NAMES}
    all_steps = {"encoding", "pathological-regularizer"}
    assert kept == {name: View.ALL_ITERATES if name in all_steps else View.FINAL_MODEL for name in NAMES}
