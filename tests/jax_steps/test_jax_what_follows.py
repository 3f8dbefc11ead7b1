"""What is computed from a release is no release of its own; what cannot be measured is said truly; bad input."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402
import small_steps as s  # noqa: E402
from jax import random  # noqa: E402

from coalmine.errors import InvalidInputError  # noqa: E402

BATCH = 2.0 * random.normal(random.key(4), (6, 5))


def averaged(share):
    def step(state, batch, key):
        after = s.right(state["w"], batch, key, share * s.SIGMA)
        return {"w": after, "average": 0.99 * state["average"] + 0.01 * after}

    return step


def buffered(share):
    """Momentum of the noised sum, divided only where it moves the weight."""

    def step(state, batch, key):
        buffer = 0.9 * state["buffer"] + s.clipped(batch) + share * s.noise(state["w"], key)
        return {"w": s.moved(state["w"], buffer), "buffer": buffer}

    return step


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("made", "name"), [(averaged, "average"), (buffered, "buffer")])
def test_averages_and_momentum_follow_from_the_release(made, name, relative):
    given = {"state": {"w": jnp.zeros(5), name: jnp.zeros(5)}, "batch": BATCH}
    given |= {"divisor": None, "learning_rate": None} if relative else {}
    s.consistent(s.probed(made(1.0), **given))
    s.refuted(s.probed(made(0.5), **given), "noise too small")


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_momentum_of_optax(nesterov, share):
    optimizer = optax.sgd(s.RATE, momentum=0.9, nesterov=nesterov)

    def step(state, batch, key):
        weight, inner = state
        noised = (s.clipped(batch) + share * s.noise(weight, key)) / s.SIZE
        update, inner = optimizer.update(noised, inner, weight)
        return optax.apply_updates(weight, update), inner

    report = s.probed(step, state=(jnp.zeros(5), optimizer.init(jnp.zeros(5))), batch=BATCH)
    if share == 1.0:
        s.consistent(report)
        assert not nesterov or "Rows and noise are both ×1.9 of what is promised" in report.in_words()
    else:
        s.refuted(report, "noise too small", "sensitivity too large")


def test_a_divisor_that_is_not_the_one_promised_is_named():
    s.refuted(s.probed(s.right, state=jnp.zeros(5), batch=BATCH, divisor=4), "wrong divisor")


def clipped_later(weight, batch, key):
    """Noise on each row, before it is clipped."""
    return s.moved(weight, s.clipped(batch + random.normal(key, batch.shape)))


def sum_clipped(weight, batch, key):
    """The noised sum is clipped, and rows are not."""
    total = batch.sum(axis=0) + s.noise(weight, key)
    return s.moved(weight, total / jnp.maximum(jnp.linalg.norm(total), 1.0))


@pytest.mark.parametrize("step", [clipped_later, sum_clipped])
def test_noise_before_clipping_is_found(step):
    s.refuted(s.probed(step, state=jnp.zeros(5), batch=BATCH), "noise before clipping")


def test_what_limits_the_noise_is_never_consistent():
    def limited(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + s.SIGMA * jnp.clip(random.normal(key, weight.shape), -2.5, 2.5))

    def truncated(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + s.SIGMA * random.truncated_normal(key, -3.0, 3.0, weight.shape))

    report = s.probed(limited, state=jnp.zeros(5), batch=BATCH)
    assert str(report.verdict) == "inconclusive", report.in_words()
    s.refuted(s.probed(truncated, state=jnp.zeros(5), batch=BATCH), "noise is not normal")


def test_reasons_are_true():
    def rounded(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + jnp.round(s.noise(weight, key)))

    def constant(state, batch):
        key = random.fold_in(random.key(0), state["t"])
        return {"w": s.right(state["w"], batch, key), "t": state["t"] + 1}

    report = s.probed(rounded, state=jnp.zeros(5), batch=BATCH)
    assert str(report.verdict) == "inconclusive"
    assert "no tensor shows the noise in proportion to its size" in report.in_words()
    assert "moves the release" not in report.in_words()
    report = s.probed(constant, state={"w": jnp.zeros(5), "t": jnp.array(0)}, batch=BATCH)
    assert str(report.verdict) == "inconclusive"
    assert "no key that is handed over, or lies in the state, reaches the noise" in report.in_words()


def test_keys_of_another_kind_and_numbers_of_low_precision_are_measured():
    def step(state, batch):
        new = random.split(state["k"])
        return {"w": s.right(state["w"], batch, new[0]), "k": new[1]}

    s.consistent(s.probed(step, state={"w": jnp.zeros(5), "k": random.key(0, impl="rbg")}, batch=BATCH))

    def coarse(share):
        return lambda weight, batch, key: s.right(weight, batch, key, share * s.SIGMA).astype(weight.dtype)

    given = {"state": jnp.zeros(5, jnp.bfloat16), "batch": BATCH.astype(jnp.bfloat16)}
    s.consistent(s.probed(coarse(1.0), **given))
    s.refuted(s.probed(coarse(0.5), **given), "noise too small")


def test_rows_that_cannot_be_probed_are_refused():
    with pytest.raises(InvalidInputError, match=r"batch\['x'\] holds NaN or infinity: expected finite rows"):
        s.probed(lambda w, b, k: s.right(w, b["x"], k), batch={"x": jnp.eye(3).at[0, 0].set(jnp.nan)})
    with pytest.raises(InvalidInputError, match=r"Stack the rows, as in \(np.stack\(xs\), np.asarray\(ys\)\)"):
        s.probed(s.right, batch=list(np.eye(3)))


def test_the_level_is_that_of_every_probe():
    report = s.probe(
        s.right, state=jnp.zeros(3), batch=jnp.eye(3), clip_norm=1.0, noise_multiplier=s.SIGMA, divisor=s.SIZE,
        learning_rate=s.RATE,
    )  # fmt: skip
    assert report.level == 1e-4
