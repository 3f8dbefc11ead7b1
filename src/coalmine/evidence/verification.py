"""What a verification gives back: every check in words, and one outcome for all of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from coalmine.records import plain

_SHARES = (0.01, 0.05, 0.1, 0.25)
"""Shares of changed trainings for which the result says how surely they are found."""


class Held(StrEnum):
    """How one check ended."""

    PASSED = "passed"
    DIFFERS = "differs"
    UNCHECKED = "not checked"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One check: its ``name``, whether it ``held``, what was found in words, and every difference by its place."""

    name: str
    held: Held
    words: str
    differences: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        found: dict[str, Any] = plain(dataclasses.asdict(self))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled:
    """Which trainings were repeated: ``trained`` of ``trainings``, drawn with ``seed``.

    ``told``: each could be told from a changed one, so that what such a sample finds can be said. ``places``: some came
    back but for rounding, so that what is found are scores that left their place among those of the other world.

    >>> round(Sampled(seed=1, trained=32, trainings=1000).found(changed=100), 3)
    0.968
    """

    seed: int
    trained: int
    trainings: int
    told: bool = True
    places: bool = False

    def found(self, *, changed: int) -> float:
        """The probability that such a sample holds one of so many changed trainings.

        Drawn without replacement, it misses k of n with probability C(n−k, s) / C(n, s) ≤ (1 − k/n)^s.
        """
        kept = self.trainings - changed
        if self.trained > kept:
            return 1.0
        missed = sum(math.log1p(-changed / (self.trainings - one)) for one in range(self.trained))
        return 1.0 - math.exp(missed)

    def words(self) -> str:
        """What the sample would have found, for people."""
        how = " by so much that it leaves its place" if self.places else ""
        if self.trained >= self.trainings:
            return f"all trainings were repeated, so one score changed{how} would have been found"
        told = [f"{math.floor(1000 * chance) / 1000:g}" for chance in self._by_share().values()]
        shares = [f"{share:g}" for share in _SHARES]
        return (
            f"changing a share of {', '.join(shares[:-1])} or {shares[-1]} of all scores{how} would have been found "
            f"with probability {', '.join(told[:-1])} or {told[-1]}"
        )

    def _by_share(self) -> dict[float, float]:
        """How surely a changed share of the trainings is found."""
        return {share: self.found(changed=max(1, round(share * self.trainings))) for share in _SHARES}

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types; ``found`` by the share of changed trainings, None where that cannot be told."""
        found = {f"{share:g}": one for share, one in self._by_share().items()}
        return {**dataclasses.asdict(self), "found": found if self.told else None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """The code of a run: ``train`` by its name, the SHA-256 of what that function is (``code``), and the ``run``.

    ``named``: whoever verified named this very code in this role, and not the bundle alone.
    """

    train: str
    code: str
    run: str
    named: bool = False

    def in_words(self) -> str:
        """For people."""
        by = "the code that was named here" if self.named else "says the bundle; no such code was named here"
        return f"{self.train}, code {self.code[:12]}, run {self.run[:12]} ({by})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verification:
    """Whether a bundle is what it says. ``audit`` is its fingerprint, ``says`` the verdict that it gives.

    ``audited`` is the user's own training that it speaks of, and ``control`` the one that it was held against: None for
    Coalmine's own trainer, or where there was none. ``unverified`` are the maker's own words, which nothing can check.
    """

    bundle: str
    audit: str
    says: str
    checks: tuple[Check, ...]
    sampled: Sampled | None = None
    audited: Trained | None = None
    control: Trained | None = None
    unverified: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def outcome(self) -> str:
        """``verified``, ``differs`` or ``partly verified``."""
        held = {one.held for one in self.checks}
        if Held.DIFFERS in held:
            return "differs"
        return "partly verified" if Held.UNCHECKED in held else "verified"

    @property
    def exit_code(self) -> int:
        """0 verified, 1 something differs, 3 only a part could be checked (2 is wrong input)."""
        return {"verified": 0, "differs": 1, "partly verified": 3}[self.outcome]

    @property
    def differences(self) -> tuple[str, ...]:
        """Everything that differs, by its place."""
        return tuple(one for check in self.checks for one in check.differences)

    def in_words(self) -> str:
        """The outcome in a line."""
        some = {kind: [one.name for one in self.checks if one.held is kind] for kind in Held}
        if some[Held.DIFFERS]:
            return f"Does not verify: {', '.join(some[Held.DIFFERS])}."
        if some[Held.UNCHECKED]:
            return f"Partly verified: nothing differs, but this was not checked: {', '.join(some[Held.UNCHECKED])}."
        return "Verified: every check passed."

    def __str__(self) -> str:
        return self.outcome

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "kind": "verification",
            "outcome": self.outcome,
            "words": self.in_words(),
            "bundle": self.bundle,
            "audit": self.audit,
            "says": self.says,
            "audited": None if self.audited is None else dataclasses.asdict(self.audited),
            "control": None if self.control is None else dataclasses.asdict(self.control),
            "unverified": dict(self.unverified),
            "checks": [one.to_dict() for one in self.checks],
            "sample": None if self.sampled is None else self.sampled.to_dict(),
        }

    def to_json(self) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
