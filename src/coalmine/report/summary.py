"""The first screen of the report: the verdict, two numbers, whether the audit could have failed, and what it was."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from coalmine._validate import counted, rounded_up
from coalmine.auditing.proof import METHODS
from coalmine.records import EpsilonClaim, MechanismClaim, Outcome
from coalmine.report import rounding, words

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


def tiles(result: AuditResult) -> list[dict[str, Any]]:
    """What is proved on the data at hand and on data that was chosen: a name, a number, and the lines below it."""
    return [
        _tile(result, words.YOUR_DATA, result.on_data, "No attack on your data was played."),
        _tile(result, words.CHOSEN_DATA, result.on_chosen_data, _NO_CHOSEN_DATA[result.subject.own]),
    ]


_NO_CHOSEN_DATA = {
    False: "Not tried: no attack chose the data set (malicious-dataset does).",
    True: "Not tried: these worlds are yours. A data set that an attacker chose may show more.",
}


def _tile(result: AuditResult, name: str, best: AdversaryResult | None, otherwise: str) -> dict[str, Any]:
    """One tile."""
    if best is None:
        return {"name": name, "number": "not tried", "lines": [otherwise]}
    chosen = best.attack.chosen_data
    some = [one for one in result.adversaries if one.attack.chosen_data is chosen and one.assumed is not None]
    lines = []
    if rounding.worth_saying(best.bound.epsilon):
        lines.append(f"proved by {best.label} at {rounding.confidence(best.bound.confidence)} confidence")
    else:
        lines.append("no attack proved any leakage")
    assumed = max(some, key=lambda one: one.assumed.epsilon if one.assumed else 0.0, default=None)
    if assumed is not None and assumed.assumed is not None and assumed.assumed.epsilon > 0.0:
        who = "" if assumed is best else f" ({assumed.label})"
        lines.append(f"{words.proved(assumed.assumed)} {METHODS[assumed.assumed.method].short}{who}")
    lines.append(f"from {words.played(best)}")
    number = words.epsilon(best.bound)
    return {"name": name, "number": number, "lines": lines}


def could_fail(result: AuditResult) -> tuple[str, list[str]]:
    """Could this audit have failed? The answer in a word or two, and why."""
    said = result.verdict
    if said.outcome is Outcome.REFUTED:
        chance = rounding.small(round(1.0 - said.confidence, 12))
        return "It did.", [
            *(words.sentence([reason]) for reason in said.reasons),
            f"A true claim is refuted by chance with probability at most {chance}.",
        ]
    if result.claim is None:
        return "No.", ["There is no claim to refute: name one with --claim-epsilon to have it tested."]
    if said.outcome is Outcome.INCONCLUSIVE:
        return "Hardly, so it says nothing.", [words.sentence([reason]) for reason in said.reasons]
    return "Yes.", words.could_have_failed(result)


def check_next(result: AuditResult) -> list[str]:
    """Where to look when a claim is refuted, the likeliest place first."""
    if result.verdict.outcome is not Outcome.REFUTED:
        return []
    seed = result.config.audit.seed + 1
    lines = []
    if not result.subject.own and isinstance(result.claim, EpsilonClaim) and result.guarantee is not None:
        lines.append(
            f"The claim: {words.epsilon(result.guarantee)} is guaranteed for this training, ε = "
            f"{result.claim.epsilon:g} was claimed. Claim what the accountant gives, or train with more noise."
        )
    noises = [one.judgement.noise_multiplier for one in result.adversaries if one.judgement]
    known = [noise for noise in noises if noise is not None]
    if known and isinstance(result.claim, MechanismClaim):
        lines.append(
            f"The noise: the trials fit a noise multiplier below {rounding.up(min(known), 3)}, not "
            f"{result.claim.mechanism.noise_multiplier:g}. Is it drawn anew in every step, scaled to the clipping "
            "norm, and added to the sum before the division by the batch size?"
        )
    else:
        lines.append(
            "The noise: is it drawn anew in every step, scaled to the clipping norm, and added to the sum of gradients "
            "before the division by the batch size?"
        )
    lines += [
        "The clipping: is every row's own gradient clipped, before rows are summed, and over all layers together?",
        "The sampling: is every row drawn by itself in each step (Poisson) at the rate that was accounted for? A "
        "shuffled loader has another guarantee.",
        "Everything else that is released: batch statistics, chosen checkpoints, losses, trainings that fail.",
        "coalmine probe takes one step of the training apart and names the fault.",
        f"Chance: repeat with --set audit.seed={seed}. A true claim would be refuted twice with probability at most "
        f"{rounding.small_up(round(1.0 - result.verdict.confidence, 12) ** 2)}.",
    ]
    return lines


def facts(result: AuditResult) -> list[tuple[str, str]]:
    """What was audited, and with what."""
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items() if name in _SHOWN)
    return [("Audited", subject(result)), ("Versions", versions)]


_SHOWN = ("coalmine", "python", "numpy", "torch", "jax")
"""The versions that matter most; all of them stand at the end of the page."""


def names(result: AuditResult) -> list[str]:
    """What people call the audit, what was audited, and the beginning of the audit's fingerprint."""
    known = [result.name, result.subject.name, f"audit {result.audit[:12]}" if result.audit else ""]
    return [part for part in known if part]


def date(result: AuditResult) -> str:
    """When the audit was first asked."""
    if result.created is None:
        return "not recorded"
    when = datetime.datetime.fromtimestamp(result.created, datetime.UTC)
    return f"{when.day} {when:%B %Y, %H:%M} UTC"


def subject(result: AuditResult) -> str:
    """What was audited, in a line."""
    settings: Any = result.config
    known = result.subject.details
    if result.subject.own:
        control = f", beside its control {known['control']}" if "control" in known else ""
        return f"A training of your own, {settings.train}, scored by {settings.score}{control}; {words.trials(result)}"
    return (
        f"DP-SGD on {result.subject.name}: {known['rows']:,} rows, {known['parameters']:,} parameters, "
        f"{counted(known['steps'], 'step')} at sampling rate {known['sampling rate']:.4g}, noise multiplier "
        f"{rounded_up(known['noise multiplier'])}, clipping norm {known['clipping norm']:g}"
        + (f", started from {known['start']}" if "start" in known else "")
        + f"; {words.trials(result)}"
        + ("" if result.accuracy is None else f"; test accuracy {100 * result.accuracy:.1f}% without the canary")
    )
