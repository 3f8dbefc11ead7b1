"""A data set as a frozen value, and the part of one that a game is played on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.records import content_hash


class Arrays(NamedTuple):
    """What a loader gives: features in [0, 1] (one row an example) and labels from 0."""

    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class LoadedData:
    """Features and labels, with all that a report must say about where they come from.

    ``x_train`` and ``x_test`` are float32 with one row an example; a picture's row is its pixels flattened in the order
    of ``image_shape`` = (channels, height, width). Labels are int64 from 0 to ``classes`` − 1. The arrays are
    read-only. ``stand_in_for`` names the real data set that a synthetic one replaces, and is None for all others; where
    it is set, ``note`` says so in a sentence that belongs into every report.
    """

    name: str
    x_train: NDArray[np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.float32]
    y_test: NDArray[np.int64]
    classes: int
    image_shape: tuple[int, int, int] | None
    citation: str
    licence: str
    note: str = ""
    stand_in_for: str | None = None

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}")
            if x.ndim != 2 or y.shape != x.shape[:1] or x.dtype != np.float32 or y.dtype != np.int64:
                raise InvalidInputError(
                    f"x_{part} has shape {x.shape} ({x.dtype}) and y_{part} {y.shape} ({y.dtype}): expected (rows, "
                    "features) as float32 and (rows,) as int64"
                )
            if y.size and not (y.min() >= 0 and y.max() < self.classes):
                raise InvalidInputError(f"y_{part} is not allowed: expected labels from 0 to {self.classes - 1}")
            x.setflags(write=False)
            y.setflags(write=False)
        if self.x_test.shape[1] != self.features:
            raise InvalidInputError(f"x_test has {self.x_test.shape[1]} features: expected {self.features}")

    @property
    def features(self) -> int:
        """Numbers in one row."""
        return int(self.x_train.shape[1])

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 over the four arrays (type, shape, bytes): what was trained on, however it was stored."""
        return content_hash({name: getattr(self, name) for name in Arrays._fields})


def subset(
    data: LoadedData,
    *,
    classes: Sequence[int] | None = None,
    per_class: int | None = None,
    test_per_class: int | None = None,
    rows: int | None = None,
    test_rows: int | None = None,
) -> LoadedData:
    """The first rows of some classes, relabelled 0, 1, … in the order of ``classes``; the order of rows stays.

    ``per_class`` (``test_per_class``) keeps the first so many training (test) rows of each class, ``rows``
    (``test_rows``) the first so many of what is then left. All rows where nothing is said. Asking for more rows than
    there are is an error.

    >>> from coalmine.data import load
    >>> small = subset(load("digits"), classes=(3, 8), per_class=100)
    >>> len(small.y_train), small.classes, sorted(set(small.y_train.tolist()))
    (200, 2, [0, 1])
    """
    chosen = tuple(range(data.classes)) if classes is None else tuple(classes)
    for label in chosen:
        _validate.integer("classes", label, at_least=0, at_most=data.classes - 1)
    if len(set(chosen)) != len(chosen) or len(chosen) < 2:
        raise _validate.reject("classes", chosen, "at least two different labels")
    x_train, y_train = _keep(data.x_train, data.y_train, chosen, per_class, rows)
    x_test, y_test = _keep(data.x_test, data.y_test, chosen, test_per_class, test_rows, prefix="test_")
    return dataclasses.replace(
        data, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=len(chosen)
    )


def standardize(data: LoadedData) -> LoadedData:
    """Every feature that is more than 0 and 1 at mean 0 and variance 1 over the training rows; indicators stay.

    >>> from coalmine.data import load
    >>> bool(abs(standardize(load("digits")).x_train[:, 20].mean()) < 1e-6)
    True
    """
    numbers = ~np.isin(data.x_train, (0.0, 1.0)).all(axis=0)
    mean, spread = data.x_train.mean(axis=0, dtype=np.float64), data.x_train.std(axis=0, dtype=np.float64)
    shift, scale = np.where(numbers, mean, 0.0), np.where(numbers & (spread > 0.0), spread, 1.0)
    x_train, x_test = (((x - shift) / scale).astype(np.float32) for x in (data.x_train, data.x_test))
    return dataclasses.replace(data, x_train=x_train, x_test=x_test)


def _keep(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    chosen: tuple[int, ...],
    per_class: int | None,
    rows: int | None,
    *,
    prefix: str = "",
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The rows of the chosen classes, cut to the numbers asked for."""
    labels = np.full(y.size, -1, dtype=np.int64)
    for new, old in enumerate(chosen):
        at = np.flatnonzero(y == old)
        labels[_first(at, per_class, f"{prefix}per_class", f", the rows of class {old}")] = new
    index = _first(np.flatnonzero(labels >= 0), rows, f"{prefix}rows")
    return x[index], labels[index]


def _first(index: NDArray[np.int64], count: int | None, name: str, of: str = "") -> NDArray[np.int64]:
    """The first so many of these rows, or all; asking for more than there are is an error."""
    if count is None:
        return index
    if index.size < _validate.integer(name, count, at_least=1):
        raise _validate.reject(name, count, f"at most {index.size}{of}")
    return index[:count]
