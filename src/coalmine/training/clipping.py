"""The heart of a step: forward, backward, per-example norms, and the sum of clipped gradients of every model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from coalmine.training.answers import Answers
from coalmine.training.batching import Batch
from coalmine.training.layers import Activation, Flatten, Layer, Linear, Part, Run, Scratch, TrainedLayer
from coalmine.training.networks import Network, takes_tokens
from coalmine.training.products import Counts

Views = list[list[Tensor]]
"""The parameters of each layer, as views of the stacked parameter vectors."""


def parameter_views(flat: Tensor, layers: Sequence[Part]) -> Views:
    """Views of ``[S, P]`` in the shapes of the layers' parameters."""
    views: Views = []
    start = 0
    for layer in layers:
        mine = []
        for shape in layer.shapes():
            size = math.prod(shape)
            mine.append(torch.unflatten(flat[:, start : start + size], 1, shape))
            start += size
        views.append(mine)
    return views


def clip_divisors(norms: Tensor, *, clip: float) -> Tensor:
    """max{1, ‖g‖/C}: what a gradient of that norm is divided by (Algorithm 1 of last-iterate-2024, with C written out).

    The compiled kernels of a CPU and the fused ones of a GPU write the same in their own languages.

    >>> clip_divisors(torch.tensor([0.5, 2.0]), clip=1.0).tolist()
    [1.0, 2.0]
    """
    return (norms / clip).clamp(min=1.0)


def softmax_(logits: Tensor) -> Tensor:
    """The softmax over the last dimension, in place (torch's own takes several times as long for few classes)."""
    logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return logits.div_(logits.sum(-1, keepdim=True))


class ClosedForm(Answers):
    """Clipped sums for networks made of layers with closed forms."""

    def __init__(self, network: Network, *, device: torch.device, dtype: torch.dtype) -> None:
        # Networks that hide what they do go to another engine (engines.make_engine).
        self.layers = cast("tuple[Layer, ...]", network.layers())
        self.takes_tokens = takes_tokens(network)
        self.takes_matrices = all(isinstance(layer, Linear | Activation) for layer in self.layers)
        """Whether a single model's tensors may come without the stack's dimension: less to do for every call."""
        self._scratch = Scratch(device=device, dtype=dtype)
        trained = [index for index, layer in enumerate(self.layers) if isinstance(layer, TrainedLayer)]
        self._first = trained[0] if trained else len(self.layers)
        # An activation needs its own output going back, and a view shares memory with what it is a view of.
        self._may_overwrite = [False, *(not isinstance(layer, Activation | Flatten) for layer in self.layers[:-1])]

    def _forward(self, views: Views, x: Tensor, run: Run) -> Iterator[Tensor]:
        """The output of every layer."""
        for index, (layer, p) in enumerate(zip(self.layers, views, strict=True)):
            run.layer, run.may_overwrite = index, self._may_overwrite[index]
            x = layer.forward(p, x, run)
            yield x

    def logits(self, parameters: Tensor, x: Tensor, counts: Counts) -> Tensor:
        """Outputs of every model, ``[S, W, classes]``."""
        run = Run(Scratch(device=parameters.device, dtype=parameters.dtype), counts)
        for output in self._forward(parameter_views(parameters, self.layers), x, run):
            x = output
        return x

    def clipped_sums(self, views: Views, out: Views, batch: Batch, *, clip: float, accumulate: bool) -> None:
        """out[s] (+)= Σ_j weights[s, j]·clip_C(∇ℓ(m_s, x[s, j])), flat clipping over all parameters together."""
        run = Run(self._scratch, batch.counts, width=batch.width, input_squares=batch.squares)
        values = [batch.x, *self._forward(views, batch.x, run)]
        # Softmax cross-entropy: ∂ℓ/∂logits = softmax − one-hot.
        error = softmax_(values[-1]).sub_(batch.targets)
        squares: Tensor | None = None
        errors: dict[int, tuple[TrainedLayer, Tensor]] = {}
        for index in range(len(self.layers) - 1, -1, -1):
            layer, run.layer = self.layers[index], index
            if isinstance(layer, TrainedLayer):
                errors[index] = layer, error
                mine = layer.squared_norms(values[index], error, run)
                squares = mine if squares is None else squares.add_(mine)
            if index > self._first:
                error = layer.backward(views[index], values[index], values[index + 1], error, run)
        assert squares is not None
        factors = clip_divisors(squares.sqrt_(), clip=clip).reciprocal_().mul_(batch.weights)
        for index, (layer, error) in errors.items():
            run.layer = index
            error.mul_(factors.view(*factors.shape, *([1] * (error.dim() - factors.dim()))))
            layer.add_gradients(values[index], error, out[index], run, accumulate=accumulate)
