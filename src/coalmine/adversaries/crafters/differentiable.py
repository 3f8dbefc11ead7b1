"""A network as a function that torch can differentiate, once and twice, for one model or for a whole stack."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from coalmine.training import Network, module


class Differentiable:
    """ℓ(m, x, y): the loss of one model, given as a parameter vector, at one labelled input."""

    def __init__(self, network: Network, *, device: torch.device, dtype: torch.dtype) -> None:
        self._body = module(network).to(device=device, dtype=dtype)
        self._names = [(name, p.shape) for name, p in self._body.named_parameters() if p.requires_grad]
        for parameter in self._body.parameters():
            parameter.requires_grad_(False)

    def loss(self, vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy at one input: ``vector [P]``, ``x`` of one row, ``y`` a label."""
        return functional.cross_entropy(self.logits(vector, x), y)

    def logits(self, vector: Tensor, x: Tensor) -> Tensor:
        """The outputs at one input, ``[classes]``."""
        values, start = {}, 0
        for name, shape in self._names:
            size = math.prod(shape)
            values[name] = vector[start : start + size].view(shape)
            start += size
        outputs: Tensor = functional_call(self._body, values, (x.unsqueeze(0),))
        return outputs[0]

    def after_step(
        self, vector: Tensor, x: Tensor, y: Tensor, *, query: tuple[Tensor, Tensor], clip: float, rate: float
    ) -> Tensor:
        """ℓ(m − η·clip_C(∇ℓ(m, x, y)), query): the query's loss once the model has trained on (x, y) alone."""
        gradient = grad(self.loss)(vector, x, y)
        norm = torch.linalg.vector_norm(gradient)
        moved = vector - rate * gradient / (norm / clip).clamp(min=1.0)
        return self.loss(moved, *query)


def for_each_model(function: Callable[[Tensor], tuple[Tensor, ...]], models: Tensor) -> tuple[Tensor, ...]:
    """The function of one parameter vector for each row of ``[S, P]``; results get a first dimension S.

    On a CPU the models take turns, each from memory of its own (alignment can change a product's last bits), so that
    what a model gets does not depend on what else is in the stack; on a GPU one batched call does them all.
    """
    if models.device.type != "cpu":
        batched: tuple[Tensor, ...] = vmap(function)(models)
        return batched
    results = [function(vector.clone()) for vector in models.unbind(0)]
    return tuple(torch.stack(parts) for parts in zip(*results, strict=True))
