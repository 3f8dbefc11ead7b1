"""`api`: an ordinary row and the final model behind an interface (nasr-2021, Section IV-A)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Loss, planted
from coalmine.adversaries.membership import Membership


@dataclasses.dataclass(frozen=True, kw_only=True)
class Api:
    """Crafter 1 and Distinguisher 1: world 1 has one more row of the same distribution; the score is minus its loss.

    The row is a random one of the held-out rows; where there are none, a row of the data is taken out.
    """

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="black box",
        modification="random sample",
        dataset="not modified",
        summary="Adds one ordinary row and asks the final model for its loss there.",
        paper="nasr-2021, Section IV-A: Crafter 1, Distinguisher 1",
        adds="the least: questions to the finished model",
    )

    def craft(self, scene: Scene) -> Attack:
        """Draw the row."""
        scene.require_learning("api")
        rows = scene.held_out
        if rows is None:
            return Membership().craft(scene)
        row = int(scene.stream("api row").integers(rows.rows))
        x, y = rows.x[row], int(rows.y[row])
        return planted(scene.base, x, y, f"the canary is held-out row {row}, label {y}")
