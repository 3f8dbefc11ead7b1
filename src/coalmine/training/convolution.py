"""Layers for pictures ``[S, W, channels, height, width]``: convolution, pooling, and a norm within one example."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from coalmine.errors import InvalidInputError
from coalmine.training import products
from coalmine.training.layers import Layer, Run, Shape, TrainedLayer, positional_norms


def _check_picture(layer: object, shape: Shape, channels: int | None = None) -> tuple[int, int, int]:
    """A picture's (channels, height, width)."""
    if len(shape) != 3 or (channels is not None and shape[0] != channels):
        wanted = "channels" if channels is None else str(channels)
        raise InvalidInputError(f"{layer} got inputs of shape {shape}: expected ({wanted}, height, width)")
    return shape[0], shape[1], shape[2]


def _window(layer: object, size: int, kernel: int, stride: int, padding: int) -> int:
    """How many places a window has along one side."""
    places = (size + 2 * padding - kernel) // stride + 1
    if places < 1:
        raise InvalidInputError(f"{layer} does not fit a side of {size}: expected at least {kernel - 2 * padding}")
    return places


@functools.lru_cache(maxsize=64)
def _patch_places(channels: int, high: int, wide: int, kernel: int, stride: int) -> Tensor:
    """Where in a flat picture the entries of its patches lie, patch after patch, each by channel, row and column."""
    places = torch.arange(channels * high * wide).view(channels, high, wide)
    windows = places.unfold(1, kernel, stride).unfold(2, kernel, stride)
    return windows.permute(1, 2, 0, 3, 4).flatten()


@dataclasses.dataclass(frozen=True)
class Conv2d(TrainedLayer):
    """A convolution: the picture's patches as rows of a matrix, then one product, as for a linear layer."""

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    def shapes(self) -> tuple[Shape, ...]:
        """Weight ``(outputs, inputs, kernel, kernel)``, bias ``(outputs,)``."""
        weight = (self.outputs, self.inputs, self.kernel, self.kernel)
        return (weight, (self.outputs,)) if self.bias else (weight,)

    def output(self, shape: Shape) -> Shape:
        """Channels become ``outputs``; each side shrinks as the kernel, stride and padding say."""
        _, *sides = _check_picture(self, shape, self.inputs)
        high, wide = (_window(self, side, self.kernel, self.stride, self.padding) for side in sides)
        return (self.outputs, high, wide)

    def module(self) -> nn.Module:
        """torch.nn.Conv2d."""
        return nn.Conv2d(
            self.inputs, self.outputs, self.kernel, stride=self.stride, padding=self.padding, bias=self.bias
        )

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """Patches times weights."""
        _, high, wide = self.output(tuple(x.shape[2:]))
        patches = self._patches(x, run)
        y = run.buffer("y", (*patches.shape[:3], self.outputs))
        products.affine(patches, p[0].flatten(2), p[1] if self.bias else None, out=y, counts=run.counts)
        return torch.unflatten(y, 2, (high, wide)).movedim(-1, 2)

    def _patches(self, x: Tensor, run: Run) -> Tensor:
        """``[S, W, places, inputs·kernel²]``; filled going forward, found again going back."""
        _, high, wide = self.output(tuple(x.shape[2:]))
        patches = self._held(x, run)
        pictures = x.flatten(0, 1)
        pictures = functional.pad(pictures, (self.padding,) * 4) if self.padding else pictures
        if x.is_cuda:  # torch's unfold starts one kernel a picture there; this is one copy for all
            windows = pictures.unfold(2, self.kernel, self.stride).unfold(3, self.kernel, self.stride)
            patches.view(-1, high, wide, self.inputs, self.kernel, self.kernel).copy_(windows.permute(0, 2, 3, 1, 4, 5))
            return patches
        places = _patch_places(*pictures.shape[1:], self.kernel, self.stride)
        # Four to eight times as quick on a CPU as torch's unfold and the transposed copy after it.
        torch.index_select(pictures.flatten(1), 1, places, out=patches.view(pictures.shape[0], -1))
        return patches

    def _errors(self, e: Tensor) -> Tensor:
        """Errors as rows: ``[S, W, places, outputs]``."""
        return e.movedim(2, -1).flatten(2, 3)

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """Errors times weights, put back in their places."""
        rows = self._errors(e)
        columns = run.buffer("d", (*rows.shape[:3], self.inputs * self.kernel**2))
        products.back(rows, p[0].flatten(2), out=columns, counts=run.counts)
        return self._put_back(columns.flatten(0, 1), x)

    def _put_back(self, columns: Tensor, x: Tensor) -> Tensor:
        """Each patch added where it was cut out; on both devices in the order of the kernel's places."""
        sides = (x.shape[3], x.shape[4])
        if x.is_cuda:
            picture = functional.fold(
                columns.transpose(1, 2), sides, self.kernel, stride=self.stride, padding=self.padding
            )
            return picture.view(x.shape)
        _, high, wide = self.output(tuple(x.shape[2:]))
        windows = columns.view(-1, high, wide, self.inputs, self.kernel, self.kernel)
        pad, step = self.padding, self.stride
        padded = columns.new_zeros((windows.shape[0], sides[0] + 2 * pad, sides[1] + 2 * pad, self.inputs))
        for i in range(self.kernel):
            for j in range(self.kernel):
                rows, places = slice(i, i + (high - 1) * step + 1, step), slice(j, j + (wide - 1) * step + 1, step)
                padded[:, rows, places].add_(windows[..., i, j])
        return padded[:, pad : pad + sides[0], pad : pad + sides[1]].movedim(-1, 1).reshape(x.shape)

    def squared_norms(self, x: Tensor, e: Tensor, run: Run) -> Tensor:
        """‖Σ_places e·aᵀ‖² of each example, and of the bias."""
        return positional_norms(self._held(x, run), self._errors(e), bias=self.bias, counts=run.counts)

    def _held(self, x: Tensor, run: Run) -> Tensor:
        """The patches that the forward pass left."""
        _, high, wide = self.output(tuple(x.shape[2:]))
        return run.buffer("patches", (x.shape[0], x.shape[1], high * wide, self.inputs * self.kernel**2))

    def add_gradients(self, x: Tensor, e: Tensor, out: Sequence[Tensor], run: Run, *, accumulate: bool) -> None:
        """Σ e·aᵀ over examples and places."""
        rows = self._errors(e)
        products.outer(rows, self._held(x, run), out=out[0].flatten(2), counts=run.counts, accumulate=accumulate)
        if self.bias:
            products.row_sums(rows, out=out[1], counts=run.counts, accumulate=accumulate)


@dataclasses.dataclass(frozen=True)
class Pool2d(Layer):
    """``max`` or ``avg`` pooling. Where several places of a window hold the maximum, the first one gets the error."""

    kind: str
    kernel: int
    stride: int | None = None

    @property
    def step(self) -> int:
        """The stride; by default windows do not overlap."""
        return self.kernel if self.stride is None else self.stride

    def output(self, shape: Shape) -> Shape:
        """Each side shrinks as kernel and stride say."""
        channels, *sides = _check_picture(self, shape)
        high, wide = (_window(self, side, self.kernel, self.step, 0) for side in sides)
        return (channels, high, wide)

    def module(self) -> nn.Module:
        """torch.nn.MaxPool2d or AvgPool2d."""
        kinds: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
        return kinds[self.kind](self.kernel, stride=self.step)

    def _windows(self, x: Tensor) -> list[Tensor]:
        """One shifted view of the pictures for each place of the window."""
        _, high, wide = self.output(tuple(x.shape[2:]))
        step = self.step
        return [
            x[..., i : i + (high - 1) * step + 1 : step, j : j + (wide - 1) * step + 1 : step]
            for i in range(self.kernel)
            for j in range(self.kernel)
        ]

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """The maximum or the mean of each window."""
        first, *rest = self._windows(x)
        y = run.buffer("y", first.shape)
        y.copy_(first)
        for window in rest:
            if self.kind == "max":
                torch.maximum(y, window, out=y)
            else:
                y.add_(window)
        if self.kind == "avg":
            y.div_(self.kernel**2)
        # What comes after may write over its input, and going back needs the maxima: hand out a copy.
        return run.buffer("out", y.shape).copy_(y) if self.kind == "max" else y

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """Errors to where the maxima were, or spread evenly."""
        d = run.buffer("d", x.shape).zero_()
        if self.kind == "avg":
            share = e / self.kernel**2
            for target in self._windows(d):
                target.add_(share)
            return d
        left = e.clone()
        maxima = run.buffer("y", e.shape)
        for window, target in zip(self._windows(x), self._windows(d), strict=True):
            moved = left * (window == maxima)
            target.add_(moved)
            left.sub_(moved)  # exactly 0 where it was moved
        return d


@dataclasses.dataclass(frozen=True)
class GroupNorm(TrainedLayer):
    """Each group of channels of one example to mean 0 and variance 1, then a scale and a shift a channel.

    It uses one example at a time, so it can stand where a paper has batch norm, which mixes examples: with batch norm
    one example moves every other one's gradient, and clipping no longer bounds what one example can do.
    """

    groups: int
    channels: int
    epsilon: float = 1e-5

    def constants(self) -> tuple[ArrayLike, ...]:
        """Scale starts at 1, shift at 0."""
        return (1.0, 0.0)

    def shapes(self) -> tuple[Shape, ...]:
        """Scale and shift."""
        return ((self.channels,), (self.channels,))

    def output(self, shape: Shape) -> Shape:
        """Unchanged."""
        if not shape or shape[0] != self.channels or self.channels % self.groups:
            raise InvalidInputError(
                f"{self} got inputs of shape {shape}: expected {self.channels} channels, in groups of equal size"
            )
        return shape

    def module(self) -> nn.Module:
        """torch.nn.GroupNorm."""
        return nn.GroupNorm(self.groups, self.channels, eps=self.epsilon)

    def _channelwise(self, p: Tensor, x: Tensor) -> Tensor:
        """A parameter ``[S, channels]`` shaped to multiply ``x``."""
        return p.view(p.shape[0], 1, self.channels, *([1] * (x.dim() - 3)))

    def _grouped(self, name: str, x: Tensor, run: Run) -> Tensor:
        """A buffer in the shape of ``x``, seen as ``[S, W, groups, rest]``."""
        return run.buffer(name, x.shape).view(*x.shape[:2], self.groups, -1)

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """(x − mean)/√(variance + ε)·scale + shift."""
        # Everything as large as x goes into buffers: new memory costs a CPU more than the arithmetic.
        normed, work = self._grouped("normed", x, run), self._grouped("work", x, run)
        work.view(x.shape).copy_(x)
        torch.sub(work, work.mean(-1, keepdim=True), out=normed)
        spread = torch.square(normed, out=work).mean(-1, keepdim=True).add_(self.epsilon).sqrt_()
        run.buffer("spread", spread.shape).copy_(spread)
        normed.div_(spread)
        y = run.buffer("y", x.shape)
        return torch.mul(normed.view(x.shape), self._channelwise(p[0], x), out=y).add_(self._channelwise(p[1], x))

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """(ê − mean(ê) − x̂·mean(ê·x̂))/spread with ê = e·scale."""
        normed, work, d = (self._grouped(name, x, run) for name in ("normed", "work", "d"))
        torch.mul(e, self._channelwise(p[0], x), out=d.view(x.shape))
        shift, tilt = d.mean(-1, keepdim=True), torch.mul(d, normed, out=work).mean(-1, keepdim=True)
        d.sub_(shift).sub_(torch.mul(normed, tilt, out=work))
        return d.div_(run.buffer("spread", (*normed.shape[:3], 1))).view(x.shape)

    def _per_channel(self, x: Tensor, e: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Each example's gradient in scale and shift, ``[S, W, channels]`` each: as small as the channels are few."""
        product = torch.mul(e, run.buffer("normed", x.shape), out=run.buffer("work", x.shape))
        return (product, e) if x.dim() == 3 else (product.flatten(3).sum(-1), e.flatten(3).sum(-1))

    def squared_norms(self, x: Tensor, e: Tensor, run: Run) -> Tensor:
        """‖Σ e·x̂‖² + ‖Σ e‖²."""
        scale, shift = self._per_channel(x, e, run)
        return scale.square().sum(-1).add_(shift.square().sum(-1))

    def add_gradients(self, x: Tensor, e: Tensor, out: Sequence[Tensor], run: Run, *, accumulate: bool) -> None:
        """Summed over the examples in use."""
        for part, target in zip(self._per_channel(x, e, run), out, strict=True):
            products.row_sums(part, out=target, counts=run.counts, accumulate=accumulate)


@dataclasses.dataclass(frozen=True)
class Pad2d(Layer):
    """Zeros around each picture, as many on each side as told; what "same" padding means for an even kernel."""

    left: int
    right: int
    top: int
    bottom: int

    def output(self, shape: Shape) -> Shape:
        """Sides grow."""
        channels, high, wide = _check_picture(self, shape)
        return (channels, high + self.top + self.bottom, wide + self.left + self.right)

    def module(self) -> nn.Module:
        """torch.nn.ZeroPad2d."""
        return nn.ZeroPad2d((self.left, self.right, self.top, self.bottom))

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """The picture in the middle of zeros."""
        y = run.buffer("y", (*x.shape[:2], *self.output(tuple(x.shape[2:]))))
        y.zero_()
        self._inside(y, x).copy_(x)
        return y

    def _inside(self, padded: Tensor, x: Tensor) -> Tensor:
        return padded[..., self.top : self.top + x.shape[-2], self.left : self.left + x.shape[-1]]

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """The middle of the errors."""
        return self._inside(e, x)
