"""What an audit gives back: theory, evidence and meaning of one training algorithm, as values."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.auditing.config import AuditConfig, FunctionConfig
from coalmine.identifiability.estimates import Beliefs
from coalmine.records import Estimate, Guarantee, Heuristic, LowerBound, Relation, Scores, plain
from coalmine.roles import View

if TYPE_CHECKING:
    from coalmine.report.tables import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversaryResult:
    """What one adversary proved: ``bound`` counts for the verdict, ``others`` are more methods on the same scores.

    ``wanted`` is how many trials were asked for, where that is not the audit's own number. ``powers`` say in words what
    it may see and do (``access``, ``modification``, ``dataset``), and what it ``adds`` to the rung below it on the
    ladder of nasr-2021.
    """

    name: str
    options: Mapping[str, Any]
    view: View
    relation: Relation
    copies: int
    fingerprint: str
    failed: int
    bound: LowerBound
    others: tuple[LowerBound | Estimate, ...]
    notes: tuple[str, ...]
    seconds: float
    wanted: int | None = None
    powers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    accuracy: float | None = None
    scores: Scores | None = dataclasses.field(default=None, repr=False, compare=False)
    beliefs: Beliefs | None = None

    @property
    def label(self) -> str:
        """The name with its options."""
        words = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.name} ({words})" if words else self.name

    @property
    def assumed(self) -> LowerBound | None:
        """What the same scores prove, for the same neighbours, if the family of trade-off curves is known.

        That of DP-SGD with every iterate seen and its noise unknown (``dpsgd``), or else a Gaussian one (``gdp``).
        """
        same = [one for one in self.others if isinstance(one, LowerBound) and one.relation is self.bound.relation]
        return next((one for method in ("dpsgd", "gdp") for one in same if one.method == method), None)

    @property
    def log_odds(self) -> Scores | None:
        """The scores of an adversary whose scores are log-odds; None for any other.

        A training that failed stands below all others among the scores, for the bounds. That is no belief: who saw
        nothing is left at even odds.
        """
        if self.beliefs is None or self.scores is None or not self.failed:
            return None if self.beliefs is None else self.scores
        worlds = self.scores.world0, self.scores.world1
        lowest = min(float(world.min()) for world in worlds)
        return Scores(*(np.where(world == lowest, 0.0, world) for world in worlds))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        bound = self.bound
        return {
            "name": self.name,
            "options": plain(dict(self.options)),
            "view": self.view.value,
            "epsilon_lower": plain(bound.epsilon),
            "method": bound.method,
            "threshold_rule": bound.threshold_rule,
            "confidence": bound.confidence,
            "trials": sum(bound.trials),
            "ceiling": plain(bound.ceiling),
            "relation": self.relation.value,
            "copies": self.copies,
            "run": self.fingerprint,
            "failed": self.failed,
            "seconds": self.seconds,
            "accuracy": self.accuracy,
            "powers": dict(self.powers),
            "notes": list(self.notes),
            "bound": bound.to_dict(),
            "others": [other.to_dict() for other in self.others],
            "beliefs": None if self.beliefs is None else self.beliefs.to_dict(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditResult:
    """Theory, evidence and meaning of one training algorithm. ``verdict`` is "consistent" or "refuted".

    ``refutation`` says in words what contradicts the claim where that is not a lower bound on ε alone: a claim of a
    whole trade-off curve is refuted by any point of it.
    """

    config: AuditConfig | FunctionConfig
    mechanism: Mapping[str, Any]
    data_note: str
    guarantee: Guarantee
    heuristic: Heuristic | None
    adversaries: tuple[AdversaryResult, ...]
    belief: Mapping[str, float]
    advantage: Mapping[str, float]
    claim: float
    verdict: str
    versions: Mapping[str, str]
    refutation: str = ""

    @property
    def ceiling(self) -> float:
        """The largest claim that a perfect attack could have refuted with these trials."""
        deciding = [
            other.ceiling
            for one in self.adversaries
            for other in (one.bound, *one.others)
            if isinstance(other, LowerBound) and (other is one.bound or other.method == "dpsgd")
        ]
        return max(value or 0.0 for value in deciding)

    @property
    def strongest(self) -> AdversaryResult:
        """The adversary with the largest lower bound."""
        return max(self.adversaries, key=lambda one: one.bound.epsilon)

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy of the models trained without a canary; None where it is not known."""
        return next((one.accuracy for one in self.adversaries if one.accuracy is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "verdict": self.verdict,
            "refutation": self.refutation,
            "claim": plain(self.claim),
            "guarantee": self.guarantee.to_dict(),
            "heuristic": self.heuristic.to_dict() if self.heuristic else None,
            "adversaries": [one.to_dict() for one in self.adversaries],
            "belief": plain(dict(self.belief)),
            "advantage": plain(dict(self.advantage)),
            "mechanism": plain(dict(self.mechanism)),
            "accuracy": self.accuracy,
            "data": self.data_note,
            "config": self.config.model_dump(mode="json"),
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def in_words(self) -> str:
        """The verdict in one sentence for people: what a failed test, or a log, should say."""
        from coalmine.report import words

        return words.verdict(self)

    def table(self) -> Table:
        """Every number that the evidence gave, by adversary and method; ``print`` it, or take its ``records``."""
        from coalmine.report import tables

        return tables.methods(self)

    def plot(self, what: str = "overview", *, adversary: int | None = None) -> Any:
        """An Altair chart: "overview", or "scores", "trade_off", "growth" or "beliefs" of one adversary.

        Without ``adversary`` it is the strongest one. Needs the extra ``report``.
        """
        from coalmine import report

        return report.chart(self, what, adversary=adversary)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report: one HTML file that needs nothing else. Needs the extra ``report``."""
        from coalmine import report

        report.write_html(self, path)
