"""Columns of floats that hold few whole numbers in a step in JAX: masks and weights."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from coalmine.integrations.jax import probe
from coalmine.records import Outcome

ROWS = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), dtype=jnp.float32)
ONES = jnp.ones(6)


def weighed(column, change=lambda one: one, **options):
    def step(weight, batch, key):
        rows, given = batch
        clipped = rows / jnp.maximum(jnp.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        total = (clipped * change(given)[:, None]).sum(axis=0)
        return weight - 0.5 * (total + 2.0 * jax.random.normal(key, (3,))) / 8

    given = {"divisor": 8, "learning_rate": 0.5, "replays": 60, **options}
    return probe(step, state=jnp.zeros(3), batch=(ROWS, column), clip_norm=1.0, noise_multiplier=2.0, **given)


@pytest.mark.parametrize("promise", [{}, {"divisor": None, "learning_rate": None}])
def test_a_weight_that_may_be_any_number_is_not_passed(promise):
    report = weighed(ONES, **promise)
    assert report.findings == ()
    assert report.verdict.outcome is Outcome.INCONCLUSIVE
    assert "in batch[1] moves the sum by" in report.in_words()


@pytest.mark.parametrize(
    ("column", "change", "options"),
    [
        (ONES, lambda one: jnp.clip(one, 0.0, 1.0), {}),
        (ONES.astype(bool), lambda one: one, {}),
        (ONES, lambda one: one, {"empty": (jnp.zeros((6, 3)), jnp.zeros(6))}),
    ],
)
def test_a_mask_passes(column, change, options):
    report = weighed(column, change, **options)
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()
    said = " ".join(one.sentence for one in report.measurements)
    assert ("batch[1] marks padding" in said) == ("empty" in options)
