"""An audit by Coalmine's own trainer, built again from its config: its record, and what trains each of its runs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coalmine.auditing.config import AuditConfig
from coalmine.auditing.run import planned
from coalmine.auditing.stored import AuditRecord
from coalmine.evidence.again import Repeatable
from coalmine.evidence.comparing import DIGITS
from coalmine.evidence.contents import Contents
from coalmine.game import machine
from coalmine.training import hardware

if TYPE_CHECKING:
    from coalmine.evidence.verifying import Code


def games_again(contents: Contents, code: Code, config: AuditConfig) -> tuple[AuditRecord, dict[str, Repeatable], bool]:
    """The audit that the config asks for.

    Noise that is calibrated to a target is the result of a search, whose last digits another machine or version may
    find otherwise. Where that is so, and the bundle's noise is the same but for these, the bundle's is taken.

    Gives its record, its tasks by run, and whether all its numbers should be the bundle's to the bit.
    """
    record = contents.record
    given = {"data": code.data, "model": code.model, "adversaries": code.adversaries}
    mine = {name: given[name] for name in record.subject.given if name in given}
    found, games = planned(config, data_dir=code.data_dir, **mine)
    made = {one.device.partition(",")[2].strip() for played in contents.runs.values() for one in played.origins}
    exact = dict(record.versions) == machine.versions() and made == {hardware("cpu")}
    said, here = _noise(record), _noise(found)
    if said != here and not exact and math.isclose(said, here, rel_tol=DIGITS):
        training = config.training.model_copy(
            update={"noise_multiplier": said, "target_epsilon": None, "target_belief": None}
        )
        found, games = planned(config.model_copy(update={"training": training}), data_dir=code.data_dir, **mine)
        found = AuditRecord(config=config, subject=found.subject, claim=found.claim, members=found.members)
    return found, {one.run: one.task("cpu") for one in games}, exact


def _noise(record: AuditRecord) -> float:
    """σ of the training; 0 without noise."""
    return 0.0 if record.subject.ran is None else record.subject.ran.noise_multiplier
