"""What an audit gives back: theory, evidence and meaning of one training algorithm, as values."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from coalmine.auditing.config import AuditConfig, FunctionConfig
from coalmine.auditing.facts import AttackFacts, Subject
from coalmine.auditing.judge import Judgement
from coalmine.auditing.proof import METHODS, Guesses
from coalmine.errors import UnsupportedError
from coalmine.identifiability.estimates import Beliefs
from coalmine.one_run.design import Design
from coalmine.records import (
    Claim,
    DpSgd,
    Estimate,
    Guarantee,
    Heuristic,
    LowerBound,
    MechanismClaim,
    OneRunScores,
    Relation,
    Scores,
    Verdict,
    plain,
)
from coalmine.roles import View

if TYPE_CHECKING:
    from coalmine.auditing.gap import Gap
    from coalmine.report.tables import Table


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OneRun:
    """Many canaries in one training, or in several ``runs`` that are pooled: what was fixed beforehand, and guessed.

    ``with_canaries`` is the accuracy of the model with the canaries; that without them is the adversary's ``accuracy``.
    """

    design: Design
    runs: int
    scores: OneRunScores = dataclasses.field(repr=False)
    guesses: Guesses
    with_canaries: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the scores."""
        return {
            "runs": self.runs,
            "design": self.design.to_dict(),
            "guesses": plain(dataclasses.asdict(self.guesses)),
            "accuracy_with_canaries": self.with_canaries,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdversaryResult:
    """What one attack proved: ``bound`` assumes nothing, ``others`` are more methods on the same scores.

    ``judgement`` says how it bears on the claim. ``failed`` are the trainings that failed in world 0 and in world 1.
    ``one_run`` says more where the trials are canaries of one training, ``control`` which run was its control.
    """

    attack: AttackFacts
    run: str
    wanted: int
    failed: tuple[int, int]
    bound: LowerBound
    others: tuple[LowerBound | Estimate, ...]
    judgement: Judgement | None
    notes: tuple[str, ...]
    seconds: float
    accuracy: float | None = None
    scores: Scores | None = dataclasses.field(default=None, repr=False, compare=False)
    beliefs: Beliefs | None = None
    one_run: OneRun | None = None
    control: str | None = None

    @property
    def trials(self) -> int:
        """How many trials were played."""
        return sum(self.bound.trials) if self.one_run is None else self.one_run.design.canaries

    @property
    def name(self) -> str:
        """The adversary's name."""
        return self.attack.name

    @property
    def label(self) -> str:
        """The name with its options."""
        return self.attack.label

    @property
    def view(self) -> View:
        """What it saw."""
        return self.attack.view

    @property
    def relation(self) -> Relation:
        """How its worlds differ."""
        return self.attack.relation

    @property
    def copies(self) -> int:
        """In how many rows they differ."""
        return self.attack.copies

    @property
    def assumed(self) -> LowerBound | None:
        """What the same scores prove for the same neighbours, by the first of the methods that assume something."""
        same = {
            one.method: one
            for one in reversed(self.others)
            if isinstance(one, LowerBound) and one.relation is self.bound.relation
        }
        return next((same[name] for name, method in METHODS.items() if name in same and not method.decides), None)

    @property
    def log_odds(self) -> Scores | None:
        """The scores of an adversary whose scores are log-odds; None for any other.

        A training that failed stands below all others among the scores, for the bounds. That is no belief: who saw
        nothing is left at even odds.
        """
        if self.beliefs is None or self.scores is None or not any(self.failed):
            return None if self.beliefs is None else self.scores
        worlds = self.scores.world0, self.scores.world1
        lowest = min(float(world.min()) for world in worlds)
        return Scores(*(np.where(world == lowest, 0.0, world) for world in worlds))

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        bound = self.bound
        return {
            "name": self.name,
            "options": plain(dict(self.attack.options)),
            "view": self.view.value,
            "epsilon_lower": plain(bound.epsilon),
            "epsilon_lower_relation": bound.relation.value,
            "epsilon_lower_copies": bound.copies,
            "method": bound.method,
            "threshold_rule": bound.threshold_rule,
            "confidence": bound.confidence,
            "trials": self.trials,
            "trained": self.attack.trained,
            "chosen_data": self.attack.chosen_data,
            "ceiling": plain(bound.ceiling),
            "relation": self.relation.value,
            "copies": self.copies,
            "run": self.run,
            "failed": list(self.failed),
            "seconds": self.seconds,
            "accuracy": self.accuracy,
            "powers": dict(self.attack.powers),
            "notes": list(self.notes),
            "judgement": plain(dataclasses.asdict(self.judgement)) if self.judgement else None,
            "bound": bound.to_dict(),
            "others": [other.to_dict() for other in self.others],
            "beliefs": None if self.beliefs is None else self.beliefs.to_dict(),
            "one_run": None if self.one_run is None else self.one_run.to_dict(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AuditResult:
    """Theory, evidence and meaning of one training algorithm, and the verdict on what is claimed for it.

    ``claim_epsilon`` is the claim's ε at the audit's δ (infinite where nothing is claimed). ``missing`` counts the
    adversaries of the audit that have no trials yet. ``audit`` is the audit's own fingerprint, ``created`` when it was
    first asked (seconds since 1970) and ``name`` what people call it, where a store knows them. ``asked`` are the names
    by which the command line found a training of the user's own, and its further options.
    """

    config: AuditConfig | FunctionConfig
    subject: Subject
    claim: Claim | None
    claim_epsilon: float
    verdict: Verdict
    adversaries: tuple[AdversaryResult, ...]
    belief: Mapping[str, float]
    advantage: Mapping[str, float]
    versions: Mapping[str, str]
    missing: int = 0
    audit: str = ""
    created: float | None = None
    name: str = ""
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def guarantee(self) -> Guarantee | None:
        """What is proved for every attack; None for a training of the user's own, of which only a claim is known."""
        return self.subject.guarantee

    @property
    def heuristic(self) -> Heuristic | None:
        """What is predicted, where something is."""
        return self.subject.heuristic

    @property
    def mechanism(self) -> DpSgd | None:
        """The DP-SGD whose promise is tested: ours, or the one that is claimed for a training of the user's own."""
        if self.subject.own:
            return self.claim.mechanism if isinstance(self.claim, MechanismClaim) else None
        return self.subject.mechanism

    @property
    def promised(self) -> float:
        """The ε that stands against the evidence: the guarantee's, or the claim's for a training of the user's own."""
        return self.claim_epsilon if self.guarantee is None else self.guarantee.epsilon

    @property
    def strongest(self) -> AdversaryResult:
        """The adversary with the largest lower bound."""
        return max(self.adversaries, key=lambda one: one.bound.epsilon)

    @property
    def ranked(self) -> tuple[AdversaryResult, ...]:
        """The adversaries, those that proved most first; equal ones by what they prove under an assumption."""
        return tuple(
            sorted(
                self.adversaries,
                key=lambda one: (one.bound.epsilon, one.assumed.epsilon if one.assumed else 0.0),
                reverse=True,
            )
        )

    @property
    def on_data(self) -> AdversaryResult | None:
        """The one with the largest lower bound among those that attack the data at hand."""
        return self._best(chosen_data=False)

    @property
    def on_chosen_data(self) -> AdversaryResult | None:
        """The same among those that bring a data set of their own: a guarantee covers them all."""
        return self._best(chosen_data=True)

    def _best(self, *, chosen_data: bool) -> AdversaryResult | None:
        some = [one for one in self.adversaries if one.attack.chosen_data is chosen_data]
        return max(some, key=lambda one: one.bound.epsilon, default=None)

    @property
    def accuracy(self) -> float | None:
        """Mean test accuracy of the models trained without a canary; None where it is not known."""
        return next((one.accuracy for one in self.adversaries if one.accuracy is not None), None)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "verdict": self.verdict.to_dict(),
            "claim": None if self.claim is None else self.claim.to_dict() | {"epsilon": plain(self.claim_epsilon)},
            "guarantee": self.guarantee.to_dict() if self.guarantee else None,
            "heuristic": self.heuristic.to_dict() if self.heuristic else None,
            "proved": {
                name: None if best is None else {"adversary": best.label, "epsilon_lower": plain(best.bound.epsilon)}
                for name, best in (("on_data", self.on_data), ("on_chosen_data", self.on_chosen_data))
            },
            "adversaries": [one.to_dict() for one in self.adversaries],
            "belief": plain(dict(self.belief)),
            "advantage": plain(dict(self.advantage)),
            "subject": self.subject.to_dict(),
            "accuracy": self.accuracy,
            "missing": self.missing,
            "audit": self.audit,
            "created": self.created,
            "name": self.name,
            "config": self.config.model_dump(mode="json"),
            "versions": dict(self.versions),
        }

    def to_json(self) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def gaps(self) -> tuple[Gap, ...]:
        """Where ε is lost between what is promised and what the best attacks proved (:mod:`coalmine.auditing.gap`)."""
        from coalmine.auditing.gap import gaps

        return gaps(self)

    def in_words(self) -> str:
        """The verdict for people, and what would have been refuted: what a failed test, or a log, should say."""
        from coalmine.report import words

        return " ".join([words.verdict(self), *words.could_have_failed(self)])

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

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """The report as one HTML page that needs nothing else; with a path it is written there too.

        Needs the extra ``report``.
        """
        from coalmine import report

        return report.page(self) if path is None else report.write_html(self, path).read_text(encoding="utf-8")

    def to_frame(self) -> Any:
        """The numbers of :meth:`table` as a pandas data frame, one row for each adversary and method."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise UnsupportedError("a data frame needs pandas: install it with pip install pandas") from None
        return pandas.DataFrame.from_records(list(self.table().records))

    def __repr__(self) -> str:
        """What was found, in one line."""
        from coalmine.report import words

        return f"<AuditResult: {words.in_short(self)}>"

    def _repr_html_(self) -> str:
        """For notebooks: the verdict, what it is worth, and what each attack proved."""
        from coalmine.report import tables

        return tables.notebook(self)
