"""The step on the bench: run it with these rows and this randomness, see everything it shows, and put all back."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coalmine.errors import InvalidInputError
from coalmine.probing import elsewhere, rows
from coalmine.probing.findings import quoted
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.release import Observation, Release
from coalmine.probing.snapshot import Snapshot, library_generators
from coalmine.probing.tape import Tape
from coalmine.probing.tape_draws import Key, Seeded
from coalmine.probing.vectors import give_back

_ROWS_AT_MOST = 12
"""Rows of the batch that are used: more cost time and show nothing new."""
_SMALL = 100_000
"""Numbers up to which a release is small: one thread is quickest."""
_GIVEN_BACK = 2
"""Runs of a large step after which freed memory goes back to the system; every time would cost a tenth more time."""
SPARE = 2
"""Slots on the tape for rows that are added."""


@dataclasses.dataclass(frozen=True)
class World:
    """A batch, and which slot of the tape each of its rows has."""

    batch: Any
    slots: tuple[int, ...]


class Bench:
    """Runs a step as often as asked, always from the same state.

    ``tape`` holds one recording with a slot for every row of the batch and for ``SPARE`` more.
    """

    def __init__(self, subject: PrivateStep) -> None:
        self.subject = subject
        count = min(rows.check(subject.batch), _ROWS_AT_MOST)
        self.base = rows.take(subject.batch, range(count))
        self.count = count
        self.runs = 0
        self.force: dict[int, float] = {}
        self.loud = False
        """Noise comes from outside the tape: it can be had again, but not silenced."""
        self.grows = True
        """Whether rows can be added to a batch."""
        self.behind = 0
        """Calls that release nothing before the one that runs start from."""
        self._snapshot = self._origin = self._copied()
        state = subject.state
        if state is None and not (self._snapshot.modules or self._snapshot.optimizers):
            state = elsewhere.state_of(subject.step)
        self.release = Release(state, self._snapshot, kept=subject.kept)
        self.tape = Tape(references=self._snapshot.references)
        self.start = self.release.at_first(self._snapshot, self._more())
        self.small = sum(one.numel() for one in self.start.values()) < _SMALL
        """Whether the release is small."""
        self._check_finite()

    def _check_finite(self) -> None:
        """An error where the rows or the parameters are not finite: nothing could be compared."""
        for number, one in enumerate(rows.numbers(self.base)):
            if one.dtype.kind == "f" and not np.isfinite(one).all():
                part = f"part {number} of batch" if number else "batch"
                raise InvalidInputError(f"{part} holds NaN or infinity: expected finite rows, public or made up")
        for name in self.release.names.values():
            if name in self.start and not bool(torch.isfinite(self.start[name]).all()):
                raise InvalidInputError(f"{name} holds NaN or infinity before the step: expected finite parameters")

    @property
    def modules(self) -> list[torch.nn.Module]:
        """Every module that the step can reach."""
        return list(self._snapshot.modules.values())

    def world(
        self,
        extra: Mapping[int, Any] | None = None,
        *,
        keep: Sequence[int] | None = None,
        place: int | None = None,
    ) -> World:
        """The batch (or the rows ``keep`` of it) with more rows, each in a slot of its own.

        Args:
            extra: rows by spare slot, 0 or 1.
            keep: the rows of the batch that are there; all unless given.
            place: how many rows of the batch stand before the added ones; all unless given.
        """
        slots = list(range(self.count) if keep is None else keep)
        place = len(slots) if place is None else place
        before, after = slots[:place], slots[place:]
        parts = [rows.take(self.base, before), *(extra or {}).values()]
        if after:
            parts.append(rows.take(self.base, after))
        return World(rows.join(parts), (*before, *(self.count + slot for slot in extra or {}), *after))

    def replaced(self, changes: Mapping[int, Any]) -> World:
        """The batch with other rows in the place of some of its own."""
        parts = [changes.get(slot, rows.take(self.base, [slot])) for slot in range(self.count)]
        return World(rows.join(parts), tuple(range(self.count)))

    def record(self, world: World) -> Observation:
        """Run with live randomness and keep it as the master recording."""
        return self.run(world.batch, self.tape.record(rows=len(world.slots)))

    def learn(self, world: World) -> Observation:
        """Run with live randomness and another number of rows, so that the tape knows which draws belong to rows."""
        return self.run(world.batch, self.tape.learn(rows=len(world.slots)))

    @property
    def allowed(self) -> float:
        """How far one row may move the sum; in a batch that cannot grow rows are replaced, which moves it by two."""
        subject = self.subject
        return subject.allowed if self.grows else max(subject.allowed, 2.0 * subject.unit)

    def toss(self, number: int, world: World, *, fewer: World | None = None) -> Observation:
        """Record anew: the noise that was recorded first, and other draws, those of this number, beside it.

        Args:
            number: the same one gives the same draws.
            world: the rows.
            fewer: a world with fewer rows, from which the tape learns which of new draws belong to rows.
        """
        shown = self.run(world.batch, self.tape.toss(number, rows=len(world.slots)))
        if fewer is not None and not shown.error and not self.tape.familiar:
            self.learn(fewer)
        return shown

    def silent(self, world: World) -> Observation:
        """Run without noise."""
        return self.run(world.batch, self.tape.silence(slots=world.slots, force=self.force))

    def quiet(self, world: World) -> Observation:
        """Run without noise; where noise cannot be silenced, with the same noise every time."""
        return self.scaled(world, 1.0) if self.loud else self.silent(world)

    def scaled(self, world: World, factor: float) -> Observation:
        """Run with the recorded noise, scaled."""
        return self.run(world.batch, self.tape.scale(factor, slots=world.slots, force=self.force))

    def shifted(self, world: World, shift: Mapping[Any, torch.Tensor]) -> Observation:
        """Run with the recorded noise, shifted."""
        return self.run(world.batch, self.tape.replay(slots=world.slots, shift=shift, force=self.force))

    def renewed(
        self,
        world: World,
        *,
        factor: float = 1.0,
        heard: dict[Key, torch.Tensor] | None = None,
        seeded: list[Seeded] | None = None,
    ) -> Observation:
        """Run with new noise from the step's own generators.

        Args:
            world: the rows.
            factor: what noise is scaled by.
            heard: is given its draws.
            seeded: is given the places that draw from a generator that was just seeded, with the seeds.
        """
        play = self.tape.renew(factor=factor, slots=world.slots, force=self.force, heard=heard, seeded=seeded)
        return self.run(world.batch, play, generators=False)

    def runs_differ(self, world: World, names: Sequence[str]) -> bool:
        """Whether two runs from the same state have different noise: if not, it is seeded from that state."""
        first, second = self.renewed(world), self.renewed(world)
        return any(not torch.equal(first[name], second[name]) for name in names if name in first and name in second)

    def put_back(self, *, generators: bool = True) -> None:
        """Give the step the state that runs start from."""
        self._snapshot.restore(generators=generators)

    def now(self) -> dict[str, torch.Tensor]:
        """What is released in the state that runs start from."""
        self.put_back()
        return self.release.read(None, self._more())

    def rewind(self) -> None:
        """Give the step the state that it was handed over with."""
        self._origin.restore()

    def advance(self) -> None:
        """Let runs start one call later: this one released nothing."""
        self.run(self.base, contextlib.nullcontext())
        self._snapshot = self._copied()
        self.start = self.release.at_first(self._snapshot, self._more())
        self.behind += 1

    def settle_back(self) -> None:
        """Let runs start from the first state again."""
        self._snapshot, self.behind = self._origin, 0
        self.put_back()
        self.start = self.release.at_first(self._snapshot, self._more())

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Let runs start from the present state meanwhile."""
        before = self._snapshot
        self._make_room()
        self._snapshot = self._copied()
        try:
            yield
        finally:
            self._snapshot = before

    def _copied(self) -> Snapshot:
        return Snapshot(self.subject.state, self.subject.step)

    def run(
        self,
        batch: Any,
        play: contextlib.AbstractContextManager[Any],
        *,
        fresh: bool = True,
        generators: bool = True,
        look: Callable[[Any], None] | None = None,
    ) -> Observation:
        """One run.

        Args:
            batch: its rows.
            play: what the tape does meanwhile.
            fresh: whether it starts from the first state, or goes on from where it is.
            generators: whether random generators too start from their first state.
            look: is given what the step returned, as it is.
        """
        self.runs += 1
        # Two copies of the state are most of what a probe holds: then every time.
        if self.runs % _GIVEN_BACK == 0 or self._snapshot is not self._origin:
            self._make_room()
        if fresh:
            self._snapshot.restore(generators=generators)
        returned: Any = None
        error = ""
        copied = rows.take(batch, range(rows.size(batch)))  # a step may write into its batch
        with warnings.catch_warnings(), torch.enable_grad(), self.release.door() as gradients:
            warnings.simplefilter("ignore")
            try:
                with play:
                    returned = self.subject.step(copied)
            except Exception as problem:  # noqa: BLE001  # the user's code may raise anything, and that is a result
                first = (str(problem).splitlines() or ["no message"])[0]
                error = f"{type(problem).__name__}: {quoted(first)}"
        if look is not None:
            look(returned)
        return Observation(dict(gradients), self.release.read(returned, self._more()), error)

    def _make_room(self) -> None:
        """Give freed memory back, where it is worth the time."""
        if not self.small:
            give_back()

    def _more(self) -> Mapping[str, Any]:
        return self.subject.released() if self.subject.released is not None else {}

    def check(self, shown: Observation, what: str) -> Observation:
        """An error in words where a run that must work did not."""
        if shown.error:
            error = shown.error.replace("‹", "").replace("›", "")
            raise InvalidInputError(f"step fails on {what}: {error}")
        return shown


@contextlib.contextmanager
def on_bench(subject: PrivateStep, *, seed: int = 0) -> Iterator[Bench]:
    """The step on the bench; afterwards all that it can reach is as it was before, bit for bit.

    The generators that every program shares start from ``seed``: a second probe of a step gives the same numbers.
    """
    shared = library_generators()
    threads = torch.get_num_threads()
    bench: Bench | None = None
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002  # the step may draw from it
        random.seed(seed)
        bench = Bench(subject)
        if bench.small:
            torch.set_num_threads(1)  # threads that wait for each other cost more than they help
        yield bench
    finally:
        if bench is not None:
            bench.rewind()
        torch.set_num_threads(threads)
        for put_back, state in shared:
            put_back(state)
