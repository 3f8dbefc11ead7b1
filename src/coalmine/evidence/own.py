"""A user's own training that the verifier names, ready to be repeated; its fingerprint says whether it is the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine.integrations.functions import checked_scores, own_tasks
from coalmine.integrations.rows import check_neighbours
from coalmine.integrations.task import build, contents

if TYPE_CHECKING:
    from coalmine.evidence.again import Repeatable
    from coalmine.evidence.verifying import Code


def tasks_of(code: Code, *, seed: int) -> tuple[dict[str, Repeatable], bool]:
    """The tasks of the functions that the verifier names, by the fingerprints that they have here.

    And whether world 1 is world 0 with rows added.
    """
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
    return {one.fingerprint: one for one in tasks}, check_neighbours(built)
