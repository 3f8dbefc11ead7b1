"""The probe of steps in JAX: right ones pass, each fault is found by its name.

Level 1e-6 for each probe: a right step is refuted by chance in one of a million runs of a test.
"""

from __future__ import annotations

import functools

import pytest

jax = pytest.importorskip("jax", reason="needs the extra jax")
pytest.importorskip("optax")
pytest.importorskip("jax_privacy")

import jax.numpy as jnp  # noqa: E402
import jax_trainers as t  # noqa: E402
import optax  # noqa: E402

from coalmine.errors import InvalidInputError  # noqa: E402
from coalmine.integrations.jax import probe  # noqa: E402


def run(step, state=None, **options):
    options = {**t.PROMISE, "level": 1e-6, **options}
    return probe(step, **{"state": t.parameters() if state is None else state, "batch": t.rows(), **options})


def library(**options):
    """jax_privacy with batches of one size, which padding fills."""
    probed = {name: options.pop(name) for name in ("divisor", "learning_rate") if name in options}
    return run(*t.with_jax_privacy(**options), batch=t.padded(), empty=t.padded(real=False), **probed)


def faults(report):
    return {one.fault for one in report.findings}


@functools.cache
def one_key():
    return run(t.hand(same=True))


RIGHT = {
    "by hand": lambda: run(t.by_hand),
    "in loops": lambda: run(t.in_a_loop),
    "noise by hand": lambda: run(functools.partial(t.by_hand, sampler=t.hand_made_normal)),
    "jax_privacy with Adam, in relative terms": lambda: library(
        optimizer=optax.adam(0.1), divisor=None, learning_rate=None
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_pass(name):
    report = RIGHT[name]()
    assert report.verdict.outcome.value == "consistent", report.in_words()


BROKEN = {
    "half the noise": (lambda: run(t.hand(noise=0.5)), "noise too small"),
    "half the noise, in relative terms": (
        lambda: run(t.hand(noise=0.5), divisor=None, learning_rate=None),
        "noise too small",
    ),
    "one key for all leaves": (lambda: one_key(), "shared noise"),
    "one key for all steps": (lambda: run(t.hand(fixed=True)), "same noise every step"),
    "a key in the state that never moves": (lambda: library(advance=False), "same noise every step"),
    "a loop that gives the same key": (
        lambda: run(t.by_hand, keys=lambda step: jax.random.key(0)),
        "same noise every step",
    ),
    "clipping per layer": (lambda: run(t.hand(clip=t.clipped_by_leaf)), "clipping per layer"),
    "no clipping": (lambda: run(t.hand(clip=t.unclipped)), "no clipping"),
    "no noise": (lambda: run(t.hand(noise=0.0)), "no noise"),
    "noise of the mean on the sum": (lambda: run(t.noise_of_the_mean), "noise too small"),
    "the size of the batch as divisor": (lambda: run(t.hand(divisor=None)), "divisor depends on the data"),
    "optax's aggregation": (lambda: run(*t.with_optax()), "divisor depends on the data"),
    "a leaf without noise": (lambda: run(t.one_leaf_without_noise), "unnoised tensor"),
    "the loss returned": (lambda: run(t.returns_the_loss), "exact value returned"),
    "statistics of the batch": (lambda: run(t.with_batch_statistics), "rows interact"),
    "Laplace noise": (lambda: run(t.hand(sampler=jax.random.laplace)), "noise is not normal"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_is_found_by_its_name(name):
    probed, fault = BROKEN[name]
    report = probed()
    assert report.verdict.outcome.value == "refuted", report.in_words()
    assert fault in faults(report), report.in_words()


def test_noise_of_the_sum_on_the_mean_is_too_much_and_not_a_leak():
    """As in an example of jax_privacy (its issue 383): the promise holds, and the report says by how much."""
    report = run(t.noise_on_the_mean)
    assert report.verdict.outcome.value == "consistent", report.in_words()
    assert "times what is promised: more than the accounting asks for" in report.in_words()
    [measured] = [one for one in report.measurements if one.name == "noise"]
    assert [row["ratio"] for row in measured.details["tensors"]] == pytest.approx([t.SIZE] * 2, rel=0.2)


def test_leaves_that_share_a_key_are_named():
    [found] = [one for one in one_key().findings if one.fault == "shared noise" and not one.level][:1]
    assert "['in']" in found.witness
    assert "['out']" in found.witness
    assert "jax_trainers.py:" in found.witness


def test_a_step_that_cannot_do_without_rows_is_named():
    """Poisson sampling draws empty batches; jax_privacy wants them padded."""
    report = run(*t.with_jax_privacy(), batch=t.padded())
    assert faults(report) == {"empty batch"}


def test_bad_input_is_named():
    with pytest.raises(InvalidInputError, match=r"step takes 1 arguments: expected step\(state, batch, key\)"):
        probe(lambda state: state, state=jnp.zeros(3), batch=jnp.eye(3), clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(InvalidInputError, match="cannot be traced by JAX"):
        probe(
            lambda state, batch, key: state + float(batch.sum()), state=jnp.zeros(3), batch=jnp.eye(3),
            clip_norm=1.0, noise_multiplier=1.0,
        )  # fmt: skip
    with pytest.raises(InvalidInputError, match="noise_multiplier"):
        probe(t.by_hand, state=t.parameters(), batch=t.rows(), clip_norm=1.0, noise_multiplier=-1.0)


@pytest.mark.parametrize("chance", [0.5, 0.2, 0.08])
@pytest.mark.parametrize("what", ["clipping", "noise"])
def test_a_coin_that_leaves_something_out_is_found(what, chance):
    """Keys are fixed: what is found here is found on every run."""

    def step(state, batch, key):
        coin, noise = jax.random.split(key)
        tails = jax.random.uniform(coin) < chance
        norms = jnp.linalg.norm(batch, axis=1, keepdims=True)
        clipped = batch / jnp.maximum(1.0, norms)
        rows = jnp.where(tails & (what == "clipping"), batch, clipped)
        drawn = 1.2 * jax.random.normal(noise, state.shape)
        return state - rows.sum(axis=0) - jnp.where(tails & (what == "noise"), 0.0, drawn)

    given = {"clip_norm": 1.0, "noise_multiplier": 1.2, "divisor": 1.0, "learning_rate": 1.0, "level": 1e-6}
    report = probe(step, state=jnp.zeros(5), batch=3.0 * jax.random.normal(jax.random.key(3), (8, 5)), **given)
    assert str(report.verdict) == "refuted", report.in_words()


@pytest.mark.parametrize(
    ("clip", "noise", "sensitivity", "verdict"),
    [(0.5, 0.5, 0.5, "consistent"), (1.0, 1.0, 2.0, "refuted"), (1.0, 1.0, 1e6, "refuted"), (0.5, 0.4, 0.5, "refuted")],
)
def test_noise_counts_in_the_sensitivity_that_is_promised(clip, noise, sensitivity, verdict):
    def step(state, batch, key):
        clipped = batch / jnp.maximum(1.0, jnp.linalg.norm(batch, axis=1, keepdims=True) / clip)
        return state - clipped.sum(axis=0) - 1.2 * noise * jax.random.normal(key, state.shape)

    given = {"clip_norm": 1.0, "noise_multiplier": 1.2, "divisor": 1.0, "learning_rate": 1.0, "level": 1e-6}
    batch = 3.0 * jax.random.normal(jax.random.key(3), (8, 400))
    report = probe(step, state=jnp.zeros(400), batch=batch, sensitivity=sensitivity, **given)
    assert str(report.verdict) == verdict, report.in_words()
