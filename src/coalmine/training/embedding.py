"""Layers for sequences of tokens: an embedding, and the mean over the positions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from coalmine.errors import InvalidInputError
from coalmine.training.layers import NoParameters, Run, Shape


@dataclasses.dataclass(frozen=True)
class Embedding:
    """A row of a table for each token (whole numbers below ``tokens``). It must be the first layer."""

    tokens: int
    size: int

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

    def fans(self) -> tuple[tuple[int, int] | None, ...]:
        """As a linear layer on one-hot tokens."""
        return ((self.tokens, self.size),)

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
class MeanPositions(NoParameters):
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
