"""`hidden-state`: a gradient sequence fixed before training, seen through the final model (Cebere et al. 2025)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries import _plain_sgd
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Displacement
from coalmine.roles import Iterate, Observer, View
from coalmine.training import AdaptiveGradient, Neighbours, StackState, parameter_count, train


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenState:
    """A row whose gradient at steps s, 2s, 3s, … has norm C on one coordinate, and is 0 at the others.

    ``coordinate`` = "random" draws the coordinate; "least-moved" takes the one that moves least in ``simulations``
    trainings without noise and without the canary, which the adversary runs beforehand. ``every`` is s. Each gradient
    is a valid one (norm at most C), so the guarantee of the whole training covers the attack whatever s is.
    """

    coordinate: str = "least-moved"
    every: int = 1
    simulations: int = 4

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=View.FINAL_MODEL,
        access="parameters of the first and of the final model",
        modification="adds one row whose gradients are fixed before training",
        dataset="not chosen, but known well enough to simulate",
        summary="Pushes the parameter that training moves least, and looks how far it has moved at the end.",
        paper="Cebere et al. 2025 (arXiv 2405.14457); a step past last-iterate-2024",
    )

    def __post_init__(self) -> None:
        _validate.choice("coordinate", self.coordinate, ("random", "least-moved"))
        _validate.integer("every", self.every, at_least=1)
        _validate.integer("simulations", self.simulations, at_least=1, at_most=10_000)

    def craft(self, scene: Scene) -> Attack:
        """Choose the coordinate, by simulation or by lot."""
        steps, size = scene.training.steps, parameter_count(scene.network)
        if self.every > steps:
            raise _validate.reject("every", self.every, f"at most the number of steps, {steps}")
        unit = _plain_sgd.unit(scene)
        stream = scene.stream("hidden-state coordinate")
        if self.coordinate == "random":
            coordinate, how = int(stream.integers(size)), "drawn at random"
        else:
            path = self._simulate(scene)
            least = np.flatnonzero(path == path.min())
            coordinate = int(least[stream.integers(least.size)])
            how = f"which moves least in {self.simulations} simulated trainings"
            if least.size > 1:
                how += f" (with {least.size - 1} others)"
        canary = _plain_sgd.dirac(scene, coordinate, size)
        often = "at every step" if self.every == 1 else f"at every {self.every}th step"
        return Attack(
            neighbours=Neighbours(
                scene.base, canary=canary if self.every == 1 else Scheduled(canary.gradient, every=self.every)
            ),
            distinguisher=Displacement(coordinate, unit=unit),
            notes=(f"the canary's gradient is C on coordinate {coordinate} of {size}, {how}; {often}",),
        )

    def _simulate(self, scene: Scene) -> NDArray[np.float64]:
        """How far each coordinate travels in trainings without noise: Σ_t g_t², over the simulations."""
        watcher = _Path()
        train(
            scene.network,
            neighbours=Neighbours(scene.base),
            config=dataclasses.replace(scene.training, noise_multiplier=0.0),
            fingerprint=f"hidden-state simulation {scene.seed}",
            trials=range(self.simulations),
            worlds=[0] * self.simulations,
            observer=watcher,
        )
        assert watcher.travelled is not None
        return watcher.travelled.cpu().numpy()


class _Path(Observer):
    """Sums up how far every coordinate travels, over all steps and trainings."""

    view = View.ALL_ITERATES

    def __init__(self) -> None:
        self.travelled: torch.Tensor | None = None

    def observe(self, iterate: Iterate) -> None:
        """One more step; stacks add up."""
        squares = iterate.private_gradient.double().square().sum(0)
        self.travelled = squares if self.travelled is None else self.travelled + squares


class Scheduled(AdaptiveGradient):
    """A fixed gradient at steps s, 2s, 3s, …, and zero at the others."""

    def __init__(self, gradient: NDArray[np.float64], *, every: int) -> None:
        self._gradient, self._every = torch.from_numpy(gradient), every
        self._zero = torch.zeros_like(self._gradient)

    def gradients(self, state: StackState) -> torch.Tensor:
        """The same for every model."""
        now = self._gradient if state.step % self._every == 0 else self._zero
        return now.to(state.parameters).expand_as(state.parameters)
