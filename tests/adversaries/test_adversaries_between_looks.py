"""What the other rows add in the mean, between the models at which it is computed: held, or drawn as a line."""

import numpy as np
import pytest
import torch
from scipy import stats

from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.crafted import MEANS, BestRow
from coalmine.adversaries.crafters import rows
from coalmine.adversaries.crafters.background import Background, OwnBackground
from coalmine.adversaries.distinguishers.whitened import WhitenedRatio
from coalmine.errors import InvalidInputError
from coalmine.roles import Observer, View
from coalmine.training import (
    Dataset,
    ExampleCanary,
    Glorot,
    GradientCanary,
    LogisticRegression,
    Neighbours,
    TrainingConfig,
    clipped_sums,
    train,
)

CLIP, SIGMA, RATE, STEPS = 0.8, 0.6, 0.3, 11
FEATURES, CLASSES = 5, 3
NETWORK = LogisticRegression(FEATURES, classes=CLASSES)
PARAMETERS = (FEATURES + 1) * CLASSES
NOISE = (SIGMA * CLIP) ** 2
X, Y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
FIXED = CLIP * np.eye(PARAMETERS)[3]


def scene(*, steps=STEPS, rate=0.5, count=15):
    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(count, FEATURES)), rng.integers(0, CLASSES, size=count))
    training = TrainingConfig(
        steps=steps, clip=CLIP, noise_multiplier=SIGMA, learning_rate=rate, sample_rate=RATE, initialization=Glorot(),
        dtype="float64",
    )  # fmt: skip
    return Scene(base=base, classes=CLASSES, network=NETWORK, training=training)


class Seen(Observer):
    """Keeps the models before each step and the private gradients, beside another observer."""

    view = View.ALL_ITERATES

    def __init__(self, inner):
        self.inner, self.steps = inner, []

    def start(self, trials):
        self.inner.start(trials)

    def observe(self, iterate):
        self.steps.append((iterate.previous.clone(), iterate.private_gradient.numpy().copy()))
        self.inner.observe(iterate)

    def finish(self, models):
        return self.inner.finish(models)


def own(given, *, every, last):
    return OwnBackground(
        given.base, network=NETWORK, training=given.training, noise=NOISE, every=every,
        stream=np.random.default_rng(0), last=last,
    )  # fmt: skip


def played(given, canary, known, background, *, every, interpolated, trials=6):
    ratio = WhitenedRatio(
        known, base=given.base, network=NETWORK, training=given.training, background=background, every=every,
        interpolated=interpolated,
    )  # fmt: skip
    seen = Seen(ratio)
    result = train(
        NETWORK, neighbours=Neighbours(given.base, canary=canary), config=given.training, fingerprint="looks",
        trials=range(trials), worlds=np.arange(trials) % 2, observer=seen, stack=trials,
    )  # fmt: skip
    return seen.steps, result.scores


def gradients(given, models, data):
    """Clipped gradients of each row of ``data`` at each model, ``[S, rows, P]``: each row's sum is that of itself."""
    alone = [Dataset(data.x[row : row + 1], data.y[row : row + 1]) for row in range(data.rows)]
    sums = [clipped_sums(NETWORK, models, dataset=one, config=given.training) for one in alone]
    return torch.stack(sums, 1).numpy()


def expected(given, steps, looks, *, whitened, canary, interpolated):
    """The scores from the definition: densities of the normal mixture around the mean that is drawn between looks."""
    batch, count = RATE * given.base.rows, len(steps[0][0])
    others = {look: gradients(given, steps[look - 1][0], given.base) for look in looks}
    means = {look: RATE * each.sum(1) for look, each in others.items()}
    scores = np.zeros(count)

    def w(step, look, model):
        return whitened(others[look][model]) @ canary(steps[step - 1][0])[model]

    for step, (models, private) in enumerate(steps, start=1):
        before = max(look for look in looks if look <= step)
        after = min((look for look in looks if look > step), default=None)
        for model in range(count):
            g = canary(models)[model]
            white = w(step, before, model)
            mean = white @ means[before][model]
            if interpolated and after is not None:
                way = (step - before) / (after - before)
                change = means[after][model] - means[before][model]
                ends = w(before, before, model) @ change, w(after - 1, before, model) @ change
                mean += way * ((1 - way) * ends[0] + way * ends[1])
            x = white @ private[model] * batch - mean
            scores[model] += np.log(1 - RATE + RATE * np.exp(x - white @ g / 2))
    return scores


@pytest.mark.parametrize("mean", MEANS)
def test_a_gradient_between_looks(mean):
    """Looks at steps 1, 5 and 9; from the last one on the mean is held either way."""
    given, interpolated = scene(), mean == "interpolated"
    nothing = Background(np.zeros((0, PARAMETERS)), np.zeros(0), NOISE)
    steps, scores = played(given, GradientCanary(FIXED), FIXED, nothing, every=4, interpolated=interpolated)
    found = expected(
        given, steps, (1, 5, 9), whitened=lambda others: np.eye(PARAMETERS) / NOISE,
        canary=lambda models: np.tile(FIXED, (len(models), 1)), interpolated=interpolated,
    )  # fmt: skip
    np.testing.assert_allclose(scores, found, rtol=1e-8)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("chosen", [False, True])
def test_a_row_between_looks_with_the_models_own_background(mean, chosen):
    """Looks at steps 1, 2, 4, 7 and, if interpolated, at the last; whitened by what was seen at the look before."""
    given, interpolated = scene(), mean == "interpolated"
    background = own(given, every=6, last=STEPS if interpolated else None)
    known = rows.Candidates([rows.Row(X, Y, 0.0, "")], network=NETWORK, training=given.training, background=background)
    canary = BestRow(known, copies=1, rechoose=1) if chosen else ExampleCanary(X, Y)
    steps, scores = played(given, canary, known, background, every=6, interpolated=interpolated)

    def whitened(others):
        return np.linalg.inv(NOISE * np.eye(PARAMETERS) + RATE * (1 - RATE) * others.T @ others)

    row = Dataset(X[None], [Y])
    looks = (1, 2, 4, 7, STEPS) if interpolated else (1, 2, 4, 7)
    found = expected(
        given, steps, looks, whitened=whitened, canary=lambda models: gradients(given, models, row)[:, 0],
        interpolated=interpolated,
    )  # fmt: skip
    np.testing.assert_allclose(scores, found, rtol=1e-7)


def test_a_line_is_nearer_to_what_is_computed_at_every_model():
    """Scores by looks at every 20th of 81 models, against scores by looks at all of them: the same trainings.

    Rows that are learnt: what they add in the mean shrinks all the time, and held it is behind the models.
    """
    given = scene(steps=81, rate=0.2, count=60)
    nothing = Background(np.zeros((0, PARAMETERS)), np.zeros(0), NOISE)
    known = rows.Candidates([rows.Row(X, Y, 0.0, "")], network=NETWORK, training=given.training, background=nothing)

    def scores(every, interpolated):
        return played(
            given, ExampleCanary(X, Y), known, nothing, every=every, interpolated=interpolated, trials=16
        )[1]  # fmt: skip

    exact, held, line = scores(1, False), scores(20, False), scores(20, True)
    assert np.abs(line - exact).mean() < 0.5 * np.abs(held - exact).mean()
    np.testing.assert_allclose(scores(1, True), exact, rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 2])
def test_short_trainings_have_all_their_steps_in_the_score(steps):
    """Every model is looked at then, so there is nothing between."""
    given = scene(steps=steps)
    found = {}
    for mean in MEANS:
        attack = adversary("crafted-row-steps", background="own", mean=mean, copies=1).craft(given)
        found[mean] = train(
            NETWORK, neighbours=attack.neighbours, config=given.training, fingerprint="short", trials=range(6),
            worlds=np.arange(6) % 2, observer=attack.distinguisher,
        ).scores  # fmt: skip
    np.testing.assert_allclose(found["interpolated"], found["held"], rtol=1e-9)
    assert np.unique(found["held"]).size == 6


def test_it_is_said_and_chosen_by_itself():
    """Interpolated where the models' own background is; a word that is not known is refused."""
    given = scene()
    for options, expected in (
        ({"background": "own"}, True), ({"background": "shadows"}, False), ({}, False),
        ({"background": "own", "mean": "held"}, False), ({"mean": "interpolated"}, True),
    ):  # fmt: skip
        player = adversary("crafted-gradient", copies=1, **options)
        assert player.settled(given).mean == ("interpolated" if expected else "held")
        assert ("interpolated" in player.craft(given).notes[-1]) is expected
    at_every = {"background": "own", "every": 1}
    for steps, options, words in (
        (STEPS, {}, "computed every 4 steps, and held between"), (STEPS, {"every": 11}, "at the first model, and held"),
        (1, {}, "computed at every model"), (STEPS, at_every, "computed at every model; with it"),
        (STEPS, {"background": "own"}, "every 4 steps and at steps 2, 4, 8, … before, and interpolated between; with"),
    ):  # fmt: skip
        assert words in adversary("crafted-gradient", copies=1, **options).craft(scene(steps=steps)).notes[-1]
    with pytest.raises(InvalidInputError, match="mean = 'straight' is not allowed: expected one of held, interpolated"):
        adversary("adaptive-row", mean="straight")


def test_the_last_model_is_looked_at_only_if_it_is_asked_for():
    given = scene()
    for last, expected in ((None, [1, 2, 4, 7]), (11, [1, 2, 4, 7, 11]), (7, [1, 2, 4, 7])):
        background = own(given, every=6, last=last)
        assert [step for step in range(1, 12) if background.renews(step)] == expected


def test_models_have_the_densities_of_the_normal_law():
    """What ``expected`` takes for granted: the mixture's ratio is that of the densities."""
    rng, spread = np.random.default_rng(1), np.diag([1.0, 0.5, 2.0])
    g, x = rng.normal(size=3), rng.normal(size=3)
    law = stats.multivariate_normal(np.zeros(3), spread)
    w = np.linalg.inv(spread) @ g
    ratio = np.log(1 - RATE + RATE * np.exp(law.logpdf(x - g) - law.logpdf(x)))
    assert np.log(1 - RATE + RATE * np.exp(w @ x - w @ g / 2)) == pytest.approx(ratio)
