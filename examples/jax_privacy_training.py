"""DP-SGD with jax_privacy: clipped_grad, gaussian_privatizer, and an optimizer of optax; audited and probed.

    cd examples
    python jax_privacy_training.py

Needs ``pip install 'coalmine[jax]' jax-privacy``; torch is not needed.
"""

import functools

import jax
import jax.numpy as jnp
import jax_privacy
import optax

import coalmine
from coalmine.integrations.jax import audit, probe

ROWS, FEATURES, STEPS = 8, 4, 4
CLIP_NORM, NOISE_MULTIPLIER, SAMPLE_RATE, LEARNING_RATE = 1.0, 1.0, 0.5, 0.5
EXPECTED = SAMPLE_RATE * ROWS

claim = coalmine.DpSgd(sample_rate=SAMPLE_RATE, noise_multiplier=NOISE_MULTIPLIER, steps=STEPS)
optimizer = optax.sgd(LEARNING_RATE)


def loss(weight, x, y):
    return optax.losses.sigmoid_binary_cross_entropy(x @ weight, y)


clipped_grad = jax_privacy.clipped_grad(
    loss, l2_clip_norm=CLIP_NORM, normalize_by=EXPECTED, batch_argnums=(1, 2), keep_batch_dim=False
)


def privatizer(key, noise=NOISE_MULTIPLIER):
    """The noise is for what clipped_grad gives: its sensitivity counts that it has been divided."""
    return jax_privacy.noise_addition.gaussian_privatizer(stddev=noise * clipped_grad.sensitivity(), prng_key=key)


def step(state, batch, *, noise=NOISE_MULTIPLIER):
    """One step; the privatizer's key is part of the state. Rows that were not sampled are padding."""
    weight, noise_state, inner = state
    x, y, padding = batch
    gradient = clipped_grad(weight, x, y, is_padding_example=padding)
    noisy, noise_state = privatizer(None, noise).update(gradient, noise_state)
    updates, inner = optimizer.update(noisy, inner, weight)
    return optax.apply_updates(weight, updates), noise_state, inner


def begin(key, noise=NOISE_MULTIPLIER):
    weight = jnp.zeros(FEATURES)
    return weight, privatizer(key, noise).init(weight), optimizer.init(weight)


def train(dataset, key, *, noise=NOISE_MULTIPLIER):
    """All steps, with Poisson sampling as padding. Every iterate is released."""
    x, y = dataset
    sampling, noising = jax.random.split(key)

    def one(state, key):
        padding = ~jax.random.bernoulli(key, SAMPLE_RATE, y.shape)
        state = step(state, (x, y, padding), noise=noise)
        return state, state[0]

    return jax.lax.scan(one, begin(noising, noise), jax.random.split(sampling, STEPS))[1]


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
    """The probe of a step; an empty batch is one that is all padding."""
    x, y = jnp.eye(FEATURES), jnp.array([0.0, 1.0, 0.0, 1.0])
    return probe(
        functools.partial(step, **options),
        state=begin(jax.random.key(0), **options),
        batch=(x, y, jnp.zeros(FEATURES, dtype=bool)),
        empty=(x, y, jnp.ones(FEATURES, dtype=bool)),
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        divisor=EXPECTED,
        learning_rate=LEARNING_RATE,
        name="jax_privacy step",
    )


if __name__ == "__main__":
    print(probed().in_words())
    half = functools.partial(train, noise=0.5 * NOISE_MULTIPLIER)
    result = audit(train, score, worlds=worlds, claim_dpsgd=claim, control=half, trials=1000)
    print(result.in_words())
