"""Trials trained again: a trial owns its randomness, so its score must come back.

To the bit on the same kind of device with the same versions. With another instruction set, another GPU or other
versions sums are rounded otherwise, and where a trial was trained can only be said. What a score may then be off must
not depend on what the maker chose: it must be less than half of its distance to the next score of the other world.
Where every score is, no two scores of different worlds have changed their order, and with it nothing that goes by ranks
(bounds, verdict) can have changed. A score that is further off, but no more than rounding may move it, proves nothing
either way. Another kind of device (a CPU for a GPU, compiled kernels for others) draws other noise, so that nothing can
be compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from coalmine.evidence.contents import Contents, Played, members_of
from coalmine.game import Engine, Task, machine
from coalmine.game.play import TROUBLE
from coalmine.store import BlockResult

ROUNDED = 1e-3
"""How far rounding may move a score, as a part of the distance within which a quarter of the run's scores lie."""
_DIGITS = 1e-6
"""The same in its own size."""
_SWITCH = "COALMINE_COMPILED"


class Repeatable(Task, Protocol):
    """A task that also plays single trainings once more."""

    def again(self, units: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        """Play these trainings, each a result by itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unit:
    """One training of a run: a trial, or where trials are canaries of one training all of ``canaries``."""

    run: str
    label: str
    index: int
    canaries: int = 1
    several: tuple[str, ...] = ()
    """Its scores by name, where there are more than one."""

    @property
    def trials(self) -> slice:
        """Its trials."""
        return slice(self.index * self.canaries, (self.index + 1) * self.canaries)

    def __str__(self) -> str:
        return f"{'trial' if self.canaries == 1 else 'training'} {self.index} of {self.label}, run {self.run[:12]}"


def trainings(contents: Contents) -> dict[str, tuple[Unit, int]]:
    """For each run of an audit, controls included, its first training and how many it has."""
    found: dict[str, tuple[Unit, int]] = {}
    for one in members_of(contents.record):
        canaries = max(1, one.wanted // one.attack.runs) if one.attack.runs else 1
        label = one.attack.label if one.attack.control == 1.0 else f"control {one.attack.label}"
        first = Unit(run=one.run, label=label, index=0, canaries=canaries, several=one.attack.several)
        found.setdefault(one.run, (first, contents.runs[one.run].world.size // canaries))
    return found


def drawn(contents: Contents, *, sample: int, seed: int) -> list[Unit]:
    """A sample of all trainings without replacement, in their order; all of them where there are no more."""
    known = list(trainings(contents).values())
    ends = np.cumsum([count for _, count in known])
    total = int(ends[-1])
    chosen = np.sort(np.random.default_rng(seed).choice(total, size=min(sample, total), replace=False))
    found = []
    for at in chosen.tolist():
        run = int(np.searchsorted(ends, at, side="right"))
        first, count = known[run]
        found.append(dataclasses.replace(first, index=at - (int(ends[run]) - count)))
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Again:
    """How many trainings came back ``exactly``, ``nearly`` (in their place among the scores) or not (``lost``).

    And what differs; what is ``unsure``, because rounding may have moved it to another place; what was not tried.
    """

    exactly: int = 0
    nearly: int = 0
    lost: int = 0
    differences: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    def __add__(self, other: Again) -> Again:
        return Again(
            exactly=self.exactly + other.exactly,
            nearly=self.nearly + other.nearly,
            lost=self.lost + other.lost,
            differences=self.differences + other.differences,
            unsure=self.unsure + other.unsure,
            untried=self.untried + other.untried,
        )


def compare(
    units: Sequence[Unit], contents: Contents, tasks: Mapping[str, Repeatable], *, engine: Engine, alike: bool = True
) -> Again:
    """Train these units again and hold them against what the bundle says.

    ``alike`` is False where even here a score need not come back to the bit.
    """
    found = Again()
    groups: dict[tuple[str, str], list[Unit]] = {}
    for unit in units:
        device = contents.runs[unit.run].origin(unit.trials.start).device
        groups.setdefault((unit.run, device), []).append(unit)
    for (run, device), some in groups.items():
        task = tasks[run]
        if device.startswith("cuda"):
            task = task.on("cuda")
        try:
            with _kernels(device):
                results = engine.submit(_Chosen(task=task, units=tuple(one.index for one in some)), range(len(some)))
                played = results.result()
        except TROUBLE as error:
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            found += Again(untried=(f"{some[0]}{more}: {error}",))
            continue
        for unit, result in zip(some, played, strict=True):
            found += _held(unit, contents.runs[run], result, alike=alike)
    return found


@contextlib.contextmanager
def _kernels(device: str) -> Iterator[None]:
    """Within it, compiled kernels rest where the first training did not use them: they draw other noise."""
    if "compiled" in device or device.startswith("own"):
        yield
        return
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SWITCH]
        else:
            os.environ[_SWITCH] = before


def _held(unit: Unit, played: Played, result: BlockResult, *, alike: bool) -> Again:
    """One training against what the bundle says of it."""
    origin, place = played.origin(unit.trials.start), unit.trials
    kind, _, hardware = origin.device.partition(",")
    kind_here, _, hardware_here = result.device.partition(",")
    if kind != kind_here:
        return Again(untried=(f"{unit}: trained on {origin.device!r}, and {result.device!r} here draws other noise",))
    bits = alike and hardware == hardware_here and dict(origin.versions) == machine.versions()
    if not np.array_equal(played.world[place], result.world):
        return Again(lost=1, differences=(f"{unit}: it is played in another world",))
    named = {"score": (played.score[place], result.score)}
    for name, values in played.columns.items():
        if name not in result.columns:
            return Again(lost=1, differences=(f"{unit}: it has no column {name!r}",))
        named[name] = values[place], result.columns[name]
    wrong: list[str] = []
    unsure: list[str] = []
    nearly = False
    for name, (said, found) in named.items():
        same = (said == found) | (np.isnan(said) & np.isnan(found))
        if same.all():
            continue
        nearly = True
        off, words = np.flatnonzero(~same), wrong
        if not bits:
            if name == "score" or name in unit.several:
                scores = played.score if name == "score" else played.columns[name]
                place_kept, rounded = _rooms(scores, played.world, place)
                far = _far(said, found, rounded)
                off = np.flatnonzero(far if far.any() else ~same & _far(said, found, place_kept))
                words = wrong if far.any() else unsure
            else:
                words = unsure  # an accuracy jumps where one answer of many does
        if off.size:
            at = int(off[0])
            who = f"{unit}" if unit.canaries == 1 else f"{unit}, canary {place.start + at}"
            more = f" ({off.size} of its {said.size} numbers differ)" if said.size > 1 else ""
            words.append(f"{who}: {name} {float(said[at])!r} in the bundle, {float(found[at])!r} trained again{more}")
    if wrong:
        return Again(lost=1, differences=tuple(wrong))
    if unsure:
        return Again(unsure=(unsure[0],))
    return Again(nearly=1) if nearly else Again(exactly=1)


def _rooms(
    scores: NDArray[np.float64], world: NDArray[np.int8], place: slice
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far each of these scores may be off: below the first it keeps its place, above the second it is another.

    The first is half of the distance to the nearest score of the other world. Let every score be off by less than its
    own: two of different worlds are at least as far apart as the halves of both together, so they keep their order.
    """
    kept, rounded = np.zeros(place.stop - place.start), np.zeros(place.stop - place.start)
    finite = scores[np.isfinite(scores)]
    for at, (score, mine) in enumerate(zip(scores[place].tolist(), world[place].tolist(), strict=True)):
        if math.isnan(score):
            continue  # one that failed comes back as one that failed
        quarter = math.ceil(finite.size / 4)
        apart = np.abs(finite - score)
        rounded[at] = ROUNDED * float(np.partition(apart, quarter - 1)[quarter - 1]) + _DIGITS * abs(score)
        others = scores[np.isfinite(scores) & (world != mine)]
        kept[at] = min(rounded[at], 0.5 * float(np.min(np.abs(others - score), initial=np.inf)))
    return kept, rounded


def _far(said: NDArray[np.float64], found: NDArray[np.float64], room: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which numbers are off by as much as ``room`` or more; one that failed is near no number."""
    with np.errstate(invalid="ignore"):
        near = (said == found) | (np.abs(said - found) < room)
    return np.asarray(~near & ~(np.isnan(said) & np.isnan(found)))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Chosen:
    """A task whose blocks are chosen trainings of another one."""

    task: Any
    units: tuple[int, ...]
    most_together: int | None = None

    @property
    def fingerprint(self) -> str:
        return str(self.task.fingerprint)

    @property
    def device(self) -> str:
        return str(self.task.device)

    @property
    def separate(self) -> bool:
        return bool(self.task.separate)

    def on(self, device: str) -> Self:
        return dataclasses.replace(self, task=self.task.on(device))

    def check(self) -> None:
        self.task.check()

    def play(self, blocks: Sequence[int], *, notes: Path | None = None) -> list[BlockResult]:
        return list(self.task.again([self.units[block] for block in blocks], notes=notes))

    def post_mortem(self, notes: Path) -> str | None:
        return self.task.post_mortem(notes)  # type: ignore[no-any-return]
