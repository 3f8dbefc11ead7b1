"""``audit_function``: the privacy game against a training that the user wrote.

``train(dataset, seed)`` gives a model (or whatever is released), ``score(model)`` one number that is larger when the
model looks like world 1. All else is as in :func:`coalmine.auditing.run.audit`: blocks, store, judge, verdict.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from coalmine import _validate
from coalmine.auditing import judge
from coalmine.auditing.config import AuditSection, Execution, FunctionConfig
from coalmine.auditing.engine import open_engine
from coalmine.auditing.facts import AttackFacts, Subject, fingerprint
from coalmine.auditing.games import BaseGame, played
from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, Member
from coalmine.errors import InvalidInputError
from coalmine.game import BLOCK_SIZE, Watcher
from coalmine.integrations import identity
from coalmine.integrations.known import Known
from coalmine.integrations.rows import check_neighbours
from coalmine.integrations.task import FunctionTask, Score, Train, build, check_signatures, contents, title
from coalmine.integrations.terminal import progress
from coalmine.integrations.worlds import GivenWorlds, Worlds
from coalmine.records import Claim, DpSgd, EpsilonClaim, MechanismClaim, Relation, Sampling
from coalmine.roles import View
from coalmine.store import Store

NAME = "own training"
ALGORITHMS = {"own training": 2, "blocks": BLOCK_SIZE}
"""Part of every fingerprint. Raise a number when a change alters what a score is, so that old trials are not reused."""


def audit_function(
    train: Train,
    score: Score | Mapping[str, Score],
    *,
    worlds: GivenWorlds,
    claim: Claim | None = None,
    claim_epsilon: float | None = None,
    claim_dpsgd: DpSgd | None = None,
    control: Train | None = None,
    delta: float | None = None,
    confidence: float = 0.99,
    trials: int = 1000,
    seed: int = 0,
    workers: int = 1,
    timeout: float | None = None,
    batched: int | None = None,
    threads: int | None = None,
    depends_on: Mapping[str, Any] | None = None,
    messages: bool = False,
    store: Store | str | Path = "coalmine.db",
    execution: Execution | None = None,
    watcher: Watcher | None = None,
    name: str | None = None,
    tags: Sequence[str] = (),
) -> AuditResult:
    """Play the privacy game against ``train`` and test what is claimed for it.

    A claimed DP-SGD says more than an ε at one δ (its whole trade-off curve is tested), so far fewer trials refute it.

    Args:
        train: called once for each trial as ``train(dataset, seed)``, on the data set of that trial's world.
        score: ``score(model)`` or ``score(model, canary)`` gives one number, larger for world 1; several by name share
            the level.
        worlds: a pair of data sets, :class:`Worlds` (see :func:`neighbours`), or a function that builds either.
        claim: what is claimed, under the relation of ``worlds``; or one of the two short forms that follow.
        claim_epsilon: the claim "(ε, δ)-DP" with this ε and ``delta``.
        claim_dpsgd: the claim "no more than this DP-SGD releases".
        control: a broken twin of ``train`` (half its noise, say): an audit that does not refute it is inconclusive.
        delta: where ε is stated: that of ``claim``, or 1e-5 without one.
        confidence: of the verdict.
        trials: trainings, both worlds together.
        seed: another one gives other seeds to the trainings.
        workers: processes that train at once (0: one for each core).
        timeout: the most seconds that one training may take; with ``batched`` one call.
        batched: ``train`` trains many: it is called as ``train(dataset, seeds)`` with an array of at most this many
            seeds, and gives as many models, in their order.
        threads: the most threads that torch and the BLAS libraries may use in each process.
        depends_on: what else decides a training, by any name: values, or paths of files and folders that it reads. A
            file that it reads and that is not named stops the game: trials would be reused when it has changed.
        messages: whether to keep what exceptions say, and texts bound to the functions, in the store and the report:
            they may quote the data.
        store: where trials are kept, and reused as long as nothing that shapes them has changed.
        execution: another engine than processes of this machine (``Execution(engine="ray")``), or its GPUs
            (``Execution(device="cuda:0,cuda:1")``: a process for each, which sees that one alone), in the place of
            ``workers``.
        watcher: is told how it goes. Without one there is a progress bar on a terminal and in a notebook.
        name: what you call this audit, to find it again (``coalmine view``); never changes a result.
        tags: words to find it by, added to those that it has.

    Returns:
        What was proved, and the verdict on the claim.

    """
    section = _section(
        delta=_delta(claim, delta),
        confidence=confidence,
        trials=trials,
        seed=seed,
        claim=_epsilon(claim, claim_epsilon),
    )
    called, labels = None if name is None else _validate.label("name", name), _validate.labels("tags", tags)
    limit = None if timeout is None else _validate.positive("timeout", timeout)
    limited = None if threads is None else _validate.integer("threads", threads, at_least=1)
    many = None if batched is None else _validate.integer("batched", batched, at_least=1)
    how = Execution(workers=workers) if execution is None else execution
    if how.engine != "local" and how.device not in ("cpu", "cuda"):
        raise _validate.reject("device", how.device, f"'cpu' or 'cuda' with engine = {how.engine!r}")
    if how.engine == "inline" and limit is not None:
        raise InvalidInputError("timeout is not allowed with engine = 'inline': it needs a process that can be ended")
    scoring = checked_scores(train, score, control)
    built = build(worlds)
    added = check_neighbours(built)
    content = contents(built)  # once: data may be large
    said = _claim(claim, claim_epsilon, claim_dpsgd, delta=section.delta, worlds=built)
    settings = FunctionConfig(
        train=title(train, texts=messages),
        score=", ".join(title(one, texts=messages) for one in scoring.values()),
        worlds=title(worlds, texts=messages) if callable(worlds) else "",
        relation=built.relation.value,
        copies=built.copies,
        added=True if added else None,
        mechanism=said.mechanism if isinstance(said, MechanismClaim) else None,
        audit=section,
    )
    several = tuple(scoring) if isinstance(score, Mapping) else ()
    facts = own_facts(settings, several=several)
    judge.check(said, [facts] * len(scoring), delta=section.delta, confidence=section.confidence)
    tasks = own_tasks(
        train,
        scoring,
        worlds=worlds,
        built=built,
        content=content,
        control=control,
        seed=section.seed,
        depends_on=depends_on,
        batched=many,
        threads=limited,
        timeout=limit,
        messages=messages,
    )
    names = [f"{NAME} ({settings.train})", *(f"control ({title(one.train)})" for one in tasks[1:])]
    record = own_record(
        settings,
        runs=[one.fingerprint for one in tasks],
        several=several,
        control=None if control is None else title(control, texts=messages),
    )
    games = [
        OwnGame(
            task=one,
            facts=member.attack,
            identity=one.identity,
            trials=member.wanted,
            called=known_as,
            relation=built.relation,
            travels=how.engine != "inline",
        )
        for one, member, known_as in zip(tasks, record.members[0].with_control, names, strict=True)
    ]
    with (
        Store.opened(store) as opened,
        open_engine(how) as engine,
        contextlib.nullcontext(watcher) if watcher is not None else progress() as watching,
    ):
        return played(
            opened, record, games, engine=engine, device=how.devices[0], watcher=watching, name=called, tags=labels
        )


def own_record(
    config: FunctionConfig, *, runs: Sequence[str], several: tuple[str, ...] = (), control: str | None = None
) -> AuditRecord:
    """The audit of a user's own training, when it is played and when it is checked: all that is kept but its trials.

    Nothing else is known of such a training than what is claimed for it: nothing is promised, and no noise is known.

    Args:
        config: what is asked, with the names of what was run.
        runs: the fingerprint of the training's run, then of its control's where there is one.
        several: the names of its scores, where they have names.
        control: what the control is called.

    """
    first, *twins = runs
    facts, claim, wanted = own_facts(config, several=several), own_claim(config), config.audit.trials
    broken = dataclasses.replace(facts, control=0.0, several=())
    return AuditRecord(
        config=config,
        subject=Subject(
            name=config.train,
            own=True,
            details={
                "train": config.train,
                "score": config.score,
                **({} if control is None else {"control": control}),
                **_claimed(claim),
            },
        ),
        claim=claim,
        members=(
            Member(
                run=first,
                attack=facts,
                wanted=wanted,
                control=Member(run=twins[0], attack=broken, wanted=wanted) if twins else None,
            ),
        ),
    )


def own_facts(config: FunctionConfig, *, several: tuple[str, ...]) -> AttackFacts:
    """What is known of the attack by a user's own score."""
    return AttackFacts(
        name=NAME,
        relation=Relation.parse(config.relation),
        copies=config.copies,
        view=View.FINAL_MODEL,
        several=several,
        added=config.added is True,
    )


def own_claim(config: FunctionConfig) -> Claim | None:
    """What is claimed for a user's own training, under the relation of its worlds."""
    section = config.audit
    if config.mechanism is not None:
        return MechanismClaim(mechanism=config.mechanism, delta=section.delta)
    if section.claim_epsilon is None:
        return None
    return EpsilonClaim(epsilon=section.claim_epsilon, delta=section.delta, relation=Relation.parse(config.relation))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OwnGame(BaseGame):
    """One training function to be played: the user's, or its broken twin. ``travels``: to other processes."""

    task: FunctionTask
    travels: bool

    def ready(self, device: str) -> FunctionTask:
        """The task on that device."""
        task = self.task.on(device)
        if self.travels:
            _check_portable(task)
        return task


def checked_scores(train: Train, score: Score | Mapping[str, Score], control: Train | None) -> dict[str, Score]:
    """The scores by name; an error unless all of it are functions that can be called as they will be."""
    scoring = dict(score) if isinstance(score, Mapping) else {"score": score}
    if not scoring:
        raise _validate.reject("score", score, "a function, or at least one by name")
    for role, function in _by_role(train, scoring, control):
        identity.check_function(role, function)
    for one in scoring.values():
        check_signatures(train, one)
    return scoring


def _by_role(train: Train, scoring: Mapping[str, Score], control: Train | None) -> list[tuple[str, Callable[..., Any]]]:
    return [("train", train), *scoring.items(), *([("control", control)] if control is not None else [])]


def own_tasks(
    train: Train,
    scoring: Mapping[str, Score],
    *,
    worlds: GivenWorlds,
    built: Worlds,
    content: tuple[str, ...] | None,
    control: Train | None = None,
    seed: int = 0,
    depends_on: Mapping[str, Any] | None = None,
    batched: int | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    messages: bool = False,
) -> list[FunctionTask]:
    """What plays these functions, with its identity: the training first, then its control where there is one.

    ``built`` are the ``worlds`` as they were given, built, and ``content`` the hashes of their data, where they have
    some; all else is as in :func:`audit_function`.
    """
    trainings = [train] if control is None else [train, control]
    named = _by_role(train, scoring, control)
    known = Known.of([*named, *([("worlds", worlds)] if callable(worlds) else [])], depends_on=_named(depends_on))
    found = []
    for role, function in zip(("train", "control"), trainings, strict=False):
        # A function may go another way where it gets many seeds. How many they are is no matter, and neither is all of
        # it where the trainings of a call are known to be apart.
        many = batched is not None and not getattr(function, "by_seed", False)
        who = _identity(function, scoring, worlds, built, content, known, seed=seed, many=many)
        found.append(
            FunctionTask(
                fingerprint=fingerprint(who),
                identity=who,
                train=function,
                role=role,
                scores=tuple(scoring.items()),
                worlds=worlds if callable(worlds) else built,
                contents=content,
                known=known,
                batched=batched,
                threads=threads,
                timeout=timeout,
                messages=messages,
            )
        )
    return found


def _claim(
    claim: Claim | None, epsilon: float | None, mechanism: DpSgd | None, *, delta: float, worlds: Worlds
) -> Claim:
    """What is claimed: exactly one of the three ways, under the relation of the worlds."""
    given = [
        name
        for name, value in (("claim", claim), ("claim_epsilon", epsilon), ("claim_dpsgd", mechanism))
        if value is not None
    ]
    if not given:
        raise InvalidInputError("claim_epsilon is missing: expected the ε that is claimed, or claim_dpsgd")
    if len(given) > 1:
        raise InvalidInputError(f"{given[0]} is not allowed beside {given[1]}: expected one of them")
    if epsilon is not None:
        return EpsilonClaim(epsilon=epsilon, delta=delta, relation=worlds.relation)
    if mechanism is not None:
        _validate.instance("claim_dpsgd", mechanism, DpSgd)
        claim = MechanismClaim(mechanism=mechanism, delta=delta)
    assert claim is not None
    if claim.relation is not worlds.relation:
        raise InvalidInputError(
            f"{given[0]} is for neighbours by {claim.relation.value!r}, the worlds differ by "
            f"{worlds.relation.value!r}: expected the same relation"
        )
    return claim


def _delta(claim: Claim | None, delta: float | None) -> float:
    """The δ of the question: a claim has its own."""
    if claim is None:
        return 1e-5 if delta is None else delta
    _validate.instance("claim", claim, (EpsilonClaim, MechanismClaim))
    if delta is not None and delta != claim.delta:
        raise InvalidInputError(f"delta = {delta!r} is not allowed: expected that of the claim, {claim.delta!r}")
    return claim.delta


def _epsilon(claim: Claim | None, epsilon: float | None) -> float | None:
    """The claimed ε, however it was given."""
    return claim.epsilon if isinstance(claim, EpsilonClaim) else epsilon


def _claimed(claim: Claim | None) -> dict[str, Any]:
    """A claimed mechanism for people."""
    if not isinstance(claim, MechanismClaim):
        return {}
    mechanism = claim.mechanism
    return {
        "claimed sampling rate": mechanism.sample_rate,
        "claimed noise multiplier": mechanism.noise_multiplier,
        "claimed steps": mechanism.steps,
        "claimed sampling": mechanism.sampling.value,
    }


def _section(*, delta: float, confidence: float, trials: int, seed: int, claim: float | None) -> AuditSection:
    """The question, checked."""
    return AuditSection(
        delta=_validate.open_unit("delta", delta),
        confidence=_validate.open_unit("confidence", confidence),
        trials=_validate.integer("trials", trials, at_least=4),
        seed=_validate.integer("seed", seed, at_least=0),
        claim_epsilon=None if claim is None else _validate.positive("claim_epsilon", claim),
    )


def _named(depends_on: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the user names, checked."""
    _validate.instance("depends_on", depends_on or {}, Mapping)
    found = {str(name): value for name, value in (depends_on or {}).items()}
    identity.named_parts(found)
    return found


def _identity(
    train: Train,
    scoring: Mapping[str, Score],
    worlds: GivenWorlds,
    built: Worlds,
    content: tuple[str, ...] | None,
    known: Known,
    *,
    seed: int,
    many: bool,
) -> dict[str, Any]:
    """All that shapes the distribution of a score, and nothing else."""
    if content is None and "worlds" not in known.depends_on:
        raise InvalidInputError(
            "worlds holds data without a content hash, so its trials could not be told from those of other data: give "
            "arrays, tensors, data frames or data sets with a length, or name what decides them, "
            "depends_on={'worlds': ...}"
        )
    return {
        "adversary": {"name": NAME, "train": title(train), "score": ", ".join(map(title, scoring.values()))},
        "data": {
            "name": title(worlds) if callable(worlds) else "the user's data",
            "content": list(content) if content else None,
            "relation": built.relation.value,
            "copies": built.copies,
        },
        "train": _untold(known, train),
        "score": {name: _untold(known, one) for name, one in scoring.items()},
        "worlds": _untold(known, worlds) if callable(worlds) else None,
        **({"depends on": identity.named_parts(known.depends_on)} if known.depends_on else {}),
        **({"batched": True} if many else {}),
        "seed": seed,
        "algorithms": ALGORITHMS,
    }


def _untold(known: Known, function: Callable[..., Any]) -> dict[str, Any]:
    """What the function is, without the texts that are bound to it: their hashes are enough."""
    return {**known.identity_of(function), "function": title(function)}


def _check_portable(task: FunctionTask) -> None:
    """Whether the functions, the data and the bound arguments survive the way to another process."""
    try:
        cloudpickle.dumps(task)
    except Exception as error:  # noqa: BLE001  a user's object may raise anything
        raise InvalidInputError(
            f"train, score or worlds cannot be sent to worker processes ({type(error).__name__}: {error}): give a "
            "function that builds the worlds, or play it in this process: Execution(engine='inline')"
        ) from None


def parse_dpsgd(name: str, text: str) -> DpSgd:
    """The claim of the command line: sampling rate, noise multiplier, steps; then, by name, relation and sampling.

    >>> parse_dpsgd("claim_dpsgd", "0.5, 1, 4").steps
    4
    >>> parse_dpsgd("claim_dpsgd", "1,1,4,replace,full").relation.value
    'replace'
    """
    kinds: dict[str, tuple[str, ...]] = {"relation": tuple(Relation), "sampling": tuple(Sampling)}
    try:
        rate, noise, steps, *words = (part.strip() for part in text.split(","))
        said = {kind: word for word in words for kind, known in kinds.items() if word in known}
        if len(said) < len(words):
            raise ValueError(text)
        return DpSgd(sample_rate=float(rate), noise_multiplier=float(noise), steps=int(steps), **said)  # type: ignore[arg-type]
    except InvalidInputError:
        raise
    except ValueError:
        raise _validate.reject(
            name,
            text,
            "sampling rate, noise multiplier and steps, such as 0.01,1.1,1000, and where they are not "
            "add_remove and poisson the relation (replace) and the sampling (shuffle, full)",
        ) from None


def load_function(name: str, text: str) -> Callable[..., Any]:
    """The function that ``module:function`` on the command line names; modules are looked for in this folder too."""
    found = _load(name, text)
    identity.check_function(name, found)
    return found  # type: ignore[no-any-return]


def load_worlds(text: str) -> GivenWorlds:
    """The worlds that ``module:name`` names: a function that builds them, or the pair or :class:`Worlds` itself."""
    found = _load("worlds", text)
    if callable(found):
        identity.check_function("worlds", found)
    return found  # type: ignore[no-any-return]


def _load(name: str, text: str) -> Any:
    """What ``module:name`` stands for."""
    module, colon, path = text.partition(":")
    if not colon or not module or not path:
        raise _validate.reject(name, text, "module:function, such as mytraining:train")
    if module.endswith(".py"):
        named = module.removesuffix(".py").replace("/", ".")
        raise _validate.reject(name, text, f"the module's name, not its file: {named}:{path}")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a module prints is no part of our answer
            found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's module may raise anything, and may try to stop us
        raise InvalidInputError(
            f"{name} = {text!r} cannot be imported ({type(error).__name__}: {error}); modules are looked for in this "
            "folder and among the installed packages"
        ) from None
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise InvalidInputError(f"{name} = {text!r} is not there: module {module} has no {path}")
    return found
