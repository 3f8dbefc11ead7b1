"""``audit(config)``: the one place that joins the parts. Theory, evidence and meaning side by side.

Data goes one way: config → guarantee and heuristic → data → attack → blocks → store → bounds → result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import coalmine
from coalmine import bounds
from coalmine.adversaries import Adversary, Attack, Scene, adversary
from coalmine.auditing import config
from coalmine.auditing.persons import beliefs_of
from coalmine.auditing.proof import distance, prove, read_as, scores_of
from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.auditing.setting import Setting, prepare
from coalmine.errors import StoreError
from coalmine.game import ACCURACY, BLOCK_SIZE, BuiltInTask, blocks_for
from coalmine.game.engines import local
from coalmine.identifiability import advantage, belief
from coalmine.records import LowerBound, Scores
from coalmine.store import BlockResult, Store, Trials
from coalmine.training import device_named, parameter_count
from coalmine.training.pair import check_pair

ALGORITHMS = {"training": 2, "adversaries": 1, "blocks": BLOCK_SIZE}
"""Part of every fingerprint. Raise a number when a change alters what a score is, so that old trials are not reused."""


class Watcher(Protocol):
    """Is told how the audit goes; never changes it."""

    def begin(self, label: str, *, trials: int, copies: int, done: Trials) -> None:
        """An adversary starts: this many trials are wanted, these are stored already."""
        ...

    def block(self, result: BlockResult) -> None:
        """A block is done and stored."""
        ...

    def end(self) -> None:
        """The adversary has all its trials."""
        ...


class Nobody:
    """A watcher that does not look."""

    def begin(self, label: str, *, trials: int, copies: int, done: Trials) -> None:
        """Nothing."""

    def block(self, result: BlockResult) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


def audit(
    settings: config.AuditConfig | Mapping[str, Any] | str | Path | None = None,
    *,
    store: Store | str | Path = "coalmine.db",
    execution: config.Execution | None = None,
    watcher: Watcher | None = None,
    train: bool = True,
) -> AuditResult:
    """Play the privacy game against DP-SGD with every adversary of the config, and say what theory and evidence give.

    ``settings`` is a config, the same as plain data, the path of a TOML file, or nothing for the built-in example.
    Trials are stored as they are done: a second call with the same config goes on where the first one stopped, and
    asking for more trials reuses those that are there. The level is shared among the adversaries, so that all their
    bounds hold together at the stated confidence.

    With ``train=False`` nothing is trained and nothing is written: the result says what the stored trials prove, and an
    adversary without trials in both worlds is left out.
    """
    how = execution or config.Execution()
    if not isinstance(settings, config.AuditConfig):
        settings = config.parse(settings) if isinstance(settings, Mapping) else config.load(settings)
    if not isinstance(store, Store):
        with Store.open(store) as opened:
            return audit(settings, store=opened, execution=how, watcher=watcher, train=train)
    setting = prepare(settings, data_dir=how.data_dir)
    level = (1.0 - settings.audit.confidence) / len(settings.adversary)
    # Found out now, not after the training: a confidence that the bound cannot reach.
    bounds.lower_bound(Scores([0.0, 0.0], [1.0, 1.0]), delta=settings.audit.delta, confidence=1.0 - level)
    sections = [
        section for section in settings.adversary if train or store.done(fingerprint(_identity(setting, section)))
    ]
    attacks = [craft(setting, section) for section in sections]  # what does not fit is found before any training
    results = []
    with local.Workers(how.worker_count) as workers:
        for section, attack in zip(sections, attacks, strict=True):
            played = play_adversary(
                setting,
                section,
                attack=attack,
                store=store,
                how=how,
                watcher=watcher or Nobody(),
                train=train,
                workers=workers,
            )
            if len(played.trials) >= 2:
                results.append(_judge(setting, section, played, level=level))
    if not results:
        raise StoreError(
            f"store {str(store.path)!r} has no trials of this audit yet: run coalmine audit with the same config first"
        )
    claim = settings.audit.claim_epsilon or setting.guarantee.epsilon
    strongest = max(results, key=lambda one: one.bound.epsilon)
    return AuditResult(
        config=settings,
        mechanism={
            "sample_rate": setting.sample_rate,
            "steps": setting.training.steps,
            "noise_multiplier": setting.training.noise_multiplier,
            "clip": setting.training.clip,
            "rows": setting.base.rows,
            "parameters": parameter_count(setting.network),
        },
        data_note=setting.data_note,
        guarantee=setting.guarantee,
        heuristic=setting.heuristic,
        adversaries=tuple(results),
        belief=_belief(setting, strongest.bound),
        advantage=_advantage(setting),
        claim=claim,
        verdict="refuted" if strongest.bound.epsilon > claim else "consistent",
        versions=versions(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """An adversary's stored trials and the attack that gave them."""

    attack: Attack
    fingerprint: str
    trials: Trials

    @property
    def accuracy(self) -> float | None:
        """Mean share of right answers on test rows of the models of world 0; None where none was kept."""
        if ACCURACY not in self.trials.columns:
            return None
        kept = self.trials.in_world(0, column=ACCURACY)
        kept = kept[np.isfinite(kept)]
        return float(kept.mean()) if kept.size else None


def craft(setting: Setting, section: config.AdversarySection) -> Attack:
    """The attack of one adversary on this setting."""
    attack = adversary(section.name, **section.options).craft(
        Scene(
            base=setting.base,
            classes=setting.classes,
            network=setting.network,
            training=setting.training,
            picture=setting.picture,
            held_out=setting.test if setting.test.rows else None,
            seed=setting.config.audit.seed,
        )
    )
    if setting.training.noise_scale == "local":
        check_pair(attack.neighbours)
    return attack


def play_adversary(
    setting: Setting,
    section: config.AdversarySection,
    *,
    store: Store,
    how: config.Execution,
    watcher: Watcher,
    attack: Attack | None = None,
    train: bool = True,
    workers: local.Workers | None = None,
) -> Played:
    """Bring the attack (crafted here, unless given) to its number of trials; what is stored is not trained again.

    Who plays several in a row may let them share their ``workers``, of which there are as many as ``how`` says.
    """
    if train:
        device_named(how.device)  # before anything is crafted: an attack with a shortcut never asks the trainer
    attack = attack or craft(setting, section)
    identity = _identity(setting, section)
    name = fingerprint(identity)
    wanted = section.trials or setting.config.audit.trials
    if not train:
        return Played(attack=attack, fingerprint=name, trials=store.scores(name, below=wanted))
    settings = setting.config.model_dump(mode="json", exclude_none=True)
    store.register(name, {"identity": identity, "trials": wanted, "versions": versions(), "config": settings})
    task = BuiltInTask(
        fingerprint=name,
        network=attack.network or setting.network,
        neighbours=attack.neighbours,
        training=attack.training or setting.training,
        distinguisher=attack.distinguisher,
        test=setting.test if setting.test.rows and attack.network is None else None,
        shortcut=attack.shortcut,
        device=how.device,
    )
    watcher.begin(
        _label(section),
        trials=wanted,
        copies=distance(attack.neighbours.relation, attack.neighbours.copies),
        done=store.scores(name, below=wanted),
    )
    missing = blocks_for(wanted, done=store.done(name))
    local.run(task, blocks=missing, store=store, workers=workers or how.worker_count, on_block=watcher.block)
    watcher.end()
    return Played(attack=attack, fingerprint=name, trials=store.scores(name, below=wanted))


def _judge(setting: Setting, section: config.AdversarySection, played: Played, *, level: float) -> AdversaryResult:
    """What the scores of one adversary prove."""
    who: Adversary = adversary(section.name, **section.options)
    neighbours = played.attack.neighbours
    scores = scores_of(played.trials)
    bound, others = prove(
        scores,
        delta=setting.config.audit.delta,
        confidence=1.0 - level,
        relation=neighbours.relation,
        copies=neighbours.copies,
        mechanism=setting.mechanism,
        view=read_as(setting, played.attack),
    )
    beliefs = None
    if getattr(played.attack.distinguisher, "log_odds", False):
        beliefs = beliefs_of(
            played.trials,
            relation=neighbours.relation,
            training=setting.training,
            sample_rate=setting.sample_rate,
            delta=setting.config.audit.delta,
            confidence=1.0 - level,
        )
    return AdversaryResult(
        name=section.name,
        options=section.options,
        view=who.threat.view,
        relation=neighbours.relation,
        copies=neighbours.copies,
        fingerprint=played.fingerprint,
        wanted=section.trials or setting.config.audit.trials,
        failed=played.trials.failed,
        bound=bound,
        others=others if beliefs is None else (*others, *beliefs.estimates),
        notes=played.attack.notes,
        seconds=played.trials.elapsed,
        powers={key: str(value) for key, value in dataclasses.asdict(who.threat).items()},
        accuracy=played.accuracy,
        scores=scores,
        beliefs=beliefs,
    )


def _belief(setting: Setting, proved: LowerBound) -> dict[str, float]:
    """How sure one who starts at one half can become: at most (theory), and at least in some runs (evidence)."""
    promised = setting.guarantee.epsilon
    return {
        "guarantee": belief.from_epsilon(promised) if promised < math.inf else 1.0,
        "evidence": belief.from_epsilon(proved.epsilon),
    }


def _advantage(setting: Setting) -> dict[str, float]:
    """By how much the best guess of membership beats a coin, at most: the total variation distance."""
    if setting.mechanism is None:
        return {"guarantee": 1.0}
    return {"guarantee": advantage.of_mechanism(setting.mechanism)}


def _identity(setting: Setting, section: config.AdversarySection) -> dict[str, Any]:
    """All that shapes the distribution of a score, and nothing else."""
    training = dataclasses.asdict(setting.training)
    if training["noise_scale"] == "clip":
        del training["noise_scale"]  # trials of the ordinary kind keep the names they had before there was another
    return {
        "data": {"name": setting.config.data.name, "content": setting.data_hash},
        "model": setting.config.model.model_dump(mode="json"),
        "training": training,
        "adversary": {"name": section.name, **section.options},
        "seed": setting.config.audit.seed,
        "algorithms": ALGORITHMS,
    }


def fingerprint(identity: Mapping[str, Any]) -> str:
    """SHA-256 of the identity in canonical JSON.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _label(section: config.AdversarySection) -> str:
    words = ", ".join(f"{key}={value}" for key, value in section.options.items())
    return f"{section.name} ({words})" if words else section.name


def versions() -> dict[str, str]:
    """What computed the result."""
    packages = ("numpy", "scipy", "torch", "dp-accounting")
    return {
        "coalmine": coalmine.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }
