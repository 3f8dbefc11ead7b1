"""An audit while it runs: how far each attack is, the time left, the bound so far, failures, and who is at work."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from coalmine.auditing.progress import BoundSoFar
from coalmine.auditing.promises import epsilon_of
from coalmine.auditing.stored import AuditRecord, Member
from coalmine.records import Relation
from coalmine.store import Store, Trials, listing
from coalmine.store.listing import Progress, Worker

_POINTS = 24
"""Into how many parts the trials that are there at the first look are cut, to draw how the bound grew."""
_MOST_POINTS = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """What ``trials`` trials had proved at one look, and the most that an attack without an error would have."""

    trials: int
    epsilon: float
    ceiling: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveAttack:
    """One attack of a running audit. ``played`` and ``failed`` are by world; ``left`` are seconds, if known."""

    label: str
    run: str
    control: bool
    wanted: int
    done: int
    played: tuple[int, int]
    failed: tuple[int, int]
    failed_blocks: int
    rate: float | None
    left: float | None
    state: str
    points: tuple[Point, ...]
    says: str
    devices: tuple[str, ...]

    @property
    def percent(self) -> int:
        """Rounded down: 100 only when all is there."""
        return 100 * self.done // self.wanted if self.wanted else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiveAudit:
    """A look at a running audit."""

    attacks: tuple[LiveAttack, ...]
    workers: tuple[Worker, ...]
    claim: float | None

    @property
    def complete(self) -> bool:
        """Whether all trials are there."""
        return all(one.done >= one.wanted for one in self.attacks)

    @property
    def state(self) -> str:
        """Running, complete or incomplete."""
        if self.workers:
            return "running"
        return "complete" if self.complete else "incomplete"


class Watched:
    """An audit that is looked at again and again. Only blocks that are new are read at each look.

    The bound so far is a confidence sequence (:class:`~coalmine.auditing.progress.BoundSoFar`): it holds at every
    look, however many there are. The level is shared among the attacks.
    """

    def __init__(self, store: Store, record: AuditRecord) -> None:
        self._store = store
        self._lock = threading.Lock()
        question = record.config.audit
        relation = record.claim.relation if record.claim else Relation.ADD_REMOVE
        confidence = 1.0 - (1.0 - question.confidence) / len(record.members)
        self._claim = None if record.claim is None else epsilon_of(record.claim)
        self._attacks: list[tuple[Member, _Growing]] = []
        for member in record.members:
            for one in (member, member.control):
                if one is not None:
                    copies = 0 if one.design or one.attack.runs else one.attack.copies_under(relation)
                    so_far = BoundSoFar(delta=question.delta, confidence=confidence, copies=copies) if copies else None
                    self._attacks.append((one, _Growing(so_far, wanted=one.wanted)))

    def look(self) -> LiveAudit:
        """The audit as it is now."""
        with self._lock:
            runs = [member.run for member, _ in self._attacks]
            progress, workers = listing.progress(self._store, runs), listing.workers(self._store, runs)
            return LiveAudit(
                attacks=tuple(self._attack(member, growing, progress, workers) for member, growing in self._attacks),
                workers=workers,
                claim=self._claim,
            )

    def _attack(
        self, member: Member, growing: _Growing, progress: Mapping[str, Progress], workers: Sequence[Worker]
    ) -> LiveAttack:
        """One attack as it is now."""
        control = member.attack.control != 1.0
        if self._store.knows(member.run):
            growing.read(self._store, member.run)
        far = progress[member.run]
        done = min(far.trials, member.wanted)
        held = any(one.run == member.run for one in workers)
        rate = _rate(far) if held else None
        state = "complete" if done >= member.wanted else "running" if held else "waiting" if workers else "stopped"
        return LiveAttack(
            label=f"control: {member.attack.label}" if control else member.attack.label,
            run=member.run,
            control=control,
            wanted=member.wanted,
            done=done,
            played=growing.played,
            failed=growing.failed,
            failed_blocks=far.failed_blocks,
            rate=rate,
            left=(member.wanted - done) / rate if rate else None,
            state=state,
            points=tuple(growing.points),
            says="" if growing.bounded else "nothing can be said before all canaries are scored",
            devices=far.devices,
        )


def _rate(progress: Progress) -> float | None:
    """Trials a second, lately; None before it can be told."""
    span = time.time() - progress.since
    return progress.recent / span if progress.recent and span > 1.0 else None


class _Growing:
    """A run whose trials come in: counts by world, and the bound so far."""

    def __init__(self, so_far: BoundSoFar | None, *, wanted: int) -> None:
        self._so_far, self._wanted = so_far, wanted
        self._seen: set[int] = set()
        self._counts, self._lost = np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
        self.points: list[Point] = []

    @property
    def bounded(self) -> bool:
        """Whether anything can be said before all trials are there."""
        return self._so_far is not None

    @property
    def played(self) -> tuple[int, int]:
        """Trials in world 0 and in world 1."""
        return int(self._counts[0]), int(self._counts[1])

    @property
    def failed(self) -> tuple[int, int]:
        """Those of them that failed."""
        return int(self._lost[0]), int(self._lost[1])

    def read(self, store: Store, run: str) -> None:
        """Take in the blocks that are new since the last look."""
        new = store.done(run) - self._seen
        if not new:
            return
        trials = store.scores(run, below=self._wanted, blocks=new)
        parts = 1 if self._seen else _POINTS
        self._seen |= new
        for chosen in np.array_split(np.arange(len(trials)), min(parts, max(1, len(trials) // 64))):
            self._add(trials, chosen)
        if len(self.points) > _MOST_POINTS:  # the shape is enough: keep every other one
            self.points = self.points[::2]

    def _add(self, trials: Trials, chosen: np.typing.NDArray[np.int64]) -> None:
        """Some trials more."""
        world, score = trials.world[chosen], trials.score[chosen]
        for side in (0, 1):
            self._counts[side] += int((world == side).sum())
            self._lost[side] += int(np.isnan(score[world == side]).sum())
        if self._so_far is None:
            return
        self._so_far.add(trials.trial[chosen], world, score)
        bound = self._so_far.bound()
        if bound is not None:
            played = int(self._counts.sum())
            self.points.append(Point(trials=played, epsilon=bound.epsilon, ceiling=bound.ceiling or 0.0))
