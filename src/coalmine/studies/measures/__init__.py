"""What a study can measure, by name: each measure turns a cell's config into numbers.

A measure is two functions: which audits it needs trained (so that trainings can be done apart, on another machine),
and what it makes of them. A measure of theory alone needs none.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from coalmine.auditing.config import AdversarySection, AuditConfig, AuditSection, Execution
from coalmine.auditing.judge import Evidence
from coalmine.auditing.run import game_of
from coalmine.auditing.setting import Setting
from coalmine.game import Engine, Watcher
from coalmine.store import Store
from coalmine.studies.cells import Cell, Scale, Study


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Where trainings are kept, how they are run and by which engine, and who is told."""

    store: Store
    how: Execution
    watcher: Watcher
    engine: Engine

    def play(self, setting: Setting, section: AdversarySection) -> Evidence:
        """Bring one adversary of an audit to its number of trials."""
        game = game_of(setting, section, trials=section.trials or setting.config.audit.trials)
        game.register(self.store)
        trials = game.play(self.store, engine=self.engine, device=self.how.devices[0], watcher=self.watcher)
        return Evidence(run=game.run, attack=game.facts, trials=trials, wanted=game.trials)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What a measure found. ``ours`` stands beside the published value; ``columns`` are further values, in order.

    ``proved`` is the largest lower bound at the ``guarantee``'s δ and relation: a bound above the guarantee makes the
    cell INVALID. ``delta`` and ``confidence`` are those of ``proved``; ``played`` says how much evidence there was, as
    counts of ``trials`` (both worlds together), ``draws`` (in each world), ``canaries`` or ``audits``; theory alone has
    none. ``details`` go to JSON alone.
    """

    ours: float
    columns: Mapping[str, float | str | None] = dataclasses.field(default_factory=dict)
    proved: float | None = None
    guarantee: float | None = None
    delta: float | None = None
    confidence: float | None = None
    played: Mapping[str, int] = dataclasses.field(default_factory=dict)
    trials: int = 0
    seconds: float = 0.0
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def behind(question: AuditSection, *played: Evidence) -> dict[str, Any]:
    """What stands behind a measure of audits: their δ and confidence, how many trials, and how long they took."""
    trials, seconds = sum(len(one.trials) for one in played), sum(one.trials.elapsed for one in played)
    return {"delta": question.delta, "confidence": question.confidence, "trials": trials, "seconds": seconds}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measure:
    """``audits(study, cell, scale)`` are the audits that must be trained; ``measure`` trains what is missing and
    computes. ``columns`` explains each further column in a few words.
    """

    measure: Callable[[Study, Cell, Scale, Bench], Measured]
    audits: Callable[[Study, Cell, Scale], tuple[AuditConfig, ...]] = lambda study, cell, scale: ()
    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)


def find(name: str) -> Measure:
    """The measure of that name; its module is imported only now: some need torch, others only theory."""
    module, attribute = _PLACES[name].split(".")
    found: Measure = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return found


_PLACES = {
    "accounting": "accounting.MEASURE",
    "beliefs": "beliefs.MEASURE",
    "canary-each-step": "known_laws.EVERY_STEP",
    "copies": "copies.MEASURE",
    "evidence": "evidence.MEASURE",
    "final-model": "final_model.MEASURE",
    "last-iterate-baselines": "last_iterate_theory.BASELINES",
    "last-iterate-ratio": "last_iterate_theory.RATIO",
    "one-run": "one_run.MEASURE",
    "one-run-coordinates": "one_run.COORDINATES",
    "one-run-ideal": "one_run.IDEAL",
    "promises": "promises.MEASURE",
    "replaced-row": "known_laws.REPLACED",
}
