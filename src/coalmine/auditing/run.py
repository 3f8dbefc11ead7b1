"""``audit``: the one place that joins the parts. Theory, evidence and meaning side by side.

Data goes one way: config → guarantee and heuristic → data → attack → blocks → store → judge → result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coalmine import _validate
from coalmine.adversaries import Adversary, Attack, ManyCanaries, Scene, Settles, identity_of, resolve
from coalmine.auditing import config, judge
from coalmine.auditing.engine import open_engine
from coalmine.auditing.facts import AttackFacts, Subject
from coalmine.auditing.games import BaseGame, played
from coalmine.auditing.given import GivenData
from coalmine.auditing.one_run import OneRunGame
from coalmine.auditing.results import AuditResult
from coalmine.auditing.setting import Setting, prepare
from coalmine.auditing.stored import AuditRecord, Member
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.game import BLOCK_SIZE, Watcher
from coalmine.game.built_in import BuiltInTask
from coalmine.records import Claim, DpSgd, EpsilonClaim, MechanismClaim, Relation, content_hash, plain
from coalmine.roles import View
from coalmine.store import Store
from coalmine.training import (
    Dataset,
    GivenWeights,
    Network,
    Sgd,
    TrainingConfig,
    alone,
    check_pair,
    device_named,
    parameter_count,
)

ALGORITHMS = {"training": 2, "adversaries": 1, "blocks": BLOCK_SIZE}
"""Part of every fingerprint. Raise a number when a change alters what a score is, so that old trials are not reused."""
CONTROL = 0.5
"""The share of the noise that a positive control leaves."""


def audit(
    settings: config.AuditConfig | Mapping[str, Any] | str | Path | None = None,
    *,
    data: GivenData | None = None,
    model: Network | Any = None,
    adversaries: Sequence[str | Adversary] | None = None,
    store: Store | str | Path = "coalmine.db",
    execution: config.Execution | None = None,
    watcher: Watcher | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> AuditResult:
    """Play the privacy game against DP-SGD with every adversary of the config, and say what theory and evidence give.

    Trials are stored as they are done: a second call with the same config goes on where the first one stopped, and
    asking for more trials reuses those that are there. The level is shared among the adversaries.

    Args:
        settings: a config, the same as plain data, the path of a TOML file, or nothing for the built-in example.
        data: arrays (x, y) or (x, y, x_test, y_test), or a data set; the config has no section ``data`` then.
        model: a network of :mod:`coalmine.training` or a torch module; the config has no section ``model`` then.
        adversaries: names or objects, in the place of the config's.
        store: where trials are kept.
        execution: device, workers and the folder of data files; never changes a result.
        watcher: is told how it goes.
        name: what you call this audit, to find it again (``coalmine view``); never changes a result.
        tags: words to find it by, added to those that it has.

    Returns:
        Theory, evidence, meaning, and the verdict on the claim: the config's ``audit.claim_epsilon``, or else all that
        the mechanism promises.

    """
    how = execution or config.Execution()
    called, labels = None if name is None else _validate.label("name", name), _validate.labels("tags", tags)
    if not isinstance(settings, config.AuditConfig):
        written = settings is not None
        settings = config.parse(settings) if isinstance(settings, Mapping) else config.load(settings)
        if written:
            _check_given(settings, data=data, model=model)
    _check_devices(how)
    record, games = planned(settings, data_dir=how.data_dir, data=data, model=model, adversaries=adversaries)
    with Store.opened(store) as opened, open_engine(how) as engine:
        watching = watcher or Watcher()
        return played(
            opened, record, games, engine=engine, device=how.devices[0], watcher=watching, name=called, tags=labels
        )


def resume(
    record: AuditRecord, *, store: Path, execution: config.Execution, watcher: Watcher | None = None
) -> AuditResult:
    """Go on with a stored audit of a config; an error where a file that it reads is no longer what it was."""
    assert isinstance(record.config, config.AuditConfig)
    _check_devices(execution)
    found, games = planned(record.config, data_dir=execution.data_dir)
    changed = [one for one, before in zip(found.members, record.members, strict=True) if one.run != before.run]
    if changed:
        before, now = record.subject.details, found.subject.details
        reasons = [f"{key} was {before.get(key)} and is {now.get(key)}" for key in now if now[key] != before.get(key)]
        why = "; ".join(reasons) or "another data file, or an adversary that chooses otherwise by now"
        raise UnsupportedError(
            f"this audit cannot go on: its config now stands for other trainings ({why}): put back what it began with, "
            "or start anew with coalmine audit; what is stored stays"
        )
    with Store.opened(store) as opened, open_engine(execution) as engine:
        device, watching = execution.devices[0], watcher or Watcher()
        return played(opened, found, games, engine=engine, device=device, watcher=watching, name=None, tags=())


def _check_given(settings: config.AuditConfig, **given: object) -> None:
    """What comes from Python has no section of a config beside it, which would say something else and be ignored."""
    for name, value in given.items():
        if value is not None and name in settings.model_fields_set:
            raise InvalidInputError(
                f"{name} is given in Python and by the config's section {name} too: expected one of them; leave "
                f"[{name}] out of the config, or {name} out of the call"
            )


def _check_devices(how: config.Execution) -> None:
    """They are there; those of other machines cannot be asked."""
    if how.engine != "ray":
        for device in how.devices:
            device_named(device)


def planned(
    settings: config.AuditConfig,
    *,
    data_dir: str | None = None,
    data: GivenData | None = None,
    model: Network | Any = None,
    adversaries: Sequence[str | Adversary] | None = None,
) -> tuple[AuditRecord, Sequence[Game | OneRunGame]]:
    """The audit that a config asks for, before anything is trained: what it is, and every game to be played for it.

    Gives the audit's record, and its games, controls last. What comes from Python is as in :func:`audit`.
    """
    setting = prepare(settings, data_dir=data_dir, data=data, model=model)
    players = _players(settings, adversaries)
    given = {"data": data, "model": model, "adversaries": adversaries}
    claim = claim_of(setting)
    games = [game_of(setting, who, trials=trials) for who, trials in players]
    question = settings.audit
    for at, one in enumerate(games):
        label = one.facts.label
        for other in games[:at]:
            if one.run == other.run:
                same = "" if other.facts.label == label else f" (it comes to the same as {other.facts.label})"
                raise InvalidInputError(
                    f"adversary {label} is there twice{same}: its trainings would be judged twice; expected it once"
                )
    attacks = [one.facts for one in games for _ in range(one.facts.attacks)]
    judge.check(claim, attacks, delta=question.delta, confidence=question.confidence)
    each = 1.0 - (1.0 - question.confidence) / len(attacks)
    pairs = [_with_control(setting, who, one, claim, each) for (who, _), one in zip(players, games, strict=True)]
    record = AuditRecord(
        config=settings,
        subject=_of_pairs(
            subject_of(setting, given=tuple(name for name, value in given.items() if value is not None)), attacks
        ),
        claim=claim,
        members=tuple(member for member, _ in pairs),
    )
    return record, [*games, *(control for _, control in pairs if control)]


def _players(
    settings: config.AuditConfig, given: Sequence[str | Adversary] | None
) -> list[tuple[Adversary | config.AdversarySection, int]]:
    """Who plays, and how many trials each."""
    if given is not None:
        if isinstance(given, str) or not given:
            raise _validate.reject("adversaries", given, "a list of at least one adversary, such as ['clipbkd']")
        sections = [config.AdversarySection(name=one) if isinstance(one, str) else one for one in given]
        return [(one, settings.audit.trials) for one in sections]
    return [(section, section.trials or settings.audit.trials) for section in settings.adversary]


def claim_of(setting: Setting) -> Claim | None:
    """What is tested: the ε that the config claims, or else the whole curve of the mechanism; None without either."""
    question = setting.config.audit
    if question.claim_epsilon is not None:
        return EpsilonClaim(epsilon=question.claim_epsilon, delta=question.delta)
    return None if setting.mechanism is None else MechanismClaim(mechanism=setting.mechanism, delta=question.delta)


def subject_of(setting: Setting, *, given: tuple[str, ...] = ()) -> Subject:
    """The facts of what is audited; ``given`` names what came from Python in the place of the config's."""
    return Subject(
        name=setting.data_name,
        own=False,
        given=given,
        guarantee=setting.guarantee,
        heuristic=setting.heuristic,
        ran=setting.ran,
        local=setting.training.noise_scale == "local",
        data_note=setting.data_note,
        details={
            "rows": setting.base.rows,
            "parameters": parameter_count(setting.network),
            "steps": setting.training.steps,
            "sampling rate": setting.sample_rate,
            "noise multiplier": setting.training.noise_multiplier,
            "clipping norm": setting.training.clip,
            "accuracy of guessing": setting.guessing,
            **_start_details(setting),
        },
    )


def _of_pairs(subject: Subject, attacks: Sequence[AttackFacts]) -> Subject:
    """The same; what holds between the data sets of the attacks alone is said of neighbours like theirs."""
    predicted = subject.heuristic
    if not subject.local or predicted is None or any(one.relation is not Relation.REPLACE for one in attacks):
        return subject
    return dataclasses.replace(subject, heuristic=dataclasses.replace(predicted, relation=Relation.REPLACE))


def _start_details(setting: Setting) -> dict[str, str]:
    """Where every training started, where it was chosen: a file by its name, and all by their numbers."""
    start = setting.config.training.initialization
    if not isinstance(start, (config.FileStart, config.HeldOutStart)):
        return {}
    content = _training_identity(setting.training)["initialization"]["sha256"]
    if isinstance(start, config.FileStart):
        words = f"the weights in {_validate.shown(Path(start.file).name)} (sha256 of the numbers {content[:12]}…)"
    else:
        words = f"weights trained on {_validate.counted(start.held_out, 'held-out row')}"
    return {"start": words, "sha256 of the start": content}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Game(BaseGame):
    """One attack in two worlds, ready to be played."""

    setting: Setting
    attack: Attack

    @classmethod
    def of(
        cls,
        setting: Setting,
        player: Adversary,
        attack: Attack,
        *,
        options: Mapping[str, Any],
        trials: int,
        control: float = 1.0,
    ) -> Game:
        """The game of this attack on this setting."""
        identity = _identity(setting, player)
        if setting.training.noise_scale == "local":
            check_pair(attack.neighbours)
        facts = AttackFacts(
            name=identity["adversary"]["name"],
            options=plain(dict(options)),
            relation=Relation.parse(attack.neighbours.relation),
            copies=attack.neighbours.copies,
            view=player.threat.view,
            reads_as=_read_as(setting, attack),
            notes=attack.notes,
            powers={key: str(value) for key, value in dataclasses.asdict(player.threat).items()},
            log_odds=attack.distinguisher.log_odds,
            several=attack.distinguisher.several,
            trained=attack.shortcut is None,
            chosen_data=_chooses_data(setting, attack),
            control=control,
            added=Relation.parse(attack.neighbours.relation) is Relation.ADD_REMOVE,
        )
        return cls(setting=setting, attack=attack, facts=facts, identity=identity, trials=trials)

    def task(self, device: str) -> BuiltInTask:
        """What plays its trials."""
        attack, setting = self.attack, self.setting
        return BuiltInTask(
            fingerprint=self.run,
            network=attack.network or setting.network,
            neighbours=attack.neighbours,
            training=attack.training or setting.training,
            distinguisher=attack.distinguisher,
            test=setting.test if attack.network is None else None,
            shortcut=attack.shortcut,
            device=device,
        )

    ready = task


def _chooses_data(setting: Setting, attack: Attack) -> bool:
    """Whether the rows beside the canary, or what is learnt from them, are the adversary's choice."""
    base = attack.neighbours.base
    if attack.network is not None or not isinstance(base, Dataset):
        return True
    if base is setting.base:
        return False
    known = {row.tobytes() for row in setting.base.x}
    return not all(row.tobytes() in known for row in base.x)


def game_of(
    setting: Setting,
    who: Adversary | config.AdversarySection,
    *,
    trials: int,
    control: float = 1.0,
    promised: Setting | None = None,
) -> Game | OneRunGame:
    """Craft the attack of one adversary on this setting; ``trials`` are for games of many trainings.

    ``promised`` is the setting that a control stands beside: options that go by a training's numbers go by that one's.
    """
    section = who if isinstance(who, config.AdversarySection) else None
    given = {} if section is None else section.options
    player = resolve(who.name if isinstance(who, config.AdversarySection) else who, **given)
    options = given or _chosen(player)
    if isinstance(player, Settles):
        player = player.settled(_scene(promised or setting))
    attack = _crafted(player, _scene(setting))
    if isinstance(attack, Attack):
        return Game.of(setting, player, attack, options=options, trials=trials, control=control)
    if section is not None and section.trials is not None:
        raise InvalidInputError(
            f"trials = {section.trials} is not allowed for {section.name}: expected canaries (in one training) and runs"
        )
    return OneRunGame.of(setting, player, attack, identity=_identity(setting, player), options=plain(options))


def _crafted(player: Adversary, scene: Scene) -> Attack | ManyCanaries:
    """The attack of an adversary, who may be anybody's: it is one, and the promise tested is that of its training."""
    with alone():
        attack: object = player.craft(scene)
    if not isinstance(attack, (Attack, ManyCanaries)):
        raise InvalidInputError(
            f"{type(player).__name__}.craft gave {_validate.shown(attack)}: expected an Attack (or ManyCanaries) of "
            "coalmine.adversaries; does it return what it made?"
        )
    if attack.training is not None:
        base = attack.neighbours.base if isinstance(attack, Attack) else scene.base
        scene.check_promise(attack.training, rows=base.rows)
    return attack


def _chosen(player: Adversary) -> dict[str, Any]:
    """The options of an adversary from Python that are not their defaults, as far as a config could say them."""
    return {
        field.name: value
        for field in dataclasses.fields(player)  # type: ignore[arg-type]
        if isinstance(value := getattr(player, field.name), (bool, int, float, str)) and value != field.default
    }


def _scene(setting: Setting) -> Scene:
    """What every adversary knows beforehand."""
    return Scene(
        base=setting.base,
        classes=setting.classes,
        network=setting.network,
        training=setting.training,
        picture=setting.picture,
        held_out=setting.test,
        seed=setting.config.audit.seed,
    )


def _with_control(
    setting: Setting,
    who: Adversary | config.AdversarySection,
    game: Game | OneRunGame,
    claim: Claim | None,
    confidence: float,
) -> tuple[Member, Game | OneRunGame | None]:
    """A game as part of an audit, and the same attack on the training with half its noise.

    The control is played everywhere on request, else where it costs no training or just a few: one run.
    """
    wanted = setting.config.audit.control
    possible = claim is not None and setting.training.noise_multiplier > 0.0
    if isinstance(game, OneRunGame):
        against = game.control(CONTROL) if possible and wanted is not False else None
        plan = game.design(claim, confidence=confidence)
        return game.member(against.member(design=plan) if against else None, design=plan), against
    if not possible or wanted is False or (wanted is None and game.facts.trained):
        return game.member(), None
    noise = CONTROL * setting.training.noise_multiplier
    if noise < DpSgd.SMALLEST_NOISE:
        if wanted is None:
            return game.member(), None
        raise InvalidInputError(
            f"noise_multiplier = {setting.training.noise_multiplier!r} is too small for a control with half of it: "
            f"expected at least {DpSgd.SMALLEST_NOISE / CONTROL:g}, or audit.control = false (--no-control)"
        )
    training = dataclasses.replace(setting.training, noise_multiplier=noise)
    half = dataclasses.replace(setting, training=training)
    control = game_of(half, who, trials=game.trials, control=CONTROL, promised=setting)
    assert isinstance(control, Game)
    return game.member(control.member()), control


def _read_as(setting: Setting, attack: Attack) -> View:
    """The view under which bounds may read an attack's scores.

    The last iterate of linear losses is a plain sum of the steps. With momentum or a regularizer steps count unequally,
    and scores of such a training, read as that sum, would prove more than is true (docs/last-iterate.md).
    """
    training = attack.training or setting.training
    plain = training.optimizer == Sgd() and training.regularizer == 0.0
    return attack.evidence if plain else View.ALL_ITERATES


def _identity(setting: Setting, player: Adversary) -> dict[str, Any]:
    """All that shapes the distribution of a score, resolved: no default is left to be changed behind it."""
    return {
        "data": {"name": setting.data_name, "content": setting.data_hash},
        "model": setting.network_identity,
        "training": _training_identity(setting.training),
        "adversary": identity_of(player),
        "seed": setting.config.audit.seed,
        "algorithms": ALGORITHMS,
    }


def _training_identity(training: TrainingConfig) -> dict[str, Any]:
    """All numbers of a training; given weights by their content."""
    made = dataclasses.asdict(training)
    if isinstance(training.initialization, GivenWeights):
        made["initialization"] = {"sha256": content_hash({"weights": training.initialization.values})}
    return made
