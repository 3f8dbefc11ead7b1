"""Trainings in JAX, many in one call: verdicts, the same scores as one by one, and no torch."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402

import coalmine  # noqa: E402
from coalmine.errors import GameStoppedError, InvalidInputError  # noqa: E402
from coalmine.integrations import identity  # noqa: E402
from coalmine.integrations.content import content_hash  # noqa: E402
from coalmine.integrations.jax import audit  # noqa: E402

STEPS = 4
CLAIM = coalmine.DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=STEPS)


def train(rows, key, *, noise=1.0, same=False):
    """DP-SGD on a linear loss with Poisson sampling: what every step releases is added up along the canary."""

    def step(released, key):
        sampled, noisy = jax.random.split(key)
        mask = jax.random.bernoulli(sampled, 0.5, (rows.shape[0],))
        clipped = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        drawn = jax.random.normal(jax.random.key(1) if same else noisy, rows.shape[1:])
        return released, mask @ clipped + noise * drawn

    return jax.lax.scan(step, None, jax.random.split(key, STEPS))[1]


def score(released, canary):
    return (released @ canary).sum()


def apart(released, canary):
    """Large where two steps with one noise differ, which only the canary can make them do."""
    return jnp.abs(released[1:] - released[:-1]).max()


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Seeds follow from names alone, so every verdict here is the same on every run."""
    real = identity.followed

    def by_name(name, function, **options):
        found = real(name, function, **options)
        return dataclasses.replace(found, identity={"function": identity.label(function)})

    monkeypatch.setattr(identity, "followed", by_name)

    def call(function=train, score=score, *, trials=600, **options):
        worlds = coalmine.neighbours(jnp.zeros((3, 2)), [1.0, 0.0])
        options = {"claim_dpsgd": CLAIM, "store": tmp_path / "trials.db", "together": 64, **options}
        return audit(function, score, worlds=worlds, trials=trials, **options)

    return call


def test_the_right_noise_is_consistent_and_half_of_it_is_refuted(play):
    half = functools.partial(train, noise=0.5)
    result = play(control=half)
    assert str(result.verdict) == "consistent", result.in_words()
    assert result.subject.name == "test_jax_audit:train"
    assert str(play(half).verdict) == "refuted"


def test_one_key_for_all_steps_is_refuted(play):
    result = play(functools.partial(train, same=True), {"along": score, "apart": apart})
    assert str(result.verdict) == "refuted", result.in_words()


def test_scores_are_those_of_one_training_at_a_time(play, tmp_path):
    many = play(trials=32).strongest.scores
    (tmp_path / "trials.db").unlink()
    single = play(trials=32, together=1).strongest.scores
    assert many.world0 == pytest.approx(single.world0, rel=1e-5)
    assert many.world1 == pytest.approx(single.world1, rel=1e-5)
    assert np.unique(np.concatenate([many.world0, many.world1])).size == 32


def test_a_score_that_is_not_one_number_is_named(play):
    with pytest.raises((InvalidInputError, GameStoppedError), match="expected one number"):
        play(train, lambda released: released)


def test_arrays_and_keys_have_a_content():
    values = [jnp.zeros(3), jnp.zeros((3, 1)), jnp.zeros(3, jnp.int32), np.zeros(3, np.float32), jax.random.key(0),
              jax.random.key(1), jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0)]  # fmt: skip
    assert len({content_hash(value) for value in values}) == len(values)
    assert content_hash(jax.random.key(0)) == content_hash(jax.random.key(0))


def test_neighbours_of_jax_arrays():
    rows = jnp.arange(6.0).reshape(3, 2)
    added = coalmine.neighbours((rows, jnp.arange(3)), ([9.0, 9.0], 1), copies=2)
    assert [one.shape for one in added.world1] == [(5, 2), (5,)]
    assert isinstance(added.world1[0], jax.Array)
    swapped = coalmine.neighbours({"x": rows}, {"x": [9.0, 9.0]}, relation="replace", row=0)
    assert swapped.world1["x"].tolist() == [[9.0, 9.0], [2.0, 3.0], [4.0, 5.0]]
