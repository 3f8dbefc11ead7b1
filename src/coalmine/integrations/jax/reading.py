"""What a JAX step shows at first: which tensors carry noise, how far rows move them, and which repeat another.

Two runs show the noise. Where it comes from functions of ``jax.random``, they are the step with its noise and without
(*loud* and *quiet*), under one key. Where it comes from elsewhere, they are the step under two keys, and their
difference divided by √2 has the law of the noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.integrations.jax.bench import Bench, Shown
from coalmine.probing import rows
from coalmine.probing.crafter import Crafter
from coalmine.probing.findings import Measurement
from coalmine.probing.noise import TOLERANCE
from coalmine.records import Relation

_ROUNDS, _WIDTH = 3, 40
"""Rounds of the search, and rows that are tried in one call."""
_HOMES = 20
"""Keys to choose from where most is measured."""
_MOSTLY = 0.75
"""Of these keys: so many show the noise in proportion to its size."""
_MUCH = 30.0, 60.0
"""Factors with which noise decides a sign."""
_ALIKE = 0.01
"""Relative: noise and rows of a tensor that follows from another, times a constant."""
_CLIPPED = 0.99
"""Of the largest influence: rows that come this close are clipped."""
Vectors = dict[str, NDArray[np.float64]]
_CHANCE = 1e-7
"""How rarely noise from other draws of the same law may be told apart by its size, in one tensor and batch."""


def largest_ratio(numbers: int, *, chance: float = _CHANCE) -> float:
    """How far apart the sizes of two draws of so many normal numbers may be: the root of a quantile of F(n, n).

    >>> [round(largest_ratio(numbers), 2) for numbers in (10, 100, 10_000)]
    [8.03, 1.7, 1.05]
    """
    return float(np.sqrt(special.fdtri(numbers, numbers, 1.0 - chance)))


@dataclasses.dataclass
class Tried:
    """A row, and how far it moved everything that is released."""

    row: Any
    values: list[Any]
    size: float
    moved: Vectors
    finite: bool

    def moves(self, names: Sequence[str]) -> NDArray[np.float64]:
        """How far it moved each of these tensors."""
        return np.array([float(np.linalg.norm(self.moved[name])) for name in names])

    def far(self, names: Sequence[str]) -> float:
        """How far it moved all of them together."""
        return float(np.linalg.norm(self.moves(names)))

    @property
    def norm(self) -> float:
        """How large its features are."""
        return float(np.sqrt(sum(float(np.sum(np.square(one))) for one in self.values if one.dtype.kind == "f")))


class Reading:
    """The first runs of a step, the rows that were tried, and the carriers of its noise."""

    def __init__(self, bench: Bench, *, seed: int) -> None:
        self.bench = bench
        self.crafter = Crafter(rows.take(bench.base, range(bench.count)), bounds=bench.subject.bounds, seed=seed)
        self.base = bench.batch()
        self._leave_rows_their_draws()
        keys = list(range(_HOMES))
        without, with_noise = (bench.run([self.base] * _HOMES, keys, [one] * _HOMES) for one in (0.0, 1.0))
        home = self._home(without, with_noise)
        runs = bench.run([self.base] * 4, [home, home, home, home + 1], [0.0, 1.0, 2.0, 1.0])
        silent, self.plain, double, self.renewed = (one_of(runs, number) for number in range(4))
        names = bench.names
        self.bare = silent
        """What is released without the noise of functions of jax.random."""
        self.scaled = [name for name in names if self._differs(name, with_noise, without)]
        """What the noise of functions of jax.random reaches."""
        signs = [] if len(self.scaled) == len(names) else self._signs(set(names) - set(self.scaled), without)
        self.by_draws = [name for name in names if self._differs(name, without, _first(without))]
        """What other draws change."""
        self.outside = not self.scaled and bool(self.by_draws)
        self.quiet, self.loud = ((home, 1.0), (home + 1, 1.0)) if self.outside else ((home, 0.0), (home, 1.0))
        self.silent = self.plain if self.outside else silent
        """What is released for the batch alone, in the quiet run."""
        self.noise = _minus(self.renewed, self.plain, names) if self.outside else _minus(self.plain, silent, names)
        new = [name for name in names if self._differs(name, with_noise, _first(with_noise))]
        self.noisy = [
            name for name in names if name in signs or (name in new and (self.outside or name in self.scaled))
        ]
        self.constant = [name for name in self.scaled if name not in new]
        twice = {} if self.outside else bench.run([self.base] * _HOMES, keys, [2.0] * _HOMES)
        self.linear = [
            name
            for name in self.noisy
            if self.outside
            or (
                self.apart(name, self.plain, silent)
                and self._linear(name, silent, self.plain, double)
                and self._mostly_linear(name, without, with_noise, twice)
            )
        ]
        subject = bench.subject
        self.absolute = subject.divisor is not None and subject.learning_rate is not None
        self.scale = (subject.learning_rate or 1.0) / (subject.divisor or 1.0) if self.absolute else 1.0
        """What a unit of the sum is in the carriers."""
        self.tried = self._search()
        self.finite = [one for one in self.tried if one.finite]
        self.groups = self._grouped()
        self.carriers = [self._shown_best(group) for group in self.groups]

    # ---- before anything is measured ------------------------------------------------------------------------------

    def _leave_rows_their_draws(self) -> None:
        """Draws that enter no tensor in proportion, beside some that do, are no noise: they may change rows."""
        count = len(self.bench.draws)
        if count < 2:
            return
        scales = np.ones((1 + 2 * count, count), dtype=np.float32)
        scales[1 : 1 + count][np.diag_indices(count)] = 0.0
        scales[1 + count :][np.diag_indices(count)] = 2.0
        shown = self.bench.run_scaled(scales)
        enters = []
        for draw in range(count):
            without, plain, twice = (one_of(shown, place) for place in (1 + draw, 0, 1 + count + draw))
            reached = [name for name in self.bench.names if not np.array_equal(plain[name], without[name])]
            enters.append(not reached or any(self._linear(name, without, plain, twice) for name in reached))
        if any(enters):
            self.bench.no_noise = [draw for draw, one in enumerate(enters) if not one]

    def _home(self, without: Shown, with_noise: Shown) -> int:
        """The keys under which most is measured: the user's own, or where these leave out a row or noise, others."""
        larger = self.bench.batch(self.crafter.row(self.crafter.first()[0][0]))
        with_row = self.bench.run([larger] * _HOMES, list(range(_HOMES)), [0.0] * _HOMES)
        moved, noise = (
            sum(
                np.nan_to_num(np.abs(shown[name] - without[name])).max(axis=1, initial=0.0) for name in self.bench.names
            )
            for shown in (with_row, with_noise)
        )
        there = [side > 0.0 for side in (moved, noise) if np.any(side)]
        good = np.all(there, axis=0) if there else np.ones(1, dtype=bool)
        return int(np.argmax(good)) if good.any() else 0

    # ---- what carries the noise ---------------------------------------------------------------------------------

    def rounding(self, name: str, value: NDArray[np.float64]) -> float:
        """How far the precision of its numbers may put a tensor off, in the norm."""
        return self.bench.spacing[name] * float(np.linalg.norm(value))

    def floor(self, times: float) -> float:
        """The same for all carriers together, so many times."""
        return times * max((self.rounding(one, self.plain[one]) for one in self.carriers), default=0.0)

    def apart(self, name: str, a: Vectors, b: Vectors) -> bool:
        """Whether two runs differ in this by more than rounding."""
        x, y = a[name], b[name]
        differ = bool(np.isnan(x).any() != np.isnan(y).any())
        return differ or bool(np.linalg.norm(x - y) > 4.0 * self.rounding(name, x))

    def _differs(self, name: str, a: Shown, b: Shown) -> bool:
        """Whether any two of several runs differ in this by more than rounding."""
        x, y = np.broadcast_arrays(a[name], b[name])
        return any(self.apart(name, {name: one}, {name: other}) for one, other in zip(x, y, strict=True))

    def _signs(self, names: set[str], without: Shown) -> list[str]:
        """Tensors that only much more noise changes, and not in proportion: signs of the noised sum, say."""
        keys = list(range(_HOMES))
        some, more = (self.bench.run([self.base] * _HOMES, keys, [one] * _HOMES) for one in _MUCH)
        found = []
        for name in names:
            once, twice = (np.nan_to_num(shown[name] - without[name]) for shown in (some, more))
            factor = _MUCH[1] / _MUCH[0]
            apart = float(np.linalg.norm(twice - factor * once))
            if self._differs(name, some, without) and apart > 0.1 * factor * float(np.linalg.norm(once)):
                found.append(name)
        return found

    def _linear(self, name: str, silent: Vectors, plain: Vectors, double: Vectors) -> bool:
        once, twice = plain[name] - silent[name], double[name] - silent[name]
        floor = 8.0 * self.rounding(name, double[name])
        return float(np.linalg.norm(twice - 2.0 * once)) <= TOLERANCE * float(np.linalg.norm(once)) + floor

    def _mostly_linear(self, name: str, without: Shown, with_noise: Shown, twice: Shown) -> bool:
        """The same under nearly all keys: the largest of noised numbers may be the same ones under some."""
        runs = [[one_of(shown, key) for shown in (without, with_noise, twice)] for key in range(_HOMES)]
        return sum(self._linear(name, *each) for each in runs) >= _MOSTLY * _HOMES

    def follows(self, noise: NDArray[np.float64], moved: NDArray[np.float64], other: str, slack: float = 0.0) -> bool:
        """Whether a tensor is another one times a constant, in its noise and for every row: what is computed from it.

        Args:
            noise: its noise, as in the first runs.
            moved: how far each finite row that was tried moved it.
            other: the name of the other one.
            slack: what rounding may put it off, in the norm.
        """
        before = self.noise[other]
        if noise.shape != before.shape or not before.any():
            return False
        factor = float(noise @ before / (before @ before))
        rows = np.array([one.moved[other] for one in self.finite])
        pairs = [(noise, before)] if rows.size == 0 else [(noise, before), (moved, rows)]
        return all(
            float(np.linalg.norm(a - factor * b))
            <= _ALIKE * float(np.linalg.norm(a)) + slack * np.sqrt(a.size / noise.size)
            for a, b in pairs
        )

    def _grouped(self) -> list[list[str]]:
        """Tensors with the same noise and the same rows, times a constant, together."""
        found: list[list[str]] = []
        for name in self.linear:
            moved = np.array([one.moved[name] for one in self.finite])
            slack = 8.0 * self.rounding(name, self.plain[name])
            for group in found:
                if self.follows(self.noise[name], moved, group[0], slack):
                    group.append(name)
                    break
            else:
                found.append([name])
        return found

    def _shown_best(self, group: Sequence[str]) -> str:
        """The one whose noise is closest to what is promised: others are computed from it, or it from them.

        Rows and noise beside each other are the same in all of them, so none of them can flatter.
        """
        if not self.absolute or len(group) == 1:
            return group[0]
        wanted = self.bench.subject.noise * self.scale

        def off(name: str) -> float:
            return abs(float(np.log(np.sqrt(np.mean(np.square(self.noise[name]))) / wanted)))

        return min(group, key=off)

    def unmeasured(self, name: str, what: str) -> Measurement:
        """A measure that needs a row beside the noise, where there is none: the sensitivity is then blind, and why."""
        why = "no row that was tried moves the release" if self.carriers else self.no_carrier
        return Measurement(name=name, sentence=f"{what} was not measured: {why}.")

    @property
    def no_carrier(self) -> str:
        """Why there is nothing to hold a row against."""
        if not self.noisy:
            return "no key that is handed over, or lies in the state, reaches the noise"
        return "no tensor shows the noise in proportion to its size"

    @property
    def allowed(self) -> float:
        """How far a row may move the sum, by adding it or, where the batch cannot grow, by replacing another."""
        subject = self.bench.subject
        twice = subject.relation is Relation.REPLACE and subject.sensitivity is None
        allowed = subject.allowed * (2.0 if twice else 1.0)
        return allowed if self.bench.grows else max(allowed, 2.0 * subject.unit)

    # ---- rows -----------------------------------------------------------------------------------------------------

    @property
    def best(self) -> Tried | None:
        """The row that moves the carriers most; of several that are clipped, the largest."""
        if not self.finite or not self.carriers:
            return None
        far = np.array([one.far(self.carriers) for one in self.finite])
        if not far.any():
            return None
        clipped = [one for one, reach in zip(self.finite, far, strict=True) if reach >= _CLIPPED * far.max()]
        return max(clipped, key=lambda one: (one.norm, one.far(self.carriers)))

    @property
    def largest(self) -> float:
        """How far a row moves the sum at most."""
        return max((one.far(self.carriers) for one in self.finite), default=0.0) / self.scale

    def grown(self, one: Tried, times: float) -> Tried:
        """A row with features so many times as large."""
        values = [value * times if value.dtype.kind == "f" and value.size > 1 else value for value in one.values]
        return self.attempt([(self.crafter.inside(values), one.size * times)])[0]

    def telling(self, count: int) -> list[Tried]:
        """Rows that show what is not clipped: the best, one ten times as large, the best for each carrier, and more."""
        best = self.best
        if best is None:
            return []
        ranked = sorted(self.finite, key=lambda one: -one.far(self.carriers))
        each = [max(self.finite, key=lambda one: float(one.moves([name])[0])) for name in self.carriers]
        larger = self.grown(best, 10.0)
        some = [best, *([larger] if larger.finite else []), *each[: count // 2], *ranked]
        return list({id(one): one for one in some}.values())[:count]

    def _search(self) -> list[Tried]:
        """Rows from small to huge, then changes of the best in total and for each tensor."""
        tried = self.attempt(self.crafter.first())
        for turn in range(_ROUNDS):
            finite = [one for one in tried if one.finite]
            if not finite or not self.linear:
                break
            moves = np.array([one.moves(self.linear) for one in finite])
            goals = [int(np.argmax(np.linalg.norm(moves, axis=1))), *map(int, np.argmax(moves, axis=0))]
            starts = [finite[goals[(turn + number) % len(goals)]] for number in range(_WIDTH)]
            tried += self.attempt([self.crafter.changed(one.values, one.size) for one in starts])
        return tried

    def attempt(self, candidates: Sequence[tuple[list[Any], float]]) -> list[Tried]:
        """The batch with each of these rows, under the same key."""
        made = [self.crafter.row(values) for values, _ in candidates]
        number, factor = self.quiet
        batches = [self.bench.batch(row) for row in made]
        shown = self.bench.run(batches, [number] * len(made), [factor] * len(made))
        found = []
        for place, (row, (values, size)) in enumerate(zip(made, candidates, strict=True)):
            moved = _minus(one_of(shown, place), self.silent, [*self.bench.names, *self.bench.exact])
            finite = all(bool(np.isfinite(one).all()) for one in moved.values())
            found.append(Tried(row, values, size, moved, finite))
        return found


def one_of(shown: Shown, number: int) -> Vectors:
    """One of several runs."""
    return {name: value[number] for name, value in shown.items()}


def _first(shown: Shown) -> Shown:
    """The first of several runs, to hold all against."""
    return {name: value[:1] for name, value in shown.items()}


def _minus(a: Vectors, b: Vectors, names: Sequence[str]) -> Vectors:
    with np.errstate(invalid="ignore"):
        return {name: a[name] - b[name] for name in names}
