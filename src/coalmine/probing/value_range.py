"""Columns of which the batch shows only a few whole numbers as floats: a mask, a label, or a weight?

The batch cannot tell. A row that is clipped and then multiplied by 1 keeps to the clip norm; with 10 in its place it
moves the sum ten times as far. Where the column is a mask that the loader sets, 10 never comes, and the step is right;
where it is a weight of the row, it is not. So other numbers are tried, and what they show refutes nothing: it is named.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coalmine.probing import rows
from coalmine.probing.crafter import kind_of
from coalmine.probing.findings import Measurement, quoted

NAME = "other values"
FURTHER = 1.05
"""A row that moves so many times as far as is allowed has got past the clipping."""
_TIMES = (10.0, -10.0)
"""What is tried, in units of the largest number of the column."""
_LISTED = 6
Values = list[np.ndarray[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Moved:
    """How far a row moved the sum, the most that it may, and whether it is too far."""

    far: float
    allowed: float
    too_far: bool


def measure(
    batch: Any,
    starts: Sequence[Values],
    moves: Callable[[Values], Moved | None],
    *,
    masks: Callable[[int], bool] = lambda leaf: False,
) -> Measurement | None:
    """Try other numbers in columns that hold few whole ones; None where there is no such column.

    Args:
        batch: the rows that the step is tried with.
        starts: rows that move the step, as their numbers.
        moves: runs the step with a row; None where the step refuses it.
        masks: whether it was said already that a column marks padding.
    """
    numbers, names = rows.numbers(batch), rows.names(batch)
    columns = [leaf for leaf, one in enumerate(numbers) if kind_of(one) == "label" and one.dtype.kind == "f"]
    said, blind, details = [], "", {}
    for leaf in columns:
        held = quoted(_listed(numbers[leaf]))
        if masks(leaf):
            said.append(f"{names[leaf]} marks padding: only {held} were tried there")
            details[names[leaf]] = "mask"
            continue
        largest = max(float(np.abs(numbers[leaf]).max()), 1.0)
        taken, worst = 0, None
        for start in starts:
            for times in _TIMES:
                values = [one.copy() for one in start]
                values[leaf] = np.full_like(values[leaf], times * largest)
                moved = moves(values)
                taken += moved is not None
                if moved is not None and moved.too_far and (worst is None or moved.far > worst[1].far):
                    worst = times * largest, moved
        details[names[leaf]] = "weight" if worst else "bounded" if taken else "refused"
        if worst is not None:
            blind = blind or _blind(names[leaf], held, *worst)
            said.append(f"{names[leaf]} holds only {held}: whether it can hold other numbers is not known")
        elif taken:
            said.append(f"{names[leaf]} holds only {held}; rows with {10 * largest:g} there move the sum no further")
        else:
            said.append(f"{names[leaf]} holds only {held}; the step takes no other numbers there")
    if not columns:
        return None
    return Measurement(name=NAME, sentence=f"{'. '.join(said)}.", blind=blind, details=details)


def _blind(name: str, held: str, value: float, moved: Moved) -> str:
    return (
        f"a row with {value:g} in {name} moves the sum by {moved.far:.4g}, where {moved.allowed:.4g} is allowed, and "
        f"{name} holds only {held}, so it was taken for a mask or a label: if it is a mask, hand it over as truth "
        "values (bool), or limit it in the step; if it may hold other numbers, as a weight of the row does, put one "
        "into the batch, and multiply before the row is clipped"
    )


def _listed(values: np.ndarray[Any, Any]) -> str:
    """The numbers of a column, in words.

    >>> _listed(np.array([0.0, 1.0, 1.0]))
    '0 and 1'
    """
    each = [f"{one:g}" for one in np.unique(values)]
    if len(each) > _LISTED:
        return f"whole numbers from {each[0]} to {each[-1]}"
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
