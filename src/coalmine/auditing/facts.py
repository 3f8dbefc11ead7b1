"""What must be known to judge and to show an audit: facts that are stored beside its trials, as plain data.

Nothing is crafted, trained or loaded again to make a result from a store: all that it needs is here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from coalmine.records import DpSgd, Guarantee, Heuristic, Relation, plain
from coalmine.roles import View


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttackFacts:
    """One attack: who, how the worlds differ, and how its scores may be read.

    ``view`` is what it saw; ``reads_as`` the view under which bounds may read its scores. ``powers`` say in words
    what it may see and do (``access``, ``modification``, ``dataset``), and what it ``adds`` to the rung below it on
    the ladder of nasr-2021. ``log_odds``: its scores are log-odds of world 1. ``trained`` is False where scores are
    drawn from their known law without training; ``chosen_data`` is True where it brings a data set of its own, so
    that what it proves is said of data that was chosen and not of the data at hand. ``control`` is the share
    of the noise that was left where the attack is a positive control (0: a twin that the user handed over), and 1
    otherwise. ``several`` names the scores where a trial has more than one: each is an attack by itself. ``runs``
    is 0 where every trial is a training of its own; else trials are canaries, and this is the number of trainings
    that they were in. ``added``: world 1 is known to be world 0 with rows added, never the other way round.
    """

    name: str
    relation: Relation
    copies: int
    view: View = View.FINAL_MODEL
    reads_as: View = View.ALL_ITERATES
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    powers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    log_odds: bool = False
    trained: bool = True
    chosen_data: bool = False
    control: float = 1.0
    several: tuple[str, ...] = ()
    runs: int = 0
    added: bool = False

    @property
    def attacks(self) -> int:
        """How many attacks share its trials."""
        return max(1, len(self.several))

    @property
    def label(self) -> str:
        """The name with its options."""
        words = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name} ({words})" if words else self.name

    def by(self, score: str) -> AttackFacts:
        """One of several attacks that share the trials: that by this score."""
        powers = self.powers
        if powers and score != self.several[0]:
            powers = {**powers, "adds": "reads the same trainings another way"}
        return dataclasses.replace(self, options={**self.options, "score": score}, powers=powers)

    def copies_under(self, relation: Relation) -> int:
        """In how many rows the worlds differ, counted in the steps of ``relation``.

        A row that is replaced is one taken away and one added: k replacements are 2k additions and removals.

        >>> AttackFacts(name="a", relation=Relation.REPLACE, copies=4).copies_under(Relation.ADD_REMOVE)
        8
        """
        doubled = self.relation is Relation.REPLACE and relation is Relation.ADD_REMOVE
        return 2 * self.copies if doubled else self.copies

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        found: dict[str, Any] = plain(dataclasses.asdict(self))
        return found

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> AttackFacts:
        """The facts from plain data."""
        return cls(
            **{
                **tree,
                "chosen_data": tree.get("chosen_data", not tree["trained"]),  # older stores do not say it
                "relation": Relation.parse(tree["relation"]),
                "view": View.parse(tree["view"]),
                "reads_as": View.parse(tree["reads_as"]),
                "notes": tuple(tree["notes"]),
                "several": tuple(tree["several"]),
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """What was audited. ``own``: a training of the user's, of which nothing is known but what is claimed.

    ``ran`` is the DP-SGD that was trained (None without noise, and for a training of the user's own). ``local``: its
    noise was scaled to the local sensitivity, so nothing is promised to anybody beyond the pairs attacked. ``given``
    names what came from Python in the place of the config's (data, model, adversaries): a config alone does not repeat
    it. ``details`` are further facts for people.
    """

    name: str
    own: bool
    guarantee: Guarantee | None = None
    heuristic: Heuristic | None = None
    ran: DpSgd | None = None
    local: bool = False
    given: tuple[str, ...] = ()
    data_note: str = ""
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def mechanism(self) -> DpSgd | None:
        """The DP-SGD whose promise holds for everybody, where there is one."""
        return None if self.local else self.ran

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        found: dict[str, Any] = plain(dataclasses.asdict(self))
        return found

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Subject:
        """The facts from plain data."""
        return cls(
            **{
                **tree,
                "guarantee": tree["guarantee"] and Guarantee(**_statement(tree["guarantee"])),
                "heuristic": tree["heuristic"] and Heuristic(**_statement(tree["heuristic"])),
                "ran": tree["ran"] and DpSgd(**tree["ran"]),
                "given": tuple(tree["given"]),
            }
        )


def _statement(tree: Mapping[str, Any]) -> dict[str, Any]:
    epsilon = tree["epsilon"]
    return {
        **tree,
        "epsilon": math.inf if epsilon == "infinity" else epsilon,
        "relation": Relation.parse(tree["relation"]),
        "assumptions": tuple(tree["assumptions"]),
    }


def fingerprint(identity: Mapping[str, Any]) -> str:
    """SHA-256 of an identity in canonical JSON.

    >>> fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    True
    """
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
