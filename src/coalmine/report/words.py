"""An audit in plain sentences; their numbers are in ``rounding``, what it means for one person in ``one_person``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from coalmine.auditing.proof import METHODS
from coalmine.records import EpsilonClaim, Estimate, Guarantee, Heuristic, LowerBound, Outcome, Relation
from coalmine.report.rounding import confidence, least, near, small, up, worth_saying

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult

ESTIMATES = {
    "sensitivities": "From how far the two gradients are apart",
    "largest belief": "From the largest belief",
    "advantage": "From how often the guess is right",
}
RULES = {
    "ranks": "all scores by their ranks (corrected for selection)",
    "sup": "best threshold (corrected for selection)",
    "holdout": "threshold chosen on other trials",
    "bonferroni": "level shared among thresholds",
    "dkw": "all thresholds at once",
    "given": "threshold fixed beforehand",
    "counts": "threshold fixed beforehand",
    "optimistic threshold": "best threshold (not corrected for selection)",
}
YOUR_DATA, CHOSEN_DATA = "Your data", "A data set that the attacker chose"
"""The two questions. The second is not called the worst case: that covers your data too, and so is never smaller."""
RELATIONS = {
    Relation.ADD_REMOVE: "one row added or removed",
    Relation.REPLACE: "one row replaced",
}


def epsilon(statement: Guarantee | Heuristic | LowerBound | Estimate) -> str:
    """ε with the sign that fits its type: ≤ promised, ≥ proved, ≈ predicted or estimated.

    >>> epsilon(Heuristic(epsilon=3.046, delta=1e-5, analysis="x", relation=Relation.ADD_REMOVE, assumptions=()))
    'ε ≈ 3.05'
    """
    if isinstance(statement, Guarantee):
        return f"ε ≤ {up(statement.epsilon)}" if statement.epsilon < math.inf else "ε unlimited"
    if isinstance(statement, LowerBound):
        return f"ε ≥ {least(statement.epsilon)}"
    return f"ε ≈ {near(statement.epsilon)}"


def proved(bound: LowerBound) -> str:
    """What a bound proves; a bound of 0 says nothing.

    >>> from coalmine import bounds
    >>> from coalmine.records import Counts
    >>> counts = Counts(false_positives=20, negatives=40, false_negatives=20, positives=40)
    >>> proved(bounds.lower_bound(counts, delta=1e-5, confidence=0.99))
    'nothing proved'
    """
    return epsilon(bound) if worth_saying(bound.epsilon) else "nothing proved"


def method(found: LowerBound | Estimate) -> str:
    """A method and its threshold rule in words; a name that is not known stays as it is."""
    first, _, rest = found.method.partition(", ")
    words = METHODS[first].words if first in METHODS else ESTIMATES.get(first, first)
    if isinstance(found, LowerBound):
        rest = found.threshold_rule
    name = rest.split("(", maxsplit=1)[0].split(":", maxsplit=1)[0]
    return f"{words}; {RULES.get(name, rest)}" if rest else words


def kind(found: LowerBound | Estimate) -> str:
    """What the number is worth."""
    if isinstance(found, Estimate):
        return "estimate: proves nothing"
    return "proved" if METHODS[found.method].decides else "proved only if its assumption holds"


def relation(value: Relation, copies: int) -> str:
    """How the two worlds differ.

    >>> relation(Relation.ADD_REMOVE, 4)
    '4 equal rows added or removed'
    """
    if copies == 1:
        return RELATIONS[value]
    return f"{copies} equal rows added or removed" if value is Relation.ADD_REMOVE else f"{copies} rows replaced"


def in_groups(result: AuditResult) -> list[str]:
    """Which attacks differ in several rows, and for how many their ε is."""
    several = [one for one in result.adversaries if one.copies > 1 and one.one_run is None]
    return [
        f"The worlds of {', '.join(one.label for one in several if one.copies == copies)} differ in {copies} rows; the "
        "ε is for one row, by group privacy."
        for copies in sorted({one.copies for one in several})
    ]


def trials(result: AuditResult) -> str:
    """How many trials were played, of how many that were asked for; a draw is no training."""
    parts = [f"{played(one)} for {one.label}" for one in result.adversaries if one.one_run is not None]
    many = [one for one in result.adversaries if one.one_run is None]
    trained, drawn = ([one for one in many if one.attack.trained is kind] for kind in (True, False))
    if trained:
        parts.append(f"{_counts(trained)} trainings for {'each of the others' if parts else 'each adversary'}")
    if drawn:
        whom = " and ".join(one.label for one in drawn) if parts else "each adversary"
        parts.append(f"{_counts(drawn)} draws from the known law for {whom}")
    return " and ".join(parts)


def _counts(some: Sequence[AdversaryResult]) -> str:
    """How many trials they had, of how many."""
    done, wanted = _range({one.trials for one in some}), _range({one.wanted for one in some})
    return f"{done}{'' if done == wanted else f' of {wanted}'}"


def plays(one: AdversaryResult) -> str:
    """What its trials are called."""
    return "trainings" if one.attack.trained else "draws"


def played(one: AdversaryResult) -> str:
    """The trials of one adversary: trainings, draws, or canaries in one training."""
    if one.one_run is None:
        return f"{one.trials:,} {plays(one)}"
    runs = "one training" if one.one_run.runs == 1 else f"{one.one_run.runs} trainings"
    return f"{one.trials:,} canaries in {runs}"


def _range(counts: set[int]) -> str:
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def claim(result: AuditResult) -> str:
    """What was put to the test."""
    if isinstance(result.claim, EpsilonClaim):
        return f"the claim ε = {result.claim.epsilon:g}"
    promised = f"ε ≤ {up(result.claim_epsilon)}"
    mechanism = result.mechanism
    if result.subject.own and mechanism is not None:
        steps = f"{mechanism.steps} step{'s' * (mechanism.steps > 1)}"
        return (
            f"the claim of DP-SGD with sampling rate {mechanism.sample_rate:g}, noise multiplier "
            f"{mechanism.noise_multiplier:g} and {steps} ({promised})"
        )
    return f"the guarantee {promised} and the whole trade-off curve behind it"


def verdict_line(result: AuditResult) -> str:
    """The verdict in one clause: what was tested, and how it fared."""
    section, outcome = result.config.audit, result.verdict.outcome
    sure, point = f"at {confidence(section.confidence)} confidence", f"δ = {small(section.delta)}"
    if outcome is Outcome.REFUTED:
        return f"Refuted {sure}: {claim(result)} is false ({point})"
    if result.claim is None:
        return f"Inconclusive: {nothing(result)}, so there is no claim to refute"
    if outcome is Outcome.INCONCLUSIVE:
        return f"Inconclusive: this audit says nothing about {claim(result)} ({point})"
    return f"Consistent: nothing here contradicts {claim(result)} ({point})"


def verdict(result: AuditResult) -> str:
    """The verdict in a sentence or two: with what was proved, or with the reasons."""
    section, said = result.config.audit, result.verdict
    sure, point = f"at {confidence(section.confidence)} confidence", f"δ = {small(section.delta)}"
    line = verdict_line(result)
    if said.outcome is Outcome.CONSISTENT:
        return f"{line}; {strongest(result)} {sure}."
    if result.claim is None:
        return f"{line}; {strongest(result)} {sure} ({point})."
    return f"{line}. {sentence(said.reasons)}"


def in_short(result: AuditResult) -> str:
    """A line for a log or a prompt: the outcome, what is proved, what is promised."""
    promised = f"ε ≤ {up(result.promised)} {'claimed' if result.subject.own else 'promised'}"
    best = result.strongest
    return (
        f"{result.verdict}; {proved(best.bound)} ({best.label}), "
        f"{promised if result.promised < math.inf else 'nothing promised'} at δ = {small(result.config.audit.delta)}; "
        f"{sum(one.trials for one in result.adversaries):,} trials of {len(result.adversaries)} "
        f"attack{'s' * (len(result.adversaries) > 1)}"
    )


def sentence(reasons: Sequence[str]) -> str:
    """Clauses as one sentence, with a capital and a full stop.

    >>> sentence(["all is well", "so far"])
    'All is well; so far.'
    """
    text = "; ".join(reasons)
    return f"{text[:1].upper()}{text[1:]}."


def strongest(result: AuditResult) -> str:
    """What the strongest attack proved, in a clause: on the data at hand and on chosen data, if both were tried."""
    best, mine, chosen = result.strongest, result.on_data, result.on_chosen_data
    if not worth_saying(best.bound.epsilon):
        return "no attack proved any leakage"
    if mine is None or chosen is None:
        return f"the strongest attack, {best.label}, proves {epsilon(best.bound)}"
    return f"on your data {_proves(mine)}; on a data set that the attacker chose {_proves(chosen)}, both"


def _proves(one: AdversaryResult) -> str:
    if not worth_saying(one.bound.epsilon):
        return "no attack proves any leakage"
    return f"{one.label} proves {epsilon(one.bound)}"


def headline(result: AuditResult) -> list[tuple[str, str]]:
    """Two numbers where two questions were asked: what is proved on the data at hand, and on data that was chosen.

    Each is a name and a sentence. Beside what is proved stands what the same scores prove under an assumption.
    """
    if result.on_data is None or result.on_chosen_data is None:
        return []
    lines = []
    for name, chosen in ((YOUR_DATA, False), (CHOSEN_DATA, True)):
        some = [one for one in result.adversaries if one.attack.chosen_data is chosen]
        best = max(some, key=lambda one: one.bound.epsilon)
        text = (
            f"{epsilon(best.bound)} is proved ({best.label})"
            if worth_saying(best.bound.epsilon)
            else "nothing is proved"
        )
        assumed = [(one.assumed, one) for one in some if one.assumed is not None and one.assumed.epsilon > 0.0]
        if assumed:
            most, who = max(assumed, key=lambda pair: pair[0].epsilon)
            whose = "" if who is best else f" ({who.label})"
            text += f"; {epsilon(most)} {METHODS[most.method].short}{whose}"
        lines.append((name, f"{text}."))
    return lines


def could_have_failed(result: AuditResult) -> list[str]:
    """What this audit would have refuted: a verdict is worth no more than that."""
    if result.verdict.outcome is not Outcome.CONSISTENT:
        return []
    return [sentence([reason]) for reason in result.verdict.reasons[1:]]


def nothing(result: AuditResult) -> str:
    """Why nothing is promised, where nothing is."""
    if result.subject.local:
        return "with noise scaled to the local sensitivity, nothing is promised beyond the data sets compared here"
    return "without noise nothing is promised"


def caveats(result: AuditResult) -> list[str]:
    """What a reader must know before trusting the verdict, after :func:`could_have_failed`."""
    lines = []
    if result.subject.data_note:
        lines.append(f"About the data: {result.subject.data_note}")
    if "start" in result.subject.details:
        lines.append(
            f"Every training started from {result.subject.details['start']}, chosen beforehand. A guarantee "
            "covers every start; a training that starts from random weights may leak less than is proved here."
        )
    if result.subject.local:
        lines.append(
            "The noise was scaled to the local sensitivity: in each step, to how far the gradients of the data sets "
            "compared here are apart. What follows holds for these neighbours of this data set only. Another person's "
            "row may differ more, and then less of it is hidden: this is no guarantee for everyone in the data."
        )
    if (weak := near_guessing(result)) is not None:
        lines.append(weak)
    short = [one for one in result.adversaries if one.trials < one.wanted]
    if short:
        lines.append(
            f"This run is not complete: {trials(result)}. What is proved holds for these trials, unless the moment of "
            "this report was chosen because of how the scores looked."
        )
    if result.missing:
        lines.append(f"{result.missing} further adversaries of this audit have no trials yet and are not shown.")
    if result.verdict.outcome is Outcome.REFUTED:
        lines.append(
            "Either these trials are a chance event that the stated confidence allows for, or the training that ran is "
            "not the one that was accounted for."
        )
    elif result.verdict.outcome is Outcome.CONSISTENT:
        limits = (
            "A claim limits nothing until it is proved."
            if result.subject.own
            else "Only the guarantee limits what any attack can do."
        )
        lines.append(
            "Consistent does not mean proved safe: a stronger attack, or more trials, may prove a larger ε. " + limits
        )
    assumed = [one.assumed.epsilon for one in result.adversaries if one.assumed]
    if (
        result.verdict.outcome is not Outcome.REFUTED
        and assumed
        and max(assumed) > 1.2 * result.strongest.bound.epsilon
    ):
        lines.append(
            "A proved ε far below the others is no sign of privacy: with nothing assumed, it takes results about as "
            f"rare as δ = {small(result.config.audit.delta)}, and so few trials show hardly any."
        )
    many = [one for one in result.adversaries if one.one_run is None]
    lines += [
        f"{sum(one.failed):,} canaries of {one.label} are of trainings that did not end with finite numbers; they "
        "count with the middle of all scores."
        for one in result.adversaries
        if one.one_run is not None and any(one.failed)
    ]
    failed = sum(sum(one.failed) for one in many)
    if failed:
        worlds = " and ".join(f"{sum(one.failed[world] for one in many):,} in world {world}" for world in (0, 1))
        lines.append(
            f"{failed:,} trainings did not end with finite numbers ({worlds}); they count with the lowest score."
        )
    return lines


def near_guessing(result: AuditResult) -> str | None:
    """A warning where the models learned next to nothing: what such a training leaks says little about one that works.

    Always naming the most frequent class is right in a known share of cases; less than a tenth of the way from there to
    100% is next to nothing.
    """
    guessing = result.subject.details.get("accuracy of guessing")
    if guessing is None or result.accuracy is None or result.accuracy > guessing + 0.1 * (1.0 - guessing):
        return None
    return (
        f"Test accuracy {near(100 * result.accuracy, 1)}% is near guessing ({near(100 * guessing, 1)}%): these models "
        "learned next to nothing, and a training that works may leak more. Check its learning rate and its steps."
    )


def adversary(one: AdversaryResult) -> str:
    """Who attacked, what it saw, and in what the worlds differ."""
    sees = {
        "black_box": "sees only what the finished model answers",
        "final_model": "sees the finished model",
        "all_iterates": "sees the model after every step",
    }.get(one.view.value, one.view.value)
    if one.one_run is not None:
        return f"It {sees}. ε is stated for {RELATIONS[one.bound.relation]}."
    how = "" if one.attack.trained else " Nothing is trained: its scores are drawn from their known law."
    differ, stated = relation(one.relation, one.copies), RELATIONS[one.bound.relation]
    also = "" if differ == stated else f"; ε is stated for {stated}"
    negatives, positives = one.bound.trials
    split = (
        f"{negatives:,} per world" if negatives == positives else f"{negatives:,} in world 0, {positives:,} in world 1"
    )
    return f"It {sees}.{how} World 1 and world 0 differ in {differ}{also}. Trials: {split}."
