"""Matrix products for a stack of models, the same bits for a model whatever else is in the stack.

On a CPU each model's product is a call of its own, with exactly the rows its batch has: no work on padding, and the
shapes (hence the kernel and the order of its sums) depend on that model alone. On a GPU one batched call does the
whole stack at its fixed width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Counts = Sequence[int] | None
"""How many examples of each model are in use (CPU); nothing on a GPU, where padding is computed and weighted by 0."""


def _rows(x: Tensor) -> Tensor:
    """``[S, W, ..., D]`` as ``[S, W·positions, D]``."""
    return x.flatten(1, -2)


def _positions(x: Tensor) -> int:
    """How many rows of the product one example has."""
    n = 1
    for size in x.shape[2:-1]:
        n *= size
    return n


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor, counts: Counts) -> None:
    """out[s] = x[s]·weight[s]ᵀ + bias[s], with weight ``[S, out, in]``."""
    rows, target = _rows(x), _rows(out)
    if counts is None:
        transposed = weight.transpose(1, 2)
        if bias is None:
            torch.bmm(rows, transposed, out=target)
        else:
            torch.baddbmm(bias.unsqueeze(1), rows, transposed, out=target)
        return
    positions = _positions(x)
    biases = [None] * len(counts) if bias is None else bias.unbind(0)
    for n, r, w, b, o in zip(counts, rows.unbind(0), weight.unbind(0), biases, target.unbind(0), strict=True):
        if n == 0:
            continue
        used = n * positions
        if b is None:
            torch.mm(r[:used], w.t(), out=o[:used])
        else:
            torch.addmm(b, r[:used], w.t(), out=o[:used])


def back(error: Tensor, weight: Tensor, *, out: Tensor, counts: Counts) -> None:
    """out[s] = error[s]·weight[s]: the error of a layer's input."""
    rows, target = _rows(error), _rows(out)
    if counts is None:
        torch.bmm(rows, weight, out=target)
        return
    positions = _positions(error)
    for n, r, w, o in zip(counts, rows.unbind(0), weight.unbind(0), target.unbind(0), strict=True):
        if n:
            used = n * positions
            torch.mm(r[:used], w, out=o[:used])


def outer(error: Tensor, x: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= error[s]ᵀ·x[s]: the sum of the gradients of a weight over a batch of weighted errors."""
    rows, inputs = _rows(error), _rows(x)
    beta = 1.0 if accumulate else 0.0
    if counts is None:
        # bmm ignores what is in ``out`` with beta = 0, so old NaNs do not spread.
        torch.baddbmm(out, rows.transpose(1, 2), inputs, beta=beta, out=out)
        return
    positions = _positions(error)
    for n, r, a, o in zip(counts, rows.unbind(0), inputs.unbind(0), out.unbind(0), strict=True):
        used = n * positions
        if used:
            torch.addmm(o, r[:used].t(), a[:used], beta=beta, out=o)
        elif not accumulate:
            o.zero_()


def row_sums(error: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= Σ_rows error[s]: the sum of the gradients of a bias."""
    rows = _rows(error)
    if counts is None:
        total = rows.sum(1)
        if accumulate:
            out.add_(total)
        else:
            out.copy_(total)
        return
    positions = _positions(error)
    for n, r, o in zip(counts, rows.unbind(0), out.unbind(0), strict=True):
        used = n * positions
        if used:
            total = r[:used].sum(0)
            if accumulate:
                o.add_(total)
            else:
                o.copy_(total)
        elif not accumulate:
            o.zero_()
