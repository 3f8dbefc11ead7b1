"""Rows that move the step most: crafted to be extreme, then improved by ascent on their own influence.

A typical row shows little: softmax saturates, and a row that the model already knows moves nothing. So rows are tried
at many sizes, from zero to huge, with every label and every token, with one feature alone; and the best are changed
at random as long as they move more, in total and for each tensor.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from coalmine.probing import rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import Carrier, Reading, delta
from coalmine.probing.release import Observation

_SIZES = (1.0, 0.0, 1e-3, 10.0, 100.0, 1e4, -1.0)
_SPIKES, _TOKENS, _LABELS = 6, 48, 20


@dataclasses.dataclass
class Tried:
    """A row, and how far it moved each carrier."""

    row: Any
    moves: np.ndarray[Any, Any]
    beside: np.ndarray[Any, Any]
    """How far it moved what is released beside the private sum, in units in which the noise there is σ·C."""
    size: float
    """How large its features are, compared with those of the batch."""
    shown: str = ""
    """What went wrong, where something did: an error, a value that is not finite, or a step that was left out."""

    @property
    def total(self) -> float:
        """How far it moved all carriers together."""
        return float(np.linalg.norm(self.moves))

    @property
    def reach(self) -> float:
        """How far it moved everything that has noise of its own."""
        return float(np.hypot(self.total, np.linalg.norm(self.beside)))


@dataclasses.dataclass
class Influence:
    """Every row that was tried."""

    tried: list[Tried]
    failed: list[Tried]

    @property
    def best(self) -> Tried:
        """The row that moved the step most."""
        return max(self.tried, key=lambda one: one.total)

    def witnesses(self, carriers: int) -> list[Tried]:
        """The row that moves most, and for each carrier the row that moves it most; none twice."""
        found = [self.best]
        for number in range(carriers):
            best = max(self.tried, key=lambda one: one.moves[number])
            if all(best is not one for one in found):
                found.append(best)
        return found


class Crafter:
    """Makes rows from the rows of a batch."""

    def __init__(self, bench: Bench, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._bounds = bench.subject.bounds
        self._template = rows.take(bench.base, [0])
        self._base = [rows.numbers(rows.take(bench.base, [position])) for position in range(bench.count)]
        whole = rows.numbers(bench.base)
        self._kinds = [_kind(one) for one in whole]
        self._values = [_values(one, kind, bench) for one, kind in zip(whole, self._kinds, strict=True)]
        self._typical = [
            max(float(np.sqrt(np.mean(np.square(np.nan_to_num(one))))), 1e-3) if one.dtype.kind == "f" else 0.0
            for one in whole
        ]

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
        return [(self._inside(values), size) for values, size in found]

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
        return self._inside(new), min(size, 1e4)

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

    def _inside(self, values: list[Any]) -> list[Any]:
        """Within the bounds that are promised for features."""
        if self._bounds is None:
            return values
        return [
            np.clip(one, *self._bounds) if kind == "features" else one
            for one, kind in zip(values, self._kinds, strict=True)
        ]


def _kind(whole: np.ndarray[Any, Any]) -> str:
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


def _values(whole: np.ndarray[Any, Any], kind: str, bench: Bench) -> np.ndarray[Any, Any]:
    """The labels or tokens that a row may have: all up to the largest seen, for tokens up to the embedding's size."""
    if kind not in ("label", "tokens") or not whole.size:
        return np.zeros(0)
    low, high = int(whole.min()), int(whole.max())
    if kind == "tokens" and high > 1:
        sizes = [one.num_embeddings for one in bench.modules if isinstance(one, torch.nn.Embedding)]
        high = max(high, min([size - 1 for size in sizes if size > high], default=high))
    values = np.arange(min(low, 0) if low >= 0 else low, high + 1)
    if kind == "tokens" and len(values) > _TOKENS:
        values = np.unique(np.linspace(values[0], values[-1], _TOKENS).astype(int))
    return values


def moves(reading: Reading, carriers: list[Carrier], shown: Observation) -> np.ndarray[Any, Any]:
    """How far each carrier moved from the batch alone, in units of the sum where these are known."""
    return np.array(
        [
            float(delta(shown[one.name], reading.silent[one.name]).norm()) / (one.scale or 1.0)
            if one.name in shown
            else 0.0
            for one in carriers
        ]
    )


def with_row(bench: Bench, row: Any) -> World:
    """The batch with a row more; where it cannot grow, with this row in the place of its last."""
    return bench.world({0: row}) if bench.grows else bench.replaced({bench.count - 1: row})


def attempt(bench: Bench, reading: Reading, row: Any, size: float) -> Tried:
    """Run the step with one row more."""
    shown = bench.quiet(with_row(bench, row))
    nothing = np.zeros(len(reading.carriers)), np.zeros(len(reading.extras))
    if shown.error:
        return Tried(row, *nothing, size, shown.error)
    if not shown.whole(reading.silent):
        return Tried(row, *nothing, size, "not finite")
    unmoved = all(torch.equal(shown[name], before) for name, before in bench.start.items() if name in shown)
    if (reading.silent.gradients and not shown.gradients) or (unmoved and not reading.silent.gradients):
        return Tried(row, *nothing, size, "left out")
    return Tried(row, moves(reading, reading.carriers, shown), moves(reading, reading.extras, shown), size)


def search(bench: Bench, reading: Reading, *, tries: int, seed: int = 0) -> Influence:
    """Try crafted rows, then climb from the best ones."""
    crafter = Crafter(bench, seed=seed)
    found = Influence([], [])
    values: list[list[Any]] = []

    def add(candidate: list[Any], size: float) -> Tried:
        one = attempt(bench, reading, crafter.row(candidate), size)
        (found.failed if one.shown else found.tried).append(one)
        if not one.shown:
            values.append(candidate)
        return one

    for candidate, size in crafter.first()[:tries]:
        add(candidate, size)
    if not found.tried:
        return found
    goals = [-1, *range(len(reading.carriers))]
    turn = 0
    while bench.runs and len(found.tried) + len(found.failed) < tries:
        # Every other turn climbs in total; the rest goes round the carriers, so that each layer has its row.
        goal = -1 if turn % 2 == 0 else goals[1 + (turn // 2) % max(len(goals) - 1, 1)]
        turn += 1
        scores = [one.reach if goal < 0 else float(one.moves[goal]) for one in found.tried]
        start = int(np.argmax(scores))
        add(*crafter.changed(values[start], found.tried[start].size))
    return found


def climb(bench: Bench, reading: Reading, start: Tried, *, until: float, tries: int, seed: int = 0) -> Tried:
    """Improve one row until it moves the step that far, or no more tries are left."""
    crafter = Crafter(bench, seed=seed)
    best, values = start, rows.numbers(start.row)
    for _ in range(tries):
        if best.total > until:
            break
        candidate, size = crafter.changed(values, best.size)
        one = attempt(bench, reading, crafter.row(candidate), size)
        if not one.shown and one.total > best.total:
            best, values = one, candidate
    return best
