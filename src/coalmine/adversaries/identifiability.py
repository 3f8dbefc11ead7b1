"""`identifiability`: the adversary that differential privacy assumes (A_DI,Gau, Algorithm 1 of bernau-2021)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.adversaries.attack import Attack, Scene, ThreatModel
from coalmine.adversaries.distinguishers.likelihood import Belief
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.identifiability import sensitivity
from coalmine.records import Relation
from coalmine.training import Dataset, ExampleCanary, Neighbours


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identifiability:
    """Knows both data sets, every model and the noise; the score is the log-odds of its posterior belief in world 1.

    ``neighbours`` = "unbounded": world 1 has one row of the data that world 0 lacks (add/remove). "bounded": in world 1
    a row that is not in the data stands in the place of one that is (replace). Which row, or which two: ``choose`` =
    "most" takes the most dissimilar neighbour (Definition 6 of bernau-2021, eqs. 9 and 11), "least" the least, and
    ``rank`` the second, third and so on of them; "random" draws one. ``row`` (and ``replacement``, a row held out) name
    them instead. ``dissimilarity`` is one of ssim, euclidean, manhattan, hamming, cosine, or "auto": ssim for pictures,
    hamming for rows of zeros and ones, manhattan otherwise.
    """

    neighbours: str = "unbounded"
    choose: str = "most"
    rank: int = 1
    dissimilarity: str = "auto"
    row: int | None = None
    replacement: int | None = None

    threat: ClassVar[ThreatModel] = ThreatModel(
        view=Belief.view,
        access="every model, every noisy gradient, and the batch of all other rows",
        modification="none: an ordinary row of the data",
        dataset="not chosen, and known but for one row",
        summary="Weighs the two data sets by exact likelihoods: its posterior belief is what ε limits.",
        paper="bernau-2021, Algorithm 1",
    )

    def __post_init__(self) -> None:
        _validate.choice("neighbours", self.neighbours, ("unbounded", "bounded"))
        _validate.choice("choose", self.choose, ("most", "least", "random"))
        _validate.choice("dissimilarity", self.dissimilarity, ("auto", *sensitivity.DISSIMILARITIES))
        _validate.integer("rank", self.rank, at_least=1)
        for name in ("row", "replacement"):
            if getattr(self, name) is not None:
                _validate.integer(name, getattr(self, name), at_least=0)
        if self.replacement is not None and self.neighbours == "unbounded":
            raise _validate.reject("replacement", self.replacement, "no replacement with neighbours = 'unbounded'")
        if self.neighbours == "bounded" and (self.row is None) != (self.replacement is None):
            raise InvalidInputError(
                "row and replacement go together with neighbours = 'bounded': one of them is missing"
            )

    def craft(self, scene: Scene) -> Attack:
        """Find the neighbour, and prepare the likelihoods."""
        base, held = scene.base, scene.held_out
        if base.rows < 2:
            raise InvalidInputError(f"the data has {base.rows} row: identifiability needs at least 2")
        if self.neighbours == "unbounded":
            held = None
        elif held is None or not held.rows:
            raise UnsupportedError(
                "bounded neighbours put a row that is held out in the place of one of the data, and no rows are held "
                "out here: use neighbours = 'unbounded'"
            )
        row, other, how = self._choose(scene, held)
        scene.check_row("row", row)
        if held is None or other is None:
            x, y = base.x[row], int(base.y[row])
            worlds = Neighbours(base.without(row), canary=ExampleCanary(x, y))
            note = f"the canary is row {row} of the data, label {y}"
        else:
            if other >= held.rows:
                raise _validate.reject("replacement", other, f"a row that is held out, at most {held.rows - 1}")
            x, y = held.x[other], int(held.y[other])
            worlds = Neighbours(base, canary=ExampleCanary(x, y), relation=Relation.REPLACE, replaced=[row])
            note = f"held-out row {other}, label {y}, stands in the place of row {row}, label {int(base.y[row])}"
        return Attack(
            neighbours=worlds,
            distinguisher=Belief(x, y, training=scene.training, rows=worlds.base.rows),
            notes=(f"{note}: {how}", *_notes(scene)),
        )

    def _choose(self, scene: Scene, held: Dataset | None) -> tuple[int, int | None, str]:
        """The row, the held-out row in its place if there is one, and how they were chosen."""
        if self.row is not None:
            return self.row, self.replacement, "given"
        if self.choose == "random":
            stream = scene.stream("identifiability rows")
            row = int(stream.integers(scene.base.rows))
            return row, None if held is None else int(stream.integers(held.rows)), "drawn at random"
        rows, most, picture = _flat(scene.base), self.choose == "most", scene.picture
        measure = self.dissimilarity
        if measure == "auto":
            measure = sensitivity.suggest(rows, picture=picture)
        if held is None:
            found = sensitivity.neighbour(rows, measure=measure, picture=picture, most=most, rank=self.rank)
        else:
            found = sensitivity.replacement(
                rows, _flat(held), measure=measure, picture=picture, most=most, rank=self.rank
            )
        return found.row, found.replacement, found.words(rank=self.rank, most=most)


def _flat(rows: Dataset) -> NDArray[np.float64]:
    return np.asarray(rows.x, dtype=np.float64).reshape(rows.rows, -1)


def _notes(scene: Scene) -> tuple[str, ...]:
    """What the reader must know about the noise."""
    if scene.training.noise_scale == "clip":
        return ()
    return (
        "the noise of each step is scaled to the local sensitivity of these two data sets: what it promises holds for "
        "this pair and for no other person",
    )
