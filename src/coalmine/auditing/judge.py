"""The one judge: trials and a claim in, a verdict out, the same for every game.

A claim is tested as a whole (:func:`coalmine.bounds.claim_test`): for a mechanism its trade-off curve, never its ε at
one δ. *Refuted* means false at the stated confidence. *Consistent* needs more than not being refuted: this evidence
must have been able to refute a training with clearly less noise, and says which; for a training of a user's own that
takes a control, a broken twin that the same attack refutes. All else is *inconclusive*.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from scipy import special, stats

from coalmine import bounds
from coalmine.auditing import distance
from coalmine.auditing.facts import AttackFacts
from coalmine.auditing.promises import epsilon_of
from coalmine.auditing.proof import coins_of, failures_of, scores_of
from coalmine.errors import InvalidInputError
from coalmine.game import ACCURACY
from coalmine.one_run import guesses as guessing
from coalmine.one_run.design import Design
from coalmine.one_run.judge import CONTROL_PASSED
from coalmine.one_run.judge import judge as judge_guesses
from coalmine.records import Claim, EpsilonClaim, MechanismClaim, Outcome, Power, Relation, Scores, Verdict
from coalmine.roles import View
from coalmine.store import Trials
from coalmine.theory.curves import GaussianCurve

ENOUGH = 0.8
"""A training that leaks clearly more must have been refuted with this probability before a claim is consistent."""
HALF = 1 / 2
SHARES = (HALF, 1 / 3, 1 / 5, 1 / 10)
"""Shares of the claimed noise that are tried: the largest that would have been refuted is named."""
_WORDS = {1 / 2: "half", 1 / 3: "a third", 1 / 5: "a fifth", 1 / 10: "a tenth"}
_BLIND = 0.05
_PART = 0.7
"""Scores that are at most this part as far apart as a claim allows come from an attack much weaker than the best. Not
beyond the chance of the trials: with few of them no attack is surely weak, and each would pass for the best."""
_NO_CONTROL = (
    "nothing contradicts the claim, but no control was played. Drawn rows, random starts and whatever else differs "
    "from training to training spread the scores too, and may stand in for noise that is missing: hand over a broken "
    "twin of the training, say with half of its noise, which the same attack must refute (control=, --control-train)"
)
"""A training of a user's own: nobody but the control knows what the scores would be with less noise."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
    """The trials of one attack with its facts; ``control`` holds the same attack on the training with less noise.

    ``reasons`` are those of failed trainings, ``wanted`` the number of trials that were asked for. With a ``design``
    the trials are canaries of one training, which may depend on each other: what was guessed about them is judged.
    """

    run: str
    attack: AttackFacts
    trials: Trials
    wanted: int
    reasons: tuple[str, ...] = ()
    control: Evidence | None = None
    design: Design | None = None

    def by_score(self) -> list[Evidence]:
        """The same trials once for each score that they have: the first is kept as the score, others in columns."""
        if not self.attack.several:
            return [self]
        return [
            dataclasses.replace(
                self,
                attack=self.attack.by(name),
                trials=self.trials.with_score(name) if index else self.trials,
                control=self.control and (self.control._by(name) if index else self.control),
            )
            for index, name in enumerate(self.attack.several)
        ]

    def _by(self, column: str) -> Evidence:
        return dataclasses.replace(self, trials=self.trials.with_score(column))

    @property
    def accuracy(self) -> float | None:
        """Mean share of right answers on test rows of the models of world 0; None where none was kept."""
        if ACCURACY not in self.trials.columns:
            return None
        kept = self.trials.in_world(0, column=ACCURACY)
        kept = kept[np.isfinite(kept)]
        return float(kept.mean()) if kept.size else None

    @property
    def failed(self) -> tuple[int, int]:
        """Failed trainings in world 0 and in world 1."""
        lost = np.isnan(self.trials.score)
        return int(lost[self.trials.world == 0].sum()), int(lost[self.trials.world == 1].sum())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """How one attack bears on the claim.

    ``p_value`` is the smallest level at which its evidence refutes the claim; ``test`` what it is about ("scores" or
    "failures"). ``share`` of the claimed noise would have been refuted with probability ``power`` by a perfect attack
    with as many trials (None: not even a tenth of it). ``separation`` is d′, how far apart its scores are in units of
    their spread. ``doubts`` are reasons why it says nothing for the claim. ``control`` says whether the same attack
    refuted the claim for the training with less noise (None: not played).
    """

    refuted: bool
    level: float
    p_value: float
    test: str
    share: float | None
    power: float
    separation: float
    failed: tuple[int, int]
    doubts: tuple[str, ...] = ()
    control: bool | None = None
    noise_multiplier: float | None = None
    least_share: float = HALF

    @property
    def speaks(self) -> bool:
        """Whether this attack could have refuted a training that leaks clearly more."""
        enough = self.share is not None and self.share >= self.least_share
        return (enough if self.control is None else self.control) and not self.doubts


def check(claim: Claim | None, attacks: Sequence[AttackFacts], *, delta: float, confidence: float) -> None:
    """Refuse, before any training, a confidence that no bound reaches and a claim that these attacks could not test."""
    bounds.check_confidence(confidence, attacks=len(attacks), claimed=claim is not None)
    level = _level(confidence, len(attacks))
    bounds.lower_bound(Scores([0.0, 0.0], [1.0, 1.0]), delta=delta, confidence=1.0 - level)
    if claim is None:
        return
    bounds.check_claim(claim, confidence=1.0 - level / 2.0)
    epsilon_of(claim)  # the result states it
    for one in attacks:
        if claim.relation is Relation.REPLACE and one.relation is not Relation.REPLACE:
            raise InvalidInputError(
                f"the claim is for neighbours by 'replace', the worlds of {one.label} differ by 'add_remove': expected "
                "the same relation"
            )


def judge(
    evidence: Sequence[Evidence], *, claim: Claim | None, confidence: float
) -> tuple[Verdict, tuple[Judgement | None, ...]]:
    """The verdict on a claim, and how each attack bears on it.

    Args:
        evidence: the attacks with their trials; the level is shared equally among them.
        claim: what is said about the training; None where nothing is, and then there is nothing to refute.
        confidence: of the verdict: a true claim is refuted with probability at most 1 − confidence.

    Returns:
        The verdict, and one judgement for each attack (None for each where there is no claim).

    """
    if claim is None:
        reason = "nothing is promised, so there is no claim to refute: name one to have it tested"
        return Verdict(outcome=Outcome.INCONCLUSIVE, confidence=confidence, reasons=(reason,)), (None,) * len(evidence)
    level = _level(confidence, len(evidence))
    found = tuple(_weigh(one, claim=claim, level=level) for one in evidence)
    return _verdict(evidence, found, claim=claim, confidence=confidence), found


def _level(confidence: float, attacks: int) -> float:
    return (1.0 - confidence) / attacks


def _weigh(one: Evidence, *, claim: Claim, level: float) -> Judgement:
    """One attack against the claim."""
    if one.design is not None:
        return _weigh_guesses(one, one.design)
    scores, failed = scores_of(one.trials), one.failed
    copies = one.attack.copies_under(claim.relation)
    found, each = _tested(one, claim=claim, level=level)
    name, strongest = min(found.items(), key=lambda pair: pair[1].p_value)
    share, power = _could_refute(claim, one.trials, copies=copies, level=each, added=_in_order(one, claim))
    control = None
    if one.control is not None:
        # By its scores alone: a twin that fails shows what failing gives away, and nothing about the attack.
        control = _tested(one.control, claim=claim, level=level)[0]["scores"].refuted and not _failing(one.control)
    return Judgement(
        refuted=any(test.refuted for test in found.values()),
        level=each,
        p_value=strongest.p_value,
        test=name,
        share=share,
        power=power,
        separation=distance.separation(scores),
        failed=failed,
        doubts=tuple(_doubts(one, scores, claim=claim, copies=copies, level=each, caught=control is True)),
        control=control,
        noise_multiplier=_noise_left(scores, claim, level=each, copies=copies) if strongest.refuted else None,
        least_share=least_share(claim),
    )


def _tested(one: Evidence, *, claim: Claim, level: float) -> tuple[dict[str, bounds.ClaimTest], float]:
    """What the scores and the failures of one attack say about the claim, and the level of each."""
    # Failing is a result like any other. It gets half the level, and only where something failed.
    parts = {"scores": scores_of(one.trials)} | ({"failures": failures_of(one.trials)} if any(one.failed) else {})
    each, copies = level / len(parts), one.attack.copies_under(claim.relation)
    return {
        name: bounds.claim_test(part, claim=claim, confidence=1.0 - each, copies=copies, added=_in_order(one, claim))
        for name, part in parts.items()
    }, each


def _in_order(one: Evidence, claim: Claim) -> bool:
    """Whether the worlds are known to be in this order."""
    return one.attack.added and distance.ordered(claim)


def _weigh_guesses(one: Evidence, design: Design) -> Judgement:
    """Guesses about the canaries of one training, against the claim that they were designed for."""
    twin = None if one.control is None else coins_of(one.control.trials)
    gradients = one.attack.view is View.ALL_ITERATES  # rows are asked for at the final model alone
    found = judge_guesses(coins_of(one.trials), design=design, control=twin, gradients=gradients)
    control = None if twin is None else design.test.refuted(design.count(twin), level=design.level)
    share, power = _could_guess(design)
    refuted = found.verdict.outcome is Outcome.REFUTED
    doubts: tuple[str, ...] = ()
    if found.verdict.outcome is Outcome.INCONCLUSIVE and share is not None:
        doubts = tuple(words for words in found.verdict.reasons[1:] if words != CONTROL_PASSED)
    noise = found.bounds[0].details.get("noise_multiplier") if refuted else None
    return Judgement(
        refuted=refuted,
        level=design.level,
        p_value=found.p_value,
        test="guesses",
        share=share,
        power=power,
        separation=found.separation,
        failed=one.failed,
        doubts=doubts,
        control=control,
        noise_multiplier=None if noise is None else float(noise),
        least_share=HALF,
    )


def _could_guess(design: Design) -> tuple[float | None, float]:
    """As :func:`_could_refute`, for guesses about as many canaries."""
    choice, power = design.choice(), 0.0
    for share in SHARES:
        power = guessing.refutes(design.claim, canaries=design.canaries, choice=choice, noise=share)
        if power >= ENOUGH:
            return share, power
    return None, power


def _noise_left(scores: Scores, claim: Claim, *, level: float, copies: int) -> float | None:
    """The noise multiplier that the scores still allow, for a DP-SGD of the claimed rate and length."""
    if isinstance(claim, EpsilonClaim):
        return None
    found = bounds.dpsgd(
        scores, mechanism=claim.mechanism, delta=claim.delta, confidence=1.0 - level, copies=copies
    ).details["noise_multiplier"]
    return float(found) if found < claim.mechanism.noise_multiplier else None


def _could_refute(
    claim: Claim, trials: Trials, *, copies: int, level: float, added: bool
) -> tuple[float | None, float]:
    """The largest share of the claimed noise that a perfect attack would have refuted, and how surely."""
    worlds = np.bincount(trials.world, minlength=2)
    power = 0.0
    for share in SHARES:
        power = bounds.power(
            claim,
            alternative=bounds.less_noise(claim, share=share, added=distance.ordered(claim)),
            negatives=int(worlds[0]),
            positives=int(worlds[1]),
            confidence=1.0 - level,
            copies=copies,
            added=added,
        )
        if power >= ENOUGH:
            return share, power
    return None, power


def _doubts(one: Evidence, scores: Scores, *, claim: Claim, copies: int, level: float, caught: bool) -> list[str]:
    """Why an attack that refutes nothing says nothing; one that has ``caught`` its control is held to what it saw."""
    doubts, worlds = _failing(one), (scores.world0.size, scores.world1.size)
    if np.ptp(np.concatenate([scores.world0, scores.world1])) == 0.0:
        doubts.append("every training has the same score: it tells nothing")
        return doubts
    if bounds.points_the_wrong_way(scores):
        doubts.append(
            "the scores are larger in world 0 than in world 1: a larger score must speak for world 1, so give the "
            "score the other sign"
        )
        return doubts
    # A perfect attack on a training just as claimed would likely show a difference: so must this one.
    seen, allowed = distance.separation(scores), distance.allowed(claim, copies)
    expected = allowed * math.sqrt(worlds[0] * worlds[1] / sum(worlds))
    least = float(special.ndtri(1.0 - _BLIND))
    blind = stats.mannwhitneyu(scores.world1, scores.world0, alternative="greater").pvalue > _BLIND
    if blind and not caught and expected > least:
        enough, stands_out = math.ceil((4.0 * least / allowed) ** 2), "what the claim allows would stand out"
        doubts.append(
            "the scores do not tell the worlds apart, so they would hardly have shown a larger leak either: use a "
            f"stronger score or canary{_or_a_control(one)}"
            + (f"; or ask for about {enough:,} trials, with which {stands_out}" if expected <= 2.0 * least else "")
        )
    elif not caught and not doubts and seen < least_share(claim) * allowed:
        # With a share s of the noise scores are about 1/s times as far apart: this attack's would still be allowed.
        doubts.append(
            f"the scores are d′ = {seen:.2f} apart where the claim allows about {allowed:.2f}: with "
            f"{_WORDS[least_share(claim)]} of the noise they would still be within that, so this attack would not have "
            f"refuted it; use a stronger score or canary{_or_a_control(one)}"
        )
    elif not caught and not doubts and _seems_weak(one, seen, allowed, worlds):
        chance = _would_refute(seen, one, claim=claim, copies=copies, level=level)
        if chance < ENOUGH:
            doubts.append(
                f"the scores are d′ = {seen:.2f} apart where the claim allows about {allowed:.2f}: with "
                f"{_WORDS[least_share(claim)]} of the noise this attack would have refuted it with probability "
                f"{_percent(chance)} only; use a stronger score or canary, or ask for more trials{_or_a_control(one)}"
            )
    elif caught and one.control is not None and not doubts:
        doubts += _other_than(one.control, seen, allowed, worlds)
    if not doubts and one.control is None and not one.attack.powers:
        doubts.append(_NO_CONTROL)
    return doubts


def _other_than(control: Evidence, separation: float, allowed: float, worlds: tuple[int, int]) -> list[str]:
    """A doubt where the scores are far closer together than those of a control that was caught lead to expect.

    With a share s of the noise scores are at most about 1/s times as far apart, and a training as claimed shows no more
    than the claim allows: min(allowed, s·d′ of the control) is expected, with s = 1/2 for a twin of unknown noise.
    """
    seen = distance.separation(scores_of(control.trials))
    expected = min(allowed, (control.attack.control or HALF) * seen)
    if not math.isfinite(expected) or separation > distance.least(expected, worlds):
        return []
    sure = distance.surely_another(separation, expected, worlds)
    chance = "" if sure else "ask for more trials, if it is chance, "
    return [
        f"the scores are d′ = {separation:.2f} apart, those of the control {seen:.2f}, by which a training as claimed "
        f"is expected to show about {expected:.2f}: {chance}see that the training uses the rows that it is given and "
        "is scored as the control is, or take a control that is less broken, say the same training with half of its "
        "noise"
    ]


def _failing(one: Evidence) -> list[str]:
    """A doubt where failures depend on the world, or are many."""
    failed, worlds = one.failed, np.bincount(one.trials.world, minlength=2)
    table = [[failed[0], worlds[0] - failed[0]], [failed[1], worlds[1] - failed[1]]]
    if any(failed) and stats.fisher_exact(table).pvalue < _BLIND:
        return [
            f"{failed[0]} of {worlds[0]} trainings failed in world 0 and {failed[1]} of {worlds[1]} in world 1: "
            "whether a training fails depends on the world, and that leaks by itself"
        ]
    if sum(failed) > 0.1 * len(one.trials):
        return [f"{sum(failed)} of {len(one.trials)} trainings failed"]
    return []


def _or_a_control(one: Evidence) -> str:
    """The advice to play a control, where none was played."""
    if one.control is not None:
        return ""
    if one.attack.powers:
        return ", or play its control (--control, audit.control = true), which shows what it can refute"
    return ", or hand over a broken twin of the training as a control, which shows what it can refute"


def _seems_weak(one: Evidence, separation: float, allowed: float, worlds: tuple[int, int]) -> bool:
    """Whether an attack is asked what it would have refuted: one that needs a control and has none only if surely weak,
    because the control is what it must be told of first.
    """
    if one.control is None and not one.attack.powers:
        return distance.surely_below(separation, _PART * allowed, worlds)
    return separation <= _PART * allowed < math.inf


def _would_refute(separation: float, one: Evidence, *, claim: Claim, copies: int, level: float) -> float:
    """The chance that this attack refutes a training with less noise, judged by how far apart its scores are now.

    With a share s of the noise scores are about 1/s times as far apart. (With sampled batches a perfect attack gains
    more; one that is far from perfect meets more than the noise, and need not.)
    """
    worlds = np.bincount(one.trials.world, minlength=2)
    return bounds.power(
        claim,
        alternative=GaussianCurve(mu=separation / least_share(claim) / copies),
        negatives=int(worlds[0]),
        positives=int(worlds[1]),
        confidence=1.0 - level,
        copies=copies,
        added=_in_order(one, claim),
    )


def _verdict(evidence: Sequence[Evidence], found: Sequence[Judgement], *, claim: Claim, confidence: float) -> Verdict:
    """The attacks together."""
    against = [(one, how) for one, how in zip(evidence, found, strict=True) if how.refuted]
    if against:
        reasons = [_against(one, how, claim) for one, how in against]
        return Verdict(outcome=Outcome.REFUTED, confidence=confidence, reasons=tuple(reasons))
    speaking = [(one, how) for one, how in zip(evidence, found, strict=True) if how.speaks]
    played = [how for how in found if how.control is not None]
    if speaking and (not played or any(how.control for how in played)):
        one, how = max(speaking, key=lambda pair: _weight(*pair, claim=claim))
        reasons = [f"nothing that {_who(evidence)} saw contradicts the claim"]
        power = None
        if how.share is not None:
            less = _less(claim, how.share)
            # Of simulated audits all may have refuted: that is no certainty.
            power = Power(alternative=f"{less}, by an attack that loses nothing", probability=min(how.power, 0.9995))
            reasons.append(
                f"{less} would have been refuted with probability {_percent(how.power)} by an attack that "
                f"loses nothing with as many trials as {one.attack.label} had"
            )
        if how.control:
            reasons.append(f"the positive control was caught: {one.attack.label} refuted the claim for {_twin(one)}")
        reasons += [*_strength(one, how, claim), *_far_more_broken(one, how)]
        return Verdict(outcome=Outcome.CONSISTENT, confidence=confidence, reasons=tuple(reasons), power=power)
    return Verdict(
        outcome=Outcome.INCONCLUSIVE,
        confidence=confidence,
        reasons=tuple(_open(evidence, found, claim=claim, confidence=confidence)),
    )


def _weight(one: Evidence, how: Judgement, *, claim: Claim) -> tuple[bool, float, float, float]:
    """Of attacks that all say something, the one to speak of: controlled, powerful, and close to what is allowed."""
    allowed = 0.0 if one.design is not None else distance.allowed(claim, one.attack.copies_under(claim.relation))
    return how.control is True, how.share or 0.0, how.power, how.separation / allowed if allowed > 0.0 else 0.0


def least_share(claim: Claim) -> float:
    """A training with this share of the claimed noise leaks clearly more, and must have been refuted.

    Half the noise of a mechanism. A claimed ε at a small δ is tested without any assumption, which takes many times as
    many trials for half the noise: there a fifth is enough, and the verdict says so.
    """
    return 1 / 5 if isinstance(claim, EpsilonClaim) else HALF


def _less(claim: Claim, share: float) -> str:
    """A training with less noise, in words."""
    if isinstance(claim, EpsilonClaim):
        return f"a Gaussian training with {_WORDS[share]} of the noise that just keeps the claim"
    return f"a training with {_WORDS[share]} of this noise"


def _twin(one: Evidence) -> str:
    """What the positive control was."""
    left = one.control.attack.control if one.control else HALF
    if left == 0.0:
        return "the broken twin of the training"
    what = "training" if one.attack.trained else "mechanism (drawn from its law, nothing is trained)"
    return f"the same {what} with {_WORDS.get(left, f'{left:g}')} of its noise"


def _who(evidence: Sequence[Evidence]) -> str:
    return evidence[0].attack.label if len(evidence) == 1 else f"any of {len(evidence)} attacks"


def _against(one: Evidence, how: Judgement, claim: Claim) -> str:
    """Why the claim is false."""
    words = f"{one.attack.label} contradicts it with p ≤ {how.p_value:.2g} (at most {how.level:.2g} refutes)"
    if how.test == "failures":
        worlds = np.bincount(one.trials.world, minlength=2)
        return (
            f"{words}: {how.failed[0]} of {worlds[0]} trainings failed in world 0 and {how.failed[1]} of {worlds[1]} "
            "in world 1, so whether a training fails gives the world away"
        )
    if isinstance(claim, MechanismClaim) and how.noise_multiplier is not None:
        least = math.ceil(how.noise_multiplier * 1000.0) / 1000.0
        words += (
            f": at this sampling rate and length the noise multiplier is below {least:g}, not "
            f"{claim.mechanism.noise_multiplier:g}"
        )
    if any(how.failed):
        words += f"; {sum(how.failed)} trainings failed and count with the lowest score"
    return words


def _strength(one: Evidence, how: Judgement, claim: Claim) -> list[str]:
    """A word about an attack that is much weaker than the best that the claim allows."""
    if one.design is not None or (how.control and one.control is not None and one.control.attack.control >= HALF):
        return []  # half the noise was seen by this very attack
    copies = one.attack.copies_under(claim.relation)
    allowed = distance.allowed(claim, copies)
    if not math.isfinite(allowed) or how.separation > _PART * allowed:
        return []
    rows = "" if copies == 1 else f" for {copies} rows"
    return [
        f"its scores were d′ = {how.separation:.2f} apart where the claim allows about {allowed:.2f}{rows}: this "
        "attack sees only a part of a fault, so "
        + ("a smaller fault than the control's may stay unseen" if how.control else "a control would tell more")
    ]


def _far_more_broken(one: Evidence, how: Judgement) -> list[str]:
    """A word about a control of unknown noise whose scores are much farther apart than half the noise would make them.

    Half the noise makes them twice as far apart as those of the training.
    """
    if not how.control or one.control is None or one.control.attack.control:
        return []
    seen = distance.separation(scores_of(one.control.trials))
    if seen <= 2.0 / HALF * max(how.separation, 0.0):
        return []
    far = f"d′ = {seen:.2f} apart" if math.isfinite(seen) else "apart without any overlap"
    return [
        f"the control's scores are {far}, those of the training {how.separation:.2f}: it is far more broken than one "
        "with half of the noise, and shows only that faults as large as its own are caught"
    ]


def _open(evidence: Sequence[Evidence], found: Sequence[Judgement], *, claim: Claim, confidence: float) -> list[str]:
    """Why nothing can be said, and what would help."""
    reasons = []
    shares, level = [how.share or 0.0 for how in found], _level(confidence, len(evidence))
    if max(shares) < least_share(claim):
        reasons.append(_too_few(max(evidence, key=lambda part: len(part.trials)), max(shares), claim, level=level))
    same: dict[str, list[str]] = {}
    for one, how in zip(evidence, found, strict=True):
        for doubt in how.doubts:
            same.setdefault(doubt, []).append(one.attack.label)
        if how.control is False and one.control is not None:
            words = "; ".join(f"of the positive control {doubt}" for doubt in _failing(one.control)) or (
                f"the positive control was not caught: the claim was not refuted for {_twin(one)} either"
            )
            same.setdefault(words, []).append(one.attack.label)
    return reasons + [f"{', '.join(labels)}: {words}" for words, labels in same.items()]


def _too_few(one: Evidence, share: float | None, claim: Claim, *, level: float) -> str:
    """That more trials are needed, and about how many."""
    unit = "trials" if one.design is None else "canaries"
    seen = f"nothing but {_less(claim, share)}" if share else "not even a tenth of the claimed noise"
    words = f"with {len(one.trials)} {unit} {seen} would have been refuted"
    if one.design is not None:
        return f"{words}: coalmine plan --one-run says how many would do"
    copies = one.attack.copies_under(claim.relation)
    single = copies // max(1, one.attack.copies)
    if single < copies:
        share, _ = _could_refute(claim, one.trials, copies=single, level=level, added=_in_order(one, claim))
    if share and share >= least_share(claim):
        return f"{words}: one copy of the canary in place of {one.attack.copies} would do with as many"
    needed = bounds.trials_needed(
        claim,
        alternative=bounds.less_noise(claim, share=least_share(claim), added=distance.ordered(claim)),
        power=ENOUGH,
        confidence=1.0 - level,
        added=_in_order(one, claim),
        copies=copies,
    )
    enough = _WORDS[least_share(claim)]
    if needed:
        return f"{words}: about {needed:,} trials would do for {enough} of it"
    if isinstance(claim, EpsilonClaim):
        return f"{words}: claim the mechanism"
    return f"{words}, and two million would not do: " + (
        "take fewer copies" if single < copies else "it leaks too much"
    )


def _percent(value: float) -> str:
    return f"{min(math.floor(100.0 * value) / 100.0, 0.99):.2f}"
