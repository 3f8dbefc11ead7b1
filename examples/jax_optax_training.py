"""DP-SGD in plain JAX with an optimizer of optax: its training audited, one of its steps probed.

    cd examples
    python jax_optax_training.py

Needs ``pip install 'coalmine[jax]'``; torch is not needed.
"""

import functools

import jax
import jax.numpy as jnp
import optax

import coalmine
from coalmine.integrations.jax import audit, probe

ROWS, FEATURES, STEPS = 8, 4, 4
CLIP_NORM, NOISE_MULTIPLIER, SAMPLE_RATE, LEARNING_RATE = 1.0, 1.0, 0.5, 0.5
EXPECTED = SAMPLE_RATE * ROWS  # the divisor: a constant, whatever was sampled

claim = coalmine.DpSgd(sample_rate=SAMPLE_RATE, noise_multiplier=NOISE_MULTIPLIER, steps=STEPS)
optimizer = optax.sgd(LEARNING_RATE)


def loss(weight, x, y):
    return optax.losses.sigmoid_binary_cross_entropy(x @ weight, y)


def private_gradient(weight, batch, key, *, noise):
    """Clip each row's gradient, leave out the rows that were not sampled, add up, add noise, divide."""
    x, y, sampled = batch
    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(weight, x, y)
    norms = jnp.linalg.norm(gradients, axis=1)
    factors = sampled * jnp.minimum(1.0, CLIP_NORM / jnp.maximum(norms, 1e-12))
    noisy = factors @ gradients + noise * CLIP_NORM * jax.random.normal(key, weight.shape)
    return noisy / EXPECTED


def step(state, batch, key, *, noise=NOISE_MULTIPLIER):
    """One step of DP-SGD: what is released is the next weight."""
    weight, inner = state
    updates, inner = optimizer.update(private_gradient(weight, batch, key, noise=noise), inner, weight)
    return optax.apply_updates(weight, updates), inner


def train(dataset, key, *, noise=NOISE_MULTIPLIER):
    """All steps, with Poisson sampling as a mask. Every iterate is released."""
    x, y = dataset

    def one(state, key):
        sampling, noising = jax.random.split(key)
        sampled = jax.random.bernoulli(sampling, SAMPLE_RATE, y.shape).astype(x.dtype)
        state = step(state, (x, y, sampled), noising, noise=noise)
        return state, state[0]

    start = jnp.zeros(FEATURES)
    return jax.lax.scan(one, (start, optimizer.init(start)), jax.random.split(key, STEPS))[1]


def score(weights, canary):
    """How far every step went against the canary's gradient."""
    x, y = canary
    before = jnp.concatenate([jnp.zeros((1, FEATURES)), weights[:-1]])
    gradients = jax.vmap(jax.grad(loss), in_axes=(0, None, None))(before, x, y)
    directions = gradients / jnp.maximum(jnp.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
    return -((weights - before) * directions).sum()


def worlds():
    """Rows that the canary's gradient has nothing to do with, without and with the canary."""
    x = jnp.tile(jnp.eye(FEATURES)[1:], (3, 1))[: ROWS - 1]
    y = jnp.arange(ROWS - 1) % 2.0
    return coalmine.neighbours((x, y), (4.0 * jnp.eye(FEATURES)[0], 1.0))


def probed(**options):
    """The probe of a step; rows that were not sampled stay in the batch, so an empty batch is a mask of zeros."""
    weight = jnp.zeros(FEATURES)
    x, y = jnp.eye(FEATURES), jnp.array([0.0, 1.0, 0.0, 1.0])
    return probe(
        functools.partial(step, **options),
        state=(weight, optimizer.init(weight)),
        batch=(x, y, jnp.ones(FEATURES)),
        empty=(x, y, jnp.zeros(FEATURES)),
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        divisor=EXPECTED,
        learning_rate=LEARNING_RATE,
        name="optax step",
    )


if __name__ == "__main__":
    print(probed().in_words())
    half = functools.partial(train, noise=0.5 * NOISE_MULTIPLIER)
    result = audit(train, score, worlds=worlds, claim_dpsgd=claim, control=half, trials=1000)
    print(result.in_words())
