"""Crafter 2 of nasr-2021: shadow models trained as the trainer would, then an input that all of them get wrong."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine import seeds
from coalmine.adversaries.attack import Scene
from coalmine.adversaries.crafters.differentiable import Differentiable, extent
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.roles import Models, Observer, View
from coalmine.training import Dataset, Neighbours, Network, TrainingConfig, one_thread, takes_tokens, train

SOURCES = ("held_out", "base")


@dataclasses.dataclass(frozen=True, eq=False)
class Query:
    """An adversarial input with its label, the mean loss of the shadow models there, and words for the report."""

    x: NDArray[Any]
    y: int
    loss: float
    notes: tuple[str, ...]


def query(
    scene: Scene, *, shadows: int, shadow_data: str, shadow_steps: int | None, ascent_steps: int, ascent_rate: float
) -> Query:
    """Train the shadow models and climb their mean loss: x ← x + s·∇ₓ (1/k)·Σ ℓ(f_j, x, y).

    The shadow models have the trainer's own network and numbers (steps, clipping, noise, learning rate, expected batch
    size) and are trained on rows that the adversary has anyway: held-out rows of the same distribution, or the base
    data, which the adversary chooses. The start (x, y) is a random one of those rows. Each step of the ascent is
    ``ascent_rate`` times the mean norm of the rows long, and x stays within the range of the data: a picture stays a
    picture. All of it runs on the CPU in float64, so that the worlds are the same whatever device trains in them.
    """
    scene.require_learning("a shadow model")
    if takes_tokens(scene.network):
        raise UnsupportedError("crafter 2 climbs a loss along its input, and tokens cannot be moved: use api")
    chosen = scene.base if shadow_data == "base" or scene.held_out is None else scene.held_out
    batch = scene.training.expected_batch(scene.base.rows)
    full = scene.training.batch_size is None and scene.training.sample_rate is None
    if not full and chosen.rows < batch:
        raise InvalidInputError(
            f"the shadow data has {chosen.rows} rows, too few for the trainer's expected batch of {batch:g}: expected "
            f"at least {math.ceil(batch)}, or shadow_data = 'base'"
        )
    config = scene.training
    if not full:
        config = dataclasses.replace(config, sample_rate=min(1.0, batch / chosen.rows), batch_size=None)
    if shadow_steps is not None:
        config = dataclasses.replace(config, steps=min(config.steps, shadow_steps))
    network: Any = scene.network  # a frozen dataclass, and so hashable
    return _query(chosen, network, config, scene.seed, shadows, ascent_steps, ascent_rate)


class _Keep(Observer):
    """Keeps the final parameters of one stack."""

    view = View.FINAL_MODEL
    parameters: torch.Tensor

    def finish(self, models: Models) -> None:
        """No scores."""
        self.parameters = torch.as_tensor(models.parameters).double().clone()


@functools.lru_cache(maxsize=8)
def _query(
    data: Dataset,
    network: Network,
    config: TrainingConfig,
    seed: int,
    shadows: int,
    ascent_steps: int,
    ascent_rate: float,
) -> Query:
    """The same query for every adversary of an audit that asks for it."""
    kept = _Keep()
    result = train(
        network,
        neighbours=Neighbours(data),
        config=config,
        fingerprint=f"shadow models {seed}",
        trials=range(shadows),
        worlds=np.zeros(shadows, dtype=np.int64),
        observer=kept,
        stack=shadows,
    )
    if not result.succeeded.all():
        raise InvalidInputError(f"shadow training failed: {next(iter(result.failures.values()))}")
    generator = seeds.generator(str(seed), purpose="shadow start", trial=0)
    row = int(generator.integers(data.rows))
    with one_thread():
        x, loss = _ascend(data, network, kept.parameters, row, ascent_steps, ascent_rate)
    label = int(data.y[row])
    notes = (
        f"the query starts from a random row with label {label}; after {ascent_steps} steps of ascent the mean loss of "
        f"{shadows} shadow models is {loss:.3g}",
    )
    return Query(x.astype(data.x.dtype), label, loss, notes)


def _ascend(
    data: Dataset, network: Network, models: torch.Tensor, row: int, steps: int, rate: float
) -> tuple[NDArray[np.float64], float]:
    """The climb from one row, and the mean loss where it ends."""
    body = Differentiable(network, device=torch.device("cpu"), dtype=torch.float64)
    labels = torch.full((models.shape[0],), int(data.y[row]))

    def mean_loss(x: torch.Tensor) -> torch.Tensor:
        return body.losses(models, x.expand(models.shape[0], *x.shape), labels).mean()

    low, high, norm = extent(data)
    x = torch.from_numpy(np.array(data.x[row], dtype=np.float64))
    for _ in range(steps):
        with torch.enable_grad():
            point = x.clone().requires_grad_(True)
            (slope,) = torch.autograd.grad(mean_loss(point), point)
        x = (x + rate * norm * slope / torch.linalg.vector_norm(slope).clamp(min=1e-300)).clamp(low, high)
    with torch.no_grad():
        return x.numpy(), float(mean_loss(x))
