"""A user's own training that the verifier names, ready to be repeated; its fingerprint says whether it is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coalmine.integrations import identity
from coalmine.integrations.functions import own_tasks
from coalmine.integrations.task import build, check_signatures, contents

if TYPE_CHECKING:
    from coalmine.evidence.again import Repeatable
    from coalmine.evidence.verifying import Code


def tasks_of(code: Code, *, seed: int) -> dict[str, Repeatable]:
    """The tasks of the functions that the verifier names, by the fingerprints that they have here."""
    train, score, worlds = code.train, code.score, code.worlds
    assert train is not None and score is not None and worlds is not None  # noqa: PT018
    scoring = dict(score) if isinstance(score, Mapping) else {"score": score}
    named = [("train", train), *scoring.items(), *([("control", code.control)] if code.control is not None else [])]
    for role, function in named:
        identity.check_function(role, function)
    for one in scoring.values():
        check_signatures(train, one)
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
    return {one.fingerprint: one for one in tasks}
