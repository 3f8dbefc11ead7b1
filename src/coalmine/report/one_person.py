"""What an audit means for one person in the data, in plain sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from coalmine.identifiability import belief as beliefs
from coalmine.identifiability.estimates import Share, right_log_odds
from coalmine.records import Relation
from coalmine.report.rounding import (
    confidence,
    down,
    limit,
    near,
    percent,
    share,
    small,
    small_up,
    up,
    up_percent,
    worth_saying,
)
from coalmine.report.words import nothing

if TYPE_CHECKING:
    from coalmine.auditing.results import AdversaryResult, AuditResult


def for_one_person(
    *, advantage: float, belief: float, exceeded: float, relation: Relation = Relation.ADD_REMOVE
) -> str:
    """What is proved about the guesses and the belief of someone who starts at even odds.

    Where a row is replaced they know two rows of which one was used, and guess which.

    The share of trainings beyond (``exceeded``) belongs to this very limit and to no other: where the limit is too near
    to certainty to be shown, no share is either.
    """
    replaced = relation is Relation.REPLACE
    unknown = "which of two rows stands in one place of it" if replaced else "whether one person's row was in it"
    truth = "which" if replaced else "that it was"
    within = f"They become at most {{}} sure {truth}"
    if exceeded > 0.0:
        within += f", except in at most {percent(exceeded)} of all trainings{'' if replaced else ' with it'}"
    beyond = f"What is proved hardly limits how sure they become: they may be {{}} sure {truth}"
    sure = limit(up_percent(belief), within=within, beyond=beyond)
    if exceeded >= 1.0:
        sure = "How sure they become is not limited by this ε: any training with it may end beyond"
    return (
        f"For one person: someone who knows all of the training data except {unknown}, and "
        f"starts at even odds, guesses right at most {up(50 * (1 + advantage), 1)}% of the time (50% is random "
        f"guessing; advantage {up(advantage, 4)}). {sure}."
    )


def meaning(result: AuditResult) -> list[str]:
    """What it means for one person in the data."""
    belief, advantage, best = result.belief, result.advantage, result.strongest
    lines = [
        "Imagine someone who knows all of the training data except whether one person's row was in it, and who starts "
        "undecided: 50\u00a0:\u00a050."
    ]
    if result.promised < math.inf:
        promised = "claimed" if result.subject.own else "promised"
        after = "after seeing the training's results, that someone"
        lines.append(
            limit(
                up(100 * belief["guarantee"], 1),
                within=f"What is {promised}: {after} is at most {{}} sure, {_exception(result)}.",
                beyond=f"What is {promised} hardly limits it: {after} may be {{}} sure.",
            )
        )
        if "guarantee" in advantage:
            right = limit(
                up(50 + 50 * advantage["guarantee"], 1),
                within="are right in at most {}",
                beyond="may be right in {}",
            )
            lines.append(
                f"Guessing again and again, they {right} of cases; random guessing is right in 50% "
                f"(an advantage of at most {up(100 * advantage['guarantee'], 1)} percentage points)."
            )
    else:
        lines.append(
            f"What is promised: nothing. {nothing(result).capitalize()}: how sure they may become has no limit."
        )
    sure = confidence(result.config.audit.confidence)
    mine, chosen = result.on_data, result.on_chosen_data
    if not worth_saying(best.bound.epsilon):
        lines.append("What was shown: none of the attacks proved that anyone can become surer than 50%.")
    elif mine is None or chosen is None:
        lines.append(
            f"What was shown: some outcomes let an attacker become at least {share(down(100 * belief['evidence'], 1))} "
            f"sure ({best.label}, at {sure} confidence)."
        )
    else:
        shown = [
            f"{who} become at least {_belief(one)} sure ({one.label})"
            for who, one in (("an attacker of your data", mine), ("one who chose the data set too", chosen))
            if worth_saying(one.bound.epsilon)
        ]
        nobody = "" if worth_saying(mine.bound.epsilon) else " No attack on your data proved any leakage."
        lines.append(f"What was shown: some outcomes let {' and '.join(shown)}, at {sure} confidence.{nobody}")
    return lines


def _belief(one: AdversaryResult) -> str:
    """How sure someone who starts undecided becomes at least."""
    return share(down(100.0 * beliefs.from_epsilon(one.bound.epsilon), 1))


def _exception(result: AuditResult) -> str:
    """How often the belief may go beyond what ε allows: δ alone does not say it, the algorithm does."""
    mechanism = result.mechanism
    if mechanism is None:
        return f"except for rare results (how rare, δ = {small(result.config.audit.delta)} alone does not say)"
    chance = beliefs.exceedance(mechanism, epsilon=result.promised)
    return f"except with a probability of at most {small_up(chance)}"


def certainty(one: AdversaryResult) -> list[str]:
    """How sure the adversary became, in words that need no mathematics; nothing where its scores are no beliefs."""
    found, odds = one.beliefs, one.log_odds
    if found is None or odds is None:
        return []
    right = special.expit(right_log_odds(odds))
    count, instead = right.size, "with another row in the place of" if one.relation is Relation.REPLACE else "without"
    most = limit(
        up(100 * float(np.quantile(right, 0.9)), 1), within="in nine of ten at most {}", beyond="in one of ten {}"
    )
    lines = [
        f"This was played {count:,} times, half of them {instead} the person's row. "
        "Each time someone who knew all other rows and saw every step worked out how sure to be of "
        "the truth: 50% is knowing nothing, 100% certainty.",
        f"In the middle of all trainings they ended {share(near(100 * float(np.median(right)), 1))} sure of the truth; "
        f"{most}; in the worst of all {share(near(100 * float(right.max()), 1))}.",
    ]
    if found.bound < 1.0:
        passed = found.exceeded
        times = "in none of them" if passed.count == 0 else f"in {int(passed.count)} of {passed.trials}"
        allowed = (
            f"; the limit itself allows for a share of at most {small_up(found.expected)}"
            if found.expected is not None
            else ""
        )
        lines.append(
            f"The limit here is {share(up(100 * found.bound, 1))}. It was passed {times} (at "
            f"{confidence(passed.confidence)} confidence the true share is at most {small_up(passed.interval[1])}"
            f"{allowed})."
        )
    lines.append(
        f"Asked to guess, they were right in {_often(found.wins)} of the trainings, random guessing in 50%; played "
        f"forever, {_between(found.wins)}."
        + (
            ""
            if found.loss_wins is None
            else " Someone who sees only how well the finished model fits that row: "
            f"{_often(found.loss_wins)}, {_between(found.loss_wins)}."
        )
    )
    if not found.promised:
        lines.append(
            "This limit was set for the two data sets that were compared and for no others. The noise was just large "
            "enough to hide this one row. Another person's row may stand out more, and nothing is promised to that "
            "person."
        )
    return lines


def _often(found: Share) -> str:
    """How often something happened, in percent."""
    return share(near(100.0 * found.value, 1))


def _between(found: Share) -> str:
    """Where the true share lies: what was seen in few trainings may be above or below what is possible in the long run.

    >>> _between(Share.of(275, trials=400))
    'between 62.4% and 74.6% (99% confidence)'
    """
    low, high = found.interval
    return f"between {down(100.0 * low, 1)}% and {up(100.0 * high, 1)}% ({confidence(found.confidence)} confidence)"
