"""Padded batches: the rows of ``empty`` fill up what is not drawn, so that the number of rows is always the same.

A step that is compiled for N rows never sees another number, so N is a constant of it. A row is then added by putting
it in the place of padding, and taken out by putting padding in its place.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path

from coalmine.errors import InvalidInputError
from coalmine.probing import rows


def checked(empty: Any, batch: Any) -> Any:
    """What the step is given when no row was drawn, in the types of the batch; an error where it is no such batch."""
    empty = jax.tree.map(np.asarray, empty)
    given, shape = tree_flatten_with_path(empty)
    wanted, expected = tree_flatten_with_path(batch)
    if shape != expected:
        raise InvalidInputError(
            f"empty has the structure {shape}: expected that of batch, {expected}, with any number of rows, all padding"
        )
    found, counts = [], set()
    for (path, one), (_, like) in zip(given, wanted, strict=True):
        if one.ndim != like.ndim or one.shape[1:] != like.shape[1:]:
            allowed = ", ".join(["any number of rows", *map(str, like.shape[1:])]) if like.ndim else "one number"
            raise InvalidInputError(
                f"empty{keystr(path)} has shape {one.shape}: expected ({allowed}), as batch{keystr(path)} has, all "
                "padding"
            )
        counts |= {len(one)} if one.ndim else set()
        found.append(one.astype(like.dtype))
    if len(counts) > 1:
        raise InvalidInputError(
            f"empty: its parts have {sorted(counts)} rows: expected the same number in each, all padding"
        )
    return jax.tree.unflatten(expected, found)


def filled(some: Any, padding: Any) -> Any:
    """Rows, and behind them as much of the padding as there is room for."""
    count = rows.size(some)
    return rows.join([some, rows.take(padding, range(count, rows.size(padding)))])


def of_width(empty: Any, width: int) -> Any:
    """Padding for so many rows."""
    return rows.take(empty, [place % rows.size(empty) for place in range(width)])


def contributes(bench: Any, names: list[str], quiet: tuple[int, float]) -> float:
    """How far a row of padding more moves these tensors, whatever else is in the batch; 0 where that cannot be asked.

    That takes a step that runs with another number of rows. What follows from that number (a divisor) depends on the
    other rows, so it does not count.
    """
    one = rows.take(bench.padding, [0])
    sides = []
    for base in (bench.base, bench.replaced({0: one})):
        pair = [base, rows.join([base, one])]
        if bench.failure(pair[1]):
            return 0.0
        without, with_it = (bench.run([batch], [quiet[0]], [quiet[1]]) for batch in pair)
        sides.append(np.concatenate([with_it[name][0] - without[name][0] for name in names]))
    size = float(np.linalg.norm(sides[0]))
    return size if float(np.linalg.norm(sides[0] - sides[1])) <= 0.01 * size else 0.0
