"""Crafted rows and gradients: their strength, the whitened ratio and the choice, each against a dense formula."""

import dataclasses

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from coalmine import data
from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.catalogue import identity_of
from coalmine.adversaries.crafted import BestRow, copies_for
from coalmine.adversaries.crafters import rows
from coalmine.adversaries.crafters.background import OwnBackground
from coalmine.adversaries.distinguishers.whitened import WhitenedRatio
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.roles import Observer, View
from coalmine.training import (
    Dataset,
    Embedding,
    ExampleCanary,
    Flatten,
    FromModule,
    GivenWeights,
    Glorot,
    GradientCanary,
    Linear,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Neighbours,
    Sequential,
    TrainingConfig,
    parameter_count,
    train,
)

CRAFTED = ("crafted-row", "crafted-row-steps", "adaptive-row", "crafted-gradient")
CLIP, SIGMA, RATE = 0.8, 0.6, 0.3
FEATURES, CLASSES = 5, 3
NETWORK = LogisticRegression(FEATURES, classes=CLASSES)
PARAMETERS = (FEATURES + 1) * CLASSES


def config(**changes):
    settings = {"steps": 8, "clip": CLIP, "noise_multiplier": SIGMA, "learning_rate": 0.5, "sample_rate": RATE}
    return TrainingConfig(**{**settings, "initialization": Glorot(scale=0.0), "dtype": "float64", **changes})


def small(count=24, seed=0, **changes):
    rng = np.random.default_rng(seed)
    base = Dataset(rng.normal(size=(count, FEATURES)), rng.integers(0, CLASSES, size=count))
    return Scene(base=base, classes=CLASSES, network=NETWORK, training=config(**changes))


def clipped(model, x, y):
    """clip_C(∇ℓ) of softmax regression by hand: (p − e_y) xᵀ, then the biases' p − e_y."""
    model, x = np.asarray(model, dtype=np.float64), np.asarray(x, dtype=np.float64)
    weights, biases = model[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), model[FEATURES * CLASSES :]
    logits = weights @ x + biases
    error = np.exp(logits - logits.max())
    error = error / error.sum() - np.eye(CLASSES)[y]
    gradient = np.concatenate([np.outer(error, x).ravel(), error])
    return gradient / max(1.0, np.linalg.norm(gradient) / CLIP)


def all_clipped(model, base):
    return np.stack([clipped(model, x, y) for x, y in zip(base.x, base.y, strict=True)])


def covariance(model, base, *, rate=RATE):
    """σ²C²·I + q(1 − q)·Σ g gᵀ, as a matrix."""
    others = all_clipped(model, base)
    return (SIGMA * CLIP) ** 2 * np.eye(PARAMETERS) + rate * (1 - rate) * others.T @ others


def judge_of(given):
    return rows._Judge(given.base, given.network, given.training, np.random.default_rng(0))


def random_models(count=3, scale=0.7):
    generator = torch.Generator().manual_seed(4)
    return scale * torch.randn(count, PARAMETERS, generator=generator, dtype=torch.float64)


# ---- the formulas


def test_the_strength_by_woodbury_is_that_of_the_dense_formula():
    given, models = small(), random_models()
    x, y = np.array([3.0, -1.0, 0.5, 0.0, 2.0]), 1
    dense = []
    for model in models:
        g = clipped(model, x, y)
        dense.append(g @ np.linalg.solve(covariance(model, given.base), g))
    assert judge_of(given).strength(models, x, y) == pytest.approx(np.mean(dense), rel=1e-10)


def test_a_background_with_all_directions_whitens_like_the_inverse():
    rng = np.random.default_rng(1)
    directions = np.linalg.qr(rng.normal(size=(PARAMETERS, PARAMETERS)))[0].T
    variances = rng.uniform(0.0, 5.0, size=PARAMETERS)
    for kept in (PARAMETERS, 4, 0):
        background = rows.Background(directions[:kept], variances[:kept], 0.3)
        dense = 0.3 * np.eye(PARAMETERS) + directions[:kept].T @ np.diag(variances[:kept]) @ directions[:kept]
        gradients = rng.normal(size=(6, PARAMETERS))
        white = background.whiten(torch.from_numpy(gradients))
        np.testing.assert_allclose(white, np.linalg.solve(dense, gradients.T).T, rtol=1e-10, atol=1e-12)
        strengths = background.strengths(torch.from_numpy(gradients))
        np.testing.assert_allclose(strengths, (white.numpy() * gradients).sum(1), rtol=1e-10)


def test_the_background_is_the_covariance_where_it_has_room_for_all_its_directions():
    """Six rows have six directions at most, fewer than are kept; those that hide next to nothing are left out."""
    given, model = small(6, noise_multiplier=0.05), random_models(1)
    found, untouched = judge_of(given).background(model)
    others = all_clipped(model[0], given.base)
    spread = RATE * (1 - RATE) * others.T @ others
    kept = found.directions.T @ np.diag(found.variances) @ found.directions
    assert found.noise == pytest.approx((0.05 * CLIP) ** 2)
    np.testing.assert_allclose(kept, spread, atol=0.06 * found.noise)
    assert np.linalg.norm(untouched) == pytest.approx(1.0)
    np.testing.assert_allclose(others @ untouched, 0.0, atol=1e-9)


class Steps(Observer):
    """Keeps the models before each step and the private gradients."""

    view = View.ALL_ITERATES

    def __init__(self, inner):
        self.inner, self.seen = inner, []

    def start(self, trials):
        self.inner.start(trials)

    def observe(self, iterate):
        self.seen.append((iterate.previous.numpy().copy(), iterate.private_gradient.numpy().copy()))
        self.inner.observe(iterate)

    def finish(self, models):
        return self.inner.finish(models)


def watched(given, canary, ratio):
    steps = Steps(ratio)
    result = train(
        given.network, neighbours=Neighbours(given.base, canary=canary), config=given.training, fingerprint="ratio",
        trials=range(6), worlds=[0, 1] * 3, observer=steps, stack=6,
    )  # fmt: skip
    return steps.seen, result.scores


def ratio_of(given, canary, background, *, refresh=1):
    return WhitenedRatio(
        canary, base=given.base, network=given.network, training=given.training, background=background, every=1,
        refresh=refresh,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["row", "gradient"])
def test_on_full_batches_the_ratio_is_the_exact_one(kind):
    """The others' part is then known, and what is left is noise: N(g, σ²C²) against N(0, σ²C²)."""
    given = small(sampling="full", sample_rate=None)
    background, _ = judge_of(given).background(random_models())
    assert len(background.directions) == 0  # nothing of the others is unknown
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
    fixed = CLIP * np.eye(PARAMETERS)[3]
    if kind == "row":
        canary = ExampleCanary(x, y)
        known = rows.Candidates(
            [rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background
        )
    else:
        canary, known = GradientCanary(fixed), fixed
    seen, scores = watched(given, canary, ratio_of(given, known, background))
    expected = np.zeros(6)
    for models, private in seen:
        for i, model in enumerate(models):
            g = clipped(model, x, y) if kind == "row" else fixed
            rest = private[i] * given.base.rows - all_clipped(model, given.base).sum(axis=0)
            law = stats.norm(scale=SIGMA * CLIP)
            expected[i] += law.logpdf(rest - g).sum() - law.logpdf(rest).sum()
    np.testing.assert_allclose(scores, expected, rtol=1e-8)


def test_on_poisson_batches_the_ratio_is_that_of_the_normal_mixture():
    """Densities of a multivariate normal with the background's covariance, with the chance q of a drawn canary."""
    given = small(steps=3)
    background, _ = judge_of(given).background(random_models())
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
    known = rows.Candidates([rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background)
    seen, scores = watched(given, ExampleCanary(x, y), ratio_of(given, known, background))
    spread = background.directions.T @ np.diag(background.variances) @ background.directions
    law = stats.multivariate_normal(np.zeros(PARAMETERS), background.noise * np.eye(PARAMETERS) + spread)
    expected = np.zeros(6)
    for models, private in seen:
        for i, model in enumerate(models):
            batch = RATE * given.base.rows
            rest = private[i] * batch - RATE * all_clipped(model, given.base).sum(axis=0)
            without, drawn = law.logpdf(rest), law.logpdf(rest - clipped(model, x, y))
            expected[i] += np.logaddexp(np.log1p(-RATE) + without, np.log(RATE) + drawn) - without
    np.testing.assert_allclose(scores, expected, rtol=1e-8)


@pytest.mark.parametrize("kind", ["row", "chosen row", "gradient"])
@pytest.mark.parametrize("copies", [2, 5])
def test_of_several_copies_each_number_that_may_be_drawn_has_its_chance(kind, copies):
    """The densities with j·g taken off, weighed by Binomial(k, q), at the models of every step."""
    given = small(steps=3)
    background, _ = judge_of(given).background(random_models())
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
    fixed = CLIP * np.eye(PARAMETERS)[3]
    known = rows.Candidates([rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background)
    canary = {
        "row": ExampleCanary(x, y, copies=copies), "chosen row": BestRow(known, copies=copies, rechoose=1),
        "gradient": GradientCanary(fixed, copies=copies),
    }[kind]  # fmt: skip
    ratio = WhitenedRatio(
        fixed if kind == "gradient" else known, base=given.base, network=NETWORK, training=given.training,
        background=background, copies=copies, every=1,
    )  # fmt: skip
    seen, scores = watched(given, canary, ratio)
    spread = background.directions.T @ np.diag(background.variances) @ background.directions
    law = stats.multivariate_normal(np.zeros(PARAMETERS), background.noise * np.eye(PARAMETERS) + spread)
    chances = stats.binom(copies, RATE).pmf(np.arange(copies + 1))
    expected = np.zeros(6)
    for models, private in seen:
        for i, model in enumerate(models):
            g = fixed if kind == "gradient" else clipped(model, x, y)
            rest = private[i] * RATE * given.base.rows - RATE * all_clipped(model, given.base).sum(axis=0)
            densities = [law.logpdf(rest - j * g) for j in range(copies + 1)]
            expected[i] += np.log(np.sum(chances * np.exp(np.array(densities) - densities[0])))
    np.testing.assert_allclose(scores, expected, rtol=1e-8)


def test_between_two_choices_the_row_stays_and_its_gradient_is_followed():
    """The same mixture with the row that was the strongest in steps 1 and 3, at the models of every step."""
    given = small(steps=4)
    background, _ = judge_of(given).background(random_models())
    points = [(np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2), (np.array([0.0, 1.5, 0.0, -2.0, 1.0]), 0)]
    known = rows.Candidates(
        [rows.Row(x, y, 0.0, "") for x, y in points], network=NETWORK, training=given.training, background=background
    )
    ratio = WhitenedRatio(
        known, base=given.base, network=NETWORK, training=given.training, background=background, every=1, rechoose=2
    )
    seen, scores = watched(given, BestRow(known, copies=1, rechoose=2), ratio)
    spread = background.directions.T @ np.diag(background.variances) @ background.directions
    covered = background.noise * np.eye(PARAMETERS) + spread
    law, inverse = stats.multivariate_normal(np.zeros(PARAMETERS), covered), np.linalg.inv(covered)
    expected, chosen = np.zeros(6), [0] * 6
    for step, (models, private) in enumerate(seen):
        for i, model in enumerate(models):
            gradients = [clipped(model, x, y) for x, y in points]
            if step % 2 == 0:
                chosen[i] = int(np.argmax([g @ inverse @ g for g in gradients]))
            rest = private[i] * RATE * given.base.rows - RATE * all_clipped(model, given.base).sum(axis=0)
            without, drawn = law.logpdf(rest), law.logpdf(rest - gradients[chosen[i]])
            expected[i] += np.logaddexp(np.log1p(-RATE) + without, np.log(RATE) + drawn) - without
    np.testing.assert_allclose(scores, expected, rtol=1e-8)


def own(given, *, every=1):
    return OwnBackground(
        given.base, network=NETWORK, training=given.training, noise=(SIGMA * CLIP) ** 2, every=every,
        stream=np.random.default_rng(0),
    )  # fmt: skip


@pytest.mark.parametrize(("rows_there", "near"), [(15, 1e-8), (24, 0.05)])
def test_a_models_own_background_whitens_like_the_inverse_of_its_own_covariance(rows_there, near):
    """Each row is a part of its own here; up to 16 directions nothing is left out, of 18 the two least are."""
    given, models = small(rows_there), random_models(3)
    background = own(given)
    background.renew(1, models)
    gradients = torch.randn(3, PARAMETERS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    white, strengths = background.whiten(gradients).numpy(), background.strengths(gradients).numpy()
    for model, g, found, strength in zip(models, gradients.numpy(), white, strengths, strict=True):
        dense = np.linalg.solve(covariance(model, given.base), g)
        assert np.linalg.norm(found - dense) <= near * np.linalg.norm(dense)
        assert strength == pytest.approx(g @ dense, rel=2 * near)
    np.testing.assert_allclose(background.total, [all_clipped(m, given.base).sum(0) for m in models], rtol=1e-9)


def test_parts_of_many_rows_stand_for_all_of_them():
    """In the mean over 60 ways to cut 256 rows into 64 parts, each of which is off by some 20 %."""
    given, models = small(256), random_models(1)
    dense = covariance(models[0], given.base)
    seen = np.zeros((PARAMETERS, PARAMETERS))
    for seed in range(60):
        background = OwnBackground(
            given.base, network=NETWORK, training=given.training, noise=(SIGMA * CLIP) ** 2, every=1,
            stream=np.random.default_rng(seed),
        )  # fmt: skip
        background.renew(1, models)
        shares, directions = background._known.shares[0].numpy(), background._known.directions[0].numpy()
        seen += directions.T @ np.diag(background.noise * shares / (1 - shares)) @ directions / 60
    spread = dense - (SIGMA * CLIP) ** 2 * np.eye(PARAMETERS)
    assert np.linalg.norm(seen - spread, 2) < 0.1 * np.linalg.norm(spread, 2)


def test_a_models_own_background_is_looked_at_often_at_first():
    given = small()
    assert [step for step in range(1, 42) if own(given, every=20).renews(step)] == [1, 2, 4, 8, 16, 21, 41]
    assert [step for step in range(1, 5) if own(given).renews(step)] == [1, 2, 3, 4]


def test_whoever_asks_for_a_models_own_background_first_it_is_looked_at_once(monkeypatch):
    calls, look = [], OwnBackground._look
    monkeypatch.setattr(OwnBackground, "_look", lambda self, models: calls.append(1) or look(self, models))
    given = small(steps=3)
    background = own(given)
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
    known = rows.Candidates([rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background)
    seen, _ = watched(given, BestRow(known, copies=1, rechoose=1), ratio_of(given, known, background))
    assert len(calls) == len(seen) == 3


@pytest.mark.parametrize("failing", [0, 3, 4])
def test_a_look_that_runs_out_of_memory_leaves_nothing_of_another_stack(monkeypatch, failing):
    """The stack is then played again, halved or not: its first look, or that of the next stack, must be its own."""
    given = small(steps=3)
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2

    def scores(fails):
        looks, look = [], OwnBackground._look

        def looked(self, seen):
            looks.append(len(seen.models))
            if len(looks) - 1 == fails:
                raise MemoryError
            look(self, seen)

        monkeypatch.setattr(OwnBackground, "_look", looked)
        background = own(given)
        known = rows.Candidates(
            [rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background
        )
        found = train(
            NETWORK, neighbours=Neighbours(given.base, canary=BestRow(known, copies=1, rechoose=1)),
            config=given.training, fingerprint="ratio", trials=range(6), worlds=[0, 1] * 3,
            observer=ratio_of(given, known, background), stack=4,
        )  # fmt: skip
        monkeypatch.setattr(OwnBackground, "_look", look)
        assert background._seen is None  # what is as large as many stacks is dropped
        return found.scores, looks

    clean, looks = scores(None)
    assert looks == [4, 4, 4, 2, 2, 2]
    again, retried = scores(failing)
    assert len(retried) > len(looks)
    np.testing.assert_array_equal(again, clean)


def test_the_best_row_is_asked_anew_after_another_look():
    """Models that did not move may have a background that was looked at for others before, or was forgotten."""
    given, models = small(), random_models(3)
    points = [(np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2), (np.array([0.0, 1.5, 0.0, -2.0, 1.0]), 0)]
    background = own(given)
    known = rows.Candidates(
        [rows.Row(x, y, 0.0, "") for x, y in points], network=NETWORK, training=given.training, background=background
    )
    background.renew(1, models)
    first, calls = known.gradients(models), background.looks
    assert known.gradients(models) is first
    background.renew(1, models)
    assert (background.looks, known.gradients(models) is first) == (calls, True)
    background.renew(1, models + 1.0)
    background.renew(1, models)
    again = known.gradients(models)
    assert again is not first
    assert all(torch.equal(one, other) for one, other in zip(again, first, strict=True))
    background.forget()
    with pytest.raises(RuntimeError, match="before it has looked"):
        background.strengths(first[0])


def test_in_a_convolution_network_from_another_start_only_its_own_background_leaves_what_it_says():
    """How much all rows' gradients, each by autograd, and the noise move w over what the ratio takes it to be, wᵀg."""
    network, rng = NasrCnn((1, 16, 16), classes=3), np.random.default_rng(0)
    base = Dataset(rng.uniform(size=(400, 1, 16, 16)).astype(np.float32), rng.integers(0, 3, size=400))
    training = config(steps=4, clip=1.0, noise_multiplier=0.9, dtype="float32", initialization=Glorot())
    judge = rows._Judge(base, network, training, np.random.default_rng(1))
    starts = torch.from_numpy(0.1 * rng.normal(size=(3, parameter_count(network)))).float().split(1)
    shadows, _ = judge.background(starts[0].double())
    background = OwnBackground(
        base, network=network, training=training, noise=judge.noise, every=100, stream=np.random.default_rng(2)
    )
    models = torch.cat(starts[1:])
    background.renew(1, models)
    x = 3.0 * rng.uniform(size=(1, 16, 16))
    each = [judge._gradients(model.double(), x[None], np.array([2]))[0] for model in models]
    for place, (model, g) in enumerate(zip(models.double(), each, strict=True)):
        others = torch.cat([judge._gradients(model, base.x[i : i + 50], base.y[i : i + 50]) for i in range(0, 400, 50)])

        def over(w, g=g, others=others):
            moved = judge.noise * w.square().sum() + RATE * (1 - RATE) * (others @ w).square().sum()
            return float(moved / (w @ g))

        assert over(background.whiten(torch.stack(each))[place]) < 1.3
        assert over(shadows.whiten(g[None])[0]) > 2.0


@pytest.mark.parametrize("kind", ["row", "chosen row", "gradient"])
def test_with_their_own_background_the_ratio_is_that_of_the_normal_mixture(kind):
    """Fifteen rows have fifteen directions: the covariance is exact, at the models of every step."""
    given = small(15, steps=4, initialization=Glorot())
    background = own(given)
    x, y = np.array([2.0, 0.0, -1.0, 1.0, 0.0]), 2
    fixed = CLIP * np.eye(PARAMETERS)[3]
    known = rows.Candidates([rows.Row(x, y, 0.0, "")], network=NETWORK, training=given.training, background=background)
    canary = {
        "row": ExampleCanary(x, y), "chosen row": BestRow(known, copies=1, rechoose=2),
        "gradient": GradientCanary(fixed),
    }[kind]  # fmt: skip
    seen, scores = watched(given, canary, ratio_of(given, fixed if kind == "gradient" else known, background))
    expected = np.zeros(6)
    for models, private in seen:
        for i, model in enumerate(models):
            g = fixed if kind == "gradient" else clipped(model, x, y)
            law = stats.multivariate_normal(np.zeros(PARAMETERS), covariance(model, given.base))
            rest = private[i] * RATE * given.base.rows - RATE * all_clipped(model, given.base).sum(axis=0)
            without, drawn = law.logpdf(rest), law.logpdf(rest - g)
            expected[i] += np.logaddexp(np.log1p(-RATE) + without, np.log(RATE) + drawn) - without
    np.testing.assert_allclose(scores, expected, rtol=1e-7)


@pytest.mark.parametrize("name", CRAFTED[1:])
def test_a_trial_has_the_same_bits_in_any_stack_with_its_own_background(name):
    given = dataclasses.replace(small(70, initialization=Glorot()), network=NETWORK)
    attack = adversary(name, copies=2, background="own").craft(given)

    def scores(trials, stack):
        return train(
            given.network, neighbours=attack.neighbours, config=given.training, fingerprint="stacks", trials=trials,
            worlds=np.array(trials) % 2, observer=attack.distinguisher, stack=stack,
        ).scores  # fmt: skip

    together = scores(list(range(8)), 8)
    assert len(set(together.tolist())) == 8
    assert scores([5, 2, 7], 2).tobytes() == together[[5, 2, 7]].tobytes()
    assert "in that model" in attack.notes[-1]


def test_a_model_that_diverges_disturbs_no_other_with_its_own_background():
    given = small(15)
    background, models = own(given), random_models(3)
    background.renew(1, models[[0, 2]])
    alone = background.whiten(models[[0, 2]])
    background.renew(1, torch.stack([models[0], models[1] * np.nan, models[2]]))
    assert torch.equal(background.whiten(models)[[0, 2]], alone)


@pytest.mark.parametrize(
    ("network", "changes", "whose"),
    [
        (NasrCnn((1, 16, 16), classes=3), {"initialization": Glorot()}, "own"),
        (NasrCnn((1, 16, 16), classes=3), {"initialization": Glorot(scale=0.0)}, "shadows"),
        (
            NasrCnn((1, 16, 16), classes=3),
            {"initialization": Glorot(), "sampling": "full", "sample_rate": None},
            "shadows",
        ),
        (NETWORK, {"initialization": Glorot()}, "shadows"),
    ],
)
def test_whose_background_goes_by_network_and_start(network, changes, whose):
    given = dataclasses.replace(small(**changes), network=network)
    assert adversary("adaptive-row", copies=1).settled(given).background == whose
    assert adversary("adaptive-row", background="shadows").settled(given).background == "shadows"


def test_the_background_of_shadows_is_what_trials_of_before_had():
    """Chosen or written out, it leaves the name of the trials as it was; a background of the models' own does not."""
    given = small()
    before = {"copies": 2, "norms": [1.0, 2.5, 5.0], "labels": 2, "shadows": 2, "every": None, "refresh": 1}
    for options in ({}, {"background": "shadows"}):
        assert identity_of(adversary("crafted-gradient", copies=2, **options).settled(given))["options"] == before
    for mean, between in ((None, {"mean": "interpolated"}), ("held", {})):
        other = adversary("crafted-gradient", copies=2, background="own", mean=mean).settled(given)
        assert identity_of(other)["options"] == {**before, "background": "own", **between}


# ---- the choice


def test_the_row_is_the_strongest_candidate_and_has_the_strength_that_is_said(monkeypatch):
    given, models = small(seed=1), []
    shadow_models = rows._shadow_models

    def keep(*arguments):
        models.append((arguments[4], arguments[5], shadow_models(*arguments)))
        return models[-1][2]

    monkeypatch.setattr(rows, "_shadow_models", keep)
    attack = adversary("crafted-row-steps", norms=(0.5, 4.0)).craft(given)
    assert len(models) == 3 * 2  # two norms and the blank row, two labels each
    dense = []
    for x, y, seen in models:
        gradients = [clipped(model, x, y) for model in seen]
        each = [g @ np.linalg.solve(covariance(model, given.base), g) for g, model in zip(gradients, seen, strict=True)]
        dense.append(np.mean(each))
    found = adversary("crafted-row-steps", norms=(0.5, 4.0)).found(given)
    np.testing.assert_allclose([row.strength for row in found.rows], np.sort(dense)[::-1], rtol=1e-8)
    x, y, _ = models[int(np.argmax(dense))]
    np.testing.assert_array_equal(attack.neighbours.canary.x[0], x)
    assert attack.neighbours.canary.y.tolist() == [y]  # so much leaks here that one copy is enough
    assert f"d² = {max(dense):.3g}" in attack.notes[0]


def test_the_row_for_the_final_model_keeps_its_direction_and_has_the_strength_that_is_said():
    given = small(seed=1)
    found = adversary("crafted-row").found(given)
    directions = found.background.directions
    inverse = np.linalg.inv(
        found.background.noise * np.eye(PARAMETERS) + directions.T @ np.diag(found.background.variances) @ directions
    )

    def dense(x, y):
        """The mean over shadow trainings of ḡᵀ Σ⁻¹ ḡ, with ḡ the mean over the models of one."""
        means = [
            np.mean([clipped(model, x, y) for model in one], axis=0) for one in found.models.transpose(0, 1).numpy()
        ]
        return np.mean([g @ inverse @ g for g in means])

    assert found.models.shape == (5, 16, PARAMETERS)
    most = 0.0
    for tried in (0, 10, 100):
        row = adversary("crafted-row", tried=tried).steady(given)
        assert row.strength == pytest.approx(dense(row.x, row.y), rel=1e-8)
        assert row.strength >= most
        most = row.strength
        if tried == 0:
            assert row.strength == pytest.approx(max(dense(one.x, one.y) for one in found.rows), rel=1e-8)
    attack = adversary("crafted-row", tried=100).craft(given)
    np.testing.assert_array_equal(attack.neighbours.canary.x[0], row.x)
    assert f"d² = {row.strength:.3g}" in attack.notes[0]
    assert most > 1.02 * adversary("crafted-row", tried=0).steady(given).strength


def test_the_choice_is_made_on_trainings_of_its_own(monkeypatch):
    """Their streams are keyed by words that no run's fingerprint has; a scene knows neither trials nor fingerprints."""
    asked = []

    def spy(network, **more):
        asked.append(more["fingerprint"])
        return train(network, **more)

    monkeypatch.setattr(rows, "train", spy)
    adversary("crafted-row", labels=1).craft(small(seed=2))
    assert len(set(asked)) == len(asked) == 4
    assert all(name.startswith("shadow models of a crafted row") for name in asked)
    assert not {"trials", "fingerprint", "worlds"} & {field.name for field in dataclasses.fields(Scene)}


def test_shadow_trainings_may_be_shorter_and_are_never_longer(monkeypatch):
    taken = []

    def spy(network, **more):
        taken.append(more["config"].steps)
        return train(network, **more)

    monkeypatch.setattr(rows, "train", spy)
    given = small(seed=3)
    steps = given.training.steps
    whole = adversary("crafted-row-steps", labels=1).craft(given)
    assert set(taken) == {steps}
    longer = adversary("crafted-row-steps", labels=1, shadow_steps=10 * steps).craft(given)
    assert set(taken) == {steps}
    assert longer.notes == whole.notes
    taken.clear()
    shorter = adversary("crafted-row-steps", labels=1, shadow_steps=2).craft(given)
    assert taken == [2] * 4
    assert shorter.notes != whole.notes
    assert given.training.steps == steps


def test_another_seed_gives_other_shadow_models():
    first, second = (adversary("crafted-gradient").craft(dataclasses.replace(small(), seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.neighbours.canary.gradient, second.neighbours.canary.gradient)


@dataclasses.dataclass
class State:
    trials: np.ndarray
    step: int
    parameters: torch.Tensor
    private_gradient: torch.Tensor | None = None


def test_the_adaptive_row_is_the_strongest_for_each_model():
    given = small(seed=3)
    attack = adversary("adaptive-row", candidates=8, rechoose=2).craft(given)
    canary = attack.neighbours.canary
    assert isinstance(canary, BestRow)
    found = adversary("adaptive-row", candidates=8).found(given)
    np.testing.assert_array_equal(canary.x, np.stack([row.x for row in found.rows]))
    background = found.background
    spread = background.directions.T @ np.diag(background.variances) @ background.directions
    inverse = np.linalg.inv(background.noise * np.eye(PARAMETERS) + spread)
    models = random_models(12, scale=2.0)
    strengths = np.array(
        [
            [(g := clipped(model, x, y)) @ inverse @ g for x, y in zip(canary.x, canary.y, strict=True)]
            for model in models
        ]
    )
    canary.start(np.arange(12))
    places = canary.choose(State(np.arange(12), 1, models))
    np.testing.assert_array_equal(places, strengths.argmax(axis=1))
    assert np.unique(places).size > 1
    # In the second step the choice stands, in the third it is made anew.
    turned = models.flip(0)
    np.testing.assert_array_equal(canary.choose(State(np.arange(12), 2, turned)), places)
    np.testing.assert_array_equal(canary.choose(State(np.arange(12), 3, turned)), places[::-1])


def test_the_crafted_gradient_has_length_c_and_meets_little_of_the_others():
    given = small(8)
    attack = adversary("crafted-gradient").craft(given)
    gradient = attack.neighbours.canary.gradient
    assert np.linalg.norm(gradient) == pytest.approx(CLIP)
    found = adversary("crafted-gradient").found(given)
    along = np.abs(found.background.directions @ gradient) / CLIP
    assert along.max() < 1e-6


# ---- which trainings can be attacked (the ladder's tests try optimizers, types, full batches and no noise)


def plays(given, name, **options):
    attack = adversary(name, shadows=1, labels=1, **options).craft(given)
    result = train(
        given.network, neighbours=attack.neighbours, config=given.training, fingerprint="kinds", trials=range(4),
        worlds=[0, 1] * 2, observer=attack.distinguisher,
    )  # fmt: skip
    assert result.succeeded.all()
    assert np.unique(result.scores).size == 4


@pytest.mark.parametrize("name", CRAFTED)
def test_shuffled_batches_can_be_attacked(name):
    plays(small(sampling="shuffle", sample_rate=None, batch_size=6), name)


@pytest.mark.parametrize("name", CRAFTED)
def test_a_start_from_given_weights_and_a_batch_size_can_be_attacked(name):
    start = GivenWeights(np.random.default_rng(0).normal(size=PARAMETERS))
    plays(small(sample_rate=None, batch_size=6, initialization=start, dtype="float32"), name)


@pytest.mark.parametrize("name", CRAFTED)
@pytest.mark.parametrize("kind", ["cnn", "module"])
def test_other_networks_can_be_attacked(name, kind):
    rng = np.random.default_rng(0)
    if kind == "cnn":
        shape, network = (1, 28, 28), NasrCnn((1, 28, 28), classes=10)
    else:
        body = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 10))
        shape, network = (6,), FromModule(body, input_shape=(6,), classes=10)
    base = Dataset(rng.uniform(size=(20, *shape)).astype(np.float32), rng.integers(0, 10, size=20))
    given = Scene(base=base, classes=10, network=network, training=config(steps=2, dtype="float32"))
    plays(given, name, norms=(1.0,))


def test_tokens_cannot_be_moved():
    network = Sequential((6,), 2, (Embedding(9, 2), Flatten(), Linear(12, 2)))
    base = Dataset(np.arange(60).reshape(10, 6) % 9, np.arange(10) % 2)
    for name in CRAFTED:
        with pytest.raises(UnsupportedError, match="tokens cannot be moved"):
            adversary(name).craft(Scene(base=base, classes=2, network=network, training=config()))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("crafted-row", {"norms": []}, "norms = [] is not allowed"),
        ("crafted-row", {"norms": 3.0}, "norms = 3.0 is not allowed"),
        ("crafted-row", {"norms": [1.0, 0.0]}, "norms = 0.0"),
        ("crafted-row", {"labels": 0}, "labels = 0"),
        ("crafted-row", {"shadows": 0}, "shadows = 0"),
        ("crafted-row", {"shadow_steps": 0}, "shadow_steps = 0"),
        *((name, {"copies": k}, f"copies = {k}") for name in CRAFTED for k in (0, 1001)),
        ("crafted-row-steps", {"every": 0}, "every = 0"),
        ("crafted-row-steps", {"refresh": 0}, "refresh = 0"),
        (
            "crafted-gradient",
            {"background": "mine"},
            "background = 'mine' is not allowed: expected one of shadows, own",
        ),
        ("adaptive-row", {"candidates": 0}, "candidates = 0"),
        ("adaptive-row", {"rechoose": 0}, "rechoose = 0"),
    ],
)
def test_bad_options_are_named(name, options, words):
    with pytest.raises(InvalidInputError) as caught:
        adversary(name, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", CRAFTED)
def test_copies_are_rows_of_the_worlds_and_change_nothing_else(name):
    one, three = (adversary(name, copies=copies, tried=4) if name == "crafted-row" else adversary(name, copies=copies)
                  for copies in (1, 3))  # fmt: skip
    given = small()
    single, attack = one.craft(given), three.craft(given)
    assert (single.neighbours.copies, attack.neighbours.copies) == (1, 3)
    assert attack.notes == single.notes


@pytest.mark.parametrize(
    ("changes", "copies"),
    [
        ({"sample_rate": 0.1, "noise_multiplier": 1.386, "steps": 100}, 2),  # μ = 0.83, the default audit
        ({"sample_rate": 0.1, "noise_multiplier": 2.0, "steps": 21}, 7),  # μ = 0.24
        ({"sample_rate": 0.01, "noise_multiplier": 4.0, "steps": 10}, 8),  # never more
        ({"sample_rate": None, "sampling": "full", "noise_multiplier": 1.0, "steps": 4}, 1),  # μ = 2
        ({"sample_rate": None, "sampling": "full", "noise_multiplier": 4.0, "steps": 9}, 2),  # μ = 0.75
        ({"noise_multiplier": 0.0}, 1),
        ({"noise_multiplier": 0.05}, 1),
    ],
)
def test_the_number_of_copies_goes_by_what_the_training_leaks(changes, copies):
    given = small(**changes)
    assert copies_for(given) == copies
    assert adversary("crafted-gradient").settled(given) == adversary(
        "crafted-gradient", copies=copies, background="shadows", mean="held"
    )
    assert adversary("crafted-gradient", copies=3).settled(given).copies == 3


# ---- what it is worth


def test_a_larger_score_speaks_for_world_1():
    """On digits with 128 trainings in each world.

    d′ is about 0.64 (final loss) and 0.87 (all steps), with a standard error of 0.125: below 0 with a chance of 2e-7.
    """
    loaded = data.load("digits")
    base = Dataset(loaded.x_train, loaded.y_train)
    training = TrainingConfig(steps=100, clip=1.0, noise_multiplier=1.386, learning_rate=1.0, sample_rate=0.1)
    network = Mlp(64, hidden=(32,), classes=10)
    given = Scene(base=base, classes=10, network=network, training=training)
    for name in ("crafted-row", "crafted-row-steps"):
        attack = adversary(name).craft(given)
        result = train(
            network, neighbours=attack.neighbours, config=training, fingerprint="worth", trials=range(256),
            worlds=np.arange(256) % 2, observer=attack.distinguisher,
        )  # fmt: skip
        assert result.scores[1::2].mean() > result.scores[::2].mean()
