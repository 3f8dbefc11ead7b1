"""One suite for every engine of the trainer: each computes what the plain reference computes, and keeps the promises.

Engines that are not at hand are skipped. With Triton and no GPU, ``TRITON_INTERPRET=1`` runs the fused kernels.
"""

import numpy as np
import pytest
import reference
import torch
from engines import CLOSED, CUDA, ENGINES, SAMPLINGS, Fused, as_module, data_for, worlds_with
from recorders import Everything, Final
from scipy import stats

from coalmine.roles import Iterate, Models, Observer, Queries, View
from coalmine.training import (
    AdaptiveGradient,
    Dataset,
    ExampleCanary,
    GivenWeights,
    GradientCanary,
    Neighbours,
    parameter_count,
)

TRIALS, WORLDS = [4, 7, 9], [0, 1, 1]
RARE = 1e-7  # seeds are fixed; a right engine fails one of these tests with this probability


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    ENGINES[request.param].need(monkeypatch)
    return ENGINES[request.param]


@pytest.fixture
def whole(engine):
    """An engine that trains from the first step to the last by itself."""
    if isinstance(engine, Fused) and not CUDA:
        pytest.skip("needs a CUDA device")
    return engine


class Told(Everything):
    """Everything, the first model and answers to questions too."""

    def __init__(self, x, y, view=View.ALL_ITERATES):
        super().__init__()
        self.x, self.y, self.view = x, y, view

    def finish(self, models):
        super().finish(models)
        self.initial = models.initial_parameters.cpu().numpy()
        self.logits, self.losses = models.logits(self.x), models.losses(self.x, self.y)
        return self.losses


def updates():
    """Every sampling, canary and relation with one network; every other network with every sampling."""
    for name, engine in ENGINES.items():
        for sampling in engine.samplings:
            for relation in ("add_remove", "replace"):
                for canary in engine.canaries:
                    yield name, engine.main, sampling, canary, relation
            for network in engine.networks:
                if network != engine.main:
                    yield name, network, sampling, "example", "replace"


@pytest.mark.parametrize(("name", "network", "sampling", "canary", "relation"), list(updates()))
def test_a_step_is_that_of_the_reference(name, network, sampling, canary, relation, monkeypatch):
    engine = ENGINES[name]
    engine.need(monkeypatch)
    network = engine.networks[network]
    neighbours = worlds_with(network, canary, relation)
    config = engine.config(sampling)
    trials, worlds = (TRIALS, WORLDS) if parameter_count(network) < 1000 else (TRIALS[1:2], WORLDS[1:2])
    drawn = 0
    for trial, steps in engine.trace(network, neighbours, config, trials, worlds).items():
        assert len(steps) == config.steps
        present = set(range(23))
        if trial != TRIALS[0]:  # in world 1
            present = set(range(25)) - ({3, 11} if relation == "replace" else set())
        for number, step in enumerate(steps, start=1):
            moving = hasattr(neighbours.canary, "chosen")
            chosen = neighbours.canary.chosen(step.before.astype(np.float64), trial, number) if moving else None
            expected = reference.private_gradient(network, step.before, neighbours, step.rows, config, chosen=chosen)
            np.testing.assert_allclose(step.gradient, expected, rtol=0, atol=engine.tolerance)
            np.testing.assert_allclose(step.after, step.before - 0.3 * expected, rtol=0, atol=engine.tolerance)
            rows = set(step.rows.tolist())
            assert len(rows) == step.rows.size
            assert rows == present if sampling == "full" else rows <= present
            drawn += int((step.rows >= 23).sum())
    assert drawn > 0


def test_clipping_is_at_the_norm_and_not_below_it(engine):
    """A long gradient adds exactly C, a short one itself; the divisor is the expected batch of the base data."""
    for network in engine.networks.values():
        base = data_for(network, rows=1)
        neighbours = Neighbours(base, canary=ExampleCanary(base.x[0], int(base.y[0])))
        for clip, all_clipped in ((1e-3, True), (1e3, False)):
            config = engine.config("full", steps=1, clip=clip, learning_rate=1.0)
            for trial, rows in ((0, [0]), (1, [0, 1])):
                (step,) = engine.trace(network, neighbours, config, [trial], [trial])[trial]
                single = reference.example_gradient(reference.load(network, step.before), base.x[0], base.y[0])
                assert (float(single.norm()) > clip) == all_clipped
                length = len(rows) * min(clip, float(single.norm()))
                assert np.linalg.norm(step.gradient) == pytest.approx(length, rel=1e3 * engine.tolerance, abs=1e-7)


def test_noise_is_normal_with_the_right_level_and_independent(whole):
    network = whole.networks[whole.main]
    size, trials, sigma, clip = parameter_count(network), list(range(200)), 1.7, 0.3
    shared = {"clip": clip, "learning_rate": 1.0}
    base = data_for(network, rows=40)

    def final(**changes):
        config = whole.config(**{**shared, **changes})
        seen, _ = whole.train(network, Neighbours(base), config, trials, [0] * len(trials))
        return np.asarray([seen.parameters[t] for t in trials], dtype=np.float64)

    # Same start and batches, so the difference is the noise alone: σ·C/B with B = 10 of 40 rows.
    noisy, clean = (final(steps=1, noise_multiplier=s, sample_rate=0.25) for s in (sigma, 0.0))
    first = (clean - noisy) / (sigma * clip / 10)
    # Steps without rows are noise alone, over a divisor of 1; that of three independent ones has variance 3.
    third, start = (final(steps=3, noise_multiplier=s, sample_rate=0.0) for s in (sigma, 0.0))
    sums = (start - third) / (sigma * clip * 3**0.5)
    for z in (first, sums):
        assert z.shape == (len(trials), size)
        assert stats.kstest(z.ravel(), "norm").pvalue > RARE
        for wrong in (2 / 3, 3 / 2):
            assert stats.kstest(z.ravel() * wrong, "norm").pvalue < 1e-12
    for a, b in ((first[1:], first[:-1]), (first[:, 1:], first[:, :-1]), (first[:, 7:], first[:, :-7])):
        assert abs((a * b).mean()) < 6 / a.size**0.5
        assert abs(((a**2 - 1) * (b**2 - 1)).mean()) < 6 * 2 / a.size**0.5 + 40 / a.size


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_trial_has_the_same_bits_in_any_stack_and_order(whole, sampling):
    """Its parameters, and the answers that its model gives."""
    if sampling not in whole.samplings:
        pytest.skip("this engine does not sample so")
    trials = np.arange(12)
    for network in whole.networks.values():
        base = data_for(network, rows=53)
        neighbours = worlds_with(network, "example", base=base)
        config = whole.config(sampling, noise_multiplier=1.1)

        def final(numbers, stack, network=network, base=base, neighbours=neighbours, config=config):
            asked = Told(base.x[:3], base.y[:3], View.FINAL_MODEL)
            seen, result = whole.train(network, neighbours, config, numbers, numbers % 2, observer=asked, stack=stack)
            rows = zip(numbers.tolist(), result.scores, strict=True)
            return {trial: (seen.parameters[trial].tobytes(), losses.tobytes()) for trial, losses in rows}

        together = final(trials, 12)
        assert len(set(together.values())) == 12
        for numbers, stack in ((trials[::-1], 5), (trials[5:7], 1)):
            for trial, found in final(numbers, stack).items():
                assert found == together[trial], f"trial {trial}"


@pytest.mark.parametrize(
    "canary", ["copies", "gradient", "gradient rows", "adaptive example", "memoryless example", "adaptive gradient"]
)
@pytest.mark.parametrize("relation", ["add_remove", "replace"])
def test_canaries_do_not_see_the_rest_of_the_stack(whole, canary, relation):
    if canary not in whole.canaries:
        pytest.skip("this engine takes no such canary")
    network = whole.networks[whole.main]
    neighbours, config = worlds_with(network, canary, relation), whole.config(noise_multiplier=0.7)
    trials = np.arange(16)
    together, _ = whole.train(network, neighbours, config, trials, trials % 2, stack=16)
    apart, _ = whole.train(network, neighbours, config, trials[3:7], trials[3:7] % 2, stack=1)
    for trial, vector in apart.parameters.items():
        assert vector.tobytes() == together.parameters[trial].tobytes()


class Watcher(Observer):
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
def test_each_view_is_shown_its_own_and_no_more(whole, view):
    network = whole.networks[whole.main]
    watcher = Watcher(view)
    _, result = whole.train(
        network, Neighbours(data_for(network)), whole.config(), TRIALS, WORLDS, observer=watcher, stack=2
    )
    steps = [("observe", s) for s in (1, 2, 3)] if view is View.ALL_ITERATES else []
    expected = []
    for part in ([4, 7], [9]) if whole.device == "cpu" else (TRIALS,):
        expected += [("start", part), *steps, ("finish", part)]
    assert watcher.calls == expected
    assert result.scores.tolist() == ([0.0, 1.0, 0.0] if whole.device == "cpu" else [0.0, 1.0, 2.0])
    assert isinstance(watcher.models, Queries)
    assert isinstance(watcher.models, Models) == (view is not View.BLACK_BOX)
    public = {name for name in dir(watcher.models) if not name.startswith("_")}
    black_box = {"trials", "logits", "losses"}
    assert public == (black_box if view is View.BLACK_BOX else black_box | {"parameters", "initial_parameters"})


def test_what_is_shown_is_what_was_trained(whole):
    """Iterates follow one another from the first model to the last, and answers are those of the torch module."""
    for network in whole.networks.values():
        base = data_for(network, rows=9)
        config = whole.config(noise_multiplier=1.0)
        told, result = whole.train(network, Neighbours(base), config, TRIALS, WORLDS, observer=Told(base.x, base.y))
        final, again = whole.train(
            network, Neighbours(base), config, TRIALS, WORLDS, observer=Told(base.x, base.y, View.FINAL_MODEL)
        )
        assert result.scores.shape == (3, 9)
        for i, trial in enumerate(TRIALS):
            assert told.before[trial][0].tobytes() == told.initial[i].tobytes() == final.initial[i].tobytes()
            for step in range(2):
                assert told.after[trial][step].tobytes() == told.before[trial][step + 1].tobytes()
            assert told.after[trial][-1].tobytes() == told.parameters[trial].tobytes()
            if result.precision == again.precision:  # an audience changes nothing but, for some, the kernels
                assert final.parameters[trial].tobytes() == told.parameters[trial].tobytes()
                assert again.scores[i].tobytes() == result.scores[i].tobytes()
            built = reference.load(network, final.parameters[trial])
            x = torch.from_numpy(base.x)
            logits = built(x.double() if x.is_floating_point() else x)
            losses = torch.nn.functional.cross_entropy(logits, torch.from_numpy(base.y), reduction="none")
            near = {"rtol": whole.tolerance, "atol": whole.tolerance}  # logits may be long
            np.testing.assert_allclose(final.logits[i], logits.detach().numpy(), **near)
            np.testing.assert_allclose(final.losses[i], losses.detach().numpy(), **near)


def test_rows_of_gradients_are_shown_apart_from_the_others(whole):
    """``shared`` is the sum of the other rows, without the canary's and without noise, also for a large model."""
    if "gradient rows" not in whole.canaries:
        pytest.skip("this engine takes no such canary")

    class Shared(Everything):
        def observe(self, iterate):
            super().observe(iterate)
            self.shared = getattr(self, "shared", [])
            self.shared.append(iterate.shared.cpu().numpy().copy())

    network = max(whole.networks.values(), key=parameter_count)
    neighbours = worlds_with(network, "gradient rows")
    config = whole.config("full", steps=2, noise_multiplier=5.0)
    seen, _ = whole.train(network, neighbours, config, [1], [1], observer=Shared())
    for step in range(2):
        expected = reference.private_gradient(network, seen.before[1][step], neighbours, range(23), config)
        np.testing.assert_allclose(seen.shared[step][0], expected, rtol=0, atol=whole.tolerance)
        assert np.abs(seen.gradients[1][step] - expected).max() > 0.01  # the noise


def test_a_model_that_diverges_is_named_and_disturbs_nobody(whole):
    if "adaptive gradient" not in whole.canaries:
        pytest.skip("this engine takes no such canary")
    network = whole.networks[whole.main]
    base = data_for(network)

    class Bomb(AdaptiveGradient):
        """A gradient that is fine for all trials but one, and NaN for that one."""

        def start(self, trials):
            self.bad = torch.from_numpy(trials == 3)

        def gradients(self, state):
            vectors = torch.zeros_like(state.parameters)
            vectors[self.bad.to(vectors.device)] = float("nan")
            return vectors

    class Score(Final):
        def finish(self, models):
            super().finish(models)
            return models.losses(base.x[:1], base.y[:1])[:, 0]

    def go(canary):
        config = whole.config(steps=6, noise_multiplier=0.7, sample_rate=0.9)
        return whole.train(
            network, Neighbours(base, canary=canary), config, np.arange(16), np.ones(16, dtype=int), observer=Score()
        )

    hurt, result = go(Bomb())
    assert list(result.failures) == [3]
    assert "not finite at step" in result.failures[3]
    assert np.flatnonzero(~result.succeeded).tolist() == [3]
    assert np.flatnonzero(np.isnan(result.scores)).tolist() == [3]
    calm, fine = go(GradientCanary(np.zeros(parameter_count(network))))
    assert not fine.failures
    for trial in set(range(16)) - {3}:
        assert hurt.parameters[trial].tobytes() == calm.parameters[trial].tobytes()


def test_batches_larger_than_the_width_go_through_in_passes(engine, monkeypatch):
    """More rows than are taken together, in every sampling; batches that are empty too."""
    from coalmine.training import batching

    monkeypatch.setattr(batching, "MAX_WIDTH", 32)
    network = engine.networks[engine.main]
    base = data_for(network, rows=150)
    neighbours = Neighbours(base, canary=ExampleCanary(base.x[0] + 1, 1), relation="replace", replaced=[40])
    changes = {"poisson": {"sample_rate": 0.6}, "shuffle": {"batch_size": 70}, "full": {}}
    for sampling in engine.samplings:
        config = engine.config(sampling, steps=1, **changes[sampling])
        (step,) = engine.trace(network, neighbours, config, [1], [1])[1]
        assert step.rows.size > 32
        expected = reference.private_gradient(network, step.before, neighbours, step.rows, config)
        np.testing.assert_allclose(step.gradient, expected, rtol=0, atol=engine.tolerance)
    config = engine.config(steps=30, sample_rate=0.005)
    steps = engine.trace(network, Neighbours(base), config, [0], [0])[0]
    # Each of 30 steps is empty with probability 0.995¹⁵⁰ = 0.47; all alike: below 1e-8.
    assert {step.rows.size > 0 for step in steps} == {True, False}
    for step in steps:
        assert np.any(step.gradient) == (step.rows.size > 0)


def test_two_forms_of_one_network_agree():
    """Closed forms and torch.func on the same module, from the same weights."""
    engine = ENGINES["closed64"]
    for name in ("relu", "bernau"):
        network, other = CLOSED[name], as_module(CLOSED[name])
        neighbours, start = Neighbours(data_for(network)), GivenWeights(other.weights())
        one, two = (
            engine.trace(net, neighbours, engine.config(initialization=start), [0], [0])[0] for net in (network, other)
        )
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a.gradient, b.gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("which", ["main", "nasr"])
def test_a_data_set_may_hold_whole_numbers_as_features(whole, which):
    name = whole.main if which == "main" else which
    if name not in whole.networks:
        pytest.skip("this engine trains no convolution network")
    network = whole.networks[name]
    x = (np.arange(23 * np.prod(network.input_shape)) % 3).reshape(23, *network.input_shape)

    def final(values):
        base = Dataset(values, np.arange(23) % 3)
        seen, _ = whole.train(network, Neighbours(base), whole.config(noise_multiplier=1.0), [0, 1], [0, 1])
        return seen.parameters

    numbers, real = final(x), final(x.astype(np.float64))
    assert all(numbers[t].tobytes() == real[t].tobytes() for t in (0, 1))
