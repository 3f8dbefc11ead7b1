"""The tape: every random draw of a step, recorded, and played again as it was, silent, scaled, shifted or renewed.

In torch it listens at the dispatcher, below autograd and below every library, so no name is patched; generators of
NumPy and of Python are swapped for listening ones wherever the step can reach them (see ``tape_numpy``).

*Alignment.* A draw is known by its call site (the chain of lines that asked for it) and by its number there. A batch
with another row makes other draws: a mask of one row more, or one call more in a loop. To tell which part of a draw
belongs to which row, the step is recorded with two numbers of rows, and the shapes are compared:

- *fixed*: as many calls with the same shapes (noise on parameters);
- *axis*: as many calls, one axis grows with the rows (a dropout mask of a batch);
- *stream*: more calls (a loop over rows or microbatches); rows are counted through along the first axis.

The master recording holds one slot for each row, and ``slots`` names those that a batch is made of. So a row keeps its
own mask whatever the other rows are, and a fixed draw is the same in every world. Noise is what is drawn from a normal
distribution and is fixed; a normal draw for each row (as in a variational autoencoder) belongs to the model, unless
``noise`` says that it is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from types import FrameType
from typing import Any, Protocol

import torch

from coalmine.errors import InvalidInputError, UnsupportedError

_SEEDS = ("random.getrandbits", "random.randbytes", "numpy.bytes")
_SEED_FROM = 2**16
_PERMUTATION = "torch.randperm"
"""Part of a permutation is none: what is played of one is put in order anew."""
Site = tuple[Any, ...]
Key = tuple[Site, int]
"""A draw: its call site, and its number among the draws made there."""
Seeded = tuple[str, int]
"""A place that draws from a generator that was just seeded, in words, and the seed."""


class Request(Protocol):
    """A draw that a step asks for, in the words of one library."""

    operation: str
    normal: tuple[Any, Any] | None
    """Mean and standard deviation, where the law is normal."""
    by_value: bool
    """Whether the result is replayed as it is; otherwise the same generator state is used again on new input."""

    def shape(self) -> tuple[int, ...] | None:
        """The shape of the result, where it is known before it is drawn."""

    def live(self) -> torch.Tensor:
        """Draw, as the step would without the tape."""

    def seeded(self, seed: int) -> torch.Tensor:
        """Draw from a generator with this seed, without touching the step's own."""

    def state(self) -> Any:
        """The state of the generator."""

    def again(self, state: Any) -> Any:
        """Draw from that state, and leave the generator as it was."""

    def seed(self) -> int | None:
        """What the generator was seeded with, where nothing was drawn since or the step itself did it."""


class Layout(StrEnum):
    """How the draws of a call site grow with the rows of the batch."""

    FIXED = "fixed"
    AXIS = "axis"
    STREAM = "stream"
    FREE = "free"
    """None of these: replayed by number, and new draws are made where more are asked for."""


@dataclasses.dataclass(slots=True)
class Draw:
    """One recorded draw."""

    value: torch.Tensor
    normal: tuple[Any, Any] | None = None
    state: Any = None
    """Of the generator, where the draw is replayed by it; a whole number is a seed."""


@dataclasses.dataclass(slots=True)
class _First:
    """The recording that was there before other draws were made anew."""

    master: dict[Site, list[Draw]]
    rows: int | None
    learned: dict[Site, list[tuple[int, ...]]]
    learned_rows: int | None
    noise: dict[Site, list[Draw]]


@dataclasses.dataclass(slots=True)
class _Play:
    """What is done with the draws of one run."""

    mode: str
    frame: FrameType | None = None
    rows: int | None = None
    number: int = 0
    factor: float = 1.0
    slots: Sequence[int] | None = None
    shift: Mapping[Key, torch.Tensor] = dataclasses.field(default_factory=dict)
    force: Mapping[int, float] = dataclasses.field(default_factory=dict)
    heard: dict[Key, torch.Tensor] | None = None
    seeded: list[Seeded] | None = None
    count: dict[Site, int] = dataclasses.field(default_factory=dict)
    units: dict[Site, int] = dataclasses.field(default_factory=dict)


class Tape:
    """Every random draw of a step.

    >>> tape = Tape()
    >>> with tape.record():
    ...     first = torch.randn(3)
    >>> with tape.replay():
    ...     again = torch.randn(3)
    >>> with tape.silence():
    ...     silent = torch.randn(3)
    >>> torch.equal(first, again), silent.tolist()
    (True, [0.0, 0.0, 0.0])
    """

    def __init__(self, *, references: Sequence[Any] = ()) -> None:
        self._references = references
        self._master: dict[Site, list[Draw]] = {}
        self._master_rows: int | None = None
        self._learned: dict[Site, list[tuple[int, ...]]] = {}
        self._learned_rows: int | None = None
        self._layouts: dict[Site, tuple[Layout, Any]] = {}
        self._streams: dict[Site, torch.Tensor] = {}
        self._play: _Play | None = None
        self._first: _First | None = None
        self.noise: frozenset[Site] | None = None
        """The call sites that count as noise; where nothing is set, all that draw from a normal law and are fixed."""
        self.unknown = 0
        """How many draws of the last replay were not on the tape, and were made anew from a fixed seed."""

    # What a user does with a tape.

    @contextlib.contextmanager
    def record(self, *, rows: int | None = None) -> Iterator[Tape]:
        """Let the step draw, and keep every draw. ``rows`` is the number of rows in its batch.

        Args:
            rows: the number of rows, for a tape that is also played with other numbers of rows.
        """
        self._master, self._master_rows = {}, rows
        self._forget_layouts()
        with self._running(_Play("record", rows=rows)):
            yield self

    @contextlib.contextmanager
    def learn(self, *, rows: int) -> Iterator[Tape]:
        """Run with another number of rows, and note the shapes of all draws: they tell which of them belong to rows.

        A draw of a shape that was recorded is played again. So a draw that decides which way the step goes decides the
        same, and the same call sites are heard.
        """
        if self._master_rows is None or rows == self._master_rows:
            raise InvalidInputError(f"rows = {rows!r} is not allowed: expected another number than that recorded")
        self._learned, self._learned_rows = {}, rows
        with self._running(_Play("learn", rows=rows)):
            yield self
        self._forget_layouts(keep_learned=True)

    def replay(
        self,
        *,
        slots: Sequence[int] | None = None,
        shift: Mapping[Key, torch.Tensor] | None = None,
        force: Mapping[int, float] | None = None,
    ) -> contextlib.AbstractContextManager[Tape]:
        """Play every draw as it was.

        Args:
            slots: which recorded row each row of the batch is; the first ones unless given.
            shift: what is added to a draw.
            force: rows (by slot) whose own uniform draws are set to a number, and whose coin flips to 1: a row that is
                sampled inside the step is then drawn for sure.
        """
        return self._replaying(1.0, slots=slots, shift=shift, force=force)

    def silence(
        self, *, slots: Sequence[int] | None = None, force: Mapping[int, float] | None = None
    ) -> contextlib.AbstractContextManager[Tape]:
        """Play every draw as it was, but noise as its mean."""
        return self._replaying(0.0, slots=slots, force=force)

    def scale(
        self,
        factor: float,
        *,
        slots: Sequence[int] | None = None,
        force: Mapping[int, float] | None = None,
    ) -> contextlib.AbstractContextManager[Tape]:
        """Play every draw as it was, but noise scaled about its mean."""
        return self._replaying(float(factor), slots=slots, force=force)

    @contextlib.contextmanager
    def renew(
        self,
        *,
        factor: float = 1.0,
        slots: Sequence[int] | None = None,
        force: Mapping[int, float] | None = None,
        heard: dict[Key, torch.Tensor] | None = None,
        seeded: list[Seeded] | None = None,
    ) -> Iterator[Tape]:
        """Draw noise anew from the step's own generators (and scale it); play everything else as it was.

        Args:
            factor: what noise is scaled by, about its mean.
            slots: which recorded row each row of the batch is.
            force: as for :meth:`replay`.
            heard: is given every draw of noise, in standard deviations from its mean.
            seeded: is given the places that draw from a generator that was just seeded, with the seeds. Then all whole
                numbers that may be seeds are drawn anew too, however small.
        """
        play = _Play("renew", factor=factor, slots=slots, force=force or {}, heard=heard, seeded=seeded)
        with self._running(play):
            yield self

    @contextlib.contextmanager
    def toss(self, number: int, *, rows: int | None = None) -> Iterator[Tape]:
        """Record once more: noise as it was recorded first, every other draw anew, whatever the step seeds it with.

        Args:
            number: of this recording; the same one gives the same draws.
            rows: the number of rows in its batch.
        """
        if self._first is None:
            noise = {site: draws for site, draws in self._master.items() if self._is_noise(site)}
            self._first = _First(self._master, self._master_rows, self._learned, self._learned_rows, noise)
        first = self._first
        self._master, self._master_rows = {}, rows
        self._forget_layouts()
        if rows == first.rows:
            self._learned, self._learned_rows = first.learned, first.learned_rows
        with self._running(_Play("toss", rows=rows, number=number)):
            yield self

    def take_back(self) -> None:
        """Have the recording again that was there before other draws were made anew."""
        if self._first is not None:
            self._master, self._master_rows = self._first.master, self._first.rows
            self._forget_layouts()
            self._learned, self._learned_rows = self._first.learned, self._first.learned_rows
            self._first = None

    @property
    def familiar(self) -> bool:
        """Whether the last recording has the call sites and the shapes of the first, so that its layouts are known."""
        if self._first is None:
            return True
        then, now = (
            {site: _shapes(draws) for site, draws in one.items()} for one in (self._first.master, self._master)
        )
        return then == now

    def others(self) -> list[Site]:
        """Every call site whose draws are neither noise nor a seed: they may decide what the step does."""
        return [site for site in self._master if not self._is_noise(site) and not self._is_seed(site)]

    @property
    def draws(self) -> int:
        """How many draws are on the tape."""
        return sum(len(one) for one in self._master.values())

    def noise_keys(self) -> list[Key]:
        """Every draw that counts as noise, in no particular order."""
        return [
            (site, number) for site in self._master if self._is_noise(site) for number in range(len(self._master[site]))
        ]

    def draw(self, key: Key) -> Draw:
        """One recorded draw."""
        return self._master[key[0]][key[1]]

    def values(self, site: Site) -> list[torch.Tensor]:
        """What was recorded at a call site."""
        return [one.value for one in self._master[site]]

    def fixed_sites(self) -> list[Site]:
        """Every call site whose draws are replayed by value and do not grow with the rows."""
        return [
            site
            for site, draws in self._master.items()
            if draws[0].state is None and self._layout(site)[0] is Layout.FIXED
        ]

    def normal_sites(self) -> dict[Site, Layout]:
        """Every call site that draws from a normal law, and how its draws grow with the rows."""
        return {site: self._layout(site)[0] for site, draws in self._master.items() if draws[0].normal is not None}

    def describe(self, site: Site) -> str:
        """The call site for people: the operation and the innermost line that asked for it."""
        return f"{site[0]} at {site[-1][0].rpartition('/')[2]}:{site[-1][1]}" if len(site) > 1 else str(site[0])

    # How it works.

    def _replaying(
        self,
        factor: float,
        *,
        slots: Sequence[int] | None = None,
        shift: Mapping[Key, torch.Tensor] | None = None,
        force: Mapping[int, float] | None = None,
    ) -> contextlib.AbstractContextManager[Tape]:
        return self._replay(_Play("replay", factor=factor, slots=slots, shift=shift or {}, force=force or {}))

    @contextlib.contextmanager
    def _replay(self, play: _Play) -> Iterator[Tape]:
        self.unknown = 0
        with self._running(play):
            yield self

    @contextlib.contextmanager
    def _running(self, play: _Play) -> Iterator[None]:
        from coalmine.probing.tape_numpy import listening
        from coalmine.probing.tape_torch import Listener

        if self._play is not None:
            raise UnsupportedError("this tape is already recording or playing; use another one inside it")
        play.frame = _caller()
        self._play = play
        try:
            with listening(self._answer, self._references), Listener(self._answer):
                yield
        finally:
            self._play = None

    def _forget_layouts(self, *, keep_learned: bool = False) -> None:
        self._layouts, self._streams = {}, {}
        if not keep_learned:
            self._learned, self._learned_rows = {}, None

    def _answer(self, request: Request) -> Any:
        """What a step gets for a draw that it asks for."""
        play = self._play
        assert play is not None
        site = _call_site(request.operation, play.frame)
        number = play.count.get(site, 0)
        play.count[site] = number + 1
        if play.mode == "record":
            return self._keep(site, request)
        if play.mode == "learn":
            return self._note(site, number, request)
        if play.mode == "toss":
            return self._anew(site, number, request, play)
        if play.seeded is not None and (seed := request.seed()) is not None:
            play.seeded.append((self.describe(site), seed))
        least = _SEED_FROM if play.seeded is None else 0
        if play.mode == "renew" and (self._is_noise(site) or self._is_seed(site, least=least)):
            value = request.live()
            if play.heard is not None and request.normal is not None:
                play.heard[site, number] = _unit(value, *request.normal)
            return _scaled(value, request.normal, play.factor)
        recorded = self._master.get(site, [])
        if not request.by_value:
            if number < len(recorded):
                return _again(request, recorded[number])
            self.unknown += 1
            return request.seeded(_seed(site, number))
        value = self._recall(site, number, request, play)
        if not self._is_noise(site):
            return value
        if request.normal is None:
            return _shifted(value, play.shift.get((site, number)))
        if number >= len(recorded):
            return _scaled(value, request.normal, play.factor)
        return self._noise(value, request, recorded[number], play, (site, number))

    def _keep(self, site: Site, request: Request) -> Any:
        state = None if request.by_value else request.state()
        value = request.live()
        kept = value.detach().clone() if request.by_value else torch.empty(0)
        self._master.setdefault(site, []).append(Draw(kept, _copied(request.normal), state))
        return value

    def _note(self, site: Site, number: int, request: Request) -> Any:
        """Note the shape of a draw, and play it as it was where its shape is the same."""
        draws = self._master.get(site, [])
        was = draws[number] if number < len(draws) else None
        if not request.by_value:
            self._learned.setdefault(site, []).append(())
            return request.live() if was is None else _again(request, was)
        same = was is not None and tuple(was.value.shape) == request.shape()
        value = was.value.clone() if was is not None and same else request.live()
        self._learned.setdefault(site, []).append(tuple(value.shape))
        return value

    def _anew(self, site: Site, number: int, request: Request, play: _Play) -> Any:
        """Noise that was recorded first, or a draw from a seed; both are kept."""
        assert self._first is not None
        seed = _seed(site, number, play.number)
        if not request.by_value:
            self._master.setdefault(site, []).append(Draw(torch.empty(0), _copied(request.normal), seed))
            return request.seeded(seed)
        held = self._first.noise.get(site, [])
        was = held[number] if number < len(held) else None
        if was is not None and request.shape() in (None, tuple(was.value.shape)):
            value = was.value.clone()
            if request.normal is not None and was.normal is not None:
                value = self._noise(value, request, was, play, (site, number))
        else:
            value = request.seeded(seed)
        self._master.setdefault(site, []).append(Draw(value.detach().clone(), _copied(request.normal), None))
        return value

    def _noise(self, value: torch.Tensor, request: Request, was: Draw, play: _Play, key: Key) -> torch.Tensor:
        """The recorded deviation from the mean, about the mean that is asked for now."""
        if not (_equal(request.normal, was.normal) and play.factor == 1.0):
            assert request.normal is not None
            assert was.normal is not None
            mean, std = request.normal
            old_mean, old_std = was.normal
            if play.factor == 0.0 and not isinstance(mean, torch.Tensor):
                return torch.full_like(value, mean)
            unit = _unit(value, old_mean, old_std)
            if isinstance(mean, torch.Tensor) or isinstance(std, torch.Tensor):
                value = (mean + play.factor * std * unit).to(value.dtype)
            else:
                value = unit.mul_(play.factor * std).add_(mean)
        return _shifted(value, play.shift.get(key))

    def _is_noise(self, site: Site) -> bool:
        if self.noise is not None:
            return site in self.noise
        draws = self._master.get(site)
        return bool(draws) and draws[0].normal is not None and self._layout(site)[0] is Layout.FIXED  # type: ignore[index]

    def _is_seed(self, site: Site, *, least: int = _SEED_FROM) -> bool:
        """Whole numbers as large as seeds: noise that is drawn from them is new only if they are."""
        if site[0] in _SEEDS:
            return True
        draws = self._master.get(site)
        if not draws or draws[0].state is not None or self._layout(site)[0] is not Layout.FIXED:
            return False
        return all(
            one.value.numel() == 1 and not one.value.is_floating_point() and abs(int(one.value)) >= least
            for one in draws
        )

    def _layout(self, site: Site) -> tuple[Layout, Any]:
        found = self._layouts.get(site)
        if found is None:
            found = self._layouts[site] = self._find_layout(site)
        return found

    def _find_layout(self, site: Site) -> tuple[Layout, Any]:
        """How the draws of a site grow from the smaller to the larger recording."""
        if self._learned_rows is None:
            return Layout.FIXED, None
        assert self._master_rows is not None
        many, few = [tuple(one.value.shape) for one in self._master[site]], self._learned.get(site, [])
        if many == few:
            return Layout.FIXED, None
        if len(many) == len(few):
            axes = [_growing_axis(a, b, self._master_rows, self._learned_rows) for a, b in zip(many, few, strict=True)]
            if all(axis is not None for axis in axes):
                return Layout.AXIS, axes
        rest = {shape[1:] for shape in (*many, *few)}
        units = [sum(shape[0] if shape else 1 for shape in shapes) for shapes in (many, few)]
        if len(rest) == 1 and units[0] * self._learned_rows == units[1] * self._master_rows:
            return Layout.STREAM, units[0] // self._master_rows
        return Layout.FREE, None

    def _recall(self, site: Site, number: int, request: Request, play: _Play) -> torch.Tensor:
        """The recorded draw for the rows that are in the batch now."""
        recorded = self._master.get(site, [])
        shape = request.shape()
        layout: Layout = Layout.FREE
        detail: Any = None
        if recorded:
            layout, detail = self._layout(site)
        found: torch.Tensor | None = None
        if layout is Layout.STREAM:
            found = self._from_stream(site, shape, detail, play)
        elif number < len(recorded):
            found = recorded[number].value
            if layout is Layout.AXIS and play.slots is not None:
                axis, block = detail[number]
                rows = [slot * block + one for slot in play.slots for one in range(block)]
                where = torch.tensor(rows, dtype=torch.long, device=found.device)
                found = _forced(
                    found.index_select(axis, where), [slot for slot in play.slots for _ in range(block)], axis, play
                )
                if request.operation == _PERMUTATION:
                    found = found.argsort().argsort()  # the order that these rows have among themselves
        if found is not None and (shape is None or tuple(found.shape) == tuple(shape)):
            return found.clone()
        self.unknown += 1
        fresh = request.seeded(_seed(site, number))
        return fresh if found is None or request.operation == _PERMUTATION else _overlaid(fresh, found)

    def _from_stream(self, site: Site, shape: tuple[int, ...] | None, block: int, play: _Play) -> torch.Tensor | None:
        """The next rows of a loop over rows or microbatches."""
        if shape is None:
            return None
        if site not in self._streams:
            self._streams[site] = torch.cat([one.value.reshape(-1, *one.value.shape[1:]) for one in self._master[site]])
        whole = self._streams[site]
        start = play.units.get(site, 0)
        size = shape[0] if shape else 1
        play.units[site] = start + size
        slots = play.slots if play.slots is not None else range(len(whole) // max(block, 1))
        rows = []
        for unit in range(start, start + size):
            row, inner = divmod(unit, block)
            if row >= len(slots) or slots[row] * block + inner >= len(whole):
                return None
            rows.append(slots[row] * block + inner)
        found = whole[torch.tensor(rows, dtype=torch.long, device=whole.device)]
        found = _forced(found, [row // max(block, 1) for row in rows], 0, play)
        return found if shape else found.reshape(())


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


def _forced(value: torch.Tensor, slots: Sequence[int], axis: int, play: _Play) -> torch.Tensor:
    """Set the draws of forced rows, so that a row that is sampled inside the step is sampled for sure."""
    for position, slot in enumerate(slots):
        if slot in play.force:
            part = value.narrow(axis, position, 1)
            coin = bool(((part == 0) | (part == 1)).all())
            part.fill_(1 if coin else play.force[slot])
    return value


def _overlaid(fresh: torch.Tensor, recorded: torch.Tensor) -> torch.Tensor:
    """What was recorded where both have a place, new draws elsewhere."""
    if fresh.ndim != recorded.ndim:
        return fresh
    window = tuple(slice(0, min(a, b)) for a, b in zip(fresh.shape, recorded.shape, strict=True))
    fresh[window] = recorded[window].to(fresh.dtype)
    return fresh


def _copied(normal: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    if normal is None:
        return None
    mean, std = (one.detach().clone() if isinstance(one, torch.Tensor) else one for one in normal)
    return mean, std


def _equal(now: tuple[Any, Any] | None, then: tuple[Any, Any] | None) -> bool:
    if now is None or then is None:
        return now is then
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else a is b or _same(a, b)
        for a, b in zip(now, then, strict=True)
    )


def _same(a: Any, b: Any) -> bool:
    return not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor) and bool(a == b)


def _unit(value: torch.Tensor, mean: Any, std: Any) -> torch.Tensor:
    """A draw in standard deviations from its mean."""
    spread = torch.as_tensor(std, dtype=value.dtype, device=value.device)
    apart: torch.Tensor = value - mean
    return apart.div_(torch.where(spread > 0, spread, 1.0)).masked_fill_(spread <= 0, 0.0)


def _shifted(value: torch.Tensor, shift: torch.Tensor | None) -> torch.Tensor:
    return value if shift is None else value + shift.to(value.dtype).reshape(value.shape)


def _scaled(value: torch.Tensor, normal: tuple[Any, Any] | None, factor: float) -> torch.Tensor:
    """A draw scaled about its mean."""
    if factor == 1.0 or normal is None:
        return value
    apart: torch.Tensor = value - normal[0]
    return apart.mul_(factor).add_(normal[0]).to(value.dtype)


def _again(request: Request, was: Draw) -> Any:
    """A draw that mixes with its input, from the state or the seed that it had."""
    return request.seeded(was.state) if isinstance(was.state, int) else request.again(was.state)


def _shapes(draws: Sequence[Draw]) -> list[tuple[int, ...]]:
    return [tuple(one.value.shape) for one in draws]


def _seed(site: Site, number: int, *more: int) -> int:
    """A seed for draws that are not on the tape: the same in every run of this program's text."""
    text = repr((site[0], list(site[1:]), number, *more)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")


_ROOM = __file__.rpartition("/")[0]


def _caller() -> FrameType | None:
    """The frame whose ``with`` statement started the tape."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame = frame.f_back
    return frame


def _call_site(operation: str, start: FrameType | None) -> Site:
    """The operation and the lines that led to it, from the ``with`` statement inwards."""
    lines: list[tuple[str, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not start:
        name = frame.f_code.co_filename
        if lines or not name.startswith(_ROOM):
            lines.append((name, frame.f_lineno))
        frame = frame.f_back
    return (operation, *reversed(lines))


Answer = Callable[[Request], Any]
