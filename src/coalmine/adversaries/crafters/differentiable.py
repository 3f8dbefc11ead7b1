"""A network as a function that torch can differentiate, once and twice, for one model or for a whole stack."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
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

_TOGETHER = 1024
"""Models in one call on a GPU: so small a call costs as much for a few."""


class _Patches(nn.Module):
    """A convolution as one product with the patches of its picture.

    For a whole stack that is a batch of products, which a GPU does, forth and back and back again, in a small part of
    the time of a library's convolution with as many groups as there are models.
    """

    def __init__(self, given: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = given.weight, given.bias
        self._kernel, self._stride = given.kernel_size[0], given.stride[0]
        self._padding = int(given.padding[0])

    def forward(self, x: Tensor) -> Tensor:
        """``[B, inputs, high, wide]`` to ``[B, outputs, ...]``."""
        padded = functional.pad(x, (self._padding,) * 4) if self._padding else x
        windows = padded.unfold(2, self._kernel, self._stride).unfold(3, self._kernel, self._stride)
        high, wide = windows.shape[2:4]
        patches = windows.permute(0, 2, 3, 1, 4, 5).reshape(x.shape[0], high * wide, -1)
        product = patches @ self.weight.flatten(1).t()
        outputs = product if self.bias is None else product + self.bias
        return outputs.transpose(1, 2).reshape(x.shape[0], -1, high, wide)


class Differentiable:
    """ℓ(m, x, y) of models given as parameter vectors: ``models [S, P]``, inputs ``[S, ...]``, labels ``[S]``."""

    def __init__(
        self, network: Network, *, device: torch.device, dtype: torch.dtype, patches: bool | None = None
    ) -> None:
        """``patches``: convolutions are products with patches; on a GPU they are, if not told."""
        body = module(network)
        if patches if patches is not None else device.type == "cuda":
            for name, child in body.named_children():
                if isinstance(child, nn.Conv2d):
                    setattr(body, name, _Patches(child))
        self._body = Functional(body, device=device, dtype=dtype)

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


class ForEachModel:
    """A function of a stack ``[S, P]``, so called that what a model gets does not depend on the others.

    On a CPU the models take turns, each from memory of its own, because alignment and shape can change the last bits
    of a product. On a GPU a call does as many as any other, by algorithms that sum in the same order every time; with
    ``recorded`` its hundreds of small operations are recorded once and then started together, which spares the time to
    start each. Such a function must not look at numbers on the host.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]], *, recorded: bool = False) -> None:
        self._function, self._recorded = function, recorded
        self._record: _Record | None = None

    def __call__(self, models: Tensor) -> tuple[Tensor, ...]:
        """The function of all these models."""
        if models.device.type == "cpu":
            results = [self._function(vector.clone().unsqueeze(0)) for vector in models.unbind(0)]
        else:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
                results = [self._on_gpu(part) for part in parts_of_one_size(models, together=_TOGETHER)]
        return tuple(torch.cat(parts)[: models.shape[0]] for parts in zip(*results, strict=True))

    def _on_gpu(self, part: Tensor) -> tuple[Tensor, ...]:
        if not self._recorded:
            return self._function(part)
        if self._record is None or self._record.differs(part):
            self._record = _Record(self._function, part)
        return self._record(part)


class _Record:
    """A function on a GPU as a graph of its kernels, for arguments like the first."""

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]], first: Tensor) -> None:
        self._given = first.contiguous().clone()
        self._precision = torch.get_float32_matmul_precision()
        beside = torch.cuda.Stream(first.device)  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream(first.device))
        with torch.cuda.stream(beside):
            for _ in range(2):  # what libraries do at their first calls cannot be recorded
                function(self._given)
        torch.cuda.current_stream(first.device).wait_stream(beside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=beside, capture_error_mode="thread_local"):
            self._found = function(self._given)

    def differs(self, part: Tensor) -> bool:
        """Whether this argument needs other kernels."""
        alike = (part.shape, part.dtype, part.device) == (self._given.shape, self._given.dtype, self._given.device)
        return not alike or torch.get_float32_matmul_precision() != self._precision

    def __call__(self, part: Tensor) -> tuple[Tensor, ...]:
        self._given.copy_(part)
        self._graph.replay()
        return tuple(found.clone() for found in self._found)
