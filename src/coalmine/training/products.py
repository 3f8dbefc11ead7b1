"""Matrix products for a stack of models, the same bits for a model whatever else is in the stack.

On a CPU each model's product is a call of its own, with exactly the rows its batch has: no work on padding, and the
shapes (hence the kernel and the order of its sums) depend on that model alone. On a GPU one batched call does the
whole stack at its fixed width. A single model may also come without the stack's dimension, as plain matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Counts = Sequence[int] | None
"""How many examples of each model are in use (CPU); nothing on a GPU, where padding is computed and weighted by 0."""


_LINES = 256
"""Models at a time where the kernels of a GPU must not depend on their number."""


def padded(rows: int) -> int:
    """The next multiple of 32.

    Element-wise operations treat the last few elements of a buffer differently from the rest (vector against scalar
    code), so every buffer ends on a whole vector: then a model's place in the stack cannot touch its result.
    """
    return -(-rows // 32) * 32


def parts_of_one_size(lines: Tensor, *, together: int = _LINES) -> list[Tensor]:
    """The lines of a tensor in parts that, on a GPU, have all the same number, the last one's filled up with zeros.

    A GPU's libraries choose a kernel, and with it the order of sums, by the number of lines. On a CPU all are one part:
    there what is computed sees to it by itself.

    >>> [part.shape[0] for part in parts_of_one_size(torch.ones(3, 2))]
    [3]
    """
    count = lines.shape[0]
    if lines.device.type == "cpu" or count == 0:
        return [lines]
    parts = list(torch.split(lines, together))
    short = together - parts[-1].shape[0]
    if short:
        parts[-1] = torch.cat([parts[-1], lines.new_zeros((short, *lines.shape[1:]))])
    return parts


def in_parts(compute: Callable[..., Tensor], *lines: Tensor) -> Tensor:
    """``compute(*lines)``, where line s of the result stands for line s of each argument, the same bits in any stack.

    >>> in_parts(lambda x, y: (x * y).sum(1), torch.ones(3, 2), torch.ones(3, 2)).tolist()
    [2.0, 2.0, 2.0]
    """
    parts = zip(*(parts_of_one_size(x) for x in lines), strict=True)
    found = [compute(*part) for part in parts]
    return found[0] if lines[0].device.type == "cpu" else torch.cat(found)[: lines[0].shape[0]]


def whole_lines(lines: Tensor) -> Tensor:
    """Lines ``[S, P]`` for a sum over each: on a GPU filled up with zeros, so that every line begins on a whole vector.

    A GPU adds the numbers before the first whole vector by themselves, so a line's place would change the order of its
    sum.

    >>> whole_lines(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """
    size = lines.shape[1]
    return lines if lines.device.type == "cpu" else torch.nn.functional.pad(lines, (0, padded(size) - size))


def dots(a: Tensor, b: Tensor) -> Tensor:
    """⟨a_s, b_s⟩ for each model.

    >>> dots(torch.ones(2, 3), torch.ones(2, 3)).tolist()
    [3.0, 3.0]
    """
    return in_parts(lambda x, y: whole_lines(x * y).sum(1), a, b)


def line_norms(lines: Tensor) -> Tensor:
    """‖a_s‖ for each line, ``[S, 1]``; for lines that come in parts of one size.

    >>> line_norms(torch.ones(2, 4)).tolist()
    [[2.0], [2.0]]
    """
    found: Tensor = torch.linalg.vector_norm(whole_lines(lines), dim=1, keepdim=True)
    return found


def _batched(x: Tensor, counts: Counts) -> bool:
    """Whether one call does the whole stack."""
    return counts is None and x.dim() > 2


def _matrices(x: Tensor) -> Tensor:
    """``[S, W, ..., D]`` as S matrices of all their rows."""
    return x.flatten(1, -2) if x.dim() > 3 else x


def _used(x: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """For each model the rows in use as a matrix: ``[S, W, ..., D]`` to S times ``[count·positions, D]``."""
    positions = math.prod(x.shape[2:-1])
    return [rows[: n * positions] for rows, n in zip(_matrices(x).unbind(0), counts, strict=True)]


def _each(counts: Counts, rows: Sequence[Tensor], whole: Sequence[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Model by model: of ``rows`` those in use, of ``whole`` all."""
    if counts is None:  # plain matrices
        yield (*rows, *whole)
    else:
        yield from zip(*(_used(x, counts) for x in rows), *(x.unbind(0) for x in whole), strict=True)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor, counts: Counts) -> None:
    """out[s] = x[s]·weight[s]ᵀ + bias[s], with weight ``[S, out, in]``."""
    if _batched(x, counts):
        rows, turned, target = _matrices(x), weight.transpose(1, 2), _matrices(out)
        if bias is None:
            torch.bmm(rows, turned, out=target)
        else:
            torch.baddbmm(bias.unsqueeze(1), rows, turned, out=target)
    elif bias is None:
        for r, o, w in _each(counts, (x, out), (weight,)):
            torch.mm(r, w.t(), out=o)
    else:
        for r, o, w, b in _each(counts, (x, out), (weight, bias)):
            torch.addmm(b, r, w.t(), out=o)


def back(error: Tensor, weight: Tensor, *, out: Tensor, counts: Counts) -> None:
    """out[s] = error[s]·weight[s]: the error of a layer's input."""
    if _batched(error, counts):
        torch.bmm(_matrices(error), weight, out=_matrices(out))
    else:
        for r, o, w in _each(counts, (error, out), (weight,)):
            torch.mm(r, w, out=o)


def outer(error: Tensor, x: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= error[s]ᵀ·x[s]: the sum of the gradients of a weight over a batch of weighted errors."""
    if _batched(error, counts):
        rows = _matrices(error).transpose(1, 2)
        # With beta = 0 what is in ``out`` is ignored, so old NaNs do not spread.
        torch.baddbmm(out, rows, _matrices(x), beta=1.0 if accumulate else 0.0, out=out)
        return
    for r, a, o in _each(counts, (error, x), (out,)):
        if accumulate:
            torch.addmm(o, r.t(), a, out=o)
        else:
            torch.mm(r.t(), a, out=o)


def row_sums(error: Tensor, *, out: Tensor, counts: Counts, accumulate: bool) -> None:
    """out[s] (+)= Σ_rows error[s]: the sum of the gradients of a bias."""
    parts = [(_matrices(error), out)] if counts is None else _each(counts, (error,), (out,))
    for r, o in parts:
        if accumulate:
            o.add_(r.sum(-2))
        else:
            torch.sum(r, -2, out=o)
