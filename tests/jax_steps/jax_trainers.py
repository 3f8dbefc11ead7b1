"""Private steps in JAX as people write them: by hand, with optax, with jax_privacy; right ones, and broken ones."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax

CLIP, SIGMA, RATE, SIZE = 1.0, 2.0, 0.5, 8
"""Clip norm, noise multiplier, learning rate, expected batch size."""
PROMISE = {"clip_norm": CLIP, "noise_multiplier": SIGMA, "divisor": SIZE, "learning_rate": RATE}


def rows(count=5):
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.normal(size=(count, 4)), dtype=jnp.float32), jnp.arange(count) % 2


def padded(count=5, *, real=True):
    """The same rows with a mark for those that only fill up the batch: here none, or all."""
    return (*rows(count), jnp.full(count, not real))


def parameters():
    a, b = jax.random.split(jax.random.key(7))
    return {"in": 0.5 * jax.random.normal(a, (4, 3)), "out": 0.5 * jax.random.normal(b, (3,))}


def loss(params, x, y):
    shown = jnp.tanh(x @ params["in"]) @ params["out"]
    return optax.losses.sigmoid_binary_cross_entropy(shown, y.astype(jnp.float32))


def gradients(params, batch):
    """One gradient for each row."""
    return jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, *batch)


def norms(grads):
    return jnp.sqrt(sum((one**2).sum(axis=tuple(range(1, one.ndim))) for one in jax.tree.leaves(grads)))


def clipped_sum(grads):
    """Each row's gradient clipped as a whole, and added up."""
    factor = jnp.minimum(1.0, CLIP / jnp.maximum(norms(grads), 1e-12))
    return jax.tree.map(lambda one: jnp.tensordot(factor, one, axes=1), grads)


def clipped_by_leaf(grads):
    return {name: clipped_sum({name: one})[name] for name, one in grads.items()}


def noised(tree, key, scale, *, same=False, sampler=jax.random.normal):
    leaves, shape = jax.tree.flatten(tree)
    keys = [key] * len(leaves) if same else jax.random.split(key, len(leaves))
    return jax.tree.unflatten(shape, [one + scale * sampler(k, one.shape) for one, k in zip(leaves, keys, strict=True)])


def by_hand(
    params, batch, key, *, noise=1.0, clip=clipped_sum, same=False, fixed=False, divisor=SIZE, sampler=jax.random.normal
):
    """Plain jax.grad and plain arithmetic."""
    total = clip(gradients(params, batch))
    key = jax.random.key(3) if fixed else key
    noisy = noised(total, key, noise * SIGMA * CLIP, same=same, sampler=sampler)
    by = batch[0].shape[0] if divisor is None else divisor
    return jax.tree.map(lambda old, one: old - RATE * one / by, params, noisy)


def unclipped(grads):
    return jax.tree.map(lambda one: one.sum(axis=0), grads)


def noise_on_the_mean(params, batch, key):
    """Noise that is meant for the sum, on the mean: more than is accounted for."""
    mean = jax.tree.map(lambda one: one / SIZE, clipped_sum(gradients(params, batch)))
    return jax.tree.map(lambda old, one: old - RATE * one, params, noised(mean, key, SIGMA * CLIP))


def noise_of_the_mean(params, batch, key):
    """Noise that is meant for the mean, on the sum: less than is accounted for."""
    noisy = noised(clipped_sum(gradients(params, batch)), key, SIGMA * CLIP / SIZE)
    return jax.tree.map(lambda old, one: old - RATE * one / SIZE, params, noisy)


def one_leaf_without_noise(params, batch, key):
    total = clipped_sum(gradients(params, batch))
    total["in"] = noised(total["in"], key, SIGMA * CLIP)
    return jax.tree.map(lambda old, one: old - RATE * one / SIZE, params, total)


def returns_the_loss(params, batch, key):
    return by_hand(params, batch, key), jax.vmap(loss, in_axes=(None, 0, 0))(params, *batch).sum()


def with_batch_statistics(params, batch, key):
    x, y = batch
    return by_hand(params, ((x - x.mean(axis=0)) / (x.std(axis=0) + 1.0), y), key)


def in_a_loop(params, batch, key):
    """Rows one after the other in a scan, noise inside a scan over leaves."""
    grads = gradients(params, batch)
    factor = jnp.minimum(1.0, CLIP / jnp.maximum(norms(grads), 1e-12))
    start = jax.tree.map(jnp.zeros_like, params)

    def add(total, row):
        weight, one = row
        return jax.tree.map(lambda a, b: a + weight * b, total, one), None

    total, _ = jax.lax.scan(add, start, (factor, grads))
    flat, back = jax.flatten_util.ravel_pytree(total)
    _, noise = jax.lax.scan(lambda c, k: (c, jax.random.normal(k)), None, jax.random.split(key, flat.size))
    return jax.tree.map(lambda old, one: old - RATE * one / SIZE, params, back(flat + SIGMA * CLIP * noise))


def hand_made_normal(key, shape):
    """Box and Muller's way, from uniform numbers."""
    a, b = jax.random.split(key)
    u = jax.random.uniform(a, shape, minval=1e-7)
    return jnp.sqrt(-2.0 * jnp.log(u)) * jnp.cos(2.0 * jnp.pi * jax.random.uniform(b, shape))


# ---- with libraries: keys live in the state ----------------------------------------------------------------------


def with_jax_privacy(*, noise=1.0, optimizer=None, advance=True):
    """clipped_grad and gaussian_privatizer of jax_privacy, then an optimizer of optax."""
    grads = jax_privacy.clipped_grad(
        lambda p, x, y: loss(p, x, y), l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False
    )
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=noise * SIGMA * grads.sensitivity(), prng_key=jax.random.key(11)
    )
    optimizer = optimizer or optax.sgd(RATE)

    def step(state, batch):
        params, noise_state, inner = state
        x, y, padding = batch
        noisy, after = privatizer.update(grads(params, x, y, is_padding_example=padding), noise_state)
        updates, inner = optimizer.update(jax.tree.map(lambda one: one / SIZE, noisy), inner, params)
        return optax.apply_updates(params, updates), after if advance else noise_state, inner

    params = parameters()
    return step, (params, privatizer.init(params), optimizer.init(params))


def with_optax():
    """optax's own aggregation, which divides by the size of the batch that is there."""
    optimizer = optax.chain(
        optax.contrib.differentially_private_aggregate(CLIP, SIGMA, key=jax.random.key(5)), optax.sgd(RATE)
    )

    def step(state, batch):
        params, inner = state
        updates, inner = optimizer.update(gradients(params, batch), inner, params)
        return optax.apply_updates(params, updates), inner

    params = parameters()
    return step, (params, optimizer.init(params))


def hand(**options):
    return functools.partial(by_hand, **options) if options else by_hand
