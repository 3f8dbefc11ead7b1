"""The audit of a user's own training, made again: its record from its config and runs, its tasks from the named code.

A bundle holds no code. What its runs are is said by their identities, whose hashes are their fingerprints; code that
the verifier names has the same fingerprint, in the same role, or is not what was audited.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coalmine.auditing.config import FunctionConfig, checked
from coalmine.auditing.stored import AuditRecord
from coalmine.errors import InvalidInputError
from coalmine.evidence.comparing import differences
from coalmine.evidence.contents import Contents
from coalmine.integrations.functions import NAME, checked_scores, own_record, own_tasks
from coalmine.integrations.rows import check_neighbours
from coalmine.integrations.task import build, contents

if TYPE_CHECKING:
    from coalmine.evidence.again import Repeatable
    from coalmine.evidence.verifying import Code
    from coalmine.integrations.task import FunctionTask


def record_again(known: Contents) -> tuple[AuditRecord, list[str]]:
    """The audit that the config asks about these runs, as :func:`coalmine.audit_function` keeps it.

    And what is wrong with the runs themselves: a control differs from the training in its training alone.
    """
    record = known.record
    assert isinstance(record.config, FunctionConfig)
    first = record.members[0]
    identity = known.runs[first.run].identity
    twin = None if first.control is None else known.runs[first.control.run].identity
    several, wrong = _several(identity, first.attack.several)
    wrong += [line for one in first.with_control for line in _named(one.run, known.runs[one.run].identity)]
    if twin is not None:
        assert first.control is not None
        other = [line.partition(":")[0] for line in differences(_game(identity), _game(twin), within=0.0)]
        if other:
            wrong.append(
                f"runs.{first.control.run[:12]}: the control differs from the training in {', '.join(other)} too"
            )
    found = own_record(
        _config(record.config, identity),
        runs=[one.run for one in first.with_control],
        several=several,
        control=None if twin is None else str(twin["adversary"]["train"]),
    )
    return found, wrong


def _config(config: FunctionConfig, identity: Mapping[str, Any]) -> FunctionConfig:
    """The config, with what the run says of itself in the place of what the config says of it."""
    who, data = identity["adversary"], identity["data"]
    tree = {
        **config.model_dump(mode="json", exclude_none=True),
        "train": who["train"],
        "score": who["score"],
        "worlds": "" if identity.get("worlds") is None else data["name"],
        "relation": data["relation"],
        "copies": data["copies"],
    }
    found = checked(FunctionConfig, tree)
    if found.mechanism is not None and found.mechanism.relation.value != found.relation:
        raise InvalidInputError(
            f"the claim is for neighbours by {found.mechanism.relation.value!r}, the worlds are not"
        )
    # One thing is claimed, and a control of one's own is a function.
    claimed = None if found.mechanism is not None else found.audit.claim_epsilon
    section = found.audit.model_copy(update={"claim_epsilon": claimed, "control": None})
    return found.model_copy(update={"audit": section})


def _several(identity: Mapping[str, Any], said: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """The names of the scores in the order in which the run has them; one score need not have a name."""
    scores = identity["score"]
    if sorted(said or ["score"]) != sorted(scores):
        return tuple(scores), []  # the record differs from that
    shown = ", ".join(str(scores[name]["function"]) for name in said or scores)
    if shown != identity["adversary"]["score"]:
        return said, [f"several: the scores {', '.join(said)} are in another order in the run"]
    return said, []


def _named(run: str, identity: Mapping[str, Any]) -> list[str]:
    """A run is called what its code is called."""
    found = {"name": NAME, "train": identity["train"]["function"], "score": identity["adversary"]["score"]}
    return differences(dict(identity["adversary"]), found, within=0.0, place=f"runs.{run[:12]}.adversary")


def _game(identity: Mapping[str, Any]) -> dict[str, Any]:
    """All of an identity but the training."""
    return {**identity, "train": None, "adversary": {**identity["adversary"], "train": None}}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
    """The code that the verifier names, in its roles: what can be trained again, what is ``wrong``, and why not all."""

    tasks: Mapping[str, Repeatable]
    wrong: tuple[str, ...]
    why: str


def roles(known: Contents, code: Code) -> Named:
    """Hold the named training against the run that was audited, and the named control against its control's."""
    config, first = known.record.config, known.record.members[0]
    assert isinstance(config, FunctionConfig)
    mine, added = _tasks(code, seed=config.audit.seed)
    said = {"train": first, "control": first.control}
    tasks: dict[str, Repeatable] = {}
    wrong, why = [], ""
    for role, task in mine.items():
        member, other = said[role], said["control" if role == "train" else "train"]
        name = task.identity["adversary"]["train"]
        if member is None:
            wrong.append(f"{role}: {name} is named here, and this audit has no control")
        elif task.fingerprint == member.run:
            tasks[member.run] = task
        elif other is not None and task.fingerprint == other.run:
            what = "the control" if role == "train" else "what was audited"
            wrong.append(f"{role}: {name} is {what} in the bundle, not its {'training' if role == 'train' else role}")
        else:
            here, there = dict(task.identity), dict(known.runs[member.run].identity)
            places = [line.partition(":")[0] for line in differences(there, here, within=0.0)]
            what = "what was audited" if role == "train" else "the control that was played"
            why = why or f"the code that is named here is not {what}, it differs in {', '.join(places[:5])}"
    if first.control is not None and "control" not in mine:
        why = why or "name the control too, --control-train module:function"
    # Other data than was audited has other fingerprints, and is told by them.
    if first.run in tasks:
        if config.added and not added:
            wrong.append("added: true, but world 1 is not world 0 with rows added")
        names = tuple(code.score) if isinstance(code.score, Mapping) else ()
        wrong += differences(list(first.attack.several), list(names), within=0.0, place="several")
    return Named(tasks=tasks, wrong=tuple(wrong), why=why or "code that is named here has another role in the bundle")


def _tasks(code: Code, *, seed: int) -> tuple[dict[str, FunctionTask], bool]:
    """What plays the functions that the verifier names, by their roles; and whether world 1 has rows added."""
    train, score, worlds = code.train, code.score, code.worlds
    assert train is not None and score is not None and worlds is not None  # noqa: PT018
    scoring = checked_scores(train, score, code.control)
    built = build(worlds)
    tasks = own_tasks(
        train,
        scoring,
        worlds=worlds,
        built=built,
        content=contents(built),
        control=code.control,
        seed=seed,
        depends_on=code.depends_on,
        batched=code.batched,
        threads=code.threads,
    )
    return dict(zip(("train", "control"), tasks, strict=False)), check_neighbours(built)
