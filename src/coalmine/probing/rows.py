"""A batch as rows: taken apart and put together again, whatever tuple, list or dict of tensors it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.probing.findings import quoted

if TYPE_CHECKING:
    import torch


def _is_tensor(value: Any) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor of torch, which need not be installed."""
    loaded = sys.modules.get("torch")
    return loaded is not None and isinstance(value, loaded.Tensor)


def leaves(tree: Any) -> list[Any]:
    """The tensors and arrays of a batch whose first axis counts rows, in a fixed order.

    >>> [tuple(one.shape) for one in leaves({"x": np.zeros((4, 2)), "y": np.zeros(4), "name": "a"})]
    [(4, 2), (4,)]
    """
    found: list[Any] = []
    _map(tree, lambda leaf: found.append(leaf) or leaf)  # type: ignore[func-returns-value]
    return found


def names(tree: Any, name: str = "batch") -> list[str]:
    """What the user writes for each of the leaves, in their order.

    >>> names({"x": np.zeros((4, 2)), "more": (np.zeros(4), np.zeros(4))})
    ["batch['x']", "batch['more'][0]", "batch['more'][1]"]
    """
    if isinstance(tree, np.ndarray) or _is_tensor(tree):
        return [name] if tree.ndim else []
    if isinstance(tree, Mapping):
        return [one for key, value in tree.items() for one in names(value, f"{name}[{key!r}]")]
    if isinstance(tree, (tuple, list)):
        return [one for number, value in enumerate(tree) for one in names(value, f"{name}[{number}]")]
    return []


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every row tensor changed; everything else stays."""
    if isinstance(tree, np.ndarray) or _is_tensor(tree):
        return change(tree) if tree.ndim else tree
    if isinstance(tree, Mapping):
        items = {key: _map(value, change) for key, value in tree.items()}
        return items if type(tree) is dict else _rebuilt(type(tree), items)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(value, change) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(value, change) for value in tree)
    return tree


def _rebuilt(kind: type, items: dict[Any, Any]) -> Any:
    try:
        return kind(items)
    except TypeError:
        return items


def size(batch: Any) -> int:
    """How many rows a batch has; an error where its parts disagree.

    >>> size((np.zeros((4, 2)), np.zeros(4)))
    4
    """
    parts = leaves(batch)
    if not parts:
        raise InvalidInputError(
            f"batch = {type(batch).__name__} holds no tensor or array: expected a tensor, an array, or a tuple, list "
            "or dict of them, with rows along the first axis"
        )
    lengths = [int(one.shape[0]) for one in parts]
    if len(set(lengths)) > 1:
        raise InvalidInputError(f"batch: its parts have {lengths} rows: expected the same number in each")
    return lengths[0]


def take(batch: Any, rows: Sequence[int]) -> Any:
    """Some rows of a batch, in this order."""
    where = np.asarray(rows, dtype=np.int64)

    def pick(leaf: Any) -> Any:
        if not _is_tensor(leaf):
            return leaf[where]
        return leaf[sys.modules["torch"].from_numpy(where).to(leaf.device)]

    return _map(batch, pick)


def join(batches: Sequence[Any]) -> Any:
    """Batches one after the other, with the structure of the first."""
    if len(batches) == 1:
        return batches[0]
    others = [iter(leaves(one)) for one in batches[1:]]

    def glue(leaf: Any) -> Any:
        parts = [leaf, *(next(one) for one in others)]
        if not _is_tensor(leaf):
            return np.concatenate(parts)
        return sys.modules["torch"].cat(parts)

    return _map(batches[0], glue)


def changed(row: Any, values: Sequence[Any]) -> Any:
    """A row with other values in its leaves, one for each, in their order; each keeps its type and its place."""
    given = iter(values)

    def put(leaf: Any) -> Any:
        value = next(given)
        if _is_tensor(leaf):
            return sys.modules["torch"].as_tensor(value).to(dtype=leaf.dtype, device=leaf.device).reshape(leaf.shape)
        return np.asarray(value).astype(leaf.dtype).reshape(leaf.shape)

    return _map(row, put)


def numbers(row: Any) -> list[np.ndarray[Any, Any]]:
    """The leaves of a row as arrays of double precision (whole numbers stay whole)."""
    found = []
    for leaf in leaves(row):
        array: Any = leaf
        if _is_tensor(leaf):
            here = leaf.detach().cpu()
            array = (here.double() if here.is_floating_point() else here).numpy()
        found.append(np.array(array, dtype=np.float64 if np.issubdtype(array.dtype, np.floating) else None))
    return found


def _listed(batch: Any) -> bool:
    """Whether a batch looks like a list of rows: parts of rows in each item, or items that are all alike."""
    if not isinstance(batch, list) or not batch:
        return False
    if any(isinstance(one, (Mapping, tuple, list)) for one in batch):
        return True
    shapes = [tuple(one.shape) for one in batch if isinstance(one, np.ndarray) or _is_tensor(one)]
    return len(shapes) == len(batch) > 1 and len(set(shapes)) == 1


def check(batch: Any) -> int:
    """A batch that can be probed: columns, with at least two rows."""
    if _listed(batch):
        stacked = "(np.stack(xs), np.asarray(ys))"
        if any(_is_tensor(leaf) for leaf in leaves(batch)):
            stacked = "(torch.stack(xs), torch.tensor(ys))"
        raise InvalidInputError(
            f"batch is a list of {len(batch)} items that look like rows: expected columns, each a tensor or an array "
            f"whose first axis counts rows. Stack the rows, as in {stacked}, and take them "
            "apart again in the step; columns of one shape may come in a tuple or a dict"
        )
    rows = size(batch)
    if rows < 2:
        raise _validate.reject(
            "batch", f"{rows} row(s)", "at least two rows: one row cannot show what rows do to others"
        )
    return rows


def describe(row: Any) -> str:
    """A row in a few words, so that it can be made again.

    >>> describe((np.full((1, 3), 2.0), np.array([1])))
    '‹values from 2 to 2, norm 3.46; label 1›'
    """
    parts = []
    for array in numbers(row):
        if array.dtype.kind == "f" and array.size > 1:
            with np.errstate(over="ignore", invalid="ignore"):
                norm = float(np.linalg.norm(array))
            parts.append(f"values from {array.min():.3g} to {array.max():.3g}, norm {norm:.3g}")
        elif array.size == 1:
            value = array.reshape(-1)[0]
            parts.append(f"label {value:g}" if array.dtype.kind in "fiu" else f"label {value}")
        else:
            flat = array.reshape(-1)
            shown = ", ".join(str(one) for one in flat[:8])
            parts.append(f"tokens {shown}" + (", …" if flat.size > 8 else ""))
    return quoted("; ".join(parts))
