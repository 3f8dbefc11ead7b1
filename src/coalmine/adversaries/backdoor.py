"""`backdoor`: the ordinary backdoor poisoning that jagielski-2020 compares with (its Algorithm 3)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.final import Loss
from coalmine.errors import UnsupportedError
from coalmine.records import Relation
from coalmine.training import ExampleCanary, Neighbours

_QUERIES = 256
"""How many marked rows the test asks about: enough to average over, few enough to be quick."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Backdoor:
    """k random rows get a white square in the top-left corner and the label ``target``; replace neighbours.

    The score is minus the mean loss of marked rows with that label (a backdoor lowers that loss; the printed test of
    Algorithm 3 has the sign the other way round).
    """

    copies: int = 1
    target: int = 0
    square: int = 5

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Loss.view,
        access="loss of the final model at marked pictures",
        modification="replaces k rows by marked, relabelled ones",
        dataset="not chosen",
        summary="Marks pictures with a white square and a chosen label and looks for the mark's effect.",
        paper="jagielski-2020, Algorithm 3 (Gu et al. 2017)",
    )

    def __post_init__(self) -> None:
        _validate.integer("copies", self.copies, at_least=1)
        _validate.integer("target", self.target, at_least=0)
        _validate.integer("square", self.square, at_least=1)

    def craft(self, scene: Scene) -> Attack:
        """Mark k rows of other classes; ask about marked rows that were not used."""
        base, classes, picture = scene.base, scene.classes, scene.picture
        if self.target >= classes:
            raise _validate.reject("target", self.target, f"a class of the data, at most {classes - 1}")
        others = np.flatnonzero(base.y != self.target)
        if others.size < self.copies + 1:
            raise _validate.reject("copies", self.copies, f"fewer than the {others.size} rows of other classes")
        order = scene.stream("backdoor rows").permutation(others)
        chosen, asked = order[: self.copies], order[self.copies : self.copies + _QUERIES]
        marked = mark(base.x[chosen], picture=picture, size=self.square)
        queries = mark(base.x[asked], picture=picture, size=self.square)
        return Attack(
            neighbours=Neighbours(
                base,
                canary=ExampleCanary(marked, np.full(self.copies, self.target)),
                relation=Relation.REPLACE,
                replaced=[int(row) for row in chosen],
            ),
            distinguisher=Loss(queries, np.full(len(queries), self.target)),
            notes=(f"{self.copies} rows marked with a {self.square}×{self.square} square, label {self.target}",),
        )


def mark(x: NDArray[Any], *, picture: tuple[int, ...] | None, size: int) -> NDArray[Any]:
    """The pictures with a white square (the largest value, 1) in the top-left corner of every channel.

    >>> mark(np.zeros((1, 16)), picture=(4, 4), size=2).reshape(4, 4)[:3, :3].tolist()
    [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    if picture is None or min(picture[-2:]) < size:
        raise UnsupportedError(
            f"backdoor marks pictures of at least {size} × {size}, and the rows of this data are "
            f"{'no pictures' if picture is None else f'pictures of {picture}'}: use clipbkd, or another square"
        )
    marked = x.reshape(-1, *picture).copy()
    marked[..., :size, :size] = 1.0
    return marked.reshape(x.shape)
