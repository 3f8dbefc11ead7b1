"""Crafter 3 of nasr-2021: at each step, the example whose inclusion moves the query's loss the most."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.adversaries.crafters.differentiable import Differentiable, extent, for_each_model
from coalmine.training import AdaptiveExample, Dataset, Network, StackState, line_norms

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
        self._network: Any = network  # a frozen dataclass, and so hashable
        self._query = query
        self._clip, self._rate, self._sign, self._steps = clip, rate, SIGNS[sign], steps
        self._low, self._high, norm = extent(data)
        self._length = step_rate * norm

    def examples(self, state: StackState) -> tuple[Tensor, Tensor]:
        """One example for each model, ``[S, 1, ...]``, and its label."""
        models: Tensor = state.parameters
        body = _body(self._network, str(models.device), models.dtype)
        x, y = self._query
        query = torch.as_tensor(np.array(x), dtype=models.dtype, device=models.device)
        label = torch.tensor(y, device=models.device)

        def craft(part: Tensor) -> tuple[Tensor, Tensor]:
            stack = part.shape[0]
            asked = (query.expand(stack, *query.shape), label.expand(stack))
            labels = asked[1] if self._sign < 0 else _other(body.logits(part, asked[0]), asked[1])
            points = asked[0]
            for _ in range(self._steps):
                slope = body.slope(part, points, labels, query=asked, clip=self._clip, rate=self._rate).flatten(1)
                along = slope / line_norms(slope).clamp(min=1e-30)
                points = points + self._sign * self._length * along.view_as(points)
                points = points.clamp(self._low, self._high)
            return points, labels

        points, labels = for_each_model(craft, models)
        return points.unsqueeze(1), labels.unsqueeze(1)


def _other(scores: Tensor, label: Tensor) -> Tensor:
    """The most likely label but this one."""
    own = torch.nn.functional.one_hot(label, scores.shape[1]).to(torch.bool)
    return scores.masked_fill(own, -torch.inf).argmax(dim=1)


@functools.lru_cache(maxsize=4)
def _body(network: Network, device: str, dtype: torch.dtype) -> Differentiable:
    """Built once for a network and a device; kept out of the canary, which travels to other processes."""
    return Differentiable(network, device=torch.device(device), dtype=dtype)
