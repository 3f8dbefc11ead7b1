"""Crafter 3 of nasr-2021: at each step, the example whose inclusion moves the query's loss the most."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.adversaries.crafters.differentiable import Differentiable, ForEachModel, extent
from coalmine.training import AdaptiveExample, Dataset, FromModule, Network, StackState, line_norms

SIGNS = {"lower": -1.0, "raise": 1.0}


class AdaptiveExamples(AdaptiveExample):
    """An adaptive canary: x maximises ±ℓ(m − η·clip_C(∇ℓ(m, x, y))/B, query) by ``steps`` steps of ascent on x.

    The gradient with respect to x goes through the gradient with respect to m (double back-propagation). ``sign`` says
    which way the query's loss is pushed: "lower", from the query itself with its own label, or "raise", from the query
    with the label that the present model thinks most likely among the others. Each model of the stack has its own
    example, a function of that model alone; steps have a fixed length and x stays within the range of the data.
    """

    memoryless = True

    def __init__(
        self,
        network: Network,
        *,
        query: tuple[NDArray[Any], int],
        data: Dataset,
        clip: float,
        rate: float,
        sign: str,
        steps: int,
        step_rate: float,
    ) -> None:
        """``rate``: η/B, what a clipped gradient is multiplied by in a step."""
        self._network = network
        self._query = query
        self._clip, self._rate, self._sign, self._steps = clip, rate, SIGNS[sign], steps
        self._low, self._high, norm = extent(data)
        self._length = step_rate * norm
        self._ready: tuple[torch.device, torch.dtype, ForEachModel] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What is held on a device does not travel to other processes."""
        return {**self.__dict__, "_ready": None}

    def examples(self, state: StackState) -> tuple[Tensor, Tensor]:
        """One example for each model, ``[S, 1, ...]``, and its label."""
        models: Tensor = state.parameters
        if self._ready is None or self._ready[:2] != (models.device, models.dtype):
            self._ready = models.device, models.dtype, self._crafter(models.device, models.dtype)
        points, labels = self._ready[2](models)
        return points.unsqueeze(1), labels.unsqueeze(1)

    def _crafter(self, device: torch.device, dtype: torch.dtype) -> ForEachModel:
        """What finds the examples of a stack on this device."""
        body = Differentiable(self._network, device=device, dtype=dtype)
        x, y = self._query
        query, label = torch.as_tensor(np.array(x), dtype=dtype, device=device), torch.tensor(y, device=device)

        def craft(models: Tensor) -> tuple[Tensor, Tensor]:
            asked = (query.expand(models.shape[0], *query.shape), label.expand(models.shape[0]))
            labels = asked[1] if self._sign < 0 else _other(body.logits(models, asked[0]), asked[1])
            points = asked[0]
            for _ in range(self._steps):
                slope = body.slope(models, points, labels, query=asked, clip=self._clip, rate=self._rate).flatten(1)
                along = slope / line_norms(slope).clamp(min=1e-30)
                points = points + self._sign * self._length * along.view_as(points)
                points = points.clamp(self._low, self._high)
            return points, labels

        return ForEachModel(craft, recorded=not isinstance(self._network, FromModule))


def _other(scores: Tensor, label: Tensor) -> Tensor:
    """The most likely label but this one."""
    own = torch.nn.functional.one_hot(label, scores.shape[1]).to(torch.bool)
    return scores.masked_fill(own, -torch.inf).argmax(dim=1)
