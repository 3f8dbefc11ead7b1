"""All that the trials of one training share, and where each of them starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine import seeds
from coalmine.roles import Observer, View
from coalmine.training import networks
from coalmine.training.canary import Neighbours
from coalmine.training.config import GivenWeights, TrainingConfig
from coalmine.training.noise import gpu_noise

_START = "initialisation"
"""The stream of the first weights. Stored trials depend on this word, so it is not to be respelled."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One training, to be repeated by many trials, and who watches them."""

    network: networks.Network
    neighbours: Neighbours
    config: TrainingConfig
    fingerprint: str
    device: torch.device
    observer: Observer | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return torch.float32 if self.config.dtype == "float32" else torch.float64

    @property
    def rows(self) -> int:
        """n, the rows of the base data."""
        return self.neighbours.base.rows

    @property
    def batch(self) -> float:
        """B, the expected batch size."""
        return self.config.expected_batch(self.rows)

    @property
    def watched(self) -> bool:
        """Whether the observer is shown every step."""
        return self.observer is not None and self.observer.view == View.ALL_ITERATES

    @property
    def paired(self) -> bool:
        """Whether the worlds are kept apart: the noise needs it, or an observer who knows both data sets."""
        knows = self.observer is not None and self.observer.knows_both_worlds
        return self.config.noise_scale == "local" or (self.watched and knows)

    def initial(self, trials: Sequence[int]) -> Tensor:
        """Where each trial starts, ``[S, P]``: on one kind of device a function of (fingerprint, trial) alone.

        A GPU draws starts of its own (thousands at once would take longer on the processor than their training here).
        """
        start, device, dtype = self.config.initialization, self.device, self.dtype
        if isinstance(start, GivenWeights) or start.fixed:
            vector = (
                start.values if isinstance(start, GivenWeights) else self._glorot(f"fixed start {start.seed}", 0, 1.0)
            )
            return torch.from_numpy(vector).to(device, dtype).expand(len(trials), -1)
        if device.type == "cuda":
            law = networks.glorot_law(self.network, scale=start.scale)
            spread, mean = (torch.from_numpy(part).to(device, dtype) for part in law)
            size = spread.numel()
            drawn = torch.zeros((len(trials), size), device=device, dtype=dtype)
            normals = gpu_noise(self.fingerprint, trials, size=size, device=device, dtype=dtype, purpose=_START)
            normals.add_to(drawn, scale=1.0)
            return drawn.mul_(spread).add_(mean)
        rows = [self._glorot(self.fingerprint, trial, start.scale) for trial in trials]
        return torch.from_numpy(np.stack(rows)).to(dtype)

    def _glorot(self, fingerprint: str, trial: int, scale: float) -> NDArray[np.float64]:
        """One parameter vector from the stream of the first weights."""
        generator = seeds.generator(fingerprint, purpose=_START, trial=trial)
        return networks.glorot(self.network, scale=scale, generator=generator)


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """Some trials of a job, each in its world: what one stack trains of it."""

    job: Job
    trials: Sequence[int]
    worlds: Sequence[int]
