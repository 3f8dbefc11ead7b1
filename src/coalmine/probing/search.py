"""Rows that move the step most: crafted rows are tried, and the best improved by ascent on their own influence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from coalmine.probing import rows, text
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import Carrier, Reading
from coalmine.probing.crafter import Crafter
from coalmine.probing.release import Observation
from coalmine.probing.vectors import distance

_SMALLER, _LARGER, _FACTOR = 6, 28, 1.2
"""Sizes of one row: so many times smaller, until it is not clipped, then so many times larger, each by this factor."""
_PATHS, _HALVES = 4, 15
"""Pairs of rows between which others are tried, and how many of them."""
_AT_BOUND, _BELOW = 1e-3, 0.99
"""Of the clip norm: how close to it a clipped row comes, and how far a row that need not be clipped moves at most."""
_TIE = 1e-5


@dataclasses.dataclass
class Tried:
    """A row, and how far it moved each carrier."""

    row: Any
    moves: np.ndarray[Any, Any]
    beside: np.ndarray[Any, Any]
    """How far it moved what is released beside the private sum, in units in which its noise is that of the sum."""
    size: float
    """How large its features are, compared with those of the batch."""
    shown: str = ""
    """What went wrong, where something did: an error, a value that is not finite, or a step that was left out."""
    place: int | None = None
    """How many rows of the batch stood before it; None where all did."""
    halved: bool = False
    """Whether it was sought where the clip norm is reached, so that being there tells nothing about clipping."""

    @property
    def total(self) -> float:
        """How far it moved all carriers together."""
        return float(np.linalg.norm(self.moves))

    @property
    def reach(self) -> float:
        """How far it moved everything that has noise of its own."""
        return float(np.hypot(self.total, np.linalg.norm(self.beside)))

    def describe(self) -> str:
        """The row and its place in a few words."""
        where = "" if self.place is None else "; first in the batch" if self.place == 0 else "; amid the batch"
        return rows.describe(self.row) + where


@dataclasses.dataclass
class Influence:
    """Every row that was tried."""

    tried: list[Tried]
    """At the end of the batch."""
    failed: list[Tried]
    placed: list[Tried] = dataclasses.field(default_factory=list)
    """Some of them again, in front of the batch and amid it."""

    @property
    def everywhere(self) -> Influence:
        """Rows in every place."""
        return Influence([*self.tried, *self.placed], self.failed)

    @property
    def best(self) -> Tried:
        """The row that moved the step most; one at the end of the batch where others move it no further."""
        return max(self.tried, key=lambda one: one.total * (1.0 if one.place is None else 1.0 - _TIE))

    def witnesses(self, carriers: int) -> list[Tried]:
        """The row that moves most, and for each carrier the row that moves it most; none twice."""
        found = [self.best]
        for number in range(carriers):
            best = max(self.tried, key=lambda one: one.moves[number])
            if all(best is not one for one in found):
                found.append(best)
        return found


def _crafter(bench: Bench, seed: int) -> Crafter:
    """Rows like those of the batch, with tokens that its embeddings take."""
    sizes = [one.num_embeddings for one in bench.modules if isinstance(one, torch.nn.Embedding)]
    widths = [part.out_features for one in bench.modules for part in one.modules() if isinstance(part, torch.nn.Linear)]
    classes = widths[-1] if widths else 0
    return Crafter(bench.base, bounds=bench.subject.bounds, vocabularies=sizes, classes=classes, seed=seed)


def moves(reading: Reading, carriers: list[Carrier], shown: Observation) -> np.ndarray[Any, Any]:
    """How far each carrier moved from the batch alone, in units of the sum where these are known."""
    return np.array(
        [
            distance(shown[one.name], reading.silent[one.name]) / (one.scale or 1.0) if one.name in shown else 0.0
            for one in carriers
        ]
    )


def with_row(bench: Bench, row: Any, *, place: int | None = None) -> World:
    """The batch with a row more; where it cannot grow, with this row in the place of another, its last unless given."""
    if bench.grows:
        return bench.world({0: row}, place=place)
    return bench.replaced({bench.count - 1 if place is None else place: row})


def attempt(bench: Bench, reading: Reading, row: Any, size: float, *, place: int | None = None) -> Tried:
    """Run the step with one row more."""
    shown = bench.quiet(with_row(bench, row, place=place))
    nothing = np.zeros(len(reading.carriers)), np.zeros(len(reading.extras))
    if shown.error:
        return Tried(row, *nothing, size, shown.error, place)
    if not shown.whole(reading.silent):
        return Tried(row, *nothing, size, "not finite", place)
    tensors = [name for name in bench.start if name in shown and not name.endswith(text.MARK)]
    unmoved = all(torch.equal(shown[name], bench.start[name]) for name in tensors)
    unmoved = unmoved and not reading.silent.gradients and not reading.coarse  # rounding may hide an update
    if (reading.silent.gradients and not shown.gradients) or unmoved:
        return Tried(row, *nothing, size, "left out", place)
    moved = moves(reading, reading.carriers, shown), moves(reading, reading.extras, shown)
    return Tried(row, *moved, size, place=place)


def search(bench: Bench, reading: Reading, *, tries: int, seed: int = 0) -> Influence:
    """Try crafted rows, then climb from the best ones."""
    crafter = _crafter(bench, seed)
    found = Influence([], [])
    values: list[list[Any]] = []

    def add(candidate: list[Any], size: float) -> Tried:
        candidate = crafter.inside(candidate)
        one = attempt(bench, reading, crafter.row(candidate), size)
        if not one.shown:
            found.tried.append(one)
            values.append(candidate)
        elif not crafter.guessed(candidate):
            found.failed.append(one)
        return one

    for candidate, size in crafter.first()[:tries]:
        add(candidate, size)
    if not found.tried:
        return found
    first = len(found.tried) + len(found.failed)
    _scan(bench, reading, found, values, add)
    _halve(bench, reading, found, values, add, crafter)
    goals = [-1, *range(len(reading.carriers))]
    for turn in range(tries - first):
        # Every other turn climbs in total; the rest goes round the carriers, so that each layer has its row.
        goal = -1 if turn % 2 == 0 else goals[1 + (turn // 2) % max(len(goals) - 1, 1)]
        scores = [one.reach if goal < 0 else float(one.moves[goal]) for one in found.tried]
        start = int(np.argmax(scores))
        add(*crafter.changed(values[start], found.tried[start].size))
    _place(bench, reading, found)
    return found


def _scan(
    bench: Bench, reading: Reading, found: Influence, values: Sequence[Any], add: Callable[[Any, float], Tried]
) -> None:
    """Rows of many sizes, close together: a gradient a little beyond the clip norm may be let through.

    Made smaller until it moves less than half the clip norm, a row then grows by a constant factor to eighty times
    as much.
    """
    bound = min(bench.subject.clip_norm, bench.subject.allowed) if reading.absolute else found.best.total
    usual = [number for number, one in enumerate(found.tried) if one.size == 1.0 and one.total > 0.0]
    for start, moved in [(values[number], found.tried[number].total) for number in usual[:1]]:
        size = 1.0
        for _ in range(_SMALLER):
            if moved <= 0.5 * bound:
                break
            size *= 0.2
            moved = add(scaled(start, size), size).total
        size *= 0.5 * bound / moved if 0.0 < moved <= 0.5 * bound else 1.0
        for _ in range(_LARGER):
            size *= _FACTOR
            add(scaled(start, size), size)


def _halve(
    bench: Bench,
    reading: Reading,
    found: Influence,
    values: list[list[Any]],
    add: Callable[[Any, float], Tried],
    crafter: Crafter,
) -> None:
    """Rows between one that is clipped and one that need not be, ever closer to where clipping begins.

    A gradient's norm is continuous from one to the other. If it is clipped only from some norm beyond C on, then the
    rows where it lies between are never halved away, however few they are.
    """
    bound = min(bench.subject.clip_norm, bench.subject.allowed) if reading.absolute else found.best.total
    clipped = [number for number, one in enumerate(found.tried) if abs(one.total - bound) <= _AT_BOUND * bound]
    for candidate, size in crafter.confident():
        if any(one.total < _BELOW * bound for one in found.tried):
            break
        add(candidate, size)
    below = [number for number, one in enumerate(found.tried) if one.total < _BELOW * bound]
    pairs = [(a, b) for b in below for a in clipped if crafter.between(values[a], values[b]) is not None]
    # Each row that is not clipped once, with the clipped one of about its size.
    chosen = {b: a for a, b in sorted(pairs, key=lambda pair: -_apart(found, *pair))}
    for b, a in sorted(chosen.items(), key=lambda pair: _apart(found, *pair))[:_PATHS]:
        inside, outside = values[b], values[a]
        for _ in range(_HALVES):
            middle = crafter.between(inside, outside)
            assert middle is not None
            one = add(middle, found.tried[a].size)
            one.halved = True
            if one.shown or one.total > (1.0 + _AT_BOUND) * bound:
                break
            inside, outside = (inside, middle) if one.total >= (1.0 - _AT_BOUND) * bound else (middle, outside)


def _apart(found: Influence, a: int, b: int) -> float:
    """How far the sizes of two rows are from each other."""
    return abs(float(np.log((found.tried[a].size + 1e-6) / (found.tried[b].size + 1e-6))))


def scaled(values: Sequence[np.ndarray[Any, Any]], factor: float) -> list[np.ndarray[Any, Any]]:
    """A row's numbers, with its features times a factor."""
    return [one * factor if one.dtype.kind == "f" and one.size > 1 else one for one in values]


def _place(bench: Bench, reading: Reading, found: Influence) -> None:
    """Put rows in front of the batch and amid it: those that move most, the largest, the smallest and ordinary ones.

    A step may treat the first row in another way, or stop at a row. So it is a row's influence in each place that must
    be bounded; that the sum depends on the order alone is no fault.
    """
    ranked = sorted(found.tried, key=lambda one: -one.reach)
    sized = sorted(found.tried, key=lambda one: -one.size)
    ordinary = [one for one in found.tried if one.size == 1.0]
    chosen = {id(one): one for one in (*ranked[:4], *sized[:3], sized[-1], *ordinary[:3], ranked[-1])}
    for one in chosen.values():
        for place in (0, bench.count // 2):
            again = attempt(bench, reading, one.row, one.size, place=place)
            (found.failed if again.shown else found.placed).append(again)


def climb(bench: Bench, reading: Reading, start: Tried, *, until: float, tries: int, seed: int = 0) -> Tried:
    """Improve one row until it moves the step that far, or no more tries are left."""
    crafter = _crafter(bench, seed)
    best, values = start, rows.numbers(start.row)
    for _ in range(tries):
        if best.total > until:
            break
        candidate, size = crafter.changed(values, best.size)
        one = attempt(bench, reading, crafter.row(candidate), size, place=start.place)
        if not one.shown and one.total > best.total:
            best, values = one, candidate
    return best
