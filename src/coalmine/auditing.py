"""``audit(config)``: the one place that joins the parts. Theory, evidence and meaning side by side.

Data goes one way: config → guarantee and heuristic → data → attack → blocks → store → bounds → result.
"""

from __future__ import annotations

import dataclasses
import functools
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
from coalmine import bounds, config, data
from coalmine.accounting import calibrate, last_iterate, standard
from coalmine.adversaries import Adversary, Attack, Scene, adversary
from coalmine.errors import InvalidInputError, StoreError, UnsupportedError
from coalmine.game import ACCURACY, BLOCK_SIZE, BuiltInTask, blocks_for
from coalmine.game.engines import local
from coalmine.identifiability import advantage, belief
from coalmine.persons import beliefs_of
from coalmine.records import DpSgd, Estimate, Guarantee, Heuristic, LowerBound, Relation, Sampling, Scores
from coalmine.results import AdversaryResult, AuditResult
from coalmine.roles import View
from coalmine.store import BlockResult, Store, Trials
from coalmine.training import (
    BernauCnn,
    Dataset,
    Glorot,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Network,
    Sgd,
    TrainingConfig,
    device_named,
    parameter_count,
)
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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The config made concrete: data, network, training, and what theory says about it."""

    config: config.AuditConfig
    base: Dataset
    test: Dataset
    classes: int
    picture: tuple[int, ...] | None
    data_hash: str
    data_note: str
    network: Network
    training: TrainingConfig
    sample_rate: float
    guarantee: Guarantee
    heuristic: Heuristic | None
    mechanism: DpSgd | None


def prepare(settings: config.AuditConfig, *, data_dir: str | None = None) -> Setting:
    """Load the data, build the network, resolve the noise; all of theory, before any training."""
    loaded = _load(settings.data, data_dir)
    network = _network(settings.model, loaded)
    base = Dataset(loaded.x_train.reshape(-1, *network.input_shape), loaded.y_train)
    test = Dataset(loaded.x_test.reshape(-1, *network.input_shape), loaded.y_test)
    training = settings.training
    rate, steps = training.rate(base.rows), training.step_count(base.rows)
    sampling = Sampling.parse(training.sampling)
    sigma = _noise(settings, rate=rate, steps=steps, sampling=sampling)
    mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=steps, sampling=sampling) if sigma > 0.0 else None
    guarantee, heuristic = _theory(mechanism, delta=settings.audit.delta)
    if training.noise_scale == "local":
        guarantee, heuristic = _local_theory(mechanism, delta=settings.audit.delta)
        mechanism = None  # of what is promised to everybody
    return Setting(
        config=settings,
        base=base,
        test=test,
        classes=loaded.classes,
        picture=loaded.image_shape,
        data_hash=loaded.content_hash,
        data_note=loaded.note,
        network=network,
        training=TrainingConfig(
            steps=steps,
            clip=training.clip,
            noise_multiplier=sigma,
            learning_rate=training.learning_rate,
            sample_rate=None if sampling is Sampling.FULL else rate,
            sampling=sampling,
            optimiser=Sgd(momentum=training.momentum),
            regulariser=training.regularizer,
            initialisation=Glorot(scale=training.initialization, seed=settings.audit.seed),
            dtype=training.dtype,
            products=training.products,
            noise_scale=training.noise_scale,
        ),
        sample_rate=rate,
        guarantee=guarantee,
        heuristic=heuristic,
        mechanism=mechanism,
    )


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


@functools.lru_cache(maxsize=2)
def _load(section: config.DataSection, data_dir: str | None) -> data.DataSet:
    """The data of the config; studies ask for the same data many times."""
    loaded = data.load(section.name, data_dir=data_dir)
    if section.standardize:
        loaded = data.standardize(loaded)
    if section.classes is None and section.rows_per_class is None and section.rows is None:
        return loaded
    return data.subset(loaded, classes=section.classes, per_class=section.rows_per_class, rows=section.rows)


def _network(section: config.ModelSection, loaded: data.DataSet) -> Network:
    """The network of the config, for this data."""
    if section.kind == "logistic":
        return LogisticRegression(loaded.features, classes=loaded.classes)
    if section.kind.startswith("cnn"):
        shape = loaded.image_shape
        if shape is None:
            raise UnsupportedError(
                f"model.kind = {section.kind!r} needs pictures, and the rows of {loaded.name} are none: use mlp or "
                "logistic"
            )
        network: Network = BernauCnn(shape, classes=loaded.classes)
        if section.kind == "cnn-nasr-2021":
            network = NasrCnn(shape, classes=loaded.classes, activation=section.activation)
        try:
            parameter_count(network)
        except InvalidInputError as error:
            raise UnsupportedError(f"model.kind = {section.kind!r} does not fit pictures of {shape}: {error}") from None
        return network
    return Mlp(loaded.features, hidden=section.hidden, classes=loaded.classes, activation=section.activation)


def _noise(settings: config.AuditConfig, *, rate: float, steps: int, sampling: Sampling) -> float:
    """σ: as given, or the smallest that keeps ε (or the ε behind a belief) within the target."""
    training = settings.training
    if training.noise_multiplier is not None:
        return training.noise_multiplier
    target = training.target_epsilon
    if training.target_belief is not None:
        target = belief.to_epsilon(training.target_belief)
    assert target is not None
    return calibrate.noise_multiplier(
        sample_rate=rate,
        steps=steps,
        epsilon=target,
        delta=settings.audit.delta,
        analysis=training.analysis.replace("-", "_"),
        sampling=sampling,
    ).noise_multiplier


@functools.lru_cache(maxsize=64)
def _theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """What is promised, and what is predicted for the last iterate."""
    if mechanism is None:
        return _nothing("there is no noise, so nothing is promised", delta=delta), None
    return standard.epsilon(mechanism, delta=delta), last_iterate.epsilon(mechanism, delta=delta)


def _nothing(reason: str, *, delta: float) -> Guarantee:
    """No promise, and why."""
    return Guarantee(
        epsilon=math.inf, delta=delta, analysis="none", relation=Relation.ADD_REMOVE, assumptions=(reason,)
    )


def _local_theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """With noise scaled to the local sensitivity of two data sets, theory speaks about these two alone."""
    nothing = _nothing(
        "the noise is scaled to the local sensitivity of the two data sets of each attack: what it hides is the "
        "difference between these two, so nothing is promised to any other person",
        delta=delta,
    )
    if mechanism is None:
        return nothing, None
    # Each step is a Gaussian mechanism whose noise is σ times the distance of its two means, exactly.
    pair = standard.epsilon(mechanism, delta=delta)
    predicted = Heuristic(
        epsilon=pair.epsilon,
        delta=delta,
        analysis="local_sensitivity",
        relation=Relation.ADD_REMOVE,
        assumptions=(
            "holds between the two data sets of an attack, whether a row is added, removed or replaced, and for no "
            "other neighbours of this data set",
            "bernau-2021, Section 5.1: noise scaled to the local sensitivity of the clipped gradients in every step",
        ),
    )
    return nothing, predicted


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


def distance(relation: Relation, copies: int) -> int:
    """How many rows must be added or removed to get from one world to the other.

    A row that is replaced is one taken away and one added: k replacements are 2k additions and removals.

    >>> distance(Relation.REPLACE, 4)
    8
    """
    return 2 * copies if relation is Relation.REPLACE else copies


def read_as(setting: Setting, attack: Attack) -> View:
    """The view under which bounds may read an attack's scores.

    The last iterate of linear losses is a plain sum of the steps. With momentum or a regulariser steps count unequally,
    and scores of such a training, read as that sum, would prove more than is true (docs/last-iterate.md).
    """
    training = attack.training or setting.training
    plain = training.optimiser == Sgd() and training.regulariser == 0.0
    return attack.evidence if plain else View.ALL_ITERATES


def scores_of(trials: Trials) -> Scores:
    """The scores of the two worlds. A training that failed counts with a score below all others: leaving it out would
    condition on success, and whether a training succeeds may itself tell the worlds apart.
    """
    values = trials.score
    finite = values[np.isfinite(values)]
    least = float(finite.min()) if finite.size else 0.0
    lowest = min(least - 1.0, float(np.nextafter(least, -np.inf)))  # the second for scores so large that 1 is lost
    filled = np.where(np.isfinite(values), values, lowest)
    return Scores(filled[trials.world == 0], filled[trials.world == 1])


def prove(
    scores: Scores,
    *,
    delta: float,
    confidence: float,
    relation: Relation,
    copies: int,
    mechanism: DpSgd | None = None,
    view: View = View.ALL_ITERATES,
) -> tuple[LowerBound, tuple[LowerBound | Estimate, ...]]:
    """The bound that assumes nothing, for the verdict; then what further methods make of the same scores.

    All are per row added or removed; for worlds that differ by replaced rows, bounds per row replaced come too. Where
    the ``mechanism`` is known, so is its family of trade-off curves, and only its noise is estimated: the curves of
    DP-SGD, and for one who sees no more than the final model those of its last iterate too.
    """
    rows = distance(relation, copies)
    first = bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows)
    others: list[LowerBound | Estimate] = [
        bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows, threshold=bounds.HoldOut()),
        bounds.lower_bound(scores, delta=delta, confidence=confidence, copies=rows, method="gdp"),
    ]
    if mechanism is not None and mechanism.relation is Relation.ADD_REMOVE:
        families = ("standard",) if view is View.ALL_ITERATES else ("standard", "last_iterate")
        others += [
            bounds.dpsgd(
                scores,
                delta=delta,
                confidence=confidence,
                copies=rows,
                sample_rate=mechanism.sample_rate,
                steps=mechanism.steps,
                sampling=mechanism.sampling,
                family=family,
            )
            for family in families
        ]
    if relation is Relation.REPLACE:
        others += [
            bounds.lower_bound(
                scores, delta=delta, confidence=confidence, copies=copies, method=method, relation=relation
            )
            for method in ("clopper_pearson", "gdp")
        ]
    return first, tuple(others)


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
