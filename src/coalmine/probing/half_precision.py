"""Does a step compute in half precision? Then rows may seem to interact where it only rounds.

The same row, in a batch of another size, is computed in another order and rounded in another way: by a few parts in a
thousand in bfloat16. The bound of the accounting does not know that, so it stays a finding, but with its cause.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coalmine.probing.bench import Bench, World

LOOK_AT = "the precision in which rows are added up"
_KINDS = (torch.bfloat16, torch.float16)
_SPACINGS = 8.0
"""Of the type: what the roundings of one row may come to."""


class _Kinds(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes which types of half precision a step computes in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[torch.dtype] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {one.dtype for one in tree_leaves(result) if isinstance(one, torch.Tensor) and one.dtype in _KINDS}
        return result


def word(bench: Bench, base: World, excess: float) -> str:
    """A sentence about rounding, where the step computes in half precision and that may come to so much; else nothing.

    Args:
        bench: the step.
        base: the batch.
        excess: by how much of a row's influence it is not as promised.
    """
    if excess > _SPACINGS * max(torch.finfo(one).eps for one in _KINDS):
        return ""
    with _Kinds() as heard:
        bench.quiet(base)
    fitting = [one for one in _KINDS if one in heard.seen and excess <= _SPACINGS * torch.finfo(one).eps]
    if not fitting:
        return ""
    kind = str(fitting[0]).removeprefix("torch.")
    return f" The step computes in {kind}, so this may be rounding: probe it once in single precision, which tells."
