"""1000 trainings of a small DP-SGD in JAX: one compiled call for each, beside many in one call."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

ROWS, STEPS, TOGETHER = 16, 100, 256


def make() -> tuple[Any, Any]:
    """A 64-32-10 network trained by DP-SGD for 100 steps on 16 rows, and its data."""
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(ROWS, 64)), jnp.float32), jnp.asarray(rng.integers(0, 10, ROWS))

    def loss(params: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ params[0] + params[1])
        return -jax.nn.log_softmax(hidden @ params[2] + params[3])[y]

    def train(dataset: Any, key: Any) -> Any:
        start, steps = jax.random.split(key)
        a, b = jax.random.split(start)
        hidden, out = jax.random.normal(a, (64, 32)) / 8.0, jax.random.normal(b, (32, 10)) / 6.0
        params = [hidden, jnp.zeros(32), out, jnp.zeros(10)]

        def step(params: Any, key: Any) -> Any:
            grads = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, *dataset)
            norm = jnp.sqrt(sum((one**2).sum(axis=tuple(range(1, one.ndim))) for one in grads))
            factor = jnp.minimum(1.0, 1.0 / jnp.maximum(norm, 1e-12))
            keys = jax.random.split(key, len(grads))
            noise = [jax.random.normal(k, g.shape[1:]) for g, k in zip(grads, keys, strict=True)]
            noisy = [jnp.tensordot(factor, g, 1) + one for g, one in zip(grads, noise, strict=True)]
            return [p - 0.5 * g / ROWS for p, g in zip(params, noisy, strict=True)], None

        return jax.lax.scan(step, params, jax.random.split(steps, STEPS))[0]

    return train, data


def make_from_products() -> tuple[Any, Any]:
    """The same training, written as is usual where it must be fast: norms from activations and deltas, one draw a step.

    The gradient of row i in a dense layer is the outer product of its input aᵢ and its delta dᵢ, so its norm is
    ‖aᵢ‖·‖dᵢ‖, and the clipped sum is one matrix product.
    """
    import jax
    import jax.numpy as jnp

    data = make()[1]
    sizes = np.cumsum([64 * 32, 32, 32 * 10])

    def train(dataset: Any, key: Any) -> Any:
        x, y = dataset
        start, steps = jax.random.split(key)
        a, b = jax.random.split(start)
        hidden, out = jax.random.normal(a, (64, 32)) / 8.0, jax.random.normal(b, (32, 10)) / 6.0
        params = [hidden, jnp.zeros(32), out, jnp.zeros(10)]
        labels, lengths = jax.nn.one_hot(y, 10), (x**2).sum(axis=1) + 1.0

        def step(params: Any, key: Any) -> Any:
            inner = jnp.tanh(x @ params[0] + params[1])
            last = jax.nn.softmax(inner @ params[2] + params[3]) - labels
            first = (last @ params[2].T) * (1.0 - inner**2)
            squares = (last**2).sum(axis=1) * ((inner**2).sum(axis=1) + 1.0) + (first**2).sum(axis=1) * lengths
            factor = jnp.minimum(1.0, jax.lax.rsqrt(jnp.maximum(squares, 1e-24)))[:, None]
            first, last = factor * first, factor * last
            sums = [x.T @ first, first.sum(axis=0), inner.T @ last, last.sum(axis=0)]
            noise = jnp.split(jax.random.normal(key, (2410,)), sizes)
            noisy = [one + z.reshape(one.shape) for one, z in zip(sums, noise, strict=True)]
            return [p - 0.5 * g / ROWS for p, g in zip(params, noisy, strict=True)], None

        return jax.lax.scan(step, params, jax.random.split(steps, STEPS))[0]

    return train, data


def score(params: Any) -> Any:
    return (params[0] ** 2).sum()


def run(trainings: int = 1000) -> dict[str, float]:
    """Milliseconds without compiling, and their ratio, for both ways to write the training."""
    plain = measured(*make(), trainings)
    products = {f"{name}, from products": value for name, value in measured(*make_from_products(), trainings).items()}
    return plain | products | {"our own trainer (ms each)": 1e3 * own(trainings)}


def own(trainings: int) -> float:
    """Seconds a training on our own trainer: the same network, rows and steps, on a GPU if there is one."""
    import torch

    from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig
    from coalmine.training import train as train_stack

    rng = np.random.default_rng(0)
    base = Dataset(rng.normal(size=(ROWS, 64)).astype(np.float32), rng.integers(0, 10, ROWS))
    network = Mlp(64, hidden=(32,), classes=10, activation="tanh")
    config = TrainingConfig(steps=STEPS, sampling="full", clip=1.0, noise_multiplier=1.0, learning_rate=0.5)

    def play(trials: range) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        worlds = np.zeros(len(trials), dtype=np.int64)
        train_stack(
            network, neighbours=Neighbours(base), config=config, fingerprint="bench", trials=trials, worlds=worlds,
            device=device,
        )  # fmt: skip

    play(range(trainings))  # kernels are compiled
    began = time.perf_counter()
    play(range(trainings))
    return (time.perf_counter() - began) / trainings


def measured(train: Any, data: Any, trainings: int) -> dict[str, float]:
    """One compiled call a training beside many in one call."""
    import jax

    from coalmine.integrations.jax.trainings import Many

    single = jax.jit(lambda dataset, seed: score(train(dataset, jax.random.key(seed))))
    many = Many(train, {"score": score}, canary=None, together=TOGETHER)
    float(single(data, 0))
    many(data, [0])
    began = time.perf_counter()
    few = max(trainings // 10, 1)
    one_by_one = [float(single(data, seed)) for seed in range(few)]
    each = (time.perf_counter() - began) / few
    began = time.perf_counter()
    together = many(data, range(trainings))
    batched = (time.perf_counter() - began) / trainings
    assert np.allclose(one_by_one, np.ravel(together)[:few], rtol=1e-3)
    return {"one by one (ms each)": 1e3 * each, "together (ms each)": 1e3 * batched, "ratio": each / batched}


if __name__ == "__main__":
    print(run())
