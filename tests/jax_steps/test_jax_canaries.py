"""Gradient canaries of one run in a training in JAX: inserted, seen, scored, judged."""

import dataclasses

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'coalmine[jax]'")

import jax.numpy as jnp  # noqa: E402

from coalmine.errors import InvalidInputError  # noqa: E402
from coalmine.integrations.jax import StepCanaries  # noqa: E402
from coalmine.one_run import design, judge  # noqa: E402
from coalmine.one_run.canaries import dirac, random_directions  # noqa: E402
from coalmine.records import DpSgd, MechanismClaim, OneRunScores, Outcome  # noqa: E402

ROWS, FEATURES, HIDDEN, CLIP, DIVISOR = 64, 20, 24, 0.7, 32.0
CLAIMED = DpSgd(sample_rate=0.05, noise_multiplier=0.8, steps=100)
SIZE = FEATURES * HIDDEN + HIDDEN


def trained(hook, *, noise, mean, knows_batches, seed):
    """A training whose gradients have two leaves; what was seen in each step."""
    x = jax.random.normal(jax.random.key(7), (ROWS, FEATURES))

    def gradient(model, row):
        return jax.grad(lambda model: jnp.tanh(row @ model["a"] + model["b"]).sum() ** 2)(model)

    def step(model, key):
        sampling, drawing, noising = jax.random.split(key, 3)
        rows = jax.vmap(gradient, in_axes=(None, 0))(model, x)
        norms = jnp.sqrt(sum((one.reshape(ROWS, -1) ** 2).sum(axis=1) for one in jax.tree.leaves(rows)))
        factors = jax.random.bernoulli(sampling, CLAIMED.sample_rate, (ROWS,)) * jnp.minimum(1.0, CLIP / norms)
        total = jax.tree.map(lambda one: jnp.tensordot(factors, one, axes=1), rows)
        if mean:
            total = jax.tree.map(lambda one: one / DIVISOR, total)
        unit = CLIP / DIVISOR if mean else CLIP
        keys = dict(zip("ab", jax.random.split(noising), strict=True))
        noisy = {
            name: one + noise * unit * jax.random.normal(keys[name], one.shape)
            for name, one in hook.insert(total, drawing).items()
        }
        seen = hook.seen(noisy, total if knows_batches else None)
        return jax.tree.map(lambda old, new: old - 0.01 * new / unit / ROWS, model, noisy), seen

    start = {"a": jnp.zeros((FEATURES, HIDDEN)), "b": jnp.zeros(HIDDEN)}
    keys = jax.random.split(jax.random.key(seed), CLAIMED.steps)
    return hook.scores(jax.jit(lambda keys: jax.lax.scan(step, start, keys)[1])(keys))


def played(*, kind=dirac, noise=CLAIMED.noise_multiplier, mean=False, knows_batches=True, seed=0, **options):
    """Scores with their coins."""
    every = kind(parameters=SIZE, canaries=480, **options)
    coins = np.random.default_rng(seed).random(480) < 0.5
    hook = StepCanaries(
        included=every.take(coins), scored=every, mechanism=CLAIMED, unit=CLIP / DIVISOR if mean else CLIP
    )
    return OneRunScores(coins, trained(hook, noise=noise, mean=mean, knows_batches=knows_batches, seed=seed))


def outcome(scores, claimed=CLAIMED):
    rule = design(MechanismClaim(mechanism=claimed, delta=1e-5), canaries=480)
    return judge(scores, design=rule).verdict.outcome


@pytest.mark.parametrize("options", [{}, {"mean": True}, {"kind": random_directions}])
def test_the_right_training_is_not_refuted_and_a_claim_of_more_noise_is(options):
    scores = played(**options)
    assert outcome(scores) is not Outcome.REFUTED
    assert outcome(scores, dataclasses.replace(CLAIMED, noise_multiplier=3.0)) is Outcome.REFUTED


def test_canaries_that_share_a_parameter_are_scored_by_their_posterior():
    scores = played(per_coordinate=3)
    assert outcome(scores) is not Outcome.REFUTED
    assert apart(scores) > 0.2


def apart(scores):
    inside, outside = scores.score[scores.included], scores.score[~scores.included]
    return (inside.mean() - outside.mean()) / np.concatenate([inside, outside]).std()


def test_half_the_noise_is_refuted_and_what_other_rows_add_costs_power():
    assert outcome(played(noise=0.5 * CLAIMED.noise_multiplier)) is Outcome.REFUTED
    assert apart(played()) > apart(played(knows_batches=False)) > 0.0


def test_scores_are_the_likelihood_ratio_of_the_steps():
    """ln Π ((1 − q) + q·exp((s − ½)/σ²)) with s what was seen, by hand."""
    every = dirac(parameters=SIZE, canaries=4)
    hook = StepCanaries(included=every.take(np.arange(4) < 2), scored=every, mechanism=CLAIMED)
    rng = np.random.default_rng(1)
    released = rng.normal(size=(5, SIZE))
    found = hook.scores([hook.seen(jnp.asarray(one)) for one in released])
    seen = np.stack([every.values[:, 0] * one[every.indices[:, 0]] for one in released])
    q, precision = CLAIMED.sample_rate, CLAIMED.noise_multiplier**-2
    truth = np.log1p(q * np.expm1((seen - 0.5) * precision)).sum(axis=0)
    np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-4)


def test_canaries_are_drawn_at_the_rate_and_add_one_row_of_norm_c():
    every = random_directions(parameters=SIZE, canaries=50)
    hook = StepCanaries(included=every, scored=every, mechanism=CLAIMED, unit=0.3)
    keys = jax.random.split(jax.random.key(2), 400)
    added = np.asarray(jax.vmap(lambda key: hook.insert(jnp.zeros(SIZE), key))(keys))
    each = np.zeros((50, SIZE))
    np.put_along_axis(each, every.indices, 0.3 * every.values, axis=1)
    counts = np.linalg.lstsq(each.T, added.T, rcond=None)[0]
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)  # a canary is drawn or it is not
    # 20,000 draws: five standard errors of the rate are 0.0077, a chance of 6e-7.
    assert abs(counts.round().mean() - CLAIMED.sample_rate) < 0.0078


def test_what_would_score_something_else_is_refused():
    one, other = dirac(parameters=6, canaries=2), dirac(parameters=6, canaries=2, seed=1)
    with pytest.raises(InvalidInputError, match="not among those scored"):
        StepCanaries(included=other, scored=one, mechanism=CLAIMED)
    with pytest.raises(InvalidInputError, match="expected 6, as scored is"):
        StepCanaries(included=dirac(parameters=5, canaries=2), scored=one, mechanism=CLAIMED)
    hook = StepCanaries(included=one, scored=one, mechanism=dataclasses.replace(CLAIMED, steps=1))
    with pytest.raises(InvalidInputError, match="a gradient of 7 numbers came: expected 6"):
        hook.insert(jnp.zeros(7), jax.random.key(0))
    with pytest.raises(InvalidInputError, match="expected 2, as many as were trained"):
        hook.scores(np.zeros((2, 2)))
    with pytest.raises(InvalidInputError, match="one row for each step"):
        hook.scores(np.zeros(2))
    with pytest.raises(InvalidInputError, match="seen has 3 numbers a step: expected 2"):
        hook.scores(np.zeros((1, 3)))
