"""A network as a function that torch can differentiate, once and twice, for one model or for a whole stack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from coalmine.training import (
    Dataset,
    Functional,
    Network,
    clip_divisors,
    line_norms,
    module,
    parts_of_one_size,
    whole_lines,
)


class Differentiable:
    """ℓ(m, x, y) of models given as parameter vectors: ``models [S, P]``, inputs ``[S, ...]``, labels ``[S]``."""

    def __init__(self, network: Network, *, device: torch.device, dtype: torch.dtype) -> None:
        self._body = Functional(module(network), device=device, dtype=dtype)

    def _one(self, vector: Tensor, x: Tensor) -> Tensor:
        """The outputs of one model at one input, ``[classes]``."""
        return self._body(self._body.named(vector), x.unsqueeze(0))[0]

    def logits(self, models: Tensor, x: Tensor) -> Tensor:
        """The outputs, ``[S, classes]``."""
        if models.shape[0] == 1:
            return self._one(models[0], x[0]).unsqueeze(0)
        outputs: Tensor = vmap(self._one)(models, x)
        return outputs

    def losses(self, models: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of each model at its input, ``[S]``."""
        return functional.cross_entropy(self.logits(models, x), y, reduction="none")

    def after_step(
        self, models: Tensor, x: Tensor, y: Tensor, *, query: tuple[Tensor, Tensor], clip: float, rate: float
    ) -> Tensor:
        """ℓ(m − η·clip_C(∇ℓ(m, x, y)), query): the query's loss once the model has trained on (x, y) alone, ``[S]``."""
        with torch.enable_grad():
            start = models.detach().requires_grad_(True)
            # No model's loss depends on another's vector, so the gradient of the sum is each one's own.
            (gradient,) = torch.autograd.grad(self.losses(start, x, y).sum(), start, create_graph=True)
            wide = whole_lines(gradient)  # the derivative of the division by the norm is a sum over a line, too
            step = rate * wide / clip_divisors(line_norms(wide), clip=clip)
            return self.losses(start - step[:, : models.shape[1]], *query)

    def slope(
        self, models: Tensor, x: Tensor, y: Tensor, *, query: tuple[Tensor, Tensor], clip: float, rate: float
    ) -> Tensor:
        """The gradient of :meth:`after_step` with respect to x: back-propagation through back-propagation."""
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            after = self.after_step(models, point, y, query=query, clip=clip, rate=rate)
            return torch.autograd.grad(after.sum(), point)[0]


def extent(data: Dataset) -> tuple[float, float, float]:
    """The least and the greatest value in the data, and the mean norm of a row."""
    rows = np.asarray(data.x, dtype=np.float64)
    return float(rows.min()), float(rows.max()), float(np.mean(np.linalg.norm(rows.reshape(data.rows, -1), axis=1)))


def for_each_model(function: Callable[[Tensor], tuple[Tensor, ...]], models: Tensor) -> tuple[Tensor, ...]:
    """A function of a stack ``[S, P]``, so called that what a model gets does not depend on the others.

    On a CPU the models take turns, each from memory of its own, because alignment and shape can change the last bits
    of a product. On a GPU a call does as many as any other, by algorithms that sum in the same order every time.
    """
    if models.device.type == "cpu":
        results = [function(vector.clone().unsqueeze(0)) for vector in models.unbind(0)]
    else:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            results = [function(part) for part in parts_of_one_size(models)]
    return tuple(torch.cat(parts)[: models.shape[0]] for parts in zip(*results, strict=True))
