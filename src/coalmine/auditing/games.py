"""A game of an audit, whatever its kind: known by the fingerprint of its identity, played in blocks, stored."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from coalmine.auditing.facts import AttackFacts, fingerprint
from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, Member, conclude_and_keep
from coalmine.game import Engine, Task, Watcher, blocks_for, play
from coalmine.game.machine import versions
from coalmine.one_run.design import Design
from coalmine.records import Relation
from coalmine.store import Store, Trials


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class BaseGame:
    """One attack, ready to be played: its facts, its identity, its number of trials.

    ``called`` is its name while it is played, and ``relation`` the one in whose steps its worlds are counted apart.
    """

    facts: AttackFacts
    identity: Mapping[str, Any]
    trials: int
    called: str = ""
    relation: Relation = Relation.ADD_REMOVE

    @property
    def run(self) -> str:
        """The run's fingerprint."""
        return fingerprint(self.identity)

    def member(self, control: Member | None = None, *, design: Design | None = None) -> Member:
        """The run as part of an audit."""
        return Member(run=self.run, attack=self.facts, wanted=self.trials, control=control, design=design)

    def register(self, store: Store) -> None:
        """Make the run known to the store."""
        about = {"identity": dict(self.identity), "attack": self.facts.to_dict(), "versions": versions()}
        store.register(self.run, about)

    def play(self, store: Store, *, engine: Engine, device: str, watcher: Watcher) -> Trials:
        """Bring the attack to its number of trials; what is stored is not trained again."""
        # Canaries of one training depend on each other: nothing can be said before all are there.
        copies = 0 if self.facts.runs else self.facts.copies_under(self.relation)
        label = self.facts.label if self.facts.control == 1.0 else f"control: {self.facts.label}"
        watcher.begin(
            self.called or label, trials=self.trials, copies=copies, done=store.parts(self.run, below=self.trials)
        )
        missing = self.missing(store.done(self.run))
        if missing:
            play(self.ready(device), blocks=missing, store=store, engine=engine, watcher=watcher)
        watcher.end()
        return store.scores(self.run, below=self.trials)

    def missing(self, done: set[int]) -> Sequence[int]:
        """The blocks that are not stored yet."""
        return blocks_for(self.trials, done=done)

    def ready(self, device: str) -> Task:
        """What plays its trials, ready to be sent away."""
        raise NotImplementedError


def played(
    store: Store,
    record: AuditRecord,
    games: Sequence[BaseGame],
    *,
    engine: Engine,
    device: str,
    watcher: Watcher,
    name: str | None,
    tags: Sequence[str],
) -> AuditResult:
    """Keep what the audit is, play all its games, and judge it."""
    for one in games:
        one.register(store)
    members = {one.run: one.trials for one in games}
    store.record_audit(record.name, record.to_dict(), members=members, name=name, tags=tags)
    for one in games:
        one.play(store, engine=engine, device=device, watcher=watcher)
    return conclude_and_keep(store, record)
