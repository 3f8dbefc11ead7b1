"""Noise that is drawn inside branches and loops is scaled like any other."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")

import jax.numpy as jnp  # noqa: E402
import small_steps as s  # noqa: E402
from jax import lax, random  # noqa: E402

NUMBERS = 8


def drawn(key):
    return random.normal(key, (NUMBERS,))


def nothing(*_):
    return jnp.zeros(NUMBERS)


def in_while(weight, key):
    def turn(carry):
        number, key, noise = carry
        key, new = random.split(key)
        return number + 1, key, noise.at[number].set(random.normal(new))

    return lax.while_loop(lambda carry: carry[0] < NUMBERS, turn, (0, key, jnp.zeros(NUMBERS)))[2]


def in_a_loop_of_unknown_length(weight, key):
    def turn(number, carry):
        key, noise = carry
        key, new = random.split(key)
        return key, noise.at[number].set(random.normal(new))

    return lax.fori_loop(0, jnp.where(weight[0] > -100.0, NUMBERS, 1), turn, (key, jnp.zeros(NUMBERS)))[1]


PLACES = {
    "a branch, its key handed over": lambda w, k: lax.cond(w[0] > -100.0, drawn, nothing, k),
    "a branch, its key closed over": lambda w, k: lax.cond(w[0] > -100.0, lambda: drawn(k), nothing),
    "both branches": lambda w, k: lax.cond(w[0] > -100.0, drawn, drawn, k),
    "a branch that splits its key": lambda w, k: lax.cond(
        w[0] > -100.0,
        lambda k: jnp.concatenate([random.normal(one, (NUMBERS // 2,)) for one in random.split(k)]),
        nothing,
        k,
    ),
    "a while loop": in_while,
    "a loop of unknown length": in_a_loop_of_unknown_length,
}


HALVED = ["both branches", "a while loop"]


@pytest.mark.parametrize(("place", "share"), [*((one, 1.0) for one in PLACES), *((one, 0.5) for one in HALVED)])
def test_noise_in_branches_and_loops_is_measured(place, share):
    def step(weight, batch, key):
        return s.moved(weight, s.clipped(batch) + share * s.SIGMA * PLACES[place](weight, key))

    report = s.probed(step, state=jnp.zeros(NUMBERS), batch=2.0 * jnp.eye(NUMBERS)[:6])
    if share == 1.0:
        s.consistent(report)
    else:
        s.refuted(report, "noise too small")
