"""Matrix products for a stack of models, the same bits for a model whatever else is in the stack.

On a CPU each model's product is a call of its own, with exactly the rows its batch has: no work on padding, and the
shapes (hence the kernel and the order of its sums) depend on that model alone. On a GPU one batched call does the
whole stack at its fixed width. A single model may also come without the stack's dimension, as plain matrices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Counts = Sequence[int] | None
"""How many examples of each model are in use (CPU); nothing on a GPU, where padding is computed and weighted by 0."""


def used_rows(x: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """For each model the rows in use as a matrix: ``[S, W, ..., D]`` to S times ``[count·positions, D]``."""
    if x.dim() > 3:
        positions = math.prod(x.shape[2:-1])
        return [rows[: n * positions] for rows, n in zip(x.flatten(1, -2).unbind(0), counts, strict=True)]
    return [rows[:n] for rows, n in zip(x.unbind(0), counts, strict=True)]


def _matrices(x: Tensor) -> Tensor:
    """``[S, W, ..., D]`` as S matrices of all their rows."""
    return x.flatten(1, -2) if x.dim() > 3 else x


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor, counts: Counts) -> None:
    """out[s] = x[s]·weight[s]ᵀ + bias[s], with weight ``[S, out, in]``."""
    if x.dim() == 2:
        if bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(bias, x, weight.t(), out=out)
        return
    transposed = weight.transpose(1, 2)
    if counts is None:
        rows, target = _matrices(x), _matrices(out)
        if bias is None:
            torch.bmm(rows, transposed, out=target)
        else:
            torch.baddbmm(bias.unsqueeze(1), rows, transposed, out=target)
        return
    parts = zip(used_rows(x, counts), transposed.unbind(0), used_rows(out, counts), strict=True)
    if bias is None:
        for r, w, o in parts:
            torch.mm(r, w, out=o)
    else:
        for (r, w, o), b in zip(parts, bias.unbind(0), strict=True):
            torch.addmm(b, r, w, out=o)


def back(error: Tensor, weight: Tensor, *, out: Tensor, counts: Counts) -> None:
    """out[s] = error[s]·weight[s]: the error of a layer's input."""
    if error.dim() == 2:
        torch.mm(error, weight, out=out)
        return
    if counts is None:
        torch.bmm(_matrices(error), weight, out=_matrices(out))
        return
    for r, w, o in zip(used_rows(error, counts), weight.unbind(0), used_rows(out, counts), strict=True):
        torch.mm(r, w, out=o)


def outer(error: Tensor, x: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= error[s]ᵀ·x[s]: the sum of the gradients of a weight over a batch of weighted errors."""
    if error.dim() == 2:
        if accumulate:
            torch.addmm(out, error.t(), x, out=out)
        else:
            torch.mm(error.t(), x, out=out)
        return
    if counts is None:
        rows = _matrices(error).transpose(1, 2)
        # With beta = 0 what is in ``out`` is ignored, so old NaNs do not spread.
        torch.baddbmm(out, rows, _matrices(x), beta=1.0 if accumulate else 0.0, out=out)
        return
    for r, a, o in zip(used_rows(error, counts), used_rows(x, counts), out.unbind(0), strict=True):
        if accumulate:
            torch.addmm(o, r.t(), a, out=o)
        else:
            torch.mm(r.t(), a, out=o)


def row_sums(error: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= Σ_rows error[s]: the sum of the gradients of a bias."""
    if counts is None:
        rows = error if error.dim() == 2 else _matrices(error)
        if accumulate:
            out.add_(rows.sum(-2))
        else:
            torch.sum(rows, -2, out=out)
        return
    for r, o in zip(used_rows(error, counts), out.unbind(0), strict=True):
        if accumulate:
            o.add_(r.sum(0))
        else:
            torch.sum(r, 0, out=o)
