"""The heart of a step: forward, backward, per-example norms, and the sum of clipped gradients of every model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from coalmine.training.embedding import Embedding
from coalmine.training.layers import Activation, Flatten, Layer, Linear, Part, Run
from coalmine.training.networks import Network, parameter_shapes

Views = list[list[Tensor]]
"""The parameters of each layer, as views of the stacked parameter vectors."""


def parameter_views(flat: Tensor, layers: Sequence[Part]) -> Views:
    """Views of ``[S, P]`` in the shapes of the layers' parameters."""
    views: Views = []
    start = 0
    for shapes in parameter_shapes(layers):
        mine = []
        for shape in shapes:
            size = math.prod(shape)
            mine.append(torch.unflatten(flat[:, start : start + size], 1, shape))
            start += size
        views.append(mine)
    return views


def clip_factors(squared_norms: Tensor, *, clip: float) -> Tensor:
    """1/max{1, ‖g‖/C} for each example (Algorithm 1 of last-iterate-2024, with C written out).

    >>> clip_factors(torch.tensor([0.25, 4.0]), clip=1.0).tolist()
    [1.0, 0.5]
    """
    norms = squared_norms.sqrt()
    if clip != 1.0:
        norms.div_(clip)
    return norms.clamp_(min=1.0).reciprocal_()


def softmax_(logits: Tensor) -> Tensor:
    """The softmax over the last dimension, in place (torch's own takes several times as long for few classes)."""
    logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


class ClosedForm:
    """Clipped sums for networks made of layers with closed forms."""

    @property
    def takes_matrices(self) -> bool:
        """Whether a single model's tensors may come without the stack's dimension: less to do for every call."""
        return all(isinstance(layer, Linear | Activation) for layer in self.layers)

    def __init__(self, network: Network) -> None:
        # Networks that hide what they do go to another engine (stack.make_engine).
        self.layers = cast("tuple[Layer, ...]", network.layers())
        self.tokens = isinstance(self.layers[0], Embedding)
        self._trained = [bool(layer.shapes()) for layer in self.layers]
        self._first = self._trained.index(True)
        # An activation needs its own output going back, and a view shares memory with what it is a view of.
        self._may_overwrite = [False, *(not isinstance(layer, Activation | Flatten) for layer in self.layers[:-1])]

    def logits(self, parameters: Tensor, x: Tensor, run: Run) -> Tensor:
        """Outputs of every model, ``[S, W, classes]``."""
        for index, (layer, p) in enumerate(zip(self.layers, parameter_views(parameters, self.layers), strict=True)):
            run.layer, run.may_overwrite = index, self._may_overwrite[index]
            x = layer.forward(p, x, run)
        return x

    def clipped_sums(
        self,
        views: Views,
        out: Views,
        *,
        x: Tensor,
        targets: Tensor,
        weights: Tensor,
        clip: float,
        run: Run,
        accumulate: bool,
    ) -> None:
        """out[s] (+)= Σ_j weights[s, j]·clip_C(∇ℓ(m_s, x[s, j])), flat clipping over all parameters together.

        ``targets`` are one-hot labels ``[S, W, classes]``; ``weights`` are 0 for padding.
        """
        inputs: list[Tensor] = []
        for index, (layer, p) in enumerate(zip(self.layers, views, strict=True)):
            run.layer, run.may_overwrite = index, self._may_overwrite[index]
            inputs.append(x)
            x = layer.forward(p, x, run)
        # Softmax cross-entropy: ∂ℓ/∂logits = softmax − one-hot.
        error = softmax_(x).sub_(targets)
        squares: Tensor | None = None
        errors: dict[int, Tensor] = {}
        output = x
        for index in range(len(self.layers) - 1, -1, -1):
            layer, run.layer = self.layers[index], index
            if self._trained[index]:
                errors[index] = error
                mine = layer.squared_norms(inputs[index], error, run)
                squares = mine if squares is None else squares.add_(mine)
            if index > self._first:
                error = layer.backward(views[index], inputs[index], output, error, run)
            output = inputs[index]
        assert squares is not None
        factors = clip_factors(squares, clip=clip).mul_(weights)
        for index, error in errors.items():
            run.layer = index
            error.mul_(factors.view(*factors.shape, *([1] * (error.dim() - factors.dim()))))
            self.layers[index].add_gradients(inputs[index], error, out[index], run, accumulate=accumulate)
