"""Large tensors as vectors in double precision, some numbers at a time.

Differences are taken in double precision, twice the memory of what a step shows. Where only their length, or a product
of them, is wanted, they are never there as a whole. Up to a piece's size the numbers are those of the whole vector, bit
for bit; beyond, sums of pieces are rounded in another order.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator

import torch

_AT_ONCE = 1 << 16
"""Numbers in a piece: half a MiB in double precision."""


def slices(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors, which are of one size, as vectors: some numbers of each at a time, where and what they are."""
    flat = [one.detach().reshape(-1) for one in tensors]
    for start in range(0, max(max(one.numel() for one in flat), 1), _AT_ONCE):
        yield tuple(one[start : start + _AT_ONCE] for one in flat)


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same, copied in double precision."""
    for parts in slices(*tensors):
        yield tuple(one.to("cpu", torch.float64, copy=True) for one in parts)


def norm(parts: Iterable[torch.Tensor]) -> float:
    """The length of a vector that is given in pieces.

    >>> round(norm(iter([torch.tensor([2.0, 3.0]), torch.tensor([6.0])])), 6)
    7.0
    """
    lengths = [float(one.norm()) for one in parts]
    return lengths[0] if len(lengths) == 1 else float(torch.tensor(lengths, dtype=torch.float64).norm())


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """‖a − b‖ in double precision.

    >>> distance(torch.tensor([[3.0], [5.0]]), torch.tensor([[0.0], [1.0]]))
    5.0
    """
    return norm(x.sub_(y) for x, y in pieces(a, b))


def inner(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> float:
    """(a − b)·(c − d) in double precision.

    >>> one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    >>> inner(two, one, one, two)
    -13.0
    """
    return sum(float(w.sub_(x) @ y.sub_(z)) for w, x, y, z in pieces(a, b, c, d))


def residual(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, factor: float) -> float:
    """‖(a − b) − factor·(c − d)‖ in double precision.

    >>> one, two = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])
    >>> residual(two, one, one, two, -1.0)
    0.0
    """
    return norm(w.sub_(x).sub_(y.sub_(z), alpha=factor) for w, x, y, z in pieces(a, b, c, d))


def give_back() -> None:
    """Let the C library return what was freed to the system, where it can (glibc): it keeps much of it otherwise."""
    trim = getattr(_LIBRARY, "malloc_trim", None)
    if trim is not None:
        trim(0)


try:
    _LIBRARY: ctypes.CDLL | None = ctypes.CDLL(None)
except (OSError, TypeError):  # not on Windows
    _LIBRARY = None
