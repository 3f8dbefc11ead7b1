"""Rows that move the step most: crafted rows are tried, and the best improved by ascent on their own influence."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from coalmine.probing import rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import Carrier, Reading, delta
from coalmine.probing.crafter import Crafter
from coalmine.probing.release import Observation


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


def _crafter(bench: Bench, seed: int) -> Crafter:
    """Rows like those of the batch, with tokens that its embeddings take."""
    sizes = [one.num_embeddings for one in bench.modules if isinstance(one, torch.nn.Embedding)]
    return Crafter(bench.base, bounds=bench.subject.bounds, vocabularies=sizes, seed=seed)


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
    unmoved = unmoved and not reading.silent.gradients and not reading.coarse  # rounding may hide an update
    if (reading.silent.gradients and not shown.gradients) or unmoved:
        return Tried(row, *nothing, size, "left out")
    return Tried(row, moves(reading, reading.carriers, shown), moves(reading, reading.extras, shown), size)


def search(bench: Bench, reading: Reading, *, tries: int, seed: int = 0) -> Influence:
    """Try crafted rows, then climb from the best ones."""
    crafter = _crafter(bench, seed)
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
    crafter = _crafter(bench, seed)
    best, values = start, rows.numbers(start.row)
    for _ in range(tries):
        if best.total > until:
            break
        candidate, size = crafter.changed(values, best.size)
        one = attempt(bench, reading, crafter.row(candidate), size)
        if not one.shown and one.total > best.total:
            best, values = one, candidate
    return best
