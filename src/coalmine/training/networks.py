"""Networks as frozen descriptions; the trainer turns them into stacked layers, :meth:`module` into a torch module.

The parameter vector of a model is the concatenation of its parameters in the order of ``module().parameters()``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.training.config import assign
from coalmine.training.convolution import Conv2d, GroupNorm, Pad2d, Pool2d
from coalmine.training.layers import Activation, Embedding, Flatten, Layer, Linear, Part, Shape

ACTIVATIONS = ("relu", "tanh", "sigmoid")


class Network(Protocol):
    """A classifier: the shape of one input row, the number of classes, and its layers."""

    @property
    def input_shape(self) -> Shape:
        """The shape of one row of the data."""

    @property
    def classes(self) -> int:
        """How many classes it tells apart."""

    def layers(self) -> tuple[Part, ...]:
        """The layers, first to last."""


def parameter_count(network: Network) -> int:
    """P, the length of a model's parameter vector.

    >>> parameter_count(Mlp(784, hidden=(32,), classes=2))
    25186
    """
    return sum(math.prod(shape) for layer in network.layers() for shape in layer.shapes())


def output_shape(shape: Shape, layers: Sequence[Part]) -> Shape:
    """The shape of one example after these layers; the error names the layer that does not fit."""
    for layer in layers:
        shape = layer.output(shape)
    return shape


def takes_tokens(network: Network) -> bool:
    """Whether the network's inputs are token numbers and not features.

    >>> takes_tokens(Sequential((6,), 2, (Embedding(9, 2), Flatten(), Linear(12, 2))))
    True
    """
    return network.layers()[0].takes_tokens


def check_layers(network: Network) -> None:
    """The layers must fit each other and end at the classes."""
    shape = output_shape(network.input_shape, network.layers())
    if shape != (network.classes,):
        raise InvalidInputError(f"the network's output has shape {shape}: expected ({network.classes},), the classes")


def module(network: Network) -> nn.Sequential:
    """The same network as a torch module: same parameters, same order.

    >>> sum(p.numel() for p in module(LogisticRegression(10, classes=3)).parameters())
    33
    """
    return nn.Sequential(*(layer.module() for layer in network.layers()))


def example_floats(network: Network) -> int:
    """About how many numbers one example needs on its way through the network and back."""
    shape = network.input_shape
    total = math.prod(shape)
    for layer in network.layers():
        after = layer.output(shape)
        total += 3 * math.prod(after)
        if isinstance(layer, Conv2d):
            total += 2 * math.prod(after[1:]) * layer.inputs * layer.kernel**2
        shape = after
    return total


def glorot_law(network: Network, *, scale: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Standard deviation and mean of each parameter at the start.

    Weights (two dimensions or more) have mean 0 and variance scale²·2/(fan in + fan out), where the fans are the first
    two sizes times the area of the kernel; the rest is at the constant that its layer says.

    >>> [part.tolist() for part in glorot_law(LogisticRegression(1, classes=2), scale=1.5)]
    [[1.224744871391589, 1.224744871391589, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    spreads, means = [np.zeros(0)], [np.zeros(0)]
    for layer in network.layers():
        for shape, constant in zip(layer.shapes(), layer.constants(), strict=True):
            drawn, area = len(shape) > 1, math.prod(shape[2:])
            spread = scale * math.sqrt(2.0 / (shape[1] * area + shape[0] * area)) if drawn else 0.0
            spreads.append(np.full(math.prod(shape), spread))
            means.append(np.array(np.broadcast_to(0.0 if drawn else constant, (math.prod(shape),)), dtype=float))
    return np.concatenate(spreads), np.concatenate(means)


def glorot(network: Network, *, scale: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """One parameter vector drawn from :func:`glorot_law`."""
    spread, start = glorot_law(network, scale=scale)
    drawn = spread > 0.0
    start[drawn] = spread[drawn] * generator.standard_normal(int(drawn.sum()))
    return start


def _classes(value: object) -> int:
    return _validate.integer("classes", value, at_least=2)


@dataclasses.dataclass(frozen=True)
class Mlp:
    """A multi-layer perceptron with softmax cross-entropy loss; no hidden layer makes it logistic regression.

    >>> parameter_count(Mlp(104, hidden=(6, 6), classes=2, activation="relu"))
    686
    """

    inputs: int
    hidden: tuple[int, ...] = (32,)
    classes: int = 2
    activation: str = "relu"

    def __post_init__(self) -> None:
        inputs, classes = _validate.integer("inputs", self.inputs, at_least=1), _classes(self.classes)
        hidden = tuple(_validate.integer(f"hidden[{i}]", n, at_least=1) for i, n in enumerate(self.hidden))
        assign(self, inputs=inputs, classes=classes, hidden=hidden)
        _validate.choice("activation", self.activation, ACTIVATIONS)

    @property
    def input_shape(self) -> Shape:
        """A vector of features."""
        return (self.inputs,)

    def layers(self) -> tuple[Layer, ...]:
        """Linear layers with activations between them."""
        widths = (self.inputs, *self.hidden)
        body: list[Layer] = []
        for before, after in itertools.pairwise(widths):
            body += [Linear(before, after), Activation(self.activation)]
        return (*body, Linear(widths[-1], self.classes))


@dataclasses.dataclass(frozen=True, init=False)
class LogisticRegression(Mlp):
    """One linear layer and softmax cross-entropy.

    >>> parameter_count(LogisticRegression(784, classes=2))
    1570
    """

    def __init__(self, inputs: int, classes: int = 2) -> None:
        super().__init__(inputs, hidden=(), classes=classes)


@dataclasses.dataclass(frozen=True)
class Vector:
    """A bare parameter vector and no loss, for data with zero gradients: takes no input and tells nothing apart.

    >>> parameter_count(Vector(3))
    3
    """

    size: int

    input_shape: ClassVar[Shape] = ()
    classes: ClassVar[int] = 0

    def __post_init__(self) -> None:
        assign(self, size=_validate.integer("size", self.size, at_least=1))

    def layers(self) -> tuple[Layer, ...]:
        """One layer that holds the vector."""
        return (_Held(self.size),)


@dataclasses.dataclass(frozen=True)
class _Held(Flatten):
    """Parameters that no input reaches."""

    size: int

    def shapes(self) -> tuple[Shape, ...]:
        """One vector."""
        return ((self.size,),)


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Any chain of known layers.

    >>> parameter_count(Sequential((8,), classes=3, chain=(Linear(8, 4), Activation("tanh"), Linear(4, 3))))
    51
    """

    input_shape: Shape
    classes: int
    chain: tuple[Layer, ...]

    def __post_init__(self) -> None:
        assign(self, classes=_classes(self.classes), input_shape=tuple(self.input_shape), chain=tuple(self.chain))

    def layers(self) -> tuple[Layer, ...]:
        """The chain itself."""
        return self.chain

    @classmethod
    def from_module(cls, module: nn.Sequential, *, input_shape: Shape, classes: int) -> Sequential:
        """The same network as an ``nn.Sequential`` of known layers; its parameter values are not taken over.

        >>> Sequential.from_module(nn.Sequential(nn.Linear(8, 3)), input_shape=(8,), classes=3).chain
        (Linear(inputs=8, outputs=3, bias=True),)
        """
        _validate.instance("module", module, nn.Sequential)
        chain = tuple(_known(f"layer {name}", child) for name, child in module.named_children())
        return cls(input_shape, classes, chain)


def _known(name: str, child: nn.Module) -> Layer:
    """The stacked layer that computes the same as a torch module; the error names the layer."""
    made: Layer | None = None
    if isinstance(child, nn.Linear):
        made = Linear(child.in_features, child.out_features, bias=child.bias is not None)
    elif isinstance(child, nn.Conv2d) and _plain_convolution(child):
        kernel, stride, padding = child.kernel_size[0], child.stride[0], child.padding[0]
        assert isinstance(padding, int)
        made = Conv2d(child.in_channels, child.out_channels, kernel, stride, padding, bias=child.bias is not None)
    elif isinstance(child, nn.GroupNorm) and child.affine:
        made = GroupNorm(child.num_groups, child.num_channels, child.eps)
    elif isinstance(child, nn.Embedding) and child.padding_idx is None and child.max_norm is None:
        made = Embedding(child.num_embeddings, child.embedding_dim)
    elif isinstance(child, nn.MaxPool2d | nn.AvgPool2d) and isinstance(child.kernel_size, int):
        plain = child.padding == 0 and not child.ceil_mode and isinstance(child.stride, int)
        dilated = isinstance(child, nn.MaxPool2d) and child.dilation != 1
        if plain and not dilated:
            kind = "max" if isinstance(child, nn.MaxPool2d) else "avg"
            made = Pool2d(kind, child.kernel_size, int(child.stride))  # type: ignore[arg-type]
    elif isinstance(child, nn.ReLU | nn.Tanh | nn.Sigmoid):
        made = Activation({nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}[type(child)])
    elif isinstance(child, nn.Flatten) and child.start_dim == 1 and child.end_dim == -1:
        made = Flatten()
    if made is None:
        raise InvalidInputError(
            f"{name}, {child}, has no closed form here: expected Linear, Conv2d (square, zero padding), GroupNorm, "
            f"Embedding, ReLU, Tanh, Sigmoid, MaxPool2d, AvgPool2d or Flatten; any other module goes through FromModule"
        )
    return made


def _plain_convolution(child: nn.Conv2d) -> bool:
    """Square kernel, stride and padding, no dilation, no groups, zeros around."""
    sizes = (child.kernel_size, child.stride, child.padding)
    square = all(not isinstance(s, str) and s[0] == s[1] for s in sizes)
    return square and child.dilation == (1, 1) and child.groups == 1 and child.padding_mode == "zeros"


def _same(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after one side so that ⌈size/stride⌉ windows fit: what "same" padding means."""
    total = max(0, (-(-size // stride) - 1) * stride + kernel - size)
    return total // 2, total - total // 2


@dataclasses.dataclass(frozen=True)
class NasrCnn:
    """A four-layer CNN for nasr-2021's MNIST and CIFAR-10 experiments (Appendix A gives no more than that number).

    We take the network usual for DP-SGD on MNIST: 16 filters 8×8 with stride 2 and "same" padding, max pooling 2×2 with
    stride 1, 32 filters 4×4 with stride 2, the same pooling, a dense layer of 32, and the output layer.

    >>> parameter_count(NasrCnn())
    26010
    """

    input_shape: Shape = (1, 28, 28)
    classes: int = 10
    activation: str = "relu"

    def layers(self) -> tuple[Layer, ...]:
        """Two convolutions, two dense layers."""
        channels, high, wide = self.input_shape
        top, bottom = _same(high, 8, 2)
        left, right = _same(wide, 8, 2)
        body: tuple[Layer, ...] = (
            Pad2d(left, right, top, bottom),
            Conv2d(channels, 16, 8, stride=2),
            Activation(self.activation),
            Pool2d("max", 2, 1),
            Conv2d(16, 32, 4, stride=2),
            Activation(self.activation),
            Pool2d("max", 2, 1),
            Flatten(),
        )
        flat = output_shape(self.input_shape, body)[0]
        return (*body, Linear(flat, 32), Activation(self.activation), Linear(32, self.classes))


@dataclasses.dataclass(frozen=True)
class BernauCnn:
    """bernau-2021's CNN for MNIST (Section 6): two 3×3 convolutions, a norm, 2×2 max pooling, a softmax layer.

    The paper has batch norm, which mixes the examples of a batch; here each convolution is followed by a group norm,
    which stays within one example. The paper does not give the number of filters: ``filters`` is ours.

    >>> parameter_count(BernauCnn())
    5306
    """

    input_shape: Shape = (1, 28, 28)
    classes: int = 10
    filters: tuple[int, int] = (8, 16)
    groups: int = 4

    def layers(self) -> tuple[Layer, ...]:
        """Convolution, norm, activation and pooling, twice; then the output."""
        body: list[Layer] = []
        channels = self.input_shape[0]
        for count in self.filters:
            body += [Conv2d(channels, count, 3), GroupNorm(self.groups, count), Activation("relu"), Pool2d("max", 2)]
            channels = count
        body.append(Flatten())
        return (*body, Linear(output_shape(self.input_shape, body)[0], self.classes))


@dataclasses.dataclass(frozen=True)
class AnnamalaiCnn:
    """The tanh CNNs of Annamalai and De Cristofaro 2024 (arXiv 2405.14106) for black-box audits.

    Gray pictures: 16 filters 5×5, 32 filters 4×4, each followed by tanh and 2×2 pooling, a dense layer of 32. Color
    pictures: pairs of 3×3 convolutions with 32, 64 and 128 filters, pooling after each pair, a dense layer of 128. The
    paper pools by the maximum; with ``pooling`` "avg" the gradients of the other rows vary less with the noise.

    >>> parameter_count(AnnamalaiCnn()), parameter_count(AnnamalaiCnn((3, 32, 32), pooling="avg"))
    (25386, 550570)
    """

    input_shape: Shape = (1, 28, 28)
    classes: int = 10
    pooling: str = "max"

    def __post_init__(self) -> None:
        _validate.choice("pooling", self.pooling, ("max", "avg"))

    def layers(self) -> tuple[Layer, ...]:
        """Convolutions, pooled, and two dense layers."""
        channels = self.input_shape[0]
        body: list[Layer] = []
        if channels == 1:
            for count, kernel in ((16, 5), (32, 4)):
                body += [Conv2d(channels, count, kernel), Activation("tanh"), Pool2d(self.pooling, 2)]
                channels = count
            wide = 32
        else:
            for count in (32, 64, 128):
                for _ in range(2):
                    body += [Conv2d(channels, count, 3, padding=1), Activation("tanh")]
                    channels = count
                body.append(Pool2d(self.pooling, 2))
            wide = 128
        body.append(Flatten())
        flat = output_shape(self.input_shape, body)[0]
        return (*body, Linear(flat, wide), Activation("tanh"), Linear(wide, self.classes))
