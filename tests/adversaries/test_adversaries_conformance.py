"""Every adversary of the catalogue goes through the same tests."""

import dataclasses
import multiprocessing.reduction

import numpy as np
import pytest

from coalmine import data
from coalmine.adversaries import Adversary, Scene, ThreatModel, adversary, catalogue
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Relation
from coalmine.roles import Observer, View
from coalmine.training import (
    Dataset,
    ExampleCanary,
    Glorot,
    GradientCanary,
    LogisticRegression,
    Mlp,
    TrainingConfig,
    check_fit,
    train,
)

NAMES = sorted(name for name in catalogue() if not name.startswith("one-run"))  # those have worlds for each canary


@pytest.fixture(scope="module")
def digits():
    loaded = data.subset(data.load("digits"), rows=300)
    return Dataset(loaded.x_train, loaded.y_train), loaded.classes, loaded.image_shape


def craft(name, digits, *, seed=0, **options):
    return adversary(name, **options).craft(scene(*digits, seed=seed))


def scene(base, classes, picture, *, seed=0):
    network = LogisticRegression(base.shape[0], classes=classes)
    training = config(noise_multiplier=1.0)  # a belief needs noise
    return Scene(base=base, classes=classes, network=network, training=training, picture=picture, seed=seed)


def config(**changes):
    settings = {"steps": 20, "clip": 1.0, "noise_multiplier": 0.0, "learning_rate": 1.0, "sample_rate": 0.5}
    return TrainingConfig(**{**settings, "initialization": Glorot(scale=0.0), **changes})


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_may_see_and_do(name):
    made = adversary(name)
    assert isinstance(made, Adversary)
    assert isinstance(made.threat, ThreatModel)
    assert all(getattr(made.threat, field.name) for field in dataclasses.fields(ThreatModel) if field.name != "adds")
    assert dataclasses.is_dataclass(made)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.threat = None


@pytest.mark.parametrize("name", NAMES)
def test_its_worlds_fit_the_trainer(name, digits):
    attack = craft(name, digits)
    base, classes, _ = digits
    assert attack.neighbours.copies >= 1
    if attack.network is None:  # else the adversary brings its own data
        assert attack.neighbours.base.shape == base.shape
    assert attack.distinguisher.view == adversary(name).threat.view
    check_fit(attack.network or LogisticRegression(64, classes=classes), attack.neighbours, attack.training or config())
    assert attack.notes
    assert all(isinstance(note, str) for note in attack.notes)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_worlds(name, digits):
    first, second = craft(name, digits, seed=3), craft(name, digits, seed=3)
    a, b = first.neighbours, second.neighbours
    assert type(a.canary) is type(b.canary)
    if isinstance(a.canary, ExampleCanary):
        np.testing.assert_array_equal(a.canary.x, b.canary.x)
        np.testing.assert_array_equal(a.canary.y, b.canary.y)
    if isinstance(a.canary, GradientCanary):
        np.testing.assert_array_equal(a.canary.gradient, b.canary.gradient)
    if isinstance(a.base, Dataset):
        np.testing.assert_array_equal(a.base.x, b.base.x)
    assert a.base.rows == b.base.rows
    assert (a.relation, a.replaced) == (b.relation, b.replaced)
    assert first.notes == second.notes


@pytest.mark.parametrize("name", NAMES)
def test_what_is_promised_stays_as_it_was(name, digits):
    """An adversary may choose what is learnt, but not the clipping norm, the noise, the rate or the steps."""
    attack = craft(name, digits)
    if attack.training is None:
        pytest.skip("this adversary leaves the training alone")
    given, rows = config(noise_multiplier=1.0), digits[0].rows
    kept = ("clip", "noise_multiplier", "steps", "sampling", "noise_scale", "optimizer")
    assert all(getattr(attack.training, field) == getattr(given, field) for field in kept)
    assert attack.training.rate(attack.neighbours.base.rows) == given.rate(rows)


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_can_be_sent_to_another_process(name, digits):
    attack = craft(name, digits)
    sent = multiprocessing.reduction.ForkingPickler.dumps
    assert sent(attack.neighbours)
    assert sent(attack.training)
    assert sent(attack.distinguisher)
    assert sent(attack.shortcut)


@pytest.mark.parametrize("name", NAMES)
def test_the_base_data_is_not_touched(name, digits):
    base = digits[0]
    before = base.x.copy()
    adversary(name).craft(scene(*digits))
    np.testing.assert_array_equal(base.x, before)


class OnlyQueries:
    """Two models behind a black box; anything but queries is an error."""

    trials = np.arange(2)

    def __init__(self, classes):
        rng = np.random.default_rng(0)
        self._weights, self._biases = rng.normal(size=(2, 64, classes)), rng.normal(size=(2, 1, classes))
        self.asked = 0

    def logits(self, x):
        self.asked += 1
        rows = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        return np.einsum("bd,sdc->sbc", rows, self._weights) + self._biases

    def losses(self, x, y):
        logits = self.logits(x)
        logits = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
        return -logits[:, np.arange(len(y)), np.asarray(y)]

    def __getattr__(self, name):
        raise AssertionError(f"looked at {name}, which a black box does not show")


@pytest.mark.parametrize("name", NAMES)
def test_a_black_box_observer_asks_and_sees_nothing_else(name, digits):
    attack = craft(name, digits)
    if attack.distinguisher.view != View.BLACK_BOX:
        pytest.skip("this adversary sees more than a black box")
    box = OnlyQueries(digits[1])
    attack.distinguisher.start(box.trials)
    scores = attack.distinguisher.finish(box)
    assert box.asked > 0
    assert scores.shape == (2,)
    assert np.isfinite(scores).all()
    assert scores[0] != scores[1]


@pytest.mark.parametrize("name", NAMES)
def test_what_the_trainer_hands_over_has_no_parameters_for_a_black_box(name, digits):
    attack = craft(name, digits)
    seen = []

    class Spy(Observer):
        view = attack.distinguisher.view

        def observe(self, iterate):
            raise AssertionError("a black box must not see the steps")

        def finish(self, models):
            seen.append(models)
            return attack.distinguisher.finish(models)

    if Spy.view != View.BLACK_BOX:
        pytest.skip("this adversary sees more than a black box")
    train(
        LogisticRegression(64, classes=digits[1]),
        neighbours=attack.neighbours, config=config(steps=2), fingerprint="spy", trials=[0, 1], worlds=[0, 1],
        observer=Spy(),
    )  # fmt: skip
    assert seen
    assert not hasattr(seen[0], "parameters")
    assert not hasattr(seen[0], "initial_parameters")


@pytest.mark.parametrize(
    ("name", "options"),
    [("membership", {}), ("backdoor", {"copies": 8}), ("clipbkd", {"copies": 4}),
     ("clipbkd", {"copies": 4, "world0": "relabelled"})],
)  # fmt: skip
def test_a_larger_score_speaks_for_world_1(name, options, digits):
    """Without noise and from a fixed start the mean score of world 1 is the larger one, for both networks."""
    attack = craft(name, digits, **options)
    for network in (LogisticRegression(64, classes=10), Mlp(64, hidden=(16,), classes=10)):
        result = train(
            network, neighbours=attack.neighbours, config=config(), fingerprint="orientation", trials=range(32),
            worlds=np.arange(32) % 2, observer=attack.distinguisher,
        )  # fmt: skip
        world0, world1 = result.scores[::2], result.scores[1::2]
        assert world1.mean() > world0.mean()


def test_membership_takes_exactly_one_row_out(digits):
    base = digits[0]
    attack = craft("membership", digits, row=17)
    neighbours = attack.neighbours
    assert (neighbours.relation, neighbours.copies) == (Relation.ADD_REMOVE, 1)
    np.testing.assert_array_equal(neighbours.base.x, np.delete(base.x, 17, axis=0))
    np.testing.assert_array_equal(neighbours.base.y, np.delete(base.y, 17))
    np.testing.assert_array_equal(neighbours.canary.x[0], base.x[17])
    assert neighbours.canary.y.tolist() == [base.y[17]]
    drawn = {craft("membership", digits, seed=seed).notes for seed in range(8)}
    assert len(drawn) > 1  # another seed, another row: 8 equal draws out of 300 have chance 300^-7


def test_backdoor_marks_the_corner_and_sets_the_label(digits):
    base, _, picture = digits
    neighbours = craft("backdoor", digits, copies=3, target=2).neighbours
    assert (neighbours.relation, neighbours.copies) == (Relation.REPLACE, 3)
    assert neighbours.canary.y.tolist() == [2, 2, 2]
    for row, original in zip(neighbours.canary.x, neighbours.replaced, strict=True):
        assert base.y[original] != 2
        marked, before = row.reshape(picture)[0], base.x[original].reshape(picture)[0]
        assert (marked[:5, :5] == 1.0).all()
        np.testing.assert_array_equal(marked[5:], before[5:])
        np.testing.assert_array_equal(marked[:, 5:], before[:, 5:])


def test_the_backdoor_asks_about_rows_it_did_not_plant(digits):
    attack = craft("backdoor", digits, copies=3)
    asked = {row.tobytes() for row in np.asarray(attack.distinguisher._x)}
    assert not asked & {row.tobytes() for row in attack.neighbours.canary.x}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("clipbdk", {}, "did you mean 'clipbkd'?"),
        ("zzz", {}, "expected one of membership, backdoor, clipbkd, identifiability, api"),
        ("clipbkd", {"copy": 1}, "did you mean 'copies'?"),
        ("clipbkd", {"copies": 0}, "copies = 0"),
        ("clipbkd", {"copies": 1.5}, "copies = 1.5"),
        ("clipbkd", {"copies": True}, "copies = True"),
        ("clipbkd", {"norm": float("nan")}, "norm = nan"),
        ("clipbkd", {"norm": -1.0}, "norm = -1.0"),
        ("clipbkd", {"world0": "dirty"}, "world0 = 'dirty'"),
        ("membership", {"row": -1}, "row = -1"),
        ("membership", {"row": "first"}, "row = 'first'"),
        ("backdoor", {"target": -1}, "target = -1"),
        ("backdoor", {"square": 0}, "square = 0"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(InvalidInputError, match="is not") as caught:
        adversary(name, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("membership", {"row": 300}, "row = 300"),
        ("backdoor", {"target": 10}, "target = 10"),
        ("backdoor", {"copies": 300}, "copies = 300"),
        ("backdoor", {"square": 9}, "backdoor marks pictures of at least 9"),
    ],
)
def test_options_that_do_not_fit_the_data(name, options, words, digits):
    with pytest.raises((InvalidInputError, UnsupportedError)) as caught:
        craft(name, digits, **options)
    assert words in str(caught.value)


def test_backdoor_needs_pictures():
    with pytest.raises(UnsupportedError, match="no pictures"):
        adversary("backdoor").craft(scene(Dataset(np.eye(8), np.arange(8) % 2), 2, None))
