"""What shows only after the first step: noise that shrinks, clip norms that grow, keys that return, what is kept."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
import small_steps as s  # noqa: E402
from jax import random  # noqa: E402

START = {"w": jnp.zeros(3), "t": jnp.array(0)}
KEY = random.key(0)


def scheduled(noise=lambda t: 1.0, clip=lambda t: 1.0):
    """Noise and clip norm as functions of a counter in the state."""

    def step(state, batch, key):
        total = clip(state["t"]) * s.clipped(batch) + noise(state["t"]) * s.noise(state["w"], key)
        return {"w": s.moved(state["w"], total), "t": state["t"] + 1}

    return step


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7])
def test_less_noise_in_one_later_step_is_found(number):
    step = scheduled(noise=lambda t: jnp.where(t == number, 0.3, 1.0))
    report = s.probed(step, state=START, keys=None if number % 2 else lambda step: random.fold_in(KEY, step))
    s.refuted(report, "noise too small")
    assert f"In step {number + 1} the same draws give ×0.3 the noise of step 1" in report.in_words()


@pytest.mark.parametrize("first", [1, 3])
def test_no_noise_from_a_later_step_on_is_found(first):
    s.refuted(s.probed(scheduled(noise=lambda t: jnp.where(t >= first, 0.0, 1.0)), state=START), "noise too small")


def test_a_clip_norm_that_grows_is_found_and_a_rate_that_shrinks_is_not():
    s.refuted(s.probed(scheduled(clip=lambda t: 1.0 + t), state=START), "sensitivity too large")
    shrinking = scheduled(noise=lambda t: 0.5**t, clip=lambda t: 0.5**t)
    report = s.probed(shrinking, state=START)
    s.consistent(report)
    assert "In steps 2 to 8 too" in report.in_words()


AGAIN = {
    "every second step": lambda step: random.fold_in(KEY, step % 2),
    "every fourth step": lambda step: random.fold_in(KEY, step % 4),
    "old keys, every second step": lambda step: random.PRNGKey(step % 2),
    "every hundredth step": lambda step: random.fold_in(KEY, step % 100),
    "a list, after five": [random.key(step % 5) for step in range(10)],
    "a list, at its end": [random.key(step % 19) for step in range(20)],
}


@pytest.mark.parametrize("name", AGAIN)
def test_keys_of_the_loop_that_come_again_are_found(name):
    s.refuted(s.probed(s.right, keys=AGAIN[name]), "same noise every step")


def test_keys_that_are_new_in_each_step_pass_and_the_report_says_over_how_many():
    report = s.probed(s.right, keys=lambda step: random.fold_in(KEY, step))
    s.consistent(report)
    assert "new in each of the first 8 steps. The loop's keys are different in all of its first 1000 steps." in (
        report.in_words()
    )
    report = s.probed(s.right, keys=list(random.split(KEY, 5)))
    s.consistent(report)
    assert "new in each of the first 5 steps. The loop's keys are different in all of its first 5 steps." in (
        report.in_words()
    )
    report = s.probed(s.right, keys=random.split(KEY, 3))
    s.consistent(report)


def test_a_function_that_runs_out_of_keys_is_asked_no_further():
    listed = list(random.split(KEY, 6))
    s.consistent(s.probed(s.right, keys=lambda step: listed[step]))
    array = random.split(KEY, 6)  # an array of JAX gives its last one again, which could also be the loop's fault
    report = s.probed(s.right, keys=lambda step: array[step])
    assert str(report.verdict) == "inconclusive"
    assert "one and the same key for every step from number 5 on" in report.in_words()


def test_one_key_for_all_steps_is_right_where_a_counter_makes_new_ones_of_it():
    def step(state, batch, key):
        return {"w": s.right(state["w"], batch, random.fold_in(key, state["t"])), "t": state["t"] + 1}

    s.consistent(s.probed(step, state=START, keys=lambda step: KEY))


@pytest.mark.parametrize(("period", "verdict"), [(3, "refuted"), (1000, "consistent")])
def test_a_key_in_the_state_that_is_folded_with_a_counter(period, verdict):
    def step(state, batch):
        key = random.fold_in(state["k"], state["t"] % period)
        return {"w": s.right(state["w"], batch, key), "t": state["t"] + 1, "k": state["k"]}

    report = s.probed(step, state={**START, "k": KEY})
    assert str(report.verdict) == verdict, report.in_words()
    if verdict == "refuted":
        s.refuted(report, "same noise every step")


def momentum(*, raw):
    def step(state, batch, key):
        total, noise = s.clipped(batch), s.noise(state["w"], key)
        kept = 0.9 * state["m"] + total + (0.0 if raw else noise)
        return {"w": s.moved(state["w"], kept + (noise if raw else 0.0)), "m": kept}

    return step


def two_batches(state, batch, key):
    """Every second step releases its batch and the one before, with one noise."""
    total, last = s.clipped(batch) + state["sum"], state["t"] % 2 == 1
    after = s.moved(state["w"], total + s.noise(state["w"], key))
    return {"w": jnp.where(last, after, state["w"]), "sum": jnp.where(last, 0.0, total), "t": state["t"] + 1}


def test_rows_that_live_on_in_what_is_kept_are_found():
    start = {"w": jnp.zeros(3), "m": jnp.zeros(3)}
    s.refuted(s.probed(momentum(raw=True), state=start, kept=("*m*",)), "carried over between steps")
    s.consistent(s.probed(momentum(raw=False), state=start, kept=("*m*",)))
    start = {"w": jnp.zeros(3), "sum": jnp.zeros(3), "t": jnp.array(1)}
    s.refuted(s.probed(two_batches, state=start, kept=("*sum*",)), "carried over between steps")


def test_noise_that_is_taken_off_again_in_the_next_step_is_found():
    def step(state, batch, key):
        noise = s.noise(state["w"], key)
        return {"w": s.moved(state["w"], s.clipped(batch) + noise - state["z"]), "z": noise}

    report = s.probed(step, state={"w": jnp.zeros(3), "z": jnp.zeros(3)}, kept=("*z*",))
    s.refuted(report, "same noise every step")
