"""What single rows do to the noise and to the step, wherever they stand; what other draws decide; whole numbers."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
import small_steps as s  # noqa: E402
from jax import random  # noqa: E402

BATCH = 2.0 * random.normal(random.key(4), (6, 5))
LABELLED = {"x": BATCH, "y": jnp.arange(6) % 3}


def features(batch):
    return batch["x"] if isinstance(batch, dict) else batch


WHEN = {
    "a large number": lambda batch: jnp.max(jnp.abs(features(batch)), initial=0.0) > 20.0,
    "one more row of a label": lambda batch: jnp.sum(batch["y"] == 2) > 2,
    "a row without negative numbers": lambda batch: jnp.any(jnp.all(features(batch) >= 0.0, axis=1)),
    "a large sum of squares": lambda batch: jnp.sum(features(batch) ** 2) > 400.0,
}


def noise_by_rows(when, share):
    def step(weight, batch, key):
        return s.right(weight, features(batch), key, jnp.where(when(batch), share, 1.0) * s.SIGMA)

    return step


@pytest.mark.parametrize(("name", "share"), list(zip(WHEN, [0.0, 0.5, 0.0, 0.5], strict=True)))
def test_noise_that_a_row_changes_is_found(name, share):
    report = s.probed(noise_by_rows(WHEN[name], share), state=jnp.zeros(5), batch=LABELLED)
    s.refuted(report, "noise depends on the data")


@pytest.mark.parametrize("name", WHEN)
def test_a_step_that_a_row_stops_is_found(name):
    def step(weight, batch, key):
        return jnp.where(WHEN[name](batch), weight, s.right(weight, features(batch), key))

    s.refuted(s.probed(step, state=jnp.zeros(5), batch=LABELLED), "step left out")


def test_a_learning_rate_that_follows_a_loss_is_found():
    def step(weight, batch, key):
        large = jnp.log1p(jnp.sum(batch**2)) > 7.0
        after = s.right(weight, batch, key)
        return jnp.where(large, weight + 0.5 * (after - weight), after)

    s.refuted(s.probed(step, state=jnp.zeros(5), batch=BATCH), "noise depends on the data")


def test_keys_that_are_made_from_the_rows_are_found_and_from_their_number_are_not():
    def by_rows(weight, batch, key):
        return s.right(weight, batch, random.fold_in(key, (100.0 * jnp.sum(batch)).astype(jnp.int32)))

    def by_number(weight, batch, key):
        return s.right(weight, batch, random.fold_in(key, batch.shape[0]))

    s.refuted(s.probed(by_rows, state=jnp.zeros(5), batch=BATCH), "noise depends on the data")
    s.consistent(s.probed(by_number, state=jnp.zeros(5), batch=BATCH))


def unclipped_at(where):
    """Rows at some places are never clipped."""

    def step(weight, batch, key):
        here = where(jnp.arange(batch.shape[0]))[:, None]
        total = jnp.where(here, batch, batch / jnp.maximum(s.norms(batch), 1.0)).sum(axis=0)
        return s.moved(weight, total + s.noise(weight, key))

    return step


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        (lambda place: place == 0, 6),
        (lambda place: place == 3, 6),
        (lambda place: place >= 20, 40),
        (lambda place: (place >= 64) & (place < 80), 200),
    ],
)
def test_a_place_at_which_rows_are_not_clipped_is_found(where, rows):
    batch = 0.5 * random.normal(random.key(5), (rows, 5))
    s.refuted(s.probed(unclipped_at(where), state=jnp.zeros(5), batch=batch), "sensitivity too large")


def test_a_large_batch_is_right_at_every_place():
    report = s.probed(s.right, state=jnp.zeros(5), batch=0.5 * random.normal(random.key(5), (200, 5)))
    s.consistent(report)
    assert "With the first 128 of 200 rows at once, a row moves the sum at 4" in report.in_words()


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_a_coin_is_found_whatever_the_size_of_the_rows(size):
    def step(weight, batch, key):
        coin, new = random.split(key)
        total = jnp.where(random.uniform(coin) < 0.15, batch.sum(axis=0), s.clipped(batch))
        return s.moved(weight, total + s.noise(weight, new))

    s.refuted(s.probed(step, batch=size * jnp.eye(3)), "sensitivity too large", "no clipping")


def sampled(*, share=1.0, clip=s.clipped, law=random.normal):
    """Rows are drawn inside the step."""

    def step(weight, batch, key):
        rows, new = random.split(key)
        drawn = random.bernoulli(rows, 0.5, (batch.shape[0], 1))
        return s.moved(weight, clip(batch * drawn) + share * s.SIGMA * law(new, weight.shape))

    return step


def test_rows_that_are_sampled_or_augmented_inside_a_step_hide_no_fault():
    given = {"state": jnp.zeros(40), "batch": 2.0 * jnp.eye(40)[:6]}
    s.consistent(s.probed(sampled(), **given))
    s.refuted(s.probed(sampled(share=0.8), **given), "noise too small")
    s.refuted(s.probed(sampled(clip=lambda batch: batch.sum(axis=0)), **given), "no clipping")
    s.refuted(s.probed(sampled(share=0.5**0.5, law=random.laplace), **given), "noise is not normal")

    def augmented(share):
        def step(weight, batch, key):
            rows, new = random.split(key)
            return s.right(weight, batch + 0.1 * random.normal(rows, batch.shape), new, share * s.SIGMA)

        return step

    s.consistent(s.probed(augmented(1.0), state=jnp.zeros(5), batch=BATCH))
    s.refuted(s.probed(augmented(0.5), state=jnp.zeros(5), batch=BATCH), "noise too small")


RETURNED = {
    "the number of rows": lambda batch: jnp.ones(batch.shape[0], jnp.int32).sum(),
    "the rows in whole numbers": lambda batch: (1e4 * batch).astype(jnp.int32).sum(axis=0),
    "the bits of the sum": lambda batch: jax.lax.bitcast_convert_type(batch.sum(axis=0), jnp.uint32),
    "whether a number is large": lambda batch: jnp.any(batch > 3.0),
}


@pytest.mark.parametrize("name", RETURNED)
def test_whole_numbers_and_truth_values_that_show_rows_are_found(name):
    def step(weight, batch, key):
        return s.right(weight, batch, key), RETURNED[name](batch)

    s.refuted(s.probed(step, batch=jnp.eye(3)), "exact value returned")
    s.consistent(s.probed(step, batch=jnp.eye(3), kept=("returned*",)))


def test_whole_numbers_in_the_state_that_follow_rows_are_found_and_counters_and_keys_are_not():
    def counted(state, batch, key):
        return {"w": s.right(state["w"], batch, key), "seen": state["seen"] + batch.shape[0]}

    def labels(state, batch, key):
        return {"w": s.right(state["w"], batch["x"], key), "seen": state["seen"].at[batch["y"]].add(1)}

    def right(state, batch):
        old, new = random.split(state["old"]), random.split(state["new"])
        weight = s.moved(state["w"], s.clipped(batch) + s.noise(state["w"], random.fold_in(new[0], state["t"])))
        return {"w": weight, "old": old[0], "new": new[1], "t": state["t"] + 1}, weight > 0.0

    s.refuted(s.probed(counted, state={"w": jnp.zeros(3), "seen": jnp.array(0)}), "unnoised tensor")
    start = {"w": jnp.zeros(5), "seen": jnp.zeros(3, jnp.int32)}
    s.refuted(s.probed(labels, state=start, batch=LABELLED), "unnoised tensor")
    start = {"w": jnp.zeros(3), "old": random.PRNGKey(1), "new": random.key(2), "t": jnp.array(0)}
    s.consistent(s.probed(right, state=start))
