"""Small private steps in JAX: rows are their own gradients, so that each fault stands in a line of its own."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from coalmine.integrations.jax import probe

SIZE, RATE, SIGMA = 8, 0.5, 2.0
PROMISE = {"clip_norm": 1.0, "noise_multiplier": SIGMA, "divisor": SIZE, "learning_rate": RATE, "level": 1e-6}


def norms(batch):
    return jnp.linalg.norm(batch, axis=1, keepdims=True)


def clipped(batch):
    return (batch / jnp.maximum(norms(batch), 1.0)).sum(axis=0)


def noise(weight, key, scale=SIGMA):
    return scale * jax.random.normal(key, weight.shape)


def moved(weight, total):
    """The weight after a step by this sum."""
    return weight - RATE * total / SIZE


def right(weight, batch, key, scale=SIGMA):
    return moved(weight, clipped(batch) + noise(weight, key, scale))


def probed(step, *, state=None, batch=None, **options):
    """The report on a step, of three numbers unless a state is given."""
    given = {**PROMISE, **options}
    return probe(
        step, state=jnp.zeros(3) if state is None else state, batch=jnp.eye(3) if batch is None else batch, **given
    )


def found(report):
    return {one.fault for one in report.findings}


def refuted(report, *names):
    """Whether one of these faults was found."""
    assert str(report.verdict) == "refuted", report.in_words()
    assert found(report) & set(names), report.in_words()


def consistent(report):
    assert str(report.verdict) == "consistent", report.in_words()
