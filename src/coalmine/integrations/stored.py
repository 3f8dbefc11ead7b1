"""The result of a user's own training from its stored trials alone: no code of the user is called here."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from coalmine import bounds
from coalmine.accounting import standard
from coalmine.auditing import proof
from coalmine.auditing.config import FunctionConfig
from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.errors import InvalidInputError
from coalmine.identifiability import advantage, belief
from coalmine.records import DpSgd, Estimate, Guarantee, LowerBound, Relation, Scores
from coalmine.roles import View
from coalmine.store import Store

NAME = "own training"


def stored_result(store: Store, run: str) -> AuditResult:
    """The result of a run of a user's own training from its stored trials alone: no code of the user is called."""
    found = store.run(run)
    settings = FunctionConfig.model_validate(dict(found.description)["config"])
    section, relation = settings.audit, Relation.parse(settings.relation)
    trials = store.scores(found.fingerprint, below=section.trials)
    if min(np.sum(trials.world == 0), np.sum(trials.world == 1)) == 0:
        raise InvalidInputError(f"run {found.fingerprint[:12]} has no trials yet: expected some in each world")
    scores = proof.scores_of(trials)
    claim = _guarantee(settings)
    evidence = _prove(settings, scores, claim)
    reasons = [(one.trial, one.reason) for one in store.failures(found.fingerprint) if one.trial is not None]
    notes = [f"trial {trial} failed: {reason}" for trial, reason in reasons[:3] if trial < section.trials]
    for index, world in enumerate((scores.world0, scores.world1)):
        if np.ptp(world) == 0.0:
            notes.append(f"all trainings in world {index} have the same score: does train use its seed?")
    mechanism = settings.mechanism
    words = {f"claimed {key}": value for key, value in _mechanism_words(mechanism).items()}
    return AuditResult(
        config=settings,
        mechanism={"train": settings.train, "score": settings.score, **words},
        data_note="",
        guarantee=claim,
        heuristic=None,
        adversaries=(
            AdversaryResult(
                name=NAME,
                options={},
                view=View.FINAL_MODEL,
                relation=relation,
                copies=settings.copies,
                fingerprint=found.fingerprint,
                failed=trials.failed,
                bound=evidence.bound,
                others=evidence.others,
                notes=tuple(notes),
                seconds=trials.elapsed,
                scores=scores,
            ),
        ),
        belief={
            "guarantee": belief.from_epsilon(claim.epsilon),
            "evidence": belief.from_epsilon(evidence.bound.epsilon),
        },
        advantage={
            "guarantee": advantage.of_mechanism(mechanism)
            if mechanism
            else advantage.generic(claim.epsilon, delta=section.delta)
        },
        claim=claim.epsilon,
        verdict="refuted" if evidence.refuted else "consistent",
        refutation=evidence.refutation,
        versions=dict(found.description)["versions"],
    )


def _guarantee(settings: FunctionConfig) -> Guarantee:
    """The claim in the place of a guarantee."""
    delta, relation = settings.audit.delta, Relation.parse(settings.relation)
    assumptions: tuple[str, ...] = ("this is what the user claims; Coalmine has not proved it",)
    if settings.mechanism is not None:
        epsilon = standard.epsilon(settings.mechanism, delta=delta).epsilon
        words = ", ".join(f"{key} {value}" for key, value in _mechanism_words(settings.mechanism).items())
        assumptions += (f"the claim is DP-SGD with {words}",)
    else:
        assert settings.audit.claim_epsilon is not None
        epsilon = settings.audit.claim_epsilon
    return Guarantee(
        epsilon=epsilon, delta=delta, analysis="claimed by the user", relation=relation, assumptions=assumptions
    )


def _mechanism_words(mechanism: DpSgd | None) -> dict[str, Any]:
    """A mechanism for people."""
    if mechanism is None:
        return {}
    return {
        "sampling rate": mechanism.sample_rate,
        "noise multiplier": mechanism.noise_multiplier,
        "steps": mechanism.steps,
        "sampling": mechanism.sampling.value,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Evidence:
    """What the scores prove: without assumptions, by other methods, and against the claim."""

    bound: LowerBound
    others: tuple[LowerBound | Estimate, ...]
    refuted: bool
    refutation: str = ""


def _prove(settings: FunctionConfig, scores: Scores, claim: Guarantee) -> _Evidence:
    """The bound under the claim's relation, the others, and whether the claim is refuted.

    A claimed ε is refuted by a larger bound. A claimed DP-SGD is refuted by any point below its trade-off curve: the
    method that looks for the noise of a DP-SGD with this rate and these steps finds less than what is claimed. The ε
    that this method gives holds for such a DP-SGD alone, so it never stands as what was proved.
    """
    section, relation = settings.audit, Relation.parse(settings.relation)
    delta, confidence = section.delta, section.confidence
    first, others = proof.prove(scores, delta=delta, confidence=confidence, relation=relation, copies=settings.copies)
    if relation is Relation.REPLACE:
        replaced = next(
            one
            for one in others
            if isinstance(one, LowerBound) and (one.method, one.relation) == (first.method, relation)
        )
        first, others = replaced, (first, *(one for one in others if one is not replaced))
    claimed = settings.mechanism
    if claimed is None:
        return _Evidence(bound=first, others=others, refuted=first.epsilon > claim.epsilon)
    by_curve = bounds.dpsgd(
        scores,
        delta=delta,
        confidence=confidence,
        sample_rate=claimed.sample_rate,
        steps=claimed.steps,
        sampling=claimed.sampling,
        relation=relation,
        copies=settings.copies,
    )
    refuted = by_curve.epsilon > claim.epsilon
    words = f"sampling rate {claimed.sample_rate:g}, {claimed.steps} step{'s' * (claimed.steps > 1)}"
    least = math.ceil(by_curve.details["noise_multiplier"] * 1000.0) / 1000.0 if refuted else math.nan
    return _Evidence(
        bound=first,
        others=(*others, by_curve),
        refuted=refuted,
        refutation=f"this cannot be DP-SGD with {words} and noise multiplier {claimed.noise_multiplier:g}; at that "
        f"rate and length the noise multiplier is below {least:g}"
        if refuted
        else "",
    )
