"""Labelled data, checked once at the door."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import content_hash
from coalmine.training.config import assign


def inputs_array(name: str, x: ArrayLike) -> NDArray[Any]:
    """Inputs as float32/float64 (or int64 for tokens), finite; the message names the first bad row."""
    array = np.asarray(x)
    if array.dtype.kind in "biu":
        return array.astype(np.int64) if array.dtype.kind != "b" else array.astype(np.float32)
    if array.dtype.kind != "f":
        raise InvalidInputError(f"{name} has element type {array.dtype}: expected numbers")
    array = array.astype(np.float64 if array.dtype == np.float64 else np.float32, copy=False)
    if array.size and not np.isfinite(array).all():
        bad = np.argwhere(~np.isfinite(array))
        place, value = ", ".join(str(i) for i in bad[0]), array[tuple(bad[0])]
        raise InvalidInputError(
            f"{name}[{place}] = {value} is not allowed: expected a finite number ({len(bad)} such values)"
        )
    return array


def labels_array(name: str, y: ArrayLike) -> NDArray[np.int64]:
    """Labels as int64, none below 0."""
    array = np.asarray(y)
    if array.dtype.kind not in "iub":
        raise InvalidInputError(f"{name} has element type {array.dtype}: expected whole numbers (class labels)")
    array = array.astype(np.int64)
    if array.ndim != 1:
        raise InvalidInputError(f"{name} has shape {array.shape}: expected one label for each row")
    bad = np.flatnonzero(array < 0)
    if bad.size:
        raise _validate.reject(f"{name}[{bad[0]}]", int(array[bad[0]]), "a class label of at least 0")
    return array


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Rows ``x`` of any one shape (features, pictures, tokens) and a class label ``y`` for each.

    Data sets with the same rows and labels are equal, so that what costs time is found once for each.

    >>> Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1]).rows
    2
    """

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __init__(self, x: ArrayLike, y: ArrayLike) -> None:
        inputs, labels = inputs_array("x", x), labels_array("y", y)
        if inputs.ndim < 2:
            raise InvalidInputError(f"x has shape {inputs.shape}: expected (rows, features...)")
        if inputs.shape[0] != labels.size:
            raise InvalidInputError(f"y has {labels.size} labels: expected {inputs.shape[0]}, one for each row of x")
        if labels.size == 0:
            raise InvalidInputError("x has 0 rows: expected at least one")
        assign(self, x=inputs, y=labels)

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.y.size)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one row."""
        return tuple(int(n) for n in self.x.shape[1:])

    def without(self, row: int) -> Dataset:
        """The other rows.

        >>> Dataset([[0.0, 1.0], [1.0, 0.0]], [0, 1]).without(0).y.tolist()
        [1]
        """
        keep = np.arange(self.rows) != row
        return Dataset(self.x[keep], self.y[keep])

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256 of rows and labels, read when first asked for."""
        return content_hash({"x": self.x, "y": self.y})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dataset) and self.content_hash == other.content_hash

    def __hash__(self) -> int:
        return hash(self.content_hash)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroGradients:
    """Data whose every gradient is zero (last-iterate-2024, Section 3: the worst case for a gradient canary).

    Only the number of rows matters, for the expected batch size; no gradient is ever computed.

    >>> ZeroGradients(rows=6000).rows
    6000
    """

    rows: int

    def __post_init__(self) -> None:
        assign(self, rows=_validate.integer("rows", self.rows, at_least=1))


SharedGradient = Callable[[Any, int], Any]
"""From the stack's parameters ``[S, P]`` and the step about to be taken (1 for the first) to gradients ``[S, P]``."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AlikeRows:
    """Rows that all have the same gradient, which may depend on the model and on the step.

    They are what an adversary may choose for a data set (the repeaters of last-iterate-2024, Appendix C). Each row is
    drawn and clipped on its own, as any row is; since they are alike, only how many were drawn matters, so n may be as
    large as one likes.

    >>> AlikeRows(rows=6000, gradient=lambda parameters, step: parameters).rows
    6000
    """

    rows: int
    gradient: SharedGradient

    def __post_init__(self) -> None:
        assign(self, rows=_validate.integer("rows", self.rows, at_least=1))
