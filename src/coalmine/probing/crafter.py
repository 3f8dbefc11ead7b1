"""Rows that show what a step does: extreme in size, label, token or one feature, and random changes of a row.

A typical row shows little: softmax saturates, and a row that the model already knows moves nothing. So rows are tried
at many sizes, from zero to huge, with every label and every token, with one feature alone; and the best are changed
at random as long as they move more, in total and for each tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coalmine.probing import rows

_SIZES = (1.0, 0.0, 1e-3, 10.0, 100.0, 1e4, -1.0)
_SPIKES, _TOKENS, _LABELS, _SURE = 6, 48, 20, 2


class Crafter:
    """Makes rows from the rows of a batch, within ``bounds``; tokens stay below the size of the embedding they are for.

    >>> crafter = Crafter((np.ones((2, 3)), np.array([0, 1])))
    >>> max(size for _, size in crafter.first())
    10000.0
    """

    def __init__(
        self,
        batch: Any,
        *,
        bounds: tuple[float, float] | None = None,
        vocabularies: Sequence[int] = (),
        classes: int = 0,
        seed: int = 0,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._bounds = bounds
        self._template = rows.take(batch, [0])
        self._base = [rows.numbers(rows.take(batch, [position])) for position in range(rows.size(batch))]
        whole = rows.numbers(batch)
        self._kinds = [kind_of(one) for one in whole]
        self._highest = [
            int(one.max()) if kind in ("label", "tokens") and one.size else 0
            for one, kind in zip(whole, self._kinds, strict=True)
        ]
        self._tags = self._like_labels(classes)
        self._values = [
            _values(one, kind, vocabularies, classes=classes if leaf in self._tags else 0)
            for leaf, (one, kind) in enumerate(zip(whole, self._kinds, strict=True))
        ]
        for leaf, (kind, one) in enumerate(zip(self._kinds, whole, strict=True)):
            if kind == "label" and one.dtype.kind in "iu" and self._highest[leaf] + 1 < classes <= _LABELS:
                more = np.arange(self._highest[leaf] + 1, classes)  # classes of the model that the batch has no row of
                self._values[leaf] = np.concatenate([self._values[leaf], more])
        self._typical = [
            max(float(np.sqrt(np.mean(np.square(np.nan_to_num(one))))), 1e-3) if one.dtype.kind == "f" else 0.0
            for one in whole
        ]

    def _like_labels(self, classes: int) -> set[int]:
        """Columns of several whole numbers that may be labels, such as a tag for each token, and not what is embedded.

        The input comes first, or has a token that is no class of the model. A mask is neither.
        """
        several = [leaf for leaf, kind in enumerate(self._kinds) if kind == "tokens" and self._highest[leaf] > 1]
        inputs = [leaf for leaf in several if classes and self._highest[leaf] >= classes] or several[:1]
        return set(several) - set(inputs)

    def first(self) -> list[tuple[list[Any], float]]:
        """Rows to begin with, each with its size."""
        found: list[tuple[list[Any], float]] = []
        for size in _SIZES:
            some = self._base[: 3 if size == 1.0 else 1]
            found += [(self._sized(values, size), abs(size)) for values in some]
        for leaf, kind in enumerate(self._kinds):
            if kind == "label":
                for value in self._values[leaf][:_LABELS]:
                    for size in (1.0, 100.0):
                        values = self._sized(self._base[0], size)
                        values[leaf] = np.full_like(values[leaf], value)
                        found.append((values, size))
            elif kind == "tokens":
                for value in self._values[leaf][:_TOKENS]:
                    values = [one.copy() for one in self._base[0]]
                    values[leaf] = np.full_like(values[leaf], value)
                    found.append((values, 1.0))
            elif kind == "features":
                length = self._base[0][leaf].size
                for place in np.unique(np.linspace(0, length - 1, _SPIKES).astype(int)):
                    values = [one.copy() for one in self._base[0]]
                    spike = np.zeros(length)
                    spike[place] = 100.0 * self._typical[leaf]
                    values[leaf] = spike.reshape(self._base[0][leaf].shape)
                    found.append((values, 100.0))
        return [(self.inside(values), size) for values, size in found]

    def confident(self) -> list[tuple[list[Any], float]]:
        """Huge rows with every label: with the right one, a model that is sure of it has hardly any gradient."""
        labels = [leaf for leaf, kind in enumerate(self._kinds) if kind == "label"]
        found = []
        for base in self._base[:_SURE]:
            for leaf in labels[:1]:
                for value in self._values[leaf][:_LABELS]:
                    values = self._sized(base, _SIZES[-2])
                    values[leaf] = np.full_like(values[leaf], value)
                    found.append((self.inside(values), _SIZES[-2]))
        return found

    def changed(self, values: list[Any], size: float) -> tuple[list[Any], float]:
        """A row a little, or much, different."""
        new = [one.copy() for one in values]
        for leaf, kind in enumerate(self._kinds):
            if kind in ("features", "target"):
                choice = self._rng.integers(4)
                noise = self._rng.normal(size=new[leaf].shape)
                if choice == 0:
                    factor = float(np.exp(self._rng.normal()))
                    new[leaf], size = new[leaf] * factor, size * factor
                elif choice == 1:
                    new[leaf] = (
                        new[leaf] + 0.3 * max(float(np.sqrt(np.mean(new[leaf] ** 2))), self._typical[leaf]) * noise
                    )
                elif choice == 2:
                    new[leaf] = size * self._typical[leaf] * noise
                else:
                    new[leaf] = new[leaf] * np.sign(noise)
            elif self._values[leaf].size and self._rng.random() < 0.5:
                where = self._rng.random(new[leaf].shape) < (1.0 if kind == "label" else 0.3)
                new[leaf] = np.where(where, self._rng.choice(self._values[leaf], size=new[leaf].shape), new[leaf])
        return self.inside(new), min(size, 1e4)

    def between(self, a: list[Any], b: list[Any]) -> list[Any] | None:
        """The row half way between two; None where they differ in a label or a token, of which there is no half."""
        free = [kind in ("features", "target") for kind in self._kinds]
        if not all(mixed or np.array_equal(x, y) for mixed, x, y in zip(free, a, b, strict=True)):
            return None
        return [x + 0.5 * (y - x) if mixed else x.copy() for mixed, x, y in zip(free, a, b, strict=True)]

    def guessed(self, values: list[Any]) -> bool:
        """Whether a row has a label that the batch does not show to be one."""
        labels = [leaf for leaf, kind in enumerate(self._kinds) if kind == "label" or leaf in self._tags]
        return any(bool((values[leaf] > self._highest[leaf]).any()) for leaf in labels)

    def row(self, values: list[Any]) -> Any:
        """As a batch of one row."""
        return rows.changed(self._template, values)

    def broken(self) -> list[tuple[str, Any]]:
        """Rows that hold NaN or infinity in a feature."""
        found = []
        for name, value in (("NaN", np.nan), ("infinity", np.inf)):
            for leaf, kind in enumerate(self._kinds):
                if kind in ("features", "target"):
                    values = [one.copy() for one in self._base[0]]
                    values[leaf].reshape(-1)[0] = value
                    found.append((name, self.row(values)))
                    break
        return found

    def _sized(self, values: list[Any], size: float) -> list[Any]:
        return [
            one * size if kind in ("features", "target") else one.copy()
            for one, kind in zip(values, self._kinds, strict=True)
        ]

    def inside(self, values: list[Any]) -> list[Any]:
        """Within the bounds that are promised for features."""
        if self._bounds is None:
            return values
        return [
            np.clip(one, *self._bounds) if kind == "features" else one
            for one, kind in zip(values, self._kinds, strict=True)
        ]


def kind_of(whole: np.ndarray[Any, Any]) -> str:
    """What a leaf of a batch holds, by its type and its size for one row."""
    one = int(np.prod(whole.shape[1:], dtype=int))
    if whole.dtype.kind == "f":
        if one > 1:
            return "features"
        values = np.unique(whole)
        return "label" if len(values) <= 20 and np.array_equal(values, np.round(values)) else "target"
    if whole.dtype.kind in "iu":
        return "label" if one == 1 else "tokens"
    return "other"


def _values(whole: np.ndarray[Any, Any], kind: str, sizes: Sequence[int], *, classes: int = 0) -> np.ndarray[Any, Any]:
    """The labels or tokens that a row may have: all up to the largest seen, for tokens up to the embedding's size.

    What may be a label for each token stays below ``classes`` too. A negative one stands for something else, such as
    −100 for a token that the loss leaves out: no other is tried.
    """
    if kind not in ("label", "tokens") or not whole.size:
        return np.zeros(0)
    high = int(whole.max())
    if kind == "tokens" and high > 1:
        limits = [size for size in sizes if size > high] + [classes] * (classes > high)
        high = max(high, min(limits, default=high + 1) - 1)
    values = np.arange(high + 1)
    if kind == "tokens" and len(values) > _TOKENS:
        values = np.unique(np.linspace(values[0], values[-1], _TOKENS).astype(int))
    return np.concatenate([np.unique(whole[whole < 0]).astype(int), values])
