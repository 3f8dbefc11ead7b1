"""What an adversary is made of: a threat model in words, and an attack ready to be played."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol, runtime_checkable

from coalmine.roles import Distinguisher, View
from coalmine.training import Dataset, Neighbours


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """What the adversary may see and do, in words, as in Table I of nasr-2021."""

    view: View
    access: str
    modification: str
    dataset: str
    summary: str
    paper: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attack:
    """Two worlds and the one who tells them apart. ``notes`` are sentences for the report."""

    neighbours: Neighbours
    distinguisher: Distinguisher
    notes: tuple[str, ...] = ()


@runtime_checkable
class Adversary(Protocol):
    """A frozen dataclass whose fields are the adversary's options; everything random comes from ``seed``."""

    threat: ClassVar[ThreatModel]

    def craft(self, base: Dataset, *, classes: int, picture: tuple[int, ...] | None, seed: int) -> Attack:
        """Choose the worlds for this base data and prepare the test that tells them apart.

        ``base`` has the rows in the shape that the network takes; ``picture`` is the shape of a row as a picture
        (channels, where there are any, first), if the rows are pictures.
        """
        ...
