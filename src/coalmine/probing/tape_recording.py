"""A recording: the draws of one run, and what each of them is for a batch with other rows.

*Alignment.* A draw is known by its call site (the chain of lines that asked for it) and by its number there. A batch
with another row makes other draws: a mask of one row more, or one call more in a loop. To tell which part of a draw
belongs to which row, the step is recorded with two numbers of rows, and the shapes are compared:

- *fixed*: as many calls with the same shapes (noise on parameters);
- *axis*: as many calls, one axis grows with the rows (a dropout mask of a batch);
- *stream*: more calls (a loop over rows or microbatches); rows are counted through along the first axis.

The recording holds one slot for each row, and ``slots`` names those that a batch is made of. So a row keeps its own
mask whatever the other rows are, and a fixed draw is the same in every world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import torch

from coalmine.probing.tape_draws import Draw, Request, Site, seed_of

SEED_FROM = 2**16
"""Whole numbers from here on are as large as seeds."""
_SEEDS = ("random.getrandbits", "random.randbytes", "numpy.bytes")
_PERMUTATION = "torch.randperm"
"""Part of a permutation is none: what is played of one is put in order anew."""


class Layout(StrEnum):
    """How the draws of a call site grow with the rows of the batch."""

    FIXED = "fixed"
    AXIS = "axis"
    STREAM = "stream"
    FREE = "free"
    """None of these: replayed by number, and new draws are made where more are asked for."""


@dataclasses.dataclass(slots=True)
class BatchRows:
    """The rows of the batch that a recording is played for."""

    slots: Sequence[int] | None = None
    """Which recorded row each of them is; the first ones unless given."""
    force: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Rows (by slot) whose own uniform draws are set to a number, and whose coin flips to 1."""
    passed: dict[Site, int] = dataclasses.field(default_factory=dict)
    """How far the loop over rows has come at each call site."""


class Recording:
    """The draws of one run, by call site."""

    def __init__(self, *, rows: int | None = None) -> None:
        self.rows = rows
        """The number of rows in the batch of that run."""
        self.draws: dict[Site, list[Draw]] = {}
        self._learned: dict[Site, list[tuple[int, ...]]] = {}
        self._learned_rows: int | None = None
        self._layouts: dict[Site, tuple[Layout, Any]] = {}
        self._streams: dict[Site, torch.Tensor] = {}

    def keep(self, site: Site, draw: Draw) -> None:
        """Add the next draw of a call site."""
        self.draws.setdefault(site, []).append(draw)

    def find(self, site: Site, number: int) -> Draw | None:
        """A draw, if it was recorded."""
        draws = self.draws.get(site, [])
        return draws[number] if number < len(draws) else None

    def expected(self, site: Site, number: int, batch: BatchRows) -> tuple[int, ...] | None:
        """The shape that a recorded draw has for the rows that are in the batch now; None where nobody can tell."""
        layout, detail = self._layout(site)
        shape = tuple(self.draws[site][number].value.shape)
        if layout is Layout.FIXED or (layout is Layout.AXIS and batch.slots is None):
            return shape
        if layout is not Layout.AXIS or batch.slots is None:
            return None
        axis, block = detail[number]
        return (*shape[:axis], block * len(batch.slots), *shape[axis + 1 :])

    def same_shapes(self, other: Recording) -> bool:
        """Whether another recording has the same call sites, and there draws of the same shapes."""
        ours, theirs = ({site: _shapes(draws) for site, draws in one.draws.items()} for one in (self, other))
        return ours == theirs

    def learn(self, *, rows: int) -> None:
        """Begin to note shapes from a run with another number of rows."""
        self._learned, self._learned_rows = {}, rows

    def note(self, site: Site, shape: tuple[int, ...]) -> None:
        """Note the shape of the next draw of a call site in that run."""
        self._learned.setdefault(site, []).append(shape)

    def learn_from(self, other: Recording) -> None:
        """Take the shapes that were noted for another recording with as many rows."""
        self._learned, self._learned_rows = other._learned, other._learned_rows

    def forget_layouts(self) -> None:
        """Find layouts anew, from the shapes that are noted now."""
        self._layouts, self._streams = {}, {}

    def layout(self, site: Site) -> Layout:
        """How the draws of a call site grow with the rows."""
        return self._layout(site)[0]

    def is_noise(self, site: Site) -> bool:
        """Whether a call site draws from a normal law and is fixed."""
        first = self.find(site, 0)
        return first is not None and first.normal is not None and self.layout(site) is Layout.FIXED

    def is_seed(self, site: Site, *, least: int = SEED_FROM) -> bool:
        """Whole numbers as large as seeds: noise that is drawn from them is new only if they are."""
        if site[0] in _SEEDS:
            return True
        draws = self.draws.get(site)
        if not draws or draws[0].state is not None or self.layout(site) is not Layout.FIXED:
            return False
        return all(
            one.value.numel() == 1 and not one.value.is_floating_point() and abs(int(one.value)) >= least
            for one in draws
        )

    def recall(self, site: Site, number: int, request: Request, batch: BatchRows) -> tuple[torch.Tensor, bool]:
        """The recorded draw for the rows that are in the batch now, and whether nothing of it had to be made anew."""
        recorded = self.draws.get(site, [])
        shape = request.shape()
        layout: Layout = Layout.FREE
        detail: Any = None
        if recorded:
            layout, detail = self._layout(site)
        found: torch.Tensor | None = None
        if layout is Layout.STREAM:
            found = self._from_stream(site, shape, detail, batch)
        elif number < len(recorded):
            found = recorded[number].value
            if layout is Layout.AXIS and batch.slots is not None:
                axis, block = detail[number]
                rows = [slot * block + one for slot in batch.slots for one in range(block)]
                where = torch.tensor(rows, dtype=torch.long, device=found.device)
                found = _forced(
                    found.index_select(axis, where), [slot for slot in batch.slots for _ in range(block)], axis, batch
                )
                if request.operation == _PERMUTATION:
                    found = found.argsort().argsort()  # the order that these rows have among themselves
        if found is not None and (shape is None or tuple(found.shape) == tuple(shape)):
            return found.clone(), True
        fresh = request.seeded(seed_of(site, number))
        return fresh if found is None or request.operation == _PERMUTATION else _overlaid(fresh, found), False

    def _layout(self, site: Site) -> tuple[Layout, Any]:
        found = self._layouts.get(site)
        if found is None:
            found = self._layouts[site] = self._find_layout(site)
        return found

    def _find_layout(self, site: Site) -> tuple[Layout, Any]:
        """How the draws of a site grow from the smaller to the larger recording."""
        if self._learned_rows is None:
            return Layout.FIXED, None
        assert self.rows is not None
        many, few = _shapes(self.draws[site]), self._learned.get(site, [])
        if many == few:
            return Layout.FIXED, None
        if len(many) == len(few):
            axes = [_growing_axis(a, b, self.rows, self._learned_rows) for a, b in zip(many, few, strict=True)]
            if all(axis is not None for axis in axes):
                return Layout.AXIS, axes
        rest = {shape[1:] for shape in (*many, *few)}
        units = [sum(shape[0] if shape else 1 for shape in shapes) for shapes in (many, few)]
        if len(rest) == 1 and units[0] * self._learned_rows == units[1] * self.rows:
            return Layout.STREAM, units[0] // self.rows
        return Layout.FREE, None

    def _from_stream(
        self, site: Site, shape: tuple[int, ...] | None, block: int, batch: BatchRows
    ) -> torch.Tensor | None:
        """The next rows of a loop over rows or microbatches."""
        if shape is None:
            return None
        if site not in self._streams:
            self._streams[site] = torch.cat([one.value.reshape(-1, *one.value.shape[1:]) for one in self.draws[site]])
        whole = self._streams[site]
        start = batch.passed.get(site, 0)
        size = shape[0] if shape else 1
        batch.passed[site] = start + size
        slots = batch.slots if batch.slots is not None else range(len(whole) // max(block, 1))
        rows = []
        for unit in range(start, start + size):
            row, inner = divmod(unit, block)
            if row >= len(slots) or slots[row] * block + inner >= len(whole):
                return None
            rows.append(slots[row] * block + inner)
        found = whole[torch.tensor(rows, dtype=torch.long, device=whole.device)]
        found = _forced(found, [row // max(block, 1) for row in rows], 0, batch)
        return found if shape else found.reshape(())


def _shapes(draws: Sequence[Draw]) -> list[tuple[int, ...]]:
    return [tuple(one.value.shape) for one in draws]


def _growing_axis(many: tuple[int, ...], few: tuple[int, ...], many_rows: int, few_rows: int) -> tuple[int, int] | None:
    """The axis that grows with the rows, and its length for one row; None where another thing grows."""
    if len(many) != len(few):
        return None
    differ = [axis for axis, (a, b) in enumerate(zip(many, few, strict=True)) if a != b]
    if len(differ) != 1:
        return None
    axis = differ[0]
    block, rest = divmod(many[axis], many_rows)
    return (axis, block) if rest == 0 and block * few_rows == few[axis] else None


def _forced(value: torch.Tensor, slots: Sequence[int], axis: int, batch: BatchRows) -> torch.Tensor:
    """Set the draws of forced rows, so that a row that is sampled inside the step is sampled for sure."""
    for position, slot in enumerate(slots):
        if slot in batch.force:
            part = value.narrow(axis, position, 1)
            coin = bool(((part == 0) | (part == 1)).all())
            part.fill_(1 if coin else batch.force[slot])
    return value


def _overlaid(fresh: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
    """What was recorded where both have a place, new draws elsewhere."""
    if fresh.ndim != recorded.ndim:
        return fresh
    window = tuple(slice(0, min(a, b)) for a, b in zip(fresh.shape, recorded.shape, strict=True))
    fresh[window] = recorded[window].to(fresh.dtype)
    return fresh
