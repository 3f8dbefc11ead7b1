"""Rows and gradients chosen by what they can prove: their signal against what the other rows do to a step.

One step of DP-SGD shows G = Σ_i∈batch clip_C(∇ℓ_i) + σC·Z. Given the model, the other rows' part has mean q·Σ_i g_i
and, with Poisson batches, covariance q(1 − q)·Σ_i g_i g_iᵀ, so one who does not know the batch meets the covariance

    Σ = σ²C²·I + q(1 − q)·Σ_i g_i g_iᵀ,

and a canary with clipped gradient g stands out by d² = gᵀ Σ⁻¹ g when it is drawn. Σ is never formed: with the gradients
of some rows as the lines of A, scaled to stand for all, Woodbury's identity needs A·Aᵀ alone, and a whitening needs its
leading directions alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.adversaries.attack import Scene
from coalmine.adversaries.clipbkd import class_scores, least_direction
from coalmine.adversaries.crafters.background import MOST_DIRECTIONS, Background, OwnBackground, Row
from coalmine.adversaries.crafters.differentiable import Differentiable, extent
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import Sampling
from coalmine.roles import Iterate, Observer, View
from coalmine.training import (
    Dataset,
    ExampleCanary,
    Neighbours,
    Network,
    RowGradients,
    TrainingConfig,
    clip_divisors,
    line_norms,
    one_thread,
    takes_tokens,
    train,
)

_LEAST_SIGMA = 0.05
"""Without noise everything stands out; scores then use this σ, which keeps them finite and in the same order."""
_LOOKS = 5
"""How many models of a shadow training are looked at, the first one included."""
_ROWS = 256
"""How many of the other rows stand for all of them."""
_MOST_NUMBERS = 30_000_000
"""Gradients kept at a time, in numbers."""
_MOST_KEPT = 4_000_000
"""Shadow models that outlive the choice, in numbers."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Candidate rows, the strongest first; the background at the shadow models; a direction no other row touches.

    ``models`` are some of the shadow trainings', ``[looks, trainings, P]``.
    """

    rows: tuple[Row, ...]
    background: Background
    untouched: NDArray[np.float64]
    models: Tensor


class Candidates:
    """The clipped gradient of the best of some rows at each model; what a model gets does not depend on the others."""

    def __init__(
        self,
        rows: Sequence[Row],
        *,
        network: Network,
        training: TrainingConfig,
        background: Background | OwnBackground,
    ) -> None:
        """``rows``: one, or several of which each model gets the one that stands out most."""
        self.rows = tuple(rows)
        self.background = background
        data = Dataset(np.stack([row.x for row in rows]), [row.y for row in rows])
        self._gradients = RowGradients(network, rows=data, config=training)
        self._last: tuple[Tensor, int, tuple[Tensor, Tensor]] | None = None

    def gradients(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients, ``[S, P]`` in float64, and which row each is of, ``[S]``.

        The last answer is kept: who chooses the row and who looks for it ask about the same models. A background of the
        models' own must know them (:meth:`OwnBackground.renew`).
        """
        last, looks = self._last, self.background.looks
        if last is not None and last[1] == looks and last[0].device == models.device and torch.equal(last[0], models):
            return last[2]
        best = self._best(models)
        self._last = models.clone(), looks, best
        return best

    def forget(self) -> None:
        """Drop the last answer and what the background knows of the models."""
        self._last = None
        self.background.forget()

    def _best(self, models: Tensor) -> tuple[Tensor, Tensor]:
        best = torch.zeros(models.shape[0], dtype=torch.int64, device=models.device)
        found = self._of(0, models)
        if len(self.rows) == 1:
            return found, best
        most = self.background.strengths(found)
        for number in range(1, len(self.rows)):
            other = self._of(number, models)
            strength = self.background.strengths(other)
            better = strength > most
            found = torch.where(better[:, None], other, found)
            most, best = torch.where(better, strength, most), torch.where(better, number, best)
        return found, best

    def chosen(self, models: Tensor, places: Tensor) -> Tensor:
        """The gradients, ``[S, P]`` in float64, of the row that each model has already: ``places`` as above."""
        return self._gradients.at(models, places).double()

    def _of(self, number: int, models: Tensor) -> Tensor:
        places = torch.full((models.shape[0],), number, dtype=torch.int64, device=models.device)
        return self.chosen(models, places)


def strongest(scene: Scene, *, norms: Sequence[float], labels: int, shadows: int, steps: int | None = None) -> Found:
    """Candidate rows, each judged at models of ``shadows`` trainings that had it among their rows.

    Candidates lie along the direction in which the inputs vary least (as in jagielski-2020, Algorithm 4), ``norms``
    times as long as the mean row, and in the origin (a blank row), with the ``labels`` least likely labels each. The
    shadow trainings draw batches and noise of their own, so no trial that is judged has a part in the choice.

    Args:
        scene: what the adversary knows.
        norms: lengths to try, in units of the mean norm of a row.
        labels: how many labels to try at each point.
        shadows: trainings for each candidate.
        steps: how many each of them takes, at most those of the trainer (default: as many).

    Returns:
        The candidates, strongest first, with the background that they meet.

    """
    scene.require_learning("a shadow model")
    if takes_tokens(scene.network):
        raise UnsupportedError("a crafted row is moved along its inputs, and tokens cannot be moved: use api")
    network: Any = scene.network  # a frozen dataclass, and so hashable
    training = scene.training
    if steps is not None:
        training = dataclasses.replace(training, steps=min(training.steps, steps))
    return _strongest(scene.base, scene.classes, network, training, scene.seed, tuple(norms), labels, shadows)


@functools.lru_cache(maxsize=4)
def _strongest(
    base: Dataset,
    classes: int,
    network: Network,
    training: TrainingConfig,
    seed: int,
    norms: tuple[float, ...],
    labels: int,
    shadows: int,
) -> Found:
    """The same for every adversary of an audit that asks for it."""
    flat = np.asarray(base.x, dtype=np.float64).reshape(base.rows, -1)
    mean = extent(base)[2]
    line = least_direction(flat)
    points = [(f"{norm * mean:.3g} along the least varying direction", norm * mean * line) for norm in norms]
    points.append(("a blank row", np.zeros_like(line)))
    judge = _Judge(base, network, training, seeds.generator(str(seed), purpose="rows beside a crafted row", trial=0))
    rows: list[Row] = []
    models: list[Tensor] = []
    with one_thread():
        likely = class_scores(flat, base.y, np.stack([point for _, point in points]), classes=classes)
        for (words, point), order in zip(points, np.argsort(likely, axis=1, kind="stable"), strict=True):
            x = point.reshape(base.shape).astype(base.x.dtype)
            for label in order[:labels].tolist():
                seen = _shadow_models(base, network, training, f"{seed} {len(rows)}", x, label, shadows)
                rows.append(Row(x, label, judge.strength(seen, x, label), words))
                models.append(seen)
        best = np.argsort([-row.strength for row in rows], kind="stable").tolist()
        background, untouched = judge.background(models[best[0]])
    together = torch.cat([seen.reshape(-1, shadows, seen.shape[1]) for seen in models], dim=1)
    few = max(1, _MOST_KEPT // (together.shape[0] * together.shape[2]))
    return Found(tuple(rows[place] for place in best), background, untouched, together[:, :few].clone())


class _Keep(Observer):
    """Keeps a few models of each training, the first one included."""

    view = View.ALL_ITERATES

    def __init__(self, steps: int) -> None:
        self._at = {int(step) for step in np.linspace(1, steps, _LOOKS).round()}
        self.models: list[Tensor] = []

    def observe(self, iterate: Iterate) -> None:
        """Keep the models before the step."""
        if iterate.step in self._at:
            self.models.append(iterate.previous.double().cpu().clone())


def _shadow_models(
    base: Dataset, network: Network, training: TrainingConfig, name: str, x: NDArray[Any], label: int, shadows: int
) -> Tensor:
    """Models of trainings with this row, ``[looks · shadows, P]``."""
    kept = _Keep(training.steps)
    result = train(
        network,
        neighbours=Neighbours(base, canary=ExampleCanary(x, label)),
        config=training,
        fingerprint=f"shadow models of a crafted row {name}",
        trials=range(shadows),
        worlds=np.ones(shadows, dtype=np.int64),
        observer=kept,
        stack=shadows,
    )
    if not result.succeeded.all():
        raise InvalidInputError(f"shadow training failed: {next(iter(result.failures.values()))}")
    return torch.cat(kept.models)


class _Judge:
    """Weighs rows against the other rows and the noise, at given models; all in float64 on the CPU."""

    def __init__(self, base: Dataset, network: Network, training: TrainingConfig, stream: np.random.Generator) -> None:
        self._body = Differentiable(network, device=torch.device("cpu"), dtype=torch.float64)
        self._clip = training.clip
        self.noise = (max(training.noise_multiplier, _LEAST_SIGMA) * training.clip) ** 2
        rate = training.rate(base.rows)
        spread = 0.0 if training.sampling is Sampling.FULL else rate * (1.0 - rate)
        self._stream = stream
        chosen = stream.choice(base.rows, size=min(_ROWS, base.rows), replace=False)
        self._x, self._y = base.x[chosen], base.y[chosen]
        self._each = spread * base.rows
        """The covariance of the others' part is this, times the mean of g gᵀ."""

    def _gradients(self, model: Tensor, x: NDArray[Any], y: NDArray[np.int64]) -> Tensor:
        """Clipped gradients of rows at one model, ``[n, P]``."""
        with torch.enable_grad():
            models = model.expand(len(y), -1).clone().requires_grad_(True)
            inputs = torch.from_numpy(np.asarray(x, dtype=np.float64))
            total = self._body.losses(models, inputs, torch.from_numpy(np.asarray(y))).sum()
            (gradients,) = torch.autograd.grad(total, models)
        return torch.as_tensor(gradients / clip_divisors(line_norms(gradients), clip=self._clip))

    def _others(self, models: Tensor, *, most: int = _ROWS) -> list[Tensor]:
        """Gradients of the other rows, scaled so that Σ of their squares stands for the covariance, a model each."""
        count = max(4, min(len(self._y), most, _MOST_NUMBERS // (len(models) * models.shape[1])))
        x, y = self._x[:count], self._y[:count]
        return [self._gradients(model, x, y) * (self._each / len(y)) ** 0.5 for model in models]

    def strength(self, models: Tensor, x: NDArray[Any], label: int) -> float:
        """The mean of d² = gᵀ Σ⁻¹ g over the models, by Woodbury's identity."""
        found = []
        for model, others in zip(models, self._others(models, most=_ROWS // 2), strict=True):
            row = self._gradients(model, x[None], np.array([label]))[0]
            along = others @ row
            system = others @ others.T + self.noise * torch.eye(len(others), dtype=torch.float64)
            found.append(float(row @ row - along @ torch.linalg.solve(system, along)) / self.noise)
        return float(np.mean(found))

    def background(self, models: Tensor) -> tuple[Background, NDArray[np.float64]]:
        """The leading directions at these models, and a unit vector that no other row's gradient touches there."""
        others = torch.cat(self._others(models, most=2 * _ROWS // len(models))) / len(models) ** 0.5
        values, vectors = torch.linalg.eigh(others @ others.T)
        values, vectors = values.flip(0), vectors.flip(1)
        keep = values > 1e-10 * torch.clamp(values[0], min=1e-300)
        basis = (vectors[:, keep] / values[keep].clamp(min=1e-300).sqrt()).T @ others
        leading = min(MOST_DIRECTIONS, int((values[keep] > 0.05 * self.noise).sum()))
        start = self._stream.normal(size=others.shape[1])
        part = basis[: others.shape[1] // 2].numpy()  # leave room for a direction in small networks
        untouched = start - part.T @ (part @ start)
        return (
            Background(basis[:leading].numpy().copy(), values[keep][:leading].numpy().copy(), self.noise),
            np.asarray(untouched / np.linalg.norm(untouched)),
        )
