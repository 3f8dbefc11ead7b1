"""Networks made of any of the known layers, and the convolutional networks of the papers."""

from __future__ import annotations

import dataclasses

from torch import nn

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.training.convolution import Conv2d, GroupNorm, Pad2d, Pool2d
from coalmine.training.embedding import Embedding
from coalmine.training.layers import Activation, Flatten, Layer, Linear, Shape
from coalmine.training.modules import Opaque
from coalmine.training.networks import Network


def takes_tokens(network: Network) -> bool:
    """Whether the network's inputs are token numbers and not features.

    >>> takes_tokens(Sequential((6,), 2, (Embedding(9, 2), Flatten(), Linear(12, 2))))
    True
    """
    first = network.layers()[0]
    return isinstance(first, Embedding) or (isinstance(first, Opaque) and first.tokens)


@dataclasses.dataclass(frozen=True)
class Sequential:
    """Any chain of known layers.

    >>> from coalmine.training.networks import parameter_count
    >>> parameter_count(Sequential((8,), classes=3, chain=(Linear(8, 4), Activation("tanh"), Linear(4, 3))))
    51
    """

    input_shape: Shape
    classes: int
    chain: tuple[Layer, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", _validate.integer("classes", self.classes, at_least=2))

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

    >>> from coalmine.training.networks import parameter_count
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
        shape = self.input_shape
        for layer in body:
            shape = layer.output(shape)
        return (*body, Linear(shape[0], 32), Activation(self.activation), Linear(32, self.classes))


@dataclasses.dataclass(frozen=True)
class BernauCnn:
    """bernau-2021's CNN for MNIST (Section 6): two 3×3 convolutions, a norm, 2×2 max pooling, a softmax layer.

    The paper has batch norm, which mixes the examples of a batch; here each convolution is followed by a group norm,
    which stays within one example. The paper does not give the number of filters: ``filters`` is ours.

    >>> from coalmine.training.networks import parameter_count
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
        shape = self.input_shape
        for layer in body:
            shape = layer.output(shape)
        return (*body, Linear(shape[0], self.classes))
