"""Any other torch module, through ``torch.func``: per-example gradients are built, so it is slower, not different.

A module is refused if examples of a batch can touch each other in it: then one example moves the others' gradients,
clipping no longer bounds what one example can do, and every privacy number is void. Layers known to do so are refused
by name; the rest is tried out: one example is changed, and the outputs of the others must not move.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.training.answers import Answers
from coalmine.training.batching import Batch
from coalmine.training.clipping import Views, clip_divisors
from coalmine.training.config import assign
from coalmine.training.layers import Part, Shape
from coalmine.training.products import Counts

_GRADIENT_FLOATS = 2**23
"""Per-example gradients are built for at most about this many numbers at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class FromModule:
    """A network given as a torch module that maps a batch ``[B, ...]`` to logits ``[B, classes]``.

    Parameters that require gradients are trained; the others stay as they are (frozen features). The module's own
    values are not the start of training unless ``GivenWeights(network.weights())`` says so. With ``tokens``, inputs are
    whole numbers and stay so.

    >>> network = FromModule(nn.Linear(8, 3), input_shape=(8,), classes=3)
    >>> network.weights().size
    27
    """

    body: nn.Module
    input_shape: Shape
    classes: int
    tokens: bool

    def __init__(self, body: nn.Module, *, input_shape: Sequence[int], classes: int, tokens: bool = False) -> None:
        _validate.instance("body", body, nn.Module)
        check_mixing(body)
        if not any(p.requires_grad for p in body.parameters()):
            raise InvalidInputError("body has no parameter that requires a gradient: expected at least one")
        shape, count = tuple(int(n) for n in input_shape), _validate.integer("classes", classes, at_least=2)
        assign(self, body=body, input_shape=shape, classes=count, tokens=tokens)

    def layers(self) -> tuple[Part, ...]:
        """The module as one layer."""
        return (Opaque(self.body, self.classes, self.tokens),)

    def weights(self) -> NDArray[np.float64]:
        """The trainable parameters' present values, as one vector."""
        parts = [p.detach().double().cpu().flatten() for p in self.body.parameters() if p.requires_grad]
        return torch.cat(parts).numpy()


def check_mixing(body: nn.Module) -> None:
    """Refuse layers that mix the examples of a batch, or draw randomness of their own; the error names the layer."""
    for name, child in body.named_modules():
        label = f"layer {name or 'body'}, {type(child).__name__},"
        if isinstance(child, _InstanceNorm):
            if child.track_running_stats:
                raise UnsupportedError(f"{label} keeps running statistics over examples: use track_running_stats=False")
        elif isinstance(child, _BatchNorm):
            raise UnsupportedError(
                f"{label} mixes the examples of a batch, so clipping does not bound one example's influence: "
                f"use GroupNorm or LayerNorm"
            )
        elif isinstance(child, _DropoutNd) and child.p > 0 and child.training:
            raise UnsupportedError(f"{label} draws randomness outside the trial's streams: use p = 0 or eval()")


def check_independence(body: nn.Module, x: NDArray[Any], *, classes: int) -> None:
    """Run a few rows, change the first, run again: the other rows' outputs must be the same.

    >>> check_independence(nn.Linear(2, 3), np.ones((4, 2)), classes=3)
    """
    trial = copy.deepcopy(body).double()
    rows = torch.from_numpy(np.array(x[:4]))
    rows = rows.double() if rows.is_floating_point() else rows
    if rows.shape[0] < 2:
        rows = rows.repeat(2, *([1] * (rows.dim() - 1)))
    other = rows.clone()
    other[0] = other[0] * -1.7 + 0.9 if rows.is_floating_point() else rows.flatten(0, 1).flip(0)[: rows.shape[1]]
    try:
        with torch.no_grad():
            before, again, after = trial(rows), trial(rows), trial(other)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        raise InvalidInputError(
            f"body does not take rows of shape {tuple(rows.shape[1:])} ({str(error).partition(chr(10))[0]}): "
            f"expected a module that maps a batch of them to ({classes},) logits each"
        ) from None
    if tuple(before.shape) != (rows.shape[0], classes):
        more = before.dim() == 2 and before.shape[1] > classes
        counted = (
            f"; classes are counted from the labels unless FromModule(body, input_shape={tuple(rows.shape[1:])}, "
            f"classes={before.shape[1]}) of coalmine.training says that there are more"
        )
        raise InvalidInputError(
            f"body gave outputs of shape {tuple(before.shape)} for {rows.shape[0]} rows: expected "
            f"({rows.shape[0]}, {classes}){counted if more else ''}"
        )
    if not torch.isfinite(before).all():
        raise InvalidInputError("body gave outputs that are not finite: expected numbers for every row")
    apart = (before - again).abs().max().item()
    if not apart <= 1e-9 * (1.0 + before.abs().max().item()):
        raise UnsupportedError(
            f"body gave other outputs for the same rows when it was asked again ({apart:.3g} apart): expected a module "
            "that draws no random numbers and keeps no state in forward"
        )
    moved = (before[1:] - after[1:]).abs().max().item()
    if not moved <= 1e-9 * (1.0 + before.abs().max().item()):
        raise UnsupportedError(
            f"body mixes the examples of a batch: changing one row moved another row's output by {moved:.3g}; "
            f"expected a module that treats every row on its own"
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque(Part):
    """A module seen from outside: its parameters, and nothing of what it does (:class:`PerExample` trains it)."""

    body: nn.Module
    classes: int
    takes_tokens: bool

    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the trainable parameters."""
        return tuple(tuple(p.shape) for p in self.body.parameters() if p.requires_grad)

    def constants(self) -> tuple[ArrayLike, ...]:
        """Vectors and scalars start where the module has them."""
        return tuple(p.detach().double().cpu().flatten().numpy() for p in self.body.parameters() if p.requires_grad)

    def output(self, shape: Shape) -> Shape:
        """Logits."""
        return (self.classes,)

    def module(self) -> nn.Module:
        """A copy of the module."""
        return copy.deepcopy(self.body)


class Functional:
    """A module as a function of its trainable parameters, which torch can differentiate once and again."""

    def __init__(self, body: nn.Module, *, device: torch.device, dtype: torch.dtype) -> None:
        self._body = body.to(device=device, dtype=dtype)
        self._shapes = {name: p.shape for name, p in self._body.named_parameters() if p.requires_grad}
        for parameter in self._body.parameters():
            parameter.requires_grad_(False)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of a parameter vector."""
        return tuple(self._shapes)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A parameter vector ``[P]`` by the names of its parts."""
        parts = torch.split(vector, [math.prod(shape) for shape in self._shapes.values()])
        return {name: part.view(self._shapes[name]) for name, part in zip(self._shapes, parts, strict=True)}

    def __call__(self, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        """Logits ``[B, classes]`` of one model at a batch of inputs."""
        outputs: Tensor = functional_call(self._body, parameters, (x,))
        return outputs


class PerExample(Answers):
    """Clipped sums for a module, one model at a time, a fixed number of examples at a time."""

    takes_matrices = False

    def __init__(self, layer: Opaque, *, device: torch.device, dtype: torch.dtype) -> None:
        self.layers: tuple[Part, ...] = (layer,)
        self.takes_tokens = layer.takes_tokens
        self._body = Functional(layer.module(), device=device, dtype=dtype)
        self._chunk = max(1, _GRADIENT_FLOATS // sum(math.prod(shape) for shape in layer.shapes()))
        self._gradients = vmap(grad_and_value(self._loss), in_dims=(None, 0, 0))

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy of one example."""
        return functional.cross_entropy(self._body(parameters, x.unsqueeze(0)), target.unsqueeze(0))

    def logits(self, parameters: Tensor, x: Tensor, counts: Counts) -> Tensor:
        """Outputs of every model, ``[S, W, classes]``."""
        models = zip(parameters.unbind(0), x.unbind(0), strict=True)
        # Libraries choose a kernel, and with it the order of sums, by where numbers lie: a copy always begins alike.
        return torch.stack([self._body(self._body.named(vector.clone()), inputs) for vector, inputs in models])

    def clipped_sums(self, views: Views, out: Views, batch: Batch, *, clip: float, accumulate: bool) -> None:
        """As :meth:`coalmine.training.clipping.ClosedForm.clipped_sums`, from the gradients themselves."""
        names, rows = self._body.names, batch.x.shape[1]
        for model, n in enumerate(batch.counts or [rows] * batch.x.shape[0]):
            parameters = {name: view[model] for name, view in zip(names, views[0], strict=True)}
            sums = [view[model] for view in out[0]]
            if not accumulate:
                for total in sums:
                    total.zero_()
            for start in range(0, n, self._chunk):
                part = slice(start, min(start + self._chunk, n))
                gradients, _ = self._gradients(parameters, batch.x[model, part], batch.targets[model, part])
                flat = [gradients[name].flatten(1) for name in names]
                squares = sum((g.square().sum(1) for g in flat[1:]), flat[0].square().sum(1))
                factors = clip_divisors(squares.sqrt(), clip=clip).reciprocal_().mul_(batch.weights[model, part])
                for total, g in zip(sums, flat, strict=True):
                    total.add_((factors @ g).view_as(total))
