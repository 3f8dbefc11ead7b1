"""Networks as frozen descriptions; the trainer turns them into stacked layers, :meth:`module` into a torch module.

The parameter vector of a model is the concatenation of its parameters in the order of ``module().parameters()``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.training.convolution import Conv2d
from coalmine.training.layers import Activation, Flatten, Layer, Linear, Part, Shape

ACTIVATIONS = ("relu", "tanh", "sigmoid")


class Network(Protocol):
    """A classifier: the shape of one input row, the number of classes, and its layers."""

    @property
    def input_shape(self) -> Shape:
        """The shape of one row of the data."""
        ...

    @property
    def classes(self) -> int:
        """How many classes it tells apart."""
        ...

    def layers(self) -> tuple[Part, ...]:
        """The layers, first to last."""
        ...


def parameter_shapes(layers: Sequence[Part]) -> tuple[tuple[Shape, ...], ...]:
    """The shapes of every layer's parameters."""
    return tuple(layer.shapes() for layer in layers)


def parameter_count(network: Network) -> int:
    """P, the length of a model's parameter vector.

    >>> parameter_count(Mlp(784, hidden=(32,), classes=2))
    25186
    """
    return sum(math.prod(shape) for shapes in parameter_shapes(network.layers()) for shape in shapes)


def check_layers(network: Network) -> None:
    """Follow one example's shape through the layers; the error names the layer that does not fit."""
    shape = network.input_shape
    for layer in network.layers():
        shape = layer.output(shape)
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
    """Standard deviation and mean of each parameter at the start: weights have mean 0 and variance
    scale²·2/(fan in + fan out), the rest is at its usual constant.

    >>> [part.tolist() for part in glorot_law(LogisticRegression(1, classes=2), scale=1.5)]
    [[1.224744871391589, 1.224744871391589, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    spreads, means = [np.zeros(0)], [np.zeros(0)]
    for layer in network.layers():
        for shape, fan, constant in zip(layer.shapes(), layer.fans(), constants(layer), strict=True):
            spread = 0.0 if fan is None else scale * math.sqrt(2.0 / (fan[0] + fan[1]))
            spreads.append(np.full(math.prod(shape), spread))
            means.append(np.array(np.broadcast_to(constant if fan is None else 0.0, (math.prod(shape),)), dtype=float))
    return np.concatenate(spreads), np.concatenate(means)


def glorot(network: Network, *, scale: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """One parameter vector drawn from :func:`glorot_law`."""
    spread, start = glorot_law(network, scale=scale)
    drawn = spread > 0.0
    start[drawn] = spread[drawn] * generator.standard_normal(int(drawn.sum()))
    return start


def constants(layer: Part) -> tuple[ArrayLike, ...]:
    """Where each parameter of a layer starts if it is not drawn: 0, or what the layer says (1 for a norm's scale)."""
    given: tuple[ArrayLike, ...] | None = getattr(layer, "constants", None)
    return given if given is not None else (0.0,) * len(layer.shapes())


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
        object.__setattr__(self, "inputs", _validate.integer("inputs", self.inputs, at_least=1))
        hidden = tuple(_validate.integer(f"hidden[{i}]", n, at_least=1) for i, n in enumerate(self.hidden))
        object.__setattr__(self, "hidden", hidden)
        object.__setattr__(self, "classes", _classes(self.classes))
        object.__setattr__(self, "activation", _validate.choice("activation", self.activation, ACTIVATIONS))

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


@dataclasses.dataclass(frozen=True)
class LogisticRegression:
    """One linear layer and softmax cross-entropy.

    >>> parameter_count(LogisticRegression(784, classes=2))
    1570
    """

    inputs: int
    classes: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", _validate.integer("inputs", self.inputs, at_least=1))
        object.__setattr__(self, "classes", _classes(self.classes))

    @property
    def input_shape(self) -> Shape:
        """A vector of features."""
        return (self.inputs,)

    def layers(self) -> tuple[Layer, ...]:
        """The one layer."""
        return (Linear(self.inputs, self.classes),)


@dataclasses.dataclass(frozen=True)
class Head(LogisticRegression):
    """A linear head on features that a frozen, public network has computed beforehand: its ``inputs`` are features."""


@dataclasses.dataclass(frozen=True)
class Vector:
    """A bare parameter vector and no loss, for data with zero gradients.

    >>> parameter_count(Vector(3))
    3
    """

    size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _validate.integer("size", self.size, at_least=1))

    @property
    def input_shape(self) -> Shape:
        """Takes no input."""
        return ()

    @property
    def classes(self) -> int:
        """Tells nothing apart."""
        return 0

    def layers(self) -> tuple[Layer, ...]:
        """One layer that holds the vector."""
        return (_Held(self.size),)


@dataclasses.dataclass(frozen=True)
class _Held(Flatten):
    """Parameters that no input reaches."""

    size: int = 1

    def shapes(self) -> tuple[Shape, ...]:
        """One vector."""
        return ((self.size,),)

    def fans(self) -> tuple[tuple[int, int] | None, ...]:
        """Starts at 0."""
        return (None,)
