"""The tape: every random draw of a step, recorded, and played again as it was, silent, scaled, shifted or renewed.

In torch it listens at the dispatcher, below autograd and below every library, so no name is patched; generators of
NumPy and of Python are swapped for listening ones wherever the step can reach them (see ``tape_numpy``).

What a draw is for a batch with other rows is in ``tape_recording``. Noise is what is drawn from a normal distribution
and is fixed; a normal draw for each row (as in a variational autoencoder) belongs to the model, unless ``noise`` says
that it is one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing.tape_draws import Draw, Key, Request, Seeded, Site, call_site, caller, seed_of
from coalmine.probing.tape_noise import about_its_mean, copied, scaled, shifted, unit
from coalmine.probing.tape_recording import SEED_FROM, BatchRows, Layout, Recording


@dataclasses.dataclass(slots=True)
class _First:
    """The recording that was there before other draws were made anew."""

    recording: Recording
    noise: dict[Site, list[Draw]]


@dataclasses.dataclass(slots=True)
class _Play:
    """What is done with the draws of one run."""

    mode: str
    frame: FrameType | None = None
    number: int = 0
    factor: float = 1.0
    batch: BatchRows = dataclasses.field(default_factory=BatchRows)
    shift: Mapping[Key, torch.Tensor] = dataclasses.field(default_factory=dict)
    heard: dict[Key, torch.Tensor] | None = None
    seeded: list[Seeded] | None = None
    states: Callable[[bool, Any], None] | None = None
    count: dict[Site, int] = dataclasses.field(default_factory=dict)
    played: set[Key] = dataclasses.field(default_factory=set)
    """The recorded draws that were asked for."""


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
        self._recording = Recording()
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
        self._recording = Recording(rows=rows)
        with self._running(_Play("record")):
            yield self

    @contextlib.contextmanager
    def learn(self, *, rows: int) -> Iterator[Tape]:
        """Run with another number of rows, and note the shapes of all draws: they tell which of them belong to rows.

        A draw of a shape that was recorded is played again. So a draw that decides which way the step goes decides the
        same, and the same call sites are heard.
        """
        recording = self._recording
        if recording.rows is None or rows == recording.rows:
            raise InvalidInputError(f"rows = {rows!r} is not allowed: expected another number than that recorded")
        recording.learn(rows=rows)
        with self._running(_Play("learn")):
            yield self
        recording.forget_layouts()

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
        batch = BatchRows(slots, force or {})
        with self._running(_Play("renew", factor=factor, batch=batch, heard=heard, seeded=seeded)):
            yield self

    @contextlib.contextmanager
    def toss(self, number: int, *, rows: int | None = None) -> Iterator[Tape]:
        """Record once more: noise as it was recorded first, every other draw anew, whatever the step seeds it with.

        Args:
            number: of this recording; the same one gives the same draws.
            rows: the number of rows in its batch.
        """
        if self._first is None:
            noise = {site: draws for site, draws in self._recording.draws.items() if self._is_noise(site)}
            self._recording.forget_layouts()  # what they hold of its draws is not needed before it is taken back
            self._first = _First(self._recording, noise)
        first = self._first.recording
        self._recording = Recording(rows=rows)
        if rows == first.rows:
            self._recording.learn_from(first)
        with self._running(_Play("toss", number=number)):
            yield self

    def follow(self, states: Callable[[bool, Any], None]) -> contextlib.AbstractContextManager[None]:
        """Let the step draw as it does without a tape, and tell the states of its generators.

        Args:
            states: is told, before and after each draw, whether it is noise, and the state of its generator.
        """
        return self._running(_Play("follow", states=states))

    def take_back(self) -> None:
        """Have the recording again that was there before other draws were made anew."""
        if self._first is not None:
            self._recording = self._first.recording
            self._first = None

    @property
    def familiar(self) -> bool:
        """Whether the last recording has the call sites and the shapes of the first, so that its layouts are known."""
        return self._first is None or self._recording.same_shapes(self._first.recording)

    def others(self) -> list[Site]:
        """Every call site whose draws are neither noise nor a seed: they may decide what the step does."""
        return [
            site for site in self._recording.draws if not self._is_noise(site) and not self._recording.is_seed(site)
        ]

    @property
    def draws(self) -> int:
        """How many draws are on the tape."""
        return sum(len(one) for one in self._recording.draws.values())

    def noise_keys(self) -> list[Key]:
        """Every draw that counts as noise, in no particular order."""
        return [
            (site, number)
            for site, draws in self._recording.draws.items()
            if self._is_noise(site)
            for number in range(len(draws))
        ]

    def draw(self, key: Key) -> Draw:
        """One recorded draw."""
        return self._recording.draws[key[0]][key[1]]

    def values(self, site: Site) -> list[torch.Tensor]:
        """What was recorded at a call site."""
        return [one.value for one in self._recording.draws[site]]

    def fixed_sites(self) -> list[Site]:
        """Every call site whose draws are replayed by value and do not grow with the rows."""
        return [
            site
            for site, draws in self._recording.draws.items()
            if draws[0].state is None and self._recording.layout(site) is Layout.FIXED
        ]

    def normal_sites(self) -> dict[Site, Layout]:
        """Every call site that draws from a normal law, and how its draws grow with the rows."""
        recording = self._recording
        return {site: recording.layout(site) for site, draws in recording.draws.items() if draws[0].normal is not None}

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
        return self._replay(_Play("replay", factor=factor, batch=BatchRows(slots, force or {}), shift=shift or {}))

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
        play.frame = caller()
        self._play = play
        try:
            with listening(self._answer, self._references), Listener(self._answer):
                yield
        finally:
            self._play = None

    def _answer(self, request: Request) -> Any:
        """What a step gets for a draw that it asks for."""
        play = self._play
        assert play is not None
        site = call_site(request.operation, play.frame)
        number = play.count.get(site, 0)
        play.count[site] = number + 1
        if play.mode == "record":
            return self._keep(site, request)
        if play.mode == "toss":
            return self._anew(site, number, request, play)
        site, number = self._played(site, number, request, play)
        if play.mode == "learn":
            return self._note(site, number, request)
        if play.states is not None:
            return self._followed(site, request, play.states)
        if play.seeded is not None and (seed := request.seed()) is not None:
            play.seeded.append((self.describe(site), seed))
        least = SEED_FROM if play.seeded is None else 0
        is_noise = self._is_noise(site, request)
        if play.mode == "renew" and (is_noise or self._recording.is_seed(site, least=least)):
            value = request.live()
            if play.heard is not None and request.normal is not None:
                play.heard[site, number] = unit(value, *request.normal)
            return scaled(value, request.normal, play.factor)
        was = self._recording.find(site, number)
        if not request.by_value:
            if was is not None:
                return _again(request, was)
            self.unknown += 1
            return request.seeded(seed_of(site, number))
        value, known = self._recording.recall(site, number, request, play.batch)
        if not known:
            self.unknown += 1
        if not is_noise:
            return value
        shift = play.shift.get((site, number))
        if request.normal is None:
            return shifted(value, shift)
        if was is None:
            return scaled(value, request.normal, play.factor)
        return shifted(about_its_mean(value, now=request.normal, then=was.normal, factor=play.factor), shift)

    def _played(self, site: Site, number: int, request: Request, play: _Play) -> Key:
        """The recorded draw that is played for one that is asked for.

        That of its own call site. A step may draw what it always draws at another line where a batch is small or empty,
        or from some step on: a call site that was never recorded gets the first recorded draw of its kind and shape
        that this run did not ask for yet.
        """
        draws = self._recording.draws
        if site not in draws and request.by_value and (shape := request.shape()) is not None:
            learns = play.mode == "learn"  # layouts are not known then
            for other, number_there in _of_kind(site, draws, play.played):
                if learns:
                    was = draws[other][number_there]
                    fits = was.normal is not None and tuple(was.value.shape) == tuple(shape)
                else:
                    fits = self._recording.expected(other, number_there, play.batch) == tuple(shape)
                if fits:
                    site, number = other, number_there
                    break
        play.played.add((site, number))
        return site, number

    def _followed(self, site: Site, request: Request, states: Callable[[bool, Any], None]) -> Any:
        is_noise, value = self._is_noise(site, request), None
        for draws in (True, False):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # a generator of the operating system has none
                states(is_noise, request.state())
            value = request.live() if draws else value
        return value

    def _keep(self, site: Site, request: Request) -> Any:
        state = None if request.by_value else request.state()
        value = request.live()
        kept = value.detach().clone() if request.by_value else torch.empty(0)
        self._recording.keep(site, Draw(kept, copied(request.normal), state))
        return value

    def _note(self, site: Site, number: int, request: Request) -> Any:
        """Note the shape of a draw, and play it as it was where its shape is the same."""
        was = self._recording.find(site, number)
        if not request.by_value:
            self._recording.note(site, ())
            return request.live() if was is None else _again(request, was)
        same = was is not None and tuple(was.value.shape) == request.shape()
        value = was.value.clone() if was is not None and same else request.live()
        self._recording.note(site, tuple(value.shape))
        return value

    def _anew(self, site: Site, number: int, request: Request, play: _Play) -> Any:
        """Noise that was recorded first, or a draw from a seed; both are kept."""
        assert self._first is not None
        seed = seed_of(site, number, play.number)
        if not request.by_value:
            self._recording.keep(site, Draw(torch.empty(0), copied(request.normal), seed))
            return request.seeded(seed)
        noise, key = self._first.noise, (site, number)
        if site not in noise and site not in self._first.recording.draws and (shape := request.shape()) is not None:
            others = _of_kind(site, noise, play.played)
            key = next((one for one in others if tuple(noise[one[0]][one[1]].value.shape) == tuple(shape)), key)
        play.played.add(key)
        held = noise.get(key[0], [])
        was = held[key[1]] if key[1] < len(held) else None
        if was is not None and request.shape() in (None, tuple(was.value.shape)):
            value = was.value.clone()
            if request.normal is not None and was.normal is not None:
                value = about_its_mean(value, now=request.normal, then=was.normal, factor=play.factor)
        else:
            value = request.seeded(seed)
        self._recording.keep(site, Draw(value.detach().clone(), copied(request.normal), None))
        return value

    def _is_noise(self, site: Site, request: Request | None = None) -> bool:
        if self.noise is not None:
            return site in self.noise
        if request is not None and site not in self._recording.draws:  # what else would it be, where all else is known
            return request.normal is not None and request.by_value
        return self._recording.is_noise(site)


def _of_kind(site: Site, draws: Mapping[Site, Sequence[Draw]], played: set[Key]) -> Iterator[Key]:
    """The draws of this operation at other call sites that were not asked for yet, in the order of the recording."""
    for other, there in draws.items():
        if other[0] == site[0]:
            yield from ((other, number) for number in range(len(there)) if (other, number) not in played)


def _again(request: Request, was: Draw) -> Any:
    """A draw that mixes with its input, from the state or the seed that it had."""
    return request.seeded(was.state) if isinstance(was.state, int) else request.again(was.state)
