"""jax-privacy: the step of examples/jax_privacy_training.py, 1000 trainings of it at once, and one run.

A row that was not sampled is padding, so both worlds have the same shapes; neighbors differ in one row added.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import jax_privacy
import jax_privacy_training as example
import numpy as np
from cases import Report, Trainings, judged, probed

import coalmine
from coalmine.integrations.jax import audit

half = functools.partial(example.train, noise=0.5 * example.NOISE_MULTIPLIER)

CANARIES, STEPS, RATE, SIGMA = 1960, 100, 0.2, 2.0
run_claim = coalmine.DpSgd(sample_rate=RATE, noise_multiplier=SIGMA, steps=STEPS)


def linear_loss(weight, x, y):
    return -y * (x @ weight)


def fit(x, y, sigma, seed):
    """DP-SGD on a linear loss with jax_privacy's clipping and noise; Poisson batches as padding."""
    clipped = jax_privacy.clipped_grad(linear_loss, l2_clip_norm=1.0, batch_argnums=(1, 2), keep_batch_dim=False)
    noise = jax_privacy.noise_addition.gaussian_privatizer(
        stddev=sigma * clipped.sensitivity(), prng_key=jax.random.key(2 * seed)
    )

    def one(state, key):
        weight, noise_state = state
        padding = ~jax.random.bernoulli(key, RATE, y.shape)
        noisy, noise_state = noise.update(clipped(weight, x, y, is_padding_example=padding), noise_state)
        return (weight - noisy, noise_state), None

    begin = jnp.zeros(x.shape[1])
    keys = jax.random.split(jax.random.key(2 * seed + 1), STEPS)
    return jax.jit(lambda: jax.lax.scan(one, (begin, noise.init(begin)), keys)[0][0])()


def one_run():
    """Canaries with a feature each; the score of a canary is how far its own weight went with it."""
    labels = np.where(np.arange(CANARIES) % 2, 1.0, -1.0)
    chosen = coalmine.one_run.RowCanaries(kind="one feature each", x=np.eye(CANARIES), y=labels)
    claim = coalmine.MechanismClaim(mechanism=run_claim, delta=1e-5)

    def play(sigma, seed, **control):
        rows, classes = np.zeros((20, CANARIES)), np.ones(20)
        run = coalmine.one_run.begin(chosen, claim=claim, x=rows, y=classes)
        weight = np.asarray(fit(jnp.asarray(run.x), jnp.asarray(run.y), sigma, seed))
        return run.judge(run.canaries.y * (run.canaries.x @ weight), **control)

    return judged(play(SIGMA, 2, control=play(SIGMA / 2.0, 1)), canaries=CANARIES)


CASES = [
    Report(name="clipped_grad, gaussian_privatizer: one step", run=lambda: probed(example.probed())),
    Report(
        name="the same with half of the noise: one step", run=lambda: probed(example.probed(noise=0.5)), note="control"
    ),
    Trainings(
        name="clipped_grad, gaussian_privatizer: q = 0.5, σ = 1, T = 4",
        train=example.train,
        control=half,
        score=example.score,
        worlds=example.worlds(),
        mechanism=example.claim,
        delta=1e-5,
        trials=1000,
        audit=audit,
    ),
    Report(name=f"clipped_grad, gaussian_privatizer: q = {RATE}, σ = {SIGMA:g}, T = {STEPS}", run=one_run),
]
