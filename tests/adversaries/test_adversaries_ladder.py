"""The ladders of nasr-2021 and of the strongest attacks: what each may see, stacking, and what is refused."""

import dataclasses
import pickle

import numpy as np
import pytest
import torch

from coalmine import data
from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.crafted import BestRow
from coalmine.adversaries.crafters.adaptive import AdaptiveExamples
from coalmine.adversaries.crafters.differentiable import Differentiable
from coalmine.adversaries.crafters.watermark import Watermark
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Relation, Sampling
from coalmine.roles import Observer, View
from coalmine.training import (
    Adam,
    Dataset,
    Embedding,
    ExampleCanary,
    Flatten,
    Glorot,
    Linear,
    Mlp,
    NasrCnn,
    Sequential,
    Sgd,
    TrainingConfig,
    parameter_count,
    train,
)

LADDER = ("api", "static-poison", "intermediate-poison", "adaptive-poison", "gradient", "malicious-dataset")
CRAFTED = ("crafted-row", "crafted-row-steps", "adaptive-row", "crafted-gradient")
EVERY = (*LADDER, *CRAFTED)
VIEWS = dict(zip(LADDER, [View.BLACK_BOX] * 2 + [View.ALL_ITERATES] * 4, strict=True))


@pytest.fixture(scope="module")
def digits():
    loaded = data.load("digits")
    return Dataset(loaded.x_train[:300], loaded.y_train[:300]), Dataset(
        loaded.x_train[300:500], loaded.y_train[300:500]
    )


def config(**changes):
    settings = {"steps": 12, "clip": 1.0, "noise_multiplier": 0.8, "learning_rate": 0.5, "sample_rate": 0.1}
    return TrainingConfig(**{**settings, "initialization": Glorot(scale=0.0), **changes})


def scene(digits, *, network=None, **changes):
    base, held_out = digits
    network = network or Mlp(64, hidden=(8,), classes=10)
    return Scene(base=base, classes=10, network=network, training=config(**changes), held_out=held_out)


def play(attack, given, trials, **more):
    trials = np.asarray(trials)
    return train(
        attack.network or given.network, neighbours=attack.neighbours, config=attack.training or given.training,
        fingerprint="the ladder", trials=trials, worlds=trials % 2, observer=attack.distinguisher, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", LADDER)
def test_the_threat_model_is_that_of_table_1(name):
    threat = adversary(name).threat
    access, modification, dataset = {
        "api": ("black box", "random sample", "not modified"),
        "static-poison": ("final model", "malicious sample", "not modified"),
        "intermediate-poison": ("intermediate models", "malicious sample", "not modified"),
        "adaptive-poison": ("intermediate models", "adaptive sample", "not modified"),
        "gradient": ("intermediate models", "malicious gradient", "not modified"),
        "malicious-dataset": ("intermediate models", "malicious gradient", "malicious"),
    }[name]
    assert threat.view == VIEWS[name]
    assert threat.access.startswith(access)
    assert (threat.modification, threat.dataset) == (modification, dataset)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    "network", [Mlp(64, hidden=(8,), classes=10), Mlp(64, hidden=(), classes=10)], ids=["mlp", "logistic"]
)
def test_a_score_has_the_same_bits_whatever_is_stacked_beside_it(name, network, digits):
    given = scene(digits, network=network)
    attack = adversary(name).craft(given)
    whole = play(attack, given, range(20), stack=20)
    few = play(attack, given, [13, 4, 7], stack=2)
    assert whole.succeeded.all()
    np.testing.assert_array_equal(few.scores, whole.scores[[13, 4, 7]])
    # Trained once more by a copy that went through another process's door: nothing is kept between stacks.
    copy = pickle.loads(pickle.dumps(attack))  # noqa: S301 - our own bytes
    np.testing.assert_array_equal(play(copy, given, range(20), stack=7).scores, whole.scores)


@pytest.mark.parametrize(("name", "options"), [("intermediate-poison", {}), ("adaptive-poison", {"sign": "raise"})])
def test_both_statistics_are_read_from_the_same_trainings(name, options, digits):
    given = scene(digits)
    scores = {}
    for statistic in ("mean", "max", "both"):
        attack = adversary(name, statistic=statistic, shadows=2, ascent_steps=2, **options).craft(given)
        assert attack.distinguisher.several == (("mean", "max") if statistic == "both" else ())
        scores[statistic] = play(attack, given, range(6)).scores
    np.testing.assert_array_equal(scores["both"], np.stack([scores["mean"], scores["max"]], axis=1))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("changes", [
    {"sampling": Sampling.FULL, "sample_rate": None}, {"optimizer": Sgd(momentum=0.9)}, {"optimizer": Adam()},
    {"dtype": "float64", "regularizer": 0.1}, {"noise_multiplier": 0.0},
], ids=["full", "momentum", "adam", "float64", "no noise"])  # fmt: skip
def test_every_kind_of_training_can_be_attacked(name, changes, digits):
    given = scene(digits, **changes)
    result = play(adversary(name).craft(given), given, range(4))
    assert result.succeeded.all()
    assert np.unique(result.scores).size > 1


def test_a_network_for_pictures_can_be_attacked():
    rng = np.random.default_rng(0)
    rows = Dataset(rng.uniform(size=(40, 1, 28, 28)), rng.integers(0, 10, size=40))
    given = Scene(base=rows, classes=10, network=NasrCnn((1, 28, 28), classes=10), training=config(steps=3))
    for name in LADDER:
        options = {"shadows": 2, "ascent_steps": 2} if "poison" in name else {}
        result = play(adversary(name, **options).craft(given), given, range(2))
        assert result.succeeded.all()


# ---- what each may see


class Guarded:
    """Shows some attributes of another object; a look at anything else is an error."""

    def __init__(self, inner, *shown):
        self.__dict__.update(_inner=inner, _shown=shown, _looked=set())

    def __getattr__(self, name):
        if name not in self._shown:
            raise AssertionError(f"looked at {name}, which this view does not show")
        self._looked.add(name)
        return getattr(self._inner, name)

    def __setattr__(self, name, value):
        raise AssertionError(f"wrote to {name}")


class GuardedObserver(Observer):
    """Hands the distinguisher exactly what its view allows, and notes what was looked at."""

    def __init__(self, inner):
        self._inner, self.view, self.looked = inner, inner.view, set()

    def start(self, trials):
        self._inner.start(trials)

    def observe(self, iterate):
        assert self.view == View.ALL_ITERATES
        before = [iterate.parameters.clone(), iterate.previous.clone(), iterate.private_gradient.clone()]
        shown = Guarded(iterate, "trials", "step", "previous", "parameters", "private_gradient")
        self._inner.observe(shown)
        self.looked |= shown._looked
        after = [iterate.parameters, iterate.previous, iterate.private_gradient]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def finish(self, models):
        more = () if self.view == View.BLACK_BOX else ("parameters", "initial_parameters")
        shown = Guarded(models, "trials", "logits", "losses", *more)
        scores = self._inner.finish(shown)
        self.looked |= shown._looked
        return scores


def guard(canary):
    """The adaptive canary, shown the present models and the private gradients before, and nothing else."""
    method = {AdaptiveExamples: "examples", BestRow: "choose", Watermark: "gradients"}[type(canary)]
    inner = getattr(canary, method)
    shown = ("trials", "step", "parameters", "private_gradient")
    setattr(canary, method, lambda state: inner(Guarded(state, *shown)))


@pytest.mark.parametrize("name", EVERY)
def test_it_sees_its_view_and_nothing_else(name, digits):
    """Crafting, acting and observing: each is handed an object that raises on any other look."""
    given = scene(digits)
    # A scene holds no trial, no world and no fingerprint: nothing of the game can be seen in it.
    fields = (field.name for field in dataclasses.fields(Scene))
    shown = (*fields, "sample_rate", "stream", "check_row", "require_learning")
    attack = adversary(name).craft(Guarded(given, *shown))
    observer = GuardedObserver(attack.distinguisher)
    neighbours = attack.neighbours
    if isinstance(neighbours.canary, AdaptiveExamples | BestRow | Watermark):
        guard(neighbours.canary)
    result = train(
        attack.network or given.network, neighbours=neighbours, config=attack.training or given.training,
        fingerprint="the ladder", trials=range(6), worlds=np.arange(6) % 2, observer=observer,
    )  # fmt: skip
    plain = play(adversary(name).craft(given), given, range(6))
    np.testing.assert_array_equal(result.scores, plain.scores)
    expected = {
        "api": {"losses"}, "static-poison": {"losses"}, "intermediate-poison": {"parameters"},
        "adaptive-poison": {"parameters"},
        "malicious-dataset": {"private_gradient", "step"}, "crafted-row": {"losses"},
    }.get(name, {"private_gradient", "step", "previous"})  # fmt: skip
    assert observer.looked == expected


def test_the_guard_does_bite():
    with pytest.raises(AssertionError, match="looked at parameters"):
        _ = Guarded(object(), "logits").parameters


@pytest.mark.parametrize("name", ["adaptive-poison", "gradient"])
def test_what_is_crafted_does_not_depend_on_the_world(name, digits):
    """The same models in both worlds get the same canary: it acts on what it sees, not on the secret."""
    given = scene(digits)
    canary = adversary(name).craft(given).neighbours.canary
    generator = torch.Generator().manual_seed(0)
    size = parameter_count(given.network)

    @dataclasses.dataclass
    class State:
        trials: np.ndarray
        step: int
        parameters: torch.Tensor
        private_gradient: torch.Tensor | None

    models, gradients = (torch.randn(3, size, generator=generator) for _ in range(2))
    seen = []
    for trials in ([0, 2, 4], [1, 3, 5]):
        canary.start(np.array(trials))
        for step in (1, 2):
            state = State(np.array(trials), step, models, gradients if step > 1 else None)
            seen.append(canary.gradients(state).clone() if name == "gradient" else canary.examples(state)[0])
    assert torch.equal(seen[1], seen[3])
    assert not torch.equal(seen[1][0], seen[1][1])  # each model has its own


# ---- the crafters


def test_crafter_2_raises_the_mean_loss_and_keeps_the_picture_a_picture(digits):
    given = scene(digits, steps=60)
    ordinary = adversary("static-poison", ascent_steps=0).query(given)
    crafted = adversary("static-poison").query(given)
    assert crafted.y == ordinary.y
    assert crafted.loss > ordinary.loss + 2.0
    assert crafted.x.min() >= 0.0
    assert crafted.x.max() <= given.base.x.max()
    neighbours = adversary("static-poison").craft(given).neighbours
    assert (neighbours.relation, neighbours.copies) == (Relation.ADD_REMOVE, 1)
    np.testing.assert_array_equal(neighbours.canary.x[0], crafted.x)
    assert neighbours.base is given.base


def test_the_shadow_models_are_trained_as_the_trainer_would(digits, monkeypatch):
    from coalmine.adversaries.crafters import shadow

    seen = {}

    def spy(network, **more):
        seen.update(more, network=network)
        return train(network, **more)

    monkeypatch.setattr(shadow, "train", spy)
    shadow._query.cache_clear()
    given = scene(digits, steps=7, clip=0.3, learning_rate=0.7)
    adversary("static-poison", shadows=3).query(given)
    base, held_out = digits
    assert seen["network"] is given.network
    assert seen["neighbours"].base is held_out
    assert len(seen["trials"]) == 3
    mine = seen["config"]
    assert (mine.steps, mine.clip, mine.learning_rate, mine.noise_multiplier) == (7, 0.3, 0.7, 0.8)
    assert mine.expected_batch(held_out.rows) == pytest.approx(given.training.expected_batch(base.rows))
    shadow._query.cache_clear()


def test_crafter_3_moves_the_loss_more_than_the_query_itself_does(digits):
    """After one step on the crafted example alone the query's loss is lower (higher) than after one on the query."""
    given = scene(digits)
    generator = torch.Generator().manual_seed(1)
    models = 0.3 * torch.randn(5, parameter_count(given.network), generator=generator)
    body = Differentiable(given.network, device=torch.device("cpu"), dtype=torch.float32)
    x, y = torch.tensor(digits[1].x[3].tolist()), int(digits[1].y[3])

    class State:
        trials, step, parameters, private_gradient = np.arange(5), 1, models, None

    for sign, direction in (("lower", -1.0), ("raise", 1.0)):
        canary = AdaptiveExamples(
            given.network, query=(x.numpy(), y), data=given.base, clip=1.0, rate=0.5, sign=sign, steps=8,
            step_rate=0.05,
        )  # fmt: skip
        points, labels = canary.examples(State())
        assert points.shape == (5, 1, 64)
        query = (x.expand(5, -1), torch.full((5,), y))
        labels = labels[:, 0]
        crafted = body.after_step(models, points[:, 0], labels, query=query, clip=1.0, rate=0.5)
        start = body.after_step(models, query[0], labels, query=query, clip=1.0, rate=0.5)
        assert (direction * (crafted - start) > 0.0).all()


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 18, 18)])
def test_convolutions_by_patches_have_the_same_outputs_and_slopes(shape):
    """How a GPU computes them, here on a CPU, where torch's own convolutions stand beside it."""
    network, cpu = NasrCnn(shape, classes=3), torch.device("cpu")
    bodies = [Differentiable(network, device=cpu, dtype=torch.float64, patches=patches) for patches in (False, True)]
    rng = torch.manual_seed(0)
    models = 0.1 * torch.randn(4, parameter_count(network), generator=rng, dtype=torch.float64)
    x, query = torch.rand((2, 4, *shape), generator=rng, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 0])
    outputs = [body.logits(models, x) for body in bodies]
    slopes = [body.slope(models, x, labels, query=(query, labels), clip=0.5, rate=0.3) for body in bodies]
    assert (slopes[0].abs().amax((1, 2, 3)) > 1e-4).all()
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-10, atol=1e-12)


def test_the_slope_of_crafter_3_is_that_of_finite_differences():
    body = Differentiable(Mlp(4, hidden=(3,), classes=3, activation="tanh"), device=torch.device("cpu"),
                          dtype=torch.float64)  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(2, 27, generator=generator, dtype=torch.float64)
    x, q = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    labels, asked = torch.tensor([0, 2]), torch.tensor([1, 1])

    def after(points):
        return body.after_step(models, points, labels, query=(q, asked), clip=0.1, rate=0.5)

    slope = body.slope(models, x, labels, query=(q, asked), clip=0.1, rate=0.5)
    for i in range(4):
        step = torch.zeros(2, 4, dtype=torch.float64)
        step[:, i] = 1e-6
        expected = (after(x + step) - after(x - step)) / 2e-6
        torch.testing.assert_close(slope[:, i], expected.detach(), rtol=1e-5, atol=1e-9)


def test_crafter_4_marks_the_parameters_that_moved_least():
    canary = Watermark(clip=2.0, pairs=2, measure=2)
    gradients = [torch.tensor([[5.0, 0.1, 3.0, 0.2, 9.0, 0.3]]), torch.tensor([[-5.0, 0.1, -3.0, 0.0, 0.0, 0.4]])]

    class State:
        trials, parameters = np.array([0]), torch.zeros(1, 6)

        def __init__(self, step, gradient):
            self.step, self.private_gradient = step, gradient

    canary.start(np.array([0]))
    assert not canary.gradients(State(1, None)).any()
    assert not canary.gradients(State(2, gradients[0])).any()
    marked = canary.gradients(State(3, gradients[1]))
    # |gradients| sum to 10, 0.2, 6, 0.2, 9, 0.7: the least are 1 and 3 (a tie, in order), then 5, then 2.
    assert marked.tolist() == [[0.0, 1.0, -1.0, -1.0, 0.0, 1.0]]
    assert torch.linalg.vector_norm(marked) == 2.0


# ---- bad input


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("static-poison", {"shadows": 0}, "shadows = 0"),
        ("static-poison", {"shadow_data": "test"}, "shadow_data = 'test'"),
        ("static-poison", {"shadow_steps": 0}, "shadow_steps = 0"),
        ("static-poison", {"ascent_steps": -1}, "ascent_steps = -1"),
        ("static-poison", {"ascent_rate": 0.0}, "ascent_rate = 0.0"),
        ("intermediate-poison", {"statistic": "median"}, "statistic = 'median'"),
        ("adaptive-poison", {"sign": "up"}, "sign = 'up'"),
        ("adaptive-poison", {"poison_steps": 1.5}, "poison_steps = 1.5"),
        ("adaptive-poison", {"poison_rate": -1.0}, "poison_rate = -1.0"),
        ("gradient", {"pairs": 0}, "pairs = 0"),
        ("gradient", {"measure": 0}, "measure = 0"),
        ("gradient", {"every": -1}, "every = -1"),
        ("malicious-dataset", {"pairs": True}, "pairs = True"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(InvalidInputError) as caught:
        adversary(name, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "malicious-dataset"])
def test_learning_rate_0_is_refused_where_learning_is_needed(name, digits):
    with pytest.raises(InvalidInputError, match=r"learning_rate = 0.0 is not allowed: expected a number above 0"):
        adversary(name).craft(scene(digits, learning_rate=0.0))
    adversary("malicious-dataset").craft(scene(digits, learning_rate=0.0))


def test_shadow_data_that_is_too_small_is_refused(digits):
    given = scene(digits, sample_rate=0.9)
    with pytest.raises(InvalidInputError, match=r"the shadow data has 200 rows, too few for .* batch of 270"):
        adversary("static-poison").craft(given)
    adversary("static-poison", shadow_data="base", shadows=1).craft(given)


@pytest.mark.parametrize("name", ["gradient", "malicious-dataset"])
def test_a_network_with_fewer_than_2n_parameters_is_refused(name, digits):
    with pytest.raises(InvalidInputError, match=r"pairs = 306 is not allowed: .* the network has 610 parameters"):
        adversary(name, pairs=306).craft(scene(digits))
    adversary(name, pairs=305).craft(scene(digits))


def test_a_measurement_that_takes_the_whole_training_is_refused(digits):
    with pytest.raises(InvalidInputError, match="measure = 12 is not allowed: expected fewer steps"):
        adversary("gradient", measure=12).craft(scene(digits))
    adversary("gradient", measure=11).craft(scene(digits))


def test_tokens_cannot_be_moved():
    network = Sequential((6,), 2, (Embedding(9, 2), Flatten(), Linear(12, 2)))
    rows = Dataset(np.arange(60).reshape(10, 6) % 9, np.arange(10) % 2)
    with pytest.raises(UnsupportedError, match="tokens cannot be moved"):
        adversary("static-poison").craft(Scene(base=rows, classes=2, network=network, training=config()))


def test_api_draws_a_held_out_row_or_takes_one_out(digits):
    base, held_out = digits
    attack = adversary("api").craft(scene(digits))
    assert attack.neighbours.base is base
    assert isinstance(attack.neighbours.canary, ExampleCanary)
    assert any((attack.neighbours.canary.x[0] == row).all() for row in held_out.x)
    without = dataclasses.replace(scene(digits), held_out=None)
    assert adversary("api").craft(without).neighbours.base.rows == base.rows - 1
