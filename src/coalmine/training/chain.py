"""A network as a chain of stages: one product with a patch of its input at every place, an activation, and pooling.

A dense layer is a convolution whose kernel covers the whole picture. What computes them is in
:mod:`coalmine.training.stages` (a GPU) and :mod:`coalmine.training.compiled_stages` (a CPU).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coalmine.training.convolution import Conv2d, GroupNorm, Pad2d, Pool2d
from coalmine.training.layers import Activation, Flatten, Linear
from coalmine.training.networks import Network

MOST_OUTPUTS = 128
"""Channels of a convolution, or classes: they share a tile."""
MOST_UNITS = 1024
"""Units of a dense layer before the last."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage for one example: sides of its picture with the zeros around it, its kernel, activation and pooling."""

    channels: int
    high: int
    wide: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    outputs: int
    bias: bool
    place: int
    """Where its parameters begin in the parameter vector."""
    before: tuple[int, int] = (0, 0)
    """Rows of zeros above and columns of zeros left of the picture."""
    activation: str = "none"
    pooling: tuple[str, int, int] = ("max", 1, 1)
    """Kind, side of the window, stride."""
    groups: int = 0
    """Groups of channels of a norm before the activation (its scales and shifts come after the weights); 0: none."""
    epsilon: float = 0.0
    folds: tuple[int, int] = (1, 1)
    """How many rows and columns of the picture became channels."""

    @functools.cached_property
    def room(self) -> int:
        """Channels in memory: whole vectors of four, if there is more than one."""
        return self.channels if self.channels == 1 else -(-self.channels // 4) * 4

    @functools.cached_property
    def size(self) -> int:
        """Numbers of a picture in memory."""
        return self.high * self.wide * self.room

    @functools.cached_property
    def output(self) -> tuple[int, int]:
        """Places of its output, down and right."""
        down, right = (
            (side - kernel) // stride + 1
            for side, kernel, stride in zip((self.high, self.wide), self.kernel, self.stride, strict=True)
        )
        return down, right

    @functools.cached_property
    def places(self) -> int:
        """How often its kernel is applied."""
        return math.prod(self.output)

    @functools.cached_property
    def pooled(self) -> tuple[int, int]:
        """Places after pooling."""
        _, window, step = self.pooling
        down, right = ((side - window) // step + 1 for side in self.output)
        return down, right

    @functools.cached_property
    def parameters(self) -> int:
        """How many it has, without those of a norm."""
        return self.outputs * (self.channels * math.prod(self.kernel) + self.bias)

    @functools.cached_property
    def packed(self) -> int:
        """Numbers that its weights and biases take in the order of a patch."""
        return self.outputs * (self.room * math.prod(self.kernel) + 1)

    def folded(self) -> Stage:
        """The same stage with stride 1: the rows and columns that a stride steps over become channels.

        A patch then lies in fewer and longer pieces. It is for the first stage, whose pictures are laid out once.
        """
        if self.stride == (1, 1) or self.places == 1:
            return self
        down, right = self.stride
        kernel = (-(-self.kernel[0] // down), -(-self.kernel[1] // right))
        sides = (self.output[0] + kernel[0] - 1, self.output[1] + kernel[1] - 1)
        return replace(
            self, channels=self.channels * down * right, high=sides[0], wide=sides[1], kernel=kernel, stride=(1, 1),
            folds=self.stride,
        )  # fmt: skip

    def lay_out(self, pictures: Tensor, out: Tensor) -> None:
        """Write pictures ``[B, channels, high, wide]`` as the stage's kernels take them into zeros ``[B, size]``."""
        (down, right), (top, left) = self.folds, self.before
        channels = self.channels // (down * right)
        target = out.view(-1, self.high, self.wide, self.room)
        for fold in range(down * right):
            # The rows and columns of the picture that become this fold's channels, and where the first of them comes.
            i, j = (fold // right - top) % down, (fold % right - left) % right
            row, column = (i + top) // down, (j + left) // right
            part = pictures[:, :, i::down, j::right][:, :, : self.high - row, : self.wide - column]
            place = target[:, row : row + part.shape[2], column : column + part.shape[3]]
            place[..., fold * channels : (fold + 1) * channels] = part.permute(0, 2, 3, 1)

    def order(self, given: Stage) -> NDArray[np.int32]:
        """For each packed number its place in the parameter vector, −1 for none; ``given``: the stage unfolded."""
        (down, right), (high, wide) = self.folds, self.kernel
        numbers = np.arange(given.parameters - given.outputs * given.bias).reshape(
            given.outputs, given.channels, *given.kernel
        )
        full = np.full((given.outputs, given.channels, high * down, wide * right), -1)
        full[:, :, : given.kernel[0], : given.kernel[1]] = numbers + given.place
        cut = full.reshape(given.outputs, given.channels, high, down, wide, right).transpose(0, 2, 4, 3, 5, 1)
        order = np.full((given.outputs, high, wide, self.room), -1)
        order[..., : self.channels] = cut.reshape(given.outputs, high, wide, -1)
        biases = np.arange(given.outputs) + given.place + numbers.size if given.bias else np.full(given.outputs, -1)
        return np.concatenate([order.ravel(), biases]).astype(np.int32)

    @functools.cached_property
    def reach(self) -> tuple[int, int]:
        """How many places of the output, down and right, reach a block of as many places as the strides have."""
        down, right = (-(-kernel // stride) for kernel, stride in zip(self.kernel, self.stride, strict=True))
        return down, right

    def back_order(self) -> NDArray[np.int32]:
        """The same for going back, ``[reach, outputs, places of a block, room]``; for a stage that is not folded."""
        (high, wide), (down, right), (tall, broad) = self.kernel, self.stride, self.reach
        numbers = np.arange(self.outputs * self.channels * high * wide) + self.place
        full = np.full((self.outputs, self.room, tall * down, broad * right), -1)
        full[:, : self.channels, :high, :wide] = numbers.reshape(self.outputs, self.channels, high, wide)
        cut = full.reshape(self.outputs, self.room, tall, down, broad, right).transpose(2, 4, 0, 3, 5, 1)
        return np.ascontiguousarray(cut).ravel().astype(np.int32)


def stages(network: Network) -> tuple[Stage, ...] | None:
    """The network as a chain of stages; None if it is none.

    >>> from coalmine.training.networks import NasrCnn
    >>> [(stage.places, stage.parameters) for stage in stages(NasrCnn())]
    [(196, 1040), (25, 8224), (1, 16416), (1, 330)]
    """
    shape = network.input_shape
    if len(shape) not in (1, 3):
        return None
    picture = (*shape, 1, 1) if len(shape) == 1 else shape
    flat, place = len(shape) == 1, 0
    around = [0, 0, 0, 0]  # left, right, top, bottom
    chain: list[Stage] = []
    for layer in network.layers():
        last = chain[-1] if chain and not any(around) else None
        if isinstance(layer, Pad2d):
            around = [a + b for a, b in zip(around, (layer.left, layer.right, layer.top, layer.bottom), strict=True)]
        elif isinstance(layer, Conv2d | Linear):
            if isinstance(layer, Linear) and not flat:
                return None
            padding = layer.padding if isinstance(layer, Conv2d) else 0
            left, right, top, bottom = (side + padding for side in around)
            high, wide = picture[1] + top + bottom, picture[2] + left + right
            kernel = (layer.kernel, layer.kernel) if isinstance(layer, Conv2d) else (high, wide)
            stride = (layer.stride, layer.stride) if isinstance(layer, Conv2d) else kernel
            if kernel == (high, wide):
                stride = kernel  # one place: any stride is right, and this one has no idle place of the kernel
            stage = Stage(picture[0], high, wide, kernel, stride, layer.outputs, layer.bias, place, (top, left))
            chain.append(stage)
            picture, around, place = (layer.outputs, *stage.output), [0, 0, 0, 0], place + stage.parameters
        elif isinstance(layer, GroupNorm) and last and last == replace(last, activation="none", groups=0) and not flat:
            if last.pooling[1] > 1:
                return None
            chain[-1] = replace(last, groups=layer.groups, epsilon=layer.epsilon)
            place += 2 * layer.channels
        elif isinstance(layer, Activation) and last and last.activation == "none" and last.pooling[1] == 1:
            chain[-1] = replace(last, activation=layer.kind)
        elif isinstance(layer, Pool2d) and last and last.pooling[1] == 1 and not flat:
            chain[-1] = replace(last, pooling=(layer.kind, layer.kernel, layer.step))
            picture = (picture[0], *chain[-1].pooled)
        elif isinstance(layer, Flatten) and not any(around) and not any(layer.shapes()):
            flat = True
        else:
            return None
    ends = bool(chain) and flat and chain[-1].activation == "none" and chain[-1].pooling[1] == 1
    if not ends or chain[-1].places != 1 or chain[-1].outputs > MOST_OUTPUTS:
        return None
    fits = all(stage.outputs <= (MOST_UNITS if stage.places == 1 else MOST_OUTPUTS) for stage in chain)
    return tuple(chain) if fits else None
