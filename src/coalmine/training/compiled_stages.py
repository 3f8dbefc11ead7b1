"""Clipped sums of convolution networks on a CPU, by stages: torch's products, and compiled kernels between them.

A network is a chain of stages (:mod:`coalmine.training.chain`). Each model's batch goes through a few examples at a
time, from their patches to their clipped gradients, so that everything stays in the cache; an example's gradient in a
convolution (few numbers) is built once, for its norm and for the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coalmine.training.backends import compiled
from coalmine.training.backends import numba_stage_kernels as kernels
from coalmine.training.canary import AdaptiveExample, StackState
from coalmine.training.chain import MOST_OUTPUTS, Stage, stages
from coalmine.training.clipping import clip_divisors, softmax_
from coalmine.training.data import Dataset
from coalmine.training.job import Job
from coalmine.training.stages import StageTable
from coalmine.training.sums import Vectors

_TOGETHER = 2**20
"""About how many numbers the patches of one group of examples may take."""


def fits(job: Job) -> bool:
    """Whether this is how the steps of this training are done: a convolution network, and compiled kernels at hand."""
    if kernels is None or not compiled(device=job.device, dtype=job.dtype) or job.paired:
        return False
    base, canary, chain = job.neighbours.base, job.neighbours.canary, stages(job.network)
    if not isinstance(base, Dataset) or isinstance(canary, AdaptiveExample) or chain is None:
        return False
    return chain[0].places > 1 and all(stage.pooling[0] == "max" for stage in chain)


class _Group:
    """The buffers of one stage for a few examples."""

    def __init__(self, stage: Stage, after: Stage | None, *, examples: int, order: Tensor) -> None:
        self.stage, places, window = stage, stage.places, stage.pooling[1]
        self.inputs = stage.room * math.prod(stage.kernel)
        self.order, self.none = order.clamp(min=0).long(), order < 0
        self.there = torch.nonzero(order >= 0)[:, 0]
        self.targets = self.order[self.there]
        self.whole = self.there.numel() == order.numel()
        self.packed, self.sums = (torch.zeros(stage.packed) for _ in range(2))
        split = stage.outputs * self.inputs
        self.weight, self.bias = self.packed[:split].view(stage.outputs, -1), self.packed[split:]
        self.weight_sum, self.bias_sum = self.sums[:split].view(stage.outputs, -1), self.sums[split:]
        self.patches = torch.zeros(examples * places, self.inputs)
        self.y = torch.zeros(examples * places, stage.outputs)
        self.d = torch.zeros(examples, stage.size)
        self.columns = torch.zeros(examples * places if places > 1 else 0, self.inputs)
        self.gradients = torch.zeros(examples if places > 1 else 0, stage.outputs, self.inputs)
        self.totals = torch.zeros(examples, stage.outputs)
        (down, right), (high, wide) = stage.stride, stage.output
        kernel_high, kernel_wide = stage.kernel
        self.cut = (stage.wide, stage.room, kernel_high, kernel_wide * stage.room, down, right, high, wide)
        self.norm = slice(stage.place + stage.parameters, stage.place + stage.parameters + 2 * stage.outputs)
        self.scale_shift, self.norm_sums = (torch.zeros(2, stage.outputs) for _ in range(2))
        self.scale_, self.shift_ = self.scale_shift.numpy()
        if stage.groups:
            self.normed_ = np.zeros((examples * places, stage.outputs), dtype=np.float32)
            self.spreads_ = np.zeros((examples, stage.outputs), dtype=np.float32)
            self.norm_gradients = torch.zeros(2, examples, stage.outputs)
            self.scales_, self.shifts_ = self.norm_gradients.numpy()
        # The same memory as the compiled kernels take it.
        self.y_, self.d_, self.patches_ = self.y.numpy(), self.d.numpy(), self.patches.numpy()
        self.columns_, self.totals_, self.bias_ = self.columns.numpy(), self.totals.numpy(), self.bias.numpy()
        self.flat = self.gradients.flatten(1)
        self.flat_ = self.flat.numpy()
        if after is not None:
            self.x = torch.zeros(examples, after.size)
            self.x_ = self.x.numpy()
            self.which = np.zeros((examples * math.prod(stage.pooled), stage.outputs), dtype=np.int8)
            self.pool = (high, wide, window, stage.pooling[2], *stage.pooled)
            self.target = (after.wide, after.room, *after.before)


class CompiledStages:
    """Clipped sums of a stack of convolution networks, model after model."""

    def __init__(self, job: Job, vectors: Vectors, table: StageTable) -> None:
        self._vectors, self._table = vectors, table
        self._clip, self._weight = job.config.clip, 1.0 / job.batch
        chain = table.stages
        self._most = int(np.clip(_TOGETHER // max(s.places * s.room * math.prod(s.kernel) for s in chain), 4, 64))
        self._groups = [
            _Group(stage, after, examples=self._most, order=order)
            for stage, after, order in zip(chain, (*chain[1:], None), table.orders, strict=True)
        ]
        self._numbers = np.arange(self._most)
        self._no_bias = np.zeros(MOST_OUTPUTS, dtype=np.float32)
        self._rows, self._labels = table.x.numpy(), table.labels.long()

    def __call__(self, drawn: list[Any], state: StackState) -> None:
        """The drawn rows' clipped gradients over the expected batch size."""
        vectors = self._vectors
        with torch.inference_mode():
            for vector, gradient, rows in zip(vectors.parameters, vectors.gradient, drawn, strict=True):
                for group in self._groups:
                    torch.index_select(vector, 0, group.order, out=group.packed)
                    if not group.whole:
                        group.packed.masked_fill_(group.none, 0.0)
                    group.sums.zero_()
                    if group.stage.groups:
                        group.scale_shift.view(-1).copy_(vector[group.norm])
                        group.norm_sums.zero_()
                for start in range(0, rows.size, self._most):
                    self._add(rows[start : start + self._most])
                for group in self._groups:
                    sums = group.sums if group.whole else group.sums.index_select(0, group.there)
                    gradient.index_copy_(0, group.targets, sums)
                    if group.stage.groups:
                        gradient[group.norm] = group.norm_sums.view(-1)

    def _add(self, rows: Any) -> None:
        """A few examples, from their patches to their clipped gradients."""
        groups, n = self._groups, rows.size
        last = len(groups) - 1
        for i, group in enumerate(groups):
            stage, places = group.stage, n * group.stage.places
            patches, y = self._patches(i, rows), group.y[:places]
            torch.mm(patches, group.weight.t(), out=y)
            bias_ = group.bias_
            if stage.groups:
                kernels.normalize(
                    *(group.y_, group.bias_, n, stage.places, stage.groups, np.float32(stage.epsilon)),
                    *(group.scale_, group.shift_, group.normed_, group.spreads_),
                )
                bias_ = self._no_bias[: stage.outputs]
            if stage.activation == "relu":
                kernels.rectified(group.y_, bias_, places)
            else:
                if not stage.groups:
                    y.add_(group.bias)
                _ACTIVATIONS[stage.activation](y)
            if i < last:
                kernels.pool_largest(group.y_, n, *group.pool, group.x_, group.which, *group.target)
        error = softmax_(groups[-1].y[:n])
        error[torch.arange(n), self._labels[torch.from_numpy(rows)]] -= 1.0
        squares = torch.zeros(n)
        for i in range(last, -1, -1):
            self._back(i, n, squares)
        factors = clip_divisors(squares.sqrt_(), clip=self._clip).reciprocal_().mul_(self._weight)
        for i, group in enumerate(groups):
            if group.stage.groups:
                for sums, gradients in zip(group.norm_sums, group.norm_gradients, strict=True):
                    sums.addmv_(gradients[:n].t(), factors)
            error = group.y[: n * group.stage.places]
            if group.stage.places > 1:
                group.weight_sum.view(-1).addmv_(group.flat[:n].t(), factors)
                group.bias_sum.addmv_(group.totals[:n].t(), factors)
                continue
            error.mul_(factors[:, None])
            group.weight_sum.addmm_(error.t(), self._held(i, n))
            group.bias_sum.add_(error.sum(0))

    def _patches(self, i: int, rows: Any) -> Tensor:
        """The patches of the examples, cut from the table or from the picture before; one place needs no cutting."""
        group, n = self._groups[i], rows.size
        if i == 0:
            kernels.cut_patches(self._rows, rows, group.patches_, *group.cut)
        elif group.stage.places > 1:
            kernels.cut_patches(self._groups[i - 1].x_, self._numbers[:n], group.patches_, *group.cut)
        return self._held(i, n)

    def _held(self, i: int, n: int) -> Tensor:
        """The patches that going forward left."""
        group = self._groups[i]
        return (
            self._groups[i - 1].x[:n] if i > 0 and group.stage.places == 1 else group.patches[: n * group.stage.places]
        )

    def _back(self, i: int, n: int, squares: Tensor) -> None:
        """Add the squared norms of the examples' gradients in stage i; its errors go on to the stage before."""
        group, stage = self._groups[i], self._groups[i].stage
        error, patches = group.y[: n * stage.places], self._held(i, n)
        if stage.groups:
            kernels.normalize_back(
                *(group.y_, n, stage.places, stage.groups, group.scale_),
                *(group.normed_, group.spreads_, group.scales_, group.shifts_),
            )
            kernels.add_squares(group.scales_, n, squares.numpy())
            kernels.add_squares(group.shifts_, n, squares.numpy())
        if stage.places == 1:
            inputs = torch.zeros(2, n)
            inputs[0] = float(stage.bias)
            kernels.add_squares(patches.numpy(), n, inputs[0].numpy())
            kernels.add_squares(group.y_, n, inputs[1].numpy())
            squares.addcmul_(inputs[0], inputs[1])
        else:
            three = error.view(n, stage.places, -1)
            gradients = group.gradients[:n]
            torch.bmm(three.transpose(1, 2), patches.view(n, stage.places, -1), out=gradients)
            kernels.add_squares(group.flat_, n, squares.numpy())
            torch.sum(three, 1, out=group.totals[:n])
            if stage.bias:
                kernels.add_squares(group.totals_, n, squares.numpy())
        if i > 0:
            before, d = self._groups[i - 1], group.d[:n]
            if stage.places == 1:
                torch.mm(error, group.weight, out=d)
            else:
                torch.mm(error, group.weight, out=group.columns[: n * stage.places])
                kernels.put_back(group.columns_, group.d_, n, *group.cut)
            # The largest output of a window is the picture's number, so the activation's slope is known from that.
            _SLOPES[before.stage.activation](d, before.x[:n])
            kernels.unpool_largest(before.y_, n, *before.pool, group.d_, before.which, *before.target)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
}
_aten = torch.ops.aten
_SLOPES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "none": lambda e, y: e,
    "relu": lambda e, y: _aten.threshold_backward.grad_input(e, y, 0, grad_input=e),
    "tanh": lambda e, y: _aten.tanh_backward.grad_input(e, y, grad_input=e),
    "sigmoid": lambda e, y: _aten.sigmoid_backward.grad_input(e, y, grad_input=e),
}
