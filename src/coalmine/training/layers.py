"""Layers whose per-example gradient norms and clipped sums have closed forms: no per-example gradient is built.

For y = W·a + b with error e = ∂ℓ/∂y, one example's gradient is (e·aᵀ, e), so its squared norm is ‖e‖²·(‖a‖² + 1),
and the sum over a batch with weights c is Σ c·e·aᵀ: one matrix product (Goodfellow 2015). A layer applied at L
positions (a convolution, a sequence) has gradient Σ_l e_l·a_lᵀ, whose squared norm is Σ_{l,l'} (a_l·a_l')·(e_l·e_l').

Activations are ``[S, W, ...]``: S models, W examples each. The parameters of a layer are views of the stacked
parameter vector ``[S, P]``, in the order and the shapes that torch's own module has.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from coalmine.errors import InvalidInputError
from coalmine.training import products

Shape = tuple[int, ...]


class Scratch:
    """Buffers that live as long as the stack does, zero at first: the same memory every step."""

    def __init__(self, *, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._buffers: dict[tuple[tuple[int, str], Shape], Tensor] = {}

    def __call__(self, name: tuple[int, str], shape: Sequence[int]) -> Tensor:
        """The buffer of this layer, name and shape."""
        key = (name, tuple(shape))
        if key not in self._buffers:
            self._buffers[key] = torch.zeros(key[1], device=self.device, dtype=self.dtype)
        return self._buffers[key]


@dataclasses.dataclass
class Run:
    """One pass over at most W examples a model: how many are in use, where to write, what is known of the inputs."""

    scratch: Scratch
    counts: products.Counts
    layer: int = 0
    width: int = 0
    """For a single model without the stack's dimension: buffers are cut from ones of this many examples."""
    input_squares: Tensor | None = None
    """‖x‖² of each example, for the first layer."""
    may_overwrite: bool = False
    """Whether the current layer may write over its input: nobody needs it going back."""

    def buffer(self, name: str, shape: Sequence[int]) -> Tensor:
        """A buffer of the current layer, ``[S, examples, ...]``, or ``[examples, ...]`` for a single model."""
        if self.width:
            return self.scratch((self.layer, name), (self.width, *shape[1:]))[: shape[0]]
        return self.scratch((self.layer, name), shape)


class Part(abc.ABC):
    """A part of a network seen from outside: its parameters, how they start, and a module that does the same."""

    takes_tokens: bool = False
    """Whether its inputs are token numbers and not features."""

    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of its parameters, for one model; by default there are none."""
        return ()

    def constants(self) -> tuple[ArrayLike, ...]:
        """Where each parameter starts if it is not drawn: by default at 0."""
        return (0.0,) * len(self.shapes())

    @abc.abstractmethod
    def output(self, shape: Shape) -> Shape:
        """The shape of one example after it; raises if the input does not fit."""

    @abc.abstractmethod
    def module(self) -> nn.Module:
        """The torch module that computes the same."""


class Layer(Part):
    """One layer for a whole stack. ``p`` are its parameters, x and y its input and output, e the error of y."""

    @abc.abstractmethod
    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """The output."""

    @abc.abstractmethod
    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """The error of the input."""


class TrainedLayer(Layer):
    """A layer with parameters."""

    @abc.abstractmethod
    def squared_norms(self, x: Tensor, e: Tensor, run: Run) -> Tensor:
        """Squared norm of each example's gradient in this layer's parameters, ``[S, W]``."""

    @abc.abstractmethod
    def add_gradients(self, x: Tensor, e: Tensor, out: Sequence[Tensor], run: Run, *, accumulate: bool) -> None:
        """The sum over the batch of the gradients with the (already weighted) errors ``e``, into ``out``."""


@dataclasses.dataclass(frozen=True)
class Linear(TrainedLayer):
    """y = W·a + b on the last dimension, at every position of the ones before it."""

    inputs: int
    outputs: int
    bias: bool = True

    def shapes(self) -> tuple[Shape, ...]:
        """Weight ``(outputs, inputs)``, bias ``(outputs,)``."""
        weight = (self.outputs, self.inputs)
        return (weight, (self.outputs,)) if self.bias else (weight,)

    def output(self, shape: Shape) -> Shape:
        """The last dimension becomes ``outputs``."""
        if not shape or shape[-1] != self.inputs:
            raise InvalidInputError(
                f"Linear({self.inputs}, {self.outputs}) got inputs of shape {shape}: the last "
                f"dimension is expected to be {self.inputs}"
            )
        return (*shape[:-1], self.outputs)

    def module(self) -> nn.Module:
        """torch.nn.Linear."""
        return nn.Linear(self.inputs, self.outputs, bias=self.bias)

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """x·Wᵀ + b."""
        y = run.buffer("y", (*x.shape[:-1], self.outputs))
        products.affine(x, p[0], p[1] if self.bias else None, out=y, counts=run.counts)
        return y

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """e·W."""
        d = run.buffer("d", x.shape)
        products.back(e, p[0], out=d, counts=run.counts)
        return d

    def squared_norms(self, x: Tensor, e: Tensor, run: Run) -> Tensor:
        """‖e‖²·(‖a‖² + 1) for one position; see :func:`positional_norms` for more."""
        if x.dim() > 3:
            return positional_norms(x, e, bias=self.bias, counts=run.counts)
        squares = run.input_squares if run.layer == 0 and run.input_squares is not None else (x * x).sum(-1)
        mine = (e * e).sum(-1)
        return torch.addcmul(mine, mine, squares) if self.bias else mine.mul_(squares)

    def add_gradients(self, x: Tensor, e: Tensor, out: Sequence[Tensor], run: Run, *, accumulate: bool) -> None:
        """Σ e·aᵀ and Σ e."""
        products.outer(e, x, out=out[0], counts=run.counts, accumulate=accumulate)
        if self.bias:
            products.row_sums(e, out=out[1], counts=run.counts, accumulate=accumulate)


def positional_norms(x: Tensor, e: Tensor, *, bias: bool, counts: products.Counts) -> Tensor:
    """Squared norm of Σ_l e_l·a_lᵀ (and of Σ_l e_l) for each example, by the cheaper of two ways.

    Either through the L×L products of positions (ghost norms) or through the gradient itself, a few examples at a
    time: L²·(D + O) multiplications against L·D·O.
    """
    a, b = x.flatten(2, -2), e.flatten(2, -2)
    result = torch.zeros(a.shape[:2], dtype=e.dtype, device=e.device)
    if counts is None:
        result.view(-1).copy_(_position_products(a.flatten(0, 1), b.flatten(0, 1)))
    else:
        for model, n in enumerate(counts):
            result[model, :n] = _position_products(a[model, :n], b[model, :n])
    if bias:
        result += b.sum(2).square_().sum(-1)
    return result


def _position_products(a: Tensor, b: Tensor) -> Tensor:
    """‖Σ_l e_l·a_lᵀ‖² of each example, from ``[N, L, D]`` and ``[N, L, O]``."""
    _, length, inputs = a.shape
    outputs = b.shape[-1]
    if length * (inputs + outputs) < inputs * outputs:
        pairs = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(b, b.transpose(1, 2)))
        # This form can round to just below 0.
        return pairs.flatten(1).sum(1).clamp_(min=0.0)
    return torch.bmm(b.transpose(1, 2), a).square_().flatten(1).sum(1)


@dataclasses.dataclass(frozen=True)
class Activation(Layer):
    """``relu``, ``tanh`` or ``sigmoid``, element by element, written over its input."""

    kind: str

    def output(self, shape: Shape) -> Shape:
        """Unchanged."""
        return shape

    def module(self) -> nn.Module:
        """The torch module of that name."""
        kinds: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
        return kinds[self.kind]()

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """In place, unless somebody still needs the input."""
        if not run.may_overwrite:
            x = run.buffer("y", x.shape).copy_(x)
        return {"relu": torch.relu_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}[self.kind](x)

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """e·f′, from the output alone, in place."""
        aten = torch.ops.aten
        if self.kind == "relu":
            aten.threshold_backward.grad_input(e, y, 0, grad_input=e)
        elif self.kind == "tanh":
            aten.tanh_backward.grad_input(e, y, grad_input=e)
        else:
            aten.sigmoid_backward.grad_input(e, y, grad_input=e)
        return e


@dataclasses.dataclass(frozen=True)
class Flatten(Layer):
    """All dimensions of an example as one. Pictures are flattened channel by channel, as torch does."""

    def output(self, shape: Shape) -> Shape:
        """The product of the sizes."""
        return (math.prod(shape),)

    def module(self) -> nn.Module:
        """torch.nn.Flatten."""
        return nn.Flatten()

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """``[S, W, ...]`` to ``[S, W, size]``."""
        return x.flatten(2)

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """The shape of the input again."""
        return e.reshape(x.shape)


@dataclasses.dataclass(frozen=True)
class Embedding(TrainedLayer):
    """A row of a table for each token (whole numbers below ``tokens``). It must be the first layer."""

    tokens: int
    size: int

    takes_tokens = True

    def shapes(self) -> tuple[Shape, ...]:
        """The table."""
        return ((self.tokens, self.size),)

    def output(self, shape: Shape) -> Shape:
        """One row for each position."""
        if len(shape) != 1:
            raise InvalidInputError(f"{self} got inputs of shape {shape}: expected (positions,), token numbers")
        return (*shape, self.size)

    def module(self) -> nn.Module:
        """torch.nn.Embedding."""
        return nn.Embedding(self.tokens, self.size)

    def _model(self, x: Tensor) -> Tensor:
        """The number of the model of each token, to look up in its own table."""
        return torch.arange(x.shape[0], device=x.device).view(-1, 1, 1).expand(x.shape)

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """Look the rows up."""
        return run.buffer("y", (*x.shape, self.size)).copy_(p[0][self._model(x), x])

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """Tokens have no error."""
        raise InvalidInputError(f"{self} is not allowed here: expected as the first layer")

    def squared_norms(self, x: Tensor, e: Tensor, run: Run) -> Tensor:
        """Positions with the same token share a row of the gradient: Σ over pairs of equal tokens of e_l·e_l'."""
        result = torch.zeros(x.shape[:2], dtype=e.dtype, device=e.device)
        for model in range(x.shape[0]):
            n = x.shape[1] if run.counts is None else run.counts[model]
            tokens, errors = x[model, :n], e[model, :n]
            same = tokens.unsqueeze(2) == tokens.unsqueeze(1)
            result[model, :n] = torch.bmm(errors, errors.transpose(1, 2)).mul_(same).flatten(1).sum(1).clamp_(min=0.0)
        return result

    def add_gradients(self, x: Tensor, e: Tensor, out: Sequence[Tensor], run: Run, *, accumulate: bool) -> None:
        """Each position's error to the row of its token."""
        if not accumulate:
            out[0].zero_()
        for model in range(x.shape[0]):
            n = x.shape[1] if run.counts is None else run.counts[model]
            # index_put_ adds in a fixed order on every device; index_add_ does not on a GPU.
            out[0][model].index_put_((x[model, :n].flatten(),), e[model, :n].flatten(0, 1), accumulate=True)


@dataclasses.dataclass(frozen=True)
class MeanPositions(Layer):
    """The mean over the positions of a sequence."""

    def output(self, shape: Shape) -> Shape:
        """Positions are gone."""
        if len(shape) != 2:
            raise InvalidInputError(f"{self} got inputs of shape {shape}: expected (positions, features)")
        return shape[1:]

    def module(self) -> nn.Module:
        """A module of its own: torch has none."""
        return _MeanPositions()

    def forward(self, p: Sequence[Tensor], x: Tensor, run: Run) -> Tensor:
        """Mean over the positions."""
        return torch.mean(x, 2, out=run.buffer("y", (*x.shape[:2], x.shape[3])))

    def backward(self, p: Sequence[Tensor], x: Tensor, y: Tensor, e: Tensor, run: Run) -> Tensor:
        """An equal share to every position."""
        return run.buffer("d", x.shape).copy_((e / x.shape[2]).unsqueeze(2).expand(x.shape))


class _MeanPositions(nn.Module):
    """x.mean(1)."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean over the positions of each sequence."""
        return x.mean(1)
