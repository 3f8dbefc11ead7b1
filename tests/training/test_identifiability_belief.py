"""The belief of one who knows both data sets, held against a plain loop, against theory, and against its bounds."""

import math

import numpy as np
import pytest
import reference
import torch
from scipy import stats

from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.distinguishers.likelihood import DISTANCE, LOSS, SENSITIVITY, Belief, kept_steps
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Relation
from coalmine.roles import Observer, View
from coalmine.training import Dataset, ExampleCanary, Mlp, Neighbours, TrainingConfig, train
from coalmine.training.sampling import batches

RNG = np.random.default_rng(4)
BASE = Dataset(RNG.normal(size=(23, 5)), RNG.integers(0, 3, size=23))
HELD = Dataset(RNG.normal(size=(9, 5)), RNG.integers(0, 3, size=9))
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
]
NETWORK = Mlp(5, hidden=(4,), classes=3, activation="tanh")


def training(**changes):
    settings = {
        "steps": 6, "clip": 0.5, "noise_multiplier": 1.3, "learning_rate": 0.4, "sampling": "full", "dtype": "float64",
    }  # fmt: skip
    return TrainingConfig(**{**settings, **changes})


def scene(config, **changes):
    return Scene(**{"base": BASE, "classes": 3, "network": NETWORK, "training": config, "held_out": HELD, **changes})


class Watched(Belief):
    """The same, and keeps what it was shown."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = {}

    def observe(self, iterate):
        super().observe(iterate)
        for i, trial in enumerate(iterate.trials.tolist()):
            self.seen.setdefault(trial, []).append(
                (iterate.previous[i].cpu().clone(), iterate.private_gradient[i].cpu().double().clone())
            )


def plain_log_odds(attack, config, seen, *, world, trial, fingerprint):
    """A loop over steps and rows: likelihoods of the whole noisy sum under both worlds, one model, float64."""
    neighbours = attack.neighbours
    n, rate = neighbours.base.rows, config.rate(neighbours.base.rows)
    batch = config.expected_batch(n)
    draws = batches(neighbours, world=world, config=config, fingerprint=fingerprint, trial=trial)
    replaced = neighbours.replaced[0] if neighbours.replaced else None
    total, sensitivities = 0.0, []
    for previous, private in seen:
        drawn = next(draws)
        shared = [row for row in drawn if row < n and row != replaced]
        sums = {}
        for name, rows in {"none": [], "canary": [n], "replaced": [] if replaced is None else [replaced]}.items():
            sums[name] = reference.clipped_sum(NETWORK, previous, neighbours, [*shared, *rows], config.clip)
        local = float((sums["canary"] - sums["replaced"]).norm())
        sensitivities.append(local)
        s = config.noise_multiplier * (local if config.noise_scale == "local" else config.clip)
        noisy = private * batch
        logs = {name: -float(((noisy - mean) ** 2).sum()) / (2 * s * s) for name, mean in sums.items()}

        def mixture(name, logs=logs):
            parts = [logs[name] + math.log(rate)]
            if rate < 1.0:
                parts.append(logs["none"] + math.log1p(-rate))
            top = max(parts)
            return top + math.log(sum(math.exp(p - top) for p in parts))

        world0 = logs["none"] if replaced is None else mixture("replaced")
        total += mixture("canary") - world0
    return total, sensitivities


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("neighbours", ["unbounded", "bounded"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"noise_scale": "local"}, {"sampling": "poisson", "sample_rate": 0.4}],
    ids=["full", "local", "poisson"],
)
def test_the_block_implementation_equals_a_plain_loop(neighbours, changes, device):
    config = training(**changes)
    attack = adversary("identifiability", neighbours=neighbours).craft(scene(config))
    canary = attack.neighbours.canary
    watched = Watched(canary.x[0], int(canary.y[0]), training=config, rows=attack.neighbours.base.rows)
    trials, worlds = np.arange(5), np.array([0, 1, 1, 0, 1])
    result = train(
        NETWORK, neighbours=attack.neighbours, config=config, fingerprint="loop", trials=trials, worlds=worlds,
        observer=watched, stack=3, device=device,
    )  # fmt: skip
    assert result.scores.shape == (5, 1 + len(watched.columns))
    for trial, world in zip(trials.tolist(), worlds.tolist(), strict=True):
        expected, sensitivities = plain_log_odds(
            attack, config, watched.seen[trial], world=world, trial=trial, fingerprint="loop"
        )
        row = dict(zip(("score", *watched.columns), result.scores[trial], strict=True))
        assert row["score"] == pytest.approx(expected, abs=1e-9)
        kept = [row[f"{SENSITIVITY}_{step}"] for step in range(1, 7)]
        assert kept == pytest.approx(sensitivities, abs=1e-9)
        scale = sensitivities if config.noise_scale == "local" else np.full(6, config.clip)
        distance = math.sqrt(sum((a / (1.3 * b)) ** 2 for a, b in zip(sensitivities, scale, strict=True)))
        assert row[DISTANCE] == pytest.approx(distance, abs=1e-9)
        assert row[LOSS] < 0.0


@pytest.mark.parametrize("neighbours", ["unbounded", "bounded"])
@pytest.mark.parametrize(
    "changes",
    [{"noise_scale": "local"}, {"sampling": "poisson", "sample_rate": 0.3, "dtype": "float32"}, {"dtype": "float32"}],
    ids=["local", "poisson", "full"],
)
def test_scores_do_not_depend_on_the_stack(neighbours, changes):
    config = training(**changes)
    attack = adversary("identifiability", neighbours=neighbours).craft(scene(config))

    def scores(stack, trials):
        return train(
            NETWORK, neighbours=attack.neighbours, config=config, fingerprint="stack", trials=trials,
            worlds=np.asarray(trials) % 2, observer=attack.distinguisher, stack=stack,
        ).scores  # fmt: skip

    whole = scores(16, range(7))
    for stack in (1, 2, 3):
        np.testing.assert_array_equal(scores(stack, range(7)), whole)
    np.testing.assert_array_equal(scores(16, [5, 2]), whole[[5, 2]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("neighbours", ["unbounded", "bounded"])
def test_with_noise_scaled_to_the_local_sensitivity_the_log_odds_are_exactly_gaussian(neighbours, device):
    # Then every step has ‖Δ‖/s = 1/σ: the log-odds are N(±μ²/2, μ²) with μ = √T/σ, whatever the network does.
    config = training(noise_scale="local", noise_multiplier=4.0)
    attack = adversary("identifiability", neighbours=neighbours).craft(scene(config))
    trials = np.arange(1200)
    scores = train(
        NETWORK, neighbours=attack.neighbours, config=config, fingerprint="gaussian", trials=trials, worlds=trials % 2,
        observer=attack.distinguisher, stack=64, device=device,
    ).scores  # fmt: skip
    mu = math.sqrt(6) / 4.0
    np.testing.assert_allclose(scores[:, 2], mu, rtol=1e-12)
    for world, mean in ((0, -(mu**2) / 2), (1, mu**2 / 2)):
        values = scores[world::2, 0]
        # A right program fails this once in a million.
        assert stats.kstest(values, stats.norm(mean, mu).cdf).pvalue > 5e-7


@pytest.mark.parametrize("neighbours", ["unbounded", "bounded"])
def test_beliefs_with_poisson_batches_are_calibrated(neighbours):
    # Of the trainings that end at belief β, the share β must be in world 1. So (world − β)·f(β) has mean 0 for any f.
    config = training(sampling="poisson", sample_rate=0.3, noise_multiplier=0.7, dtype="float32")
    attack = adversary("identifiability", neighbours=neighbours).craft(scene(config))
    worlds = np.arange(1600) % 2
    scores = train(
        NETWORK, neighbours=attack.neighbours, config=config, fingerprint="calibrated", trials=np.arange(1600),
        worlds=worlds, observer=attack.distinguisher, stack=128,
    ).scores[:, 0]  # fmt: skip
    belief = 1.0 / (1.0 + np.exp(-scores))
    assert belief.std() > 0.05  # it does learn something
    for f in (1.0, belief, (belief > 0.6).astype(float), (belief < 0.4).astype(float)):
        gap = (worlds - belief) * f
        # Six standard errors: a right program fails one of these eight less than once in ten million.
        assert abs(gap.mean()) < 6.0 * gap.std() / math.sqrt(gap.size)


def test_noise_scaled_to_the_local_sensitivity_has_that_size():
    config = training(noise_scale="local", steps=1, learning_rate=0.0, noise_multiplier=2.0)
    neighbours = Neighbours(BASE, canary=ExampleCanary(HELD.x[0], int(HELD.y[0])), relation="replace", replaced=[4])
    quiet = training(steps=1, learning_rate=0.0, noise_multiplier=1e-9)

    def gradient(settings, world):
        kept = []

        class Keep(Observer):
            view = View.ALL_ITERATES
            knows_both_worlds = True

            def observe(self, iterate):
                kept.append((iterate.previous.clone(), iterate.private_gradient.clone(), iterate.pair))

        train(
            NETWORK, neighbours=neighbours, config=settings, fingerprint="size", trials=[0], worlds=[world],
            observer=Keep(),
        )  # fmt: skip
        return kept[0]

    previous, noisy, pair = gradient(config, 1)
    _, still, _ = gradient(quiet, 1)
    _, other, _ = gradient(quiet, 0)
    local = float((still - other).norm())
    assert local == pytest.approx(float((pair.canary - pair.replaced).norm()), rel=1e-6)
    clipped = reference.clipped_sum(NETWORK, previous[0], neighbours, [23], 0.5) / 23
    torch.testing.assert_close(pair.canary[0], clipped)
    # The noise of the same trial at another scale is the same vector, scaled.
    _, unit, _ = gradient(training(steps=1, learning_rate=0.0, noise_multiplier=1.0), 1)
    vector = (unit - still) / (0.5 / 23)
    torch.testing.assert_close(noisy - still, 2.0 * local * vector, rtol=1e-5, atol=1e-7)


def test_a_step_without_a_difference_says_nothing():
    base = Dataset(np.zeros((6, 5)), np.zeros(6, dtype=int))
    config = training(noise_scale="local", steps=3)
    neighbours = Neighbours(base, canary=ExampleCanary(np.zeros(5), 0), relation="replace", replaced=[1])
    belief = Belief(np.zeros(5), 0, training=config, rows=6)
    scores = train(
        NETWORK, neighbours=neighbours, config=config, fingerprint="none", trials=range(4), worlds=[0, 1, 0, 1],
        observer=belief,
    ).scores  # fmt: skip
    np.testing.assert_array_equal(scores[:, [0, 2]], 0.0)


def test_it_takes_the_most_and_the_least_dissimilar_neighbour():
    config = training()
    sums = np.abs(BASE.x[:, None] - BASE.x[None]).sum(axis=(1, 2))
    for choose, order in (("most", np.argsort(-sums)), ("least", np.argsort(sums))):
        for rank in (1, 2, 3):
            attack = adversary("identifiability", choose=choose, rank=rank, dissimilarity="manhattan").craft(
                scene(config)
            )
            np.testing.assert_array_equal(attack.neighbours.canary.x[0], BASE.x[order[rank - 1]])
            assert attack.neighbours.base.rows == 22
    pairs = np.abs(BASE.x[:, None] - HELD.x[None]).sum(axis=2)
    row, other = np.unravel_index(pairs.argmax(), pairs.shape)
    attack = adversary("identifiability", neighbours="bounded").craft(scene(config))
    assert attack.neighbours.replaced == (row,)
    assert attack.neighbours.relation is Relation.REPLACE
    np.testing.assert_array_equal(attack.neighbours.canary.x[0], HELD.x[other])
    given = adversary("identifiability", neighbours="bounded", row=3, replacement=2).craft(scene(config))
    assert given.neighbours.replaced == (3,)
    drawn = [adversary("identifiability", choose="random").craft(scene(config, seed=s)).notes[0] for s in range(6)]
    assert len(set(drawn)) > 1


def test_kept_steps_are_at_most_so_many():
    assert kept_steps(1) == (1,)
    assert kept_steps(30) == tuple(range(1, 31))
    long = kept_steps(5000)
    assert (long[0], long[-1], len(long)) == (1, 5000, 32)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"neighbours": "both"}, "neighbours = 'both' is not allowed"),
        ({"dissimilarity": "ssim"}, "ssim compares pictures"),
        ({"dissimilarity": "hamming"}, "hamming needs rows of zeros and ones"),
        ({"row": 23}, "row = 23 is not allowed"),
        ({"replacement": 2}, "no replacement"),
        ({"neighbours": "bounded", "row": 2}, "row and replacement go together"),
        ({"neighbours": "bounded", "row": 2, "replacement": 9}, "replacement = 9 is not allowed"),
        ({"rank": 0}, "rank = 0 is not allowed"),
        ({"rank": 24}, "rank = 24 is not allowed"),
    ],
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(InvalidInputError, match=words):
        adversary("identifiability", **options).craft(scene(training()))


def test_what_has_no_belief_is_refused():
    with pytest.raises(InvalidInputError, match="belief is 0 or 1"):
        adversary("identifiability").craft(scene(training(noise_multiplier=0.0)))
    with pytest.raises(UnsupportedError, match="shuffled"):
        adversary("identifiability").craft(scene(training(sampling="shuffle", batch_size=4)))
    with pytest.raises(UnsupportedError, match="no rows are held"):
        adversary("identifiability", neighbours="bounded").craft(scene(training(), held_out=None))
    with pytest.raises(InvalidInputError, match="noise_scale = 'local' is not allowed"):
        training(noise_scale="local", sampling="poisson", sample_rate=0.5)
    with pytest.raises(InvalidInputError, match="noise_scale = 'global' is not allowed"):
        training(noise_scale="global")
    several = Neighbours(BASE, canary=ExampleCanary(HELD.x[:2], HELD.y[:2]))
    with pytest.raises(UnsupportedError, match="differ in 2 rows"):
        train(
            NETWORK, neighbours=several, config=training(noise_scale="local"), fingerprint="two", trials=[0], worlds=[1]
        )  # fmt: skip
