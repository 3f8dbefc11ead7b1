"""An audit from a store alone, and the one place where evidence becomes a result. Nothing is crafted or trained."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.auditing import persons
from coalmine.auditing.config import AuditConfig, FunctionConfig, checked
from coalmine.auditing.facts import AttackFacts, Subject, fingerprint
from coalmine.auditing.judge import Evidence, Judgement, judge
from coalmine.auditing.promises import epsilon_of
from coalmine.auditing.proof import coins_of, failures_of, prove, prove_one_run, scores_of
from coalmine.auditing.results import AdversaryResult, AuditResult, OneRun
from coalmine.errors import CoalmineError, InvalidInputError, StoreError
from coalmine.game import ACCURACY, WITH_CANARIES
from coalmine.game.machine import versions
from coalmine.identifiability import advantage, belief
from coalmine.one_run.design import Design
from coalmine.records import (
    Claim,
    Estimate,
    LowerBound,
    MechanismClaim,
    Outcome,
    Relation,
    Scores,
    Verdict,
    claim_from_dict,
    plain,
)
from coalmine.store import Store
from coalmine.store.listing import audits, descriptions, progress

_FINGERPRINT = re.compile("[0-9a-f]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A run of an audit: its facts, how many trials were asked for, and which run is its positive control.

    ``design`` is what was fixed before a score was seen, where trials are canaries of one training.
    """

    run: str
    attack: AttackFacts
    wanted: int
    control: Member | None = None
    design: Design | None = None

    @property
    def with_control(self) -> tuple[Member, ...]:
        """The run, then its control where there is one."""
        return (self,) if self.control is None else (self, self.control)

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "run": self.run,
            "attack": self.attack.to_dict(),
            "wanted": self.wanted,
            "control": self.control.to_dict() if self.control else None,
            "design": self.design.to_dict() if self.design else None,
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> Member:
        """The member from plain data, which may come from anybody."""
        attack = AttackFacts.from_dict(tree["attack"])
        _validate.integer("copies", attack.copies, at_least=1)
        _validate.integer("runs", attack.runs, at_least=0)
        if not isinstance(tree["run"], str) or not _FINGERPRINT.fullmatch(tree["run"]):
            raise _validate.reject("run", tree["run"], "the fingerprint of a run")
        return cls(
            run=tree["run"],
            attack=attack,
            wanted=_validate.integer("trials", tree["wanted"], at_least=2),
            control=cls.from_dict(tree["control"]) if tree["control"] else None,
            design=Design.from_dict(tree["design"]) if tree.get("design") else None,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditRecord:
    """All that an audit is, beside its trials: what was asked, about what, and which runs answer it."""

    config: AuditConfig | FunctionConfig
    subject: Subject
    claim: Claim | None
    members: tuple[Member, ...]
    versions: Mapping[str, str] = dataclasses.field(default_factory=versions)

    @property
    def name(self) -> str:
        """The audit's own fingerprint."""
        return fingerprint({key: value for key, value in self.to_dict().items() if key != "versions"})

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "subject": self.subject.to_dict(),
            "claim": self.claim.to_dict() if self.claim else None,
            "members": [one.to_dict() for one in self.members],
            "versions": dict(self.versions),
        }

    @classmethod
    def from_dict(cls, tree: Mapping[str, Any]) -> AuditRecord:
        """The record from plain data."""
        kind: type[FunctionConfig] | type[AuditConfig] = FunctionConfig if tree["subject"]["own"] else AuditConfig
        return cls(
            config=checked(kind, tree["config"]),
            subject=Subject.from_dict(tree["subject"]),
            claim=claim_from_dict(tree["claim"]) if tree["claim"] else None,
            members=tuple(Member.from_dict(one) for one in tree["members"]),
            versions=tree["versions"],
        )


def record_of(store: Store, prefix: str) -> AuditRecord:
    """The audit of that name; for the name of a run, the last audit that it belongs to."""
    found = store.audit(prefix)
    if found is None:
        run = store.run(prefix)
        raise StoreError(
            f"run {run.fingerprint[:12]} has no audit in this store: it was made by Coalmine "
            f"{dict(run.description).get('versions', {}).get('coalmine', 'of another version')} before the facts of an "
            "attack were kept with its trials, so it cannot be judged without guessing them: run the audit again"
        )
    # An audit is named by what it is: a description that was changed afterwards no longer has its name. One that was
    # named again may hold numbers that are none, values that no audit has, or not all of its parts.
    wrong = ""
    try:
        name = fingerprint({key: value for key, value in found.items() if key != "versions"})
        record = AuditRecord.from_dict(found)
    except CoalmineError as error:
        wrong = f" ({error})"
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        wrong = f" ({type(error).__name__}: {error})"
    if wrong or not descriptions(store, [name]):
        raise StoreError(
            f"store {str(store.path)!r}: the description of this audit was damaged or changed{wrong}; nothing was "
            "deleted: restore the file from a copy, or run the audit again"
        )
    return record


def stored_result(store: Store, prefix: str) -> AuditResult:
    """What the stored trials of an audit prove; no data is loaded, no attack crafted, no code of a user called."""
    return conclude(store, record_of(store, prefix))


def conclude(store: Store, record: AuditRecord) -> AuditResult:
    """Judge an audit by its stored trials.

    An attack without trials in both worlds is left out, and one whose canaries are not all there yet: its guesses were
    fixed for all of them.
    """
    found_by_member = [_evidence(store, member) for member in record.members]
    evidence = [one for found in found_by_member for one in found]
    if not evidence:
        raise StoreError(
            f"store {str(store.path)!r} has no trials of this audit yet: run coalmine audit with the same config first"
        )
    question = record.config.audit
    each = 1.0 - (1.0 - question.confidence) / len(evidence)
    # Two at a time: what takes long is numpy's, which lets other threads run. More would hold too many copies at once.
    with ThreadPoolExecutor(2) as pool:
        judging = pool.submit(judge, evidence, claim=record.claim, confidence=question.confidence)
        proving = [pool.submit(_proved, one, record=record, confidence=each) for one in evidence]
        verdict, found = judging.result()
        proofs = [one.result() for one in proving]
    results = tuple(
        _result(one, how, proved, record=record, confidence=each)
        for one, how, proved in zip(evidence, found, proofs, strict=True)
    )
    strongest = max(results, key=lambda one: one.bound.epsilon)
    claimed = math.inf if record.claim is None else epsilon_of(record.claim)
    if verdict.outcome is Outcome.CONSISTENT and strongest.bound.epsilon > claimed:
        verdict = Verdict(
            outcome=Outcome.INCONCLUSIVE,
            confidence=verdict.confidence,
            reasons=(
                f"{strongest.label} proves ε ≥ {_validate.rounded_down(strongest.bound.epsilon, 3)}, more than is "
                "claimed, although the test of the claim as a whole does not refute it: one of the two errs by chance, "
                "and more trials will tell",
            ),
        )
    promised = claimed if record.subject.guarantee is None else record.subject.guarantee.epsilon
    entry = next((one for one in audits(store) if one.fingerprint == record.name), None)
    return AuditResult(
        config=record.config,
        subject=record.subject,
        claim=record.claim,
        claim_epsilon=claimed,
        verdict=dataclasses.replace(verdict, ceiling=max(one.bound.ceiling or 0.0 for one in results)),
        adversaries=results,
        belief={
            "guarantee": belief.from_epsilon(promised) if promised < math.inf else 1.0,
            "evidence": belief.from_epsilon(strongest.bound.epsilon),
        },
        advantage={"guarantee": _advantage(record)},
        versions=record.versions,
        missing=sum(not found for found in found_by_member),
        audit=record.name,
        created=None if entry is None else entry.created,
        name="" if entry is None else entry.name,
        asked=_asked(entry.conclusion if entry else None),
    )


def _asked(kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (kept or {}).get("asked")
    return found if isinstance(found, dict) else {}


def keep_asked(store: Store, result: AuditResult, asked: Mapping[str, Any]) -> AuditResult:
    """The result with the names by which its functions were found, kept beside how the audit ended.

    They change neither a fingerprint nor a result: they let a report say how to run the audit again.
    """
    named = dataclasses.replace(result, asked=dict(asked))
    store.keep_conclusion(result.audit, summary(store, record_of(store, result.audit), named))
    return named


def conclude_and_keep(store: Store, record: AuditRecord) -> AuditResult:
    """:func:`conclude`, and keep how it ended beside the audit, so that a list need not judge it again."""
    result = conclude(store, record)
    store.keep_conclusion(record.name, summary(store, record, result))
    return result


def summary(store: Store, record: AuditRecord, result: AuditResult) -> dict[str, Any]:
    """How an audit ended, in a few numbers, and the trials that say so.

    Where nothing is proved on the data at hand, or on data that was chosen, because nobody tried, that number is None.
    """
    best = {"on_data": result.on_data, "on_chosen_data": result.on_chosen_data}
    found: dict[str, Any] = plain(
        {
            "coalmine": versions()["coalmine"],
            "trials": stored_trials(store, record.members),
            "outcome": result.verdict.outcome.value,
            "claim": result.claim_epsilon,
            "proved": {name: None if one is None else one.bound.epsilon for name, one in best.items()},
            "ceilings": {name: None if one is None else one.bound.ceiling for name, one in best.items()},
            "epsilon": result.strongest.bound.epsilon,
            "runs": {one.run: one.bound.epsilon for one in reversed(result.ranked)},
            "ceiling": result.verdict.ceiling,
            "delta": result.config.audit.delta,
            "confidence": result.config.audit.confidence,
            **({"asked": result.asked} if result.asked else {}),
        }
    )
    return found


def stored_trials(store: Store, members: Sequence[Member]) -> dict[str, int]:
    """How many of the trials that the audit asked for are there, for each of its runs, controls included."""
    every = [one for member in members for one in member.with_control]
    there = progress(store, [one.run for one in every])
    return {one.run: min(there[one.run].trials, one.wanted) for one in every}


def is_current(kept: Mapping[str, Any], trials: Mapping[str, int]) -> bool:
    """Whether a kept :func:`summary` is of these trials, and of this version of Coalmine."""
    return kept.get("coalmine") == versions()["coalmine"] and kept.get("trials") == dict(trials)


def _evidence(store: Store, member: Member) -> Sequence[Evidence]:
    """The attack's trials, once for each score that they have."""
    if not store.knows(member.run):
        return []
    trials = store.scores(member.run, below=member.wanted)
    if min(np.sum(trials.world == 0), np.sum(trials.world == 1)) == 0:
        return []
    if member.design is not None and len(trials) < member.wanted:
        return []
    if not np.isfinite(trials.score).any():
        reason = next((one.reason for one in store.failures(member.run) if one.trial is not None), "no reason kept")
        raise InvalidInputError(
            f"every training of {member.attack.label} failed ({reason}): nothing can be measured; does the training "
            "accept these data sets?"
        )
    reasons = [(one.trial, one.reason) for one in store.failures(member.run) if one.trial is not None]
    control = next(iter(_evidence(store, member.control)), None) if member.control else None
    found = Evidence(
        run=member.run,
        attack=member.attack,
        trials=trials,
        wanted=member.wanted,
        reasons=tuple(f"trial {trial} failed: {reason}" for trial, reason in reasons[:3] if trial < member.wanted),
        control=control,
        design=member.design,
    )
    return found.by_score()


Proof = tuple[Scores, LowerBound, tuple[LowerBound | Estimate, ...]]
"""Scores, what they prove with nothing assumed, and what other methods make of them."""


def _proved(one: Evidence, *, record: AuditRecord, confidence: float) -> list[Proof]:
    """What the scores of one attack prove, and where trainings failed what that proves."""
    subject, delta = record.subject, record.config.audit.delta
    relation = record.claim.relation if record.claim else Relation.ADD_REMOVE
    if subject.local and subject.heuristic and not record.claim:  # for the neighbours that the noise was made for
        relation = subject.heuristic.relation
    mechanism = subject.mechanism
    if subject.own and isinstance(record.claim, MechanismClaim):
        mechanism = record.claim.mechanism
    # Failing is a result like any other: where something failed it has half the level, as in the judge.
    parts = [scores_of(one.trials)] + ([failures_of(one.trials)] if any(one.failed) and one.design is None else [])
    each = 1.0 - (1.0 - confidence) / len(parts)
    if one.design is not None:
        return [(parts[0], *prove_one_run(coins_of(one.trials), design=one.design))]
    return [
        (part, *prove(part, one.attack, delta=delta, confidence=each, relation=relation, mechanism=mechanism))
        for part in parts
    ]


def _result(
    one: Evidence, how: Judgement | None, proofs: Sequence[Proof], *, record: AuditRecord, confidence: float
) -> AdversaryResult:
    """What one attack proved."""
    by_failing = (
        len(proofs) == 2
        and not one.attack.log_odds
        and (how.refuted and how.test == "failures" if how else proofs[1][1].epsilon > proofs[0][1].epsilon)
    )
    scores, bound, others = proofs[by_failing]
    beliefs = None
    if one.attack.log_odds:
        beliefs = persons.beliefs_of(
            one.trials, one.attack, subject=record.subject, delta=record.config.audit.delta, confidence=confidence
        )
        others = (*others, *beliefs.estimates)
    notes = [*one.attack.notes, *one.reasons]
    if by_failing:
        notes.append("what is proved comes from which trainings failed (score 1), not from what the others scored")
    for index, world in enumerate((scores.world0, scores.world1)):
        if np.ptp(world) == 0.0 and one.design is None and not by_failing:
            advice = "" if one.attack.powers else ": does train use its seed?"
            notes.append(f"all trials in world {index} have the same score{advice}")
    return AdversaryResult(
        attack=one.attack,
        run=one.run,
        wanted=one.wanted,
        failed=one.failed,
        bound=bound,
        others=others,
        judgement=how,
        notes=tuple(notes),
        seconds=one.trials.elapsed,
        accuracy=one.accuracy,
        scores=scores,
        beliefs=beliefs,
        one_run=None if one.design is None else _one_run(one, one.design),
        control=None if one.control is None else one.control.run,
    )


def _one_run(one: Evidence, design: Design) -> OneRun:
    """What was guessed about the canaries of one training, and what they cost."""
    with_canaries = one.trials.columns[WITH_CANARIES]
    kept = with_canaries[np.isfinite(with_canaries) & np.isfinite(one.trials.columns[ACCURACY])]
    return OneRun(
        design=design,
        runs=one.attack.runs,
        scores=coins_of(one.trials),
        guesses=design.count(coins_of(one.trials)),
        with_canaries=float(kept.mean()) if kept.size else None,
    )


def _advantage(record: AuditRecord) -> float:
    """By how much the best guess of membership beats random guessing, at most: the total variation distance."""
    claim = record.claim
    if not record.subject.own:
        return 1.0 if record.subject.mechanism is None else advantage.of_mechanism(record.subject.mechanism)
    if isinstance(claim, MechanismClaim):
        return advantage.of_mechanism(claim.mechanism)
    return 1.0 if claim is None else advantage.generic(claim.epsilon, delta=claim.delta)
