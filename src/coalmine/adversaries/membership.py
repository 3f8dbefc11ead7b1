"""`membership`: is this person's own row in the data? (Yeom et al. 2018; Appendix D of jagielski-2020)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Loss, planted
from coalmine.errors import InvalidInputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Membership:
    """One row of the data is the canary: world 0 trains without it, world 1 with it; the score is minus its loss.

    ``row`` chooses the row; without it one is drawn at random.
    """

    row: int | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="loss of the final model at one point",
        modification="none: an ordinary row of the data",
        dataset="not chosen",
        summary="Asks whether one ordinary row was used, by the loss of the final model at that row.",
        paper="jagielski-2020, Appendix D (Yeom et al. 2018)",
    )

    def __post_init__(self) -> None:
        if self.row is not None:
            _validate.integer("row", self.row, at_least=0)

    def craft(self, scene: Scene) -> Attack:
        """Take one row out of the data; world 1 gets it back."""
        base = scene.base
        if base.rows < 2:
            raise InvalidInputError(f"the data has {base.rows} row: membership takes one out and needs at least 2")
        row = int(scene.stream("membership row").integers(base.rows)) if self.row is None else self.row
        scene.check_row("row", row)
        x, y = base.x[row], int(base.y[row])
        return planted(base.without(row), x, y, f"the canary is row {row} of the data, label {y}")
