"""Tensors of other kinds as ordinary ones, whose numbers can be compared: sparse, quantized, nested, of eight bits."""

from __future__ import annotations

import torch

from coalmine.errors import UnsupportedError

_WIDE = torch.float64, torch.float32, torch.float16, torch.bfloat16


def plain(tensor: torch.Tensor, name: str) -> list[torch.Tensor]:
    """The same numbers in ordinary tensors: one, or for a nested tensor each of its parts.

    Args:
        tensor: of any kind.
        name: what an error calls it.

    >>> [one.tolist() for one in plain(torch.tensor([0.0, 2.0]).to_sparse(), "returned")]
    [[0.0, 2.0]]
    """
    kind = kind_of(tensor)
    if not kind:
        return [tensor]
    try:
        if tensor.is_meta:
            return []  # it has a shape, and no numbers
        if tensor.is_nested:
            return [part for one in tensor.unbind() for part in plain(one, name)]
        if tensor.is_quantized:
            return [tensor.dequantize()]
        if tensor.layout is not torch.strided:
            return plain(tensor.to_dense(), name)
        return [tensor.to(torch.float32)]
    except (RuntimeError, NotImplementedError, TypeError) as problem:
        said = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise UnsupportedError(
            f"{name} is a {kind} tensor, whose numbers cannot be read ({said}): expected an ordinary tensor; convert "
            f'it in the step (to_dense(), dequantize(), float()), or say kept=("{name}",) if nobody outside sees it'
        ) from None


def kind_of(tensor: torch.Tensor) -> str:
    """What is special about a tensor, in a word; empty for an ordinary one.

    >>> kind_of(torch.zeros(2)), kind_of(torch.zeros(2).to_sparse())
    ('', 'sparse_coo')
    """
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.").removeprefix("_")
    if tensor.is_meta:
        return "meta"
    if tensor.dtype.is_floating_point and tensor.dtype not in _WIDE:
        return str(tensor.dtype).removeprefix("torch.")
    return ""
