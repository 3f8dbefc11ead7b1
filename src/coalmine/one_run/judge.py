"""The judge of one training: from scores and coins to a verdict that cannot flatter, with every bound that holds."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.direction import points_the_wrong_way
from coalmine.bounds.methods import METHODS
from coalmine.bounds.one_run import Guesses, count_guesses, one_run
from coalmine.bounds.one_run_dpsgd import one_run_dpsgd
from coalmine.bounds.one_run_fdp import one_run_fdp
from coalmine.errors import InvalidInputError
from coalmine.one_run import advice, laws
from coalmine.one_run import guesses as choosing
from coalmine.one_run.claims import claimed_curve
from coalmine.one_run.design import Design
from coalmine.records import (
    EpsilonClaim,
    LowerBound,
    MechanismClaim,
    OneRunScores,
    Outcome,
    Power,
    Verdict,
    plain,
)

if TYPE_CHECKING:
    from coalmine.store import Store

_DISTANCE, _ROUNDING = 2.3, 0.02
"""Kolmogorov: √n times the distance exceeds 2.3 with probability 2·exp(−2·2.3²) = 5e-5; and losses are rounded up."""
_PARTS, _LOOSE, _PILED = 100, 1.2, 2.5e-5
"""Parts of equal chance under the claim; how much more a part may have, as losses are rounded; how rarely yet more."""
_BLIND = 1e-3
"""Scores that know nothing look better than they are with this probability (ranks of Mann and Whitney)."""
_ALIKE, _ALIKE_ROWS = 5, 0.01
"""So many equal scores have no chance where every score has noise of its own: not even rounded to float32. Scores of
rows may have been rounded by whoever wrote them down, so it takes a hundredth of them too."""
_TOO_GOOD = 1e-4
"""Guesses about all canaries of a training as claimed are as good as this so rarely, if canaries do not disturb."""
_SAME = 1 / 3
"""An attack that sees less than this share of what the control's attack would have seen is another attack."""
_EVERYWHERE = (
    "that is noise too small everywhere: a few parameters without any are not seen like this (coalmine probe looks at "
    "each tensor)"
)
CONTROL_PASSED = "the positive control was not refuted: this game would not have seen a broken training"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OneRunResult:
    """What one training (or several, pooled) says about a claim.

    ``bounds`` begin with that of the method that decides; each of them holds at the design's confidence on its own.
    ``separation`` is μ of the attack as it was: scores as far apart as N(0, 1) and N(μ, 1), from how often a canary
    that was in scores above one that was out. ``runs`` trainings were pooled. ``canary_kind``, ``run`` and ``digest``
    (of the manifest) say where the canaries came from, as far as it is known; ``content`` is a hash of the canaries
    themselves.
    """

    design: Design
    scores: OneRunScores
    guesses: Guesses
    p_value: float
    separation: float
    verdict: Verdict
    bounds: tuple[LowerBound, ...]
    runs: int = 1
    canary_kind: str = ""
    run: str = ""
    digest: str = ""
    content: str = ""

    @property
    def epsilon(self) -> float:
        """ε that is proved, whatever the algorithm is."""
        return self.proved.epsilon

    @property
    def proved(self) -> LowerBound:
        """The largest bound that assumes nothing about the algorithm."""
        return max((one for one in self.bounds if METHODS[one.method].decides), key=lambda one: one.epsilon)

    def __repr__(self) -> str:
        return (
            f"OneRunResult({self.verdict.outcome.value}, epsilon >= {_validate.rounded_down(self.epsilon, 4)}, "
            f"{self.guesses.correct} of "
            f"{self.guesses.guesses} guesses right, {self.design.canaries} canaries)"
        )

    def in_words(self) -> str:
        """The verdict and why, and what is proved: a few lines for people."""
        verdict, bounds = self.verdict, [self.proved, *(one for one in self.bounds[:1] if one is not self.proved)]
        sure = f"confidence {100 * verdict.confidence:g}%"
        return "\n".join(
            [
                f"{verdict.outcome.value.capitalize()} ({sure})",
                *(f"- {reason}" for reason in verdict.reasons),
                *(
                    f"{METHODS[one.method].words}: epsilon is at least {_validate.rounded_down(one.epsilon, 4)} "
                    f"at delta = {self.design.claim.delta:g} ({one.method.replace('_', '-')}, {sure})"
                    for one in bounds
                ),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the scores."""
        return {
            "kind": "one_run",
            "runs": self.runs,
            "canary_kind": self.canary_kind,
            "run": self.run,
            "digest": self.digest,
            "design": self.design.to_dict(),
            "guesses": plain(dataclasses.asdict(self.guesses)),
            "p_value": plain(self.p_value),
            "separation": plain(self.separation),
            "verdict": self.verdict.to_dict(),
            "bounds": [bound.to_dict() for bound in self.bounds],
        }

    def keep(
        self,
        store: Store | str | os.PathLike[str],
        *,
        name: str | None = None,
        tags: Iterable[str] = (),
        price: Mapping[str, float] | None = None,
    ) -> str:
        """Keep the result in a store, with coins, scores and guesses, for ``coalmine runs`` and ``coalmine view``.

        Args:
            store: an open store, or the path of one, which is made if it is not there.
            name: what people call it.
            tags: words to find it by.
            price: Accuracy ``with_canaries`` and ``without``, where it was measured.

        Returns:
            Its fingerprint.
        """
        from coalmine.game.machine import versions
        from coalmine.one_run.section import section
        from coalmine.store import Store, results

        summary = {
            "subject": f"{self.canary_kind.replace('_', '-')} canaries" if self.canary_kind else "canaries",
            "claim": self.design.claim.to_dict(),
            "outcome": self.verdict.outcome.value,
            "epsilon": plain(self.proved.epsilon),
            "ceiling": plain(self.verdict.ceiling),
            "size": self.design.canaries,
            "versions": versions(),
        }
        with Store.opened(store) as opened:
            tree = section(self, price=price)
            return results.keep(opened, "one-run", summary=summary, report=tree, name=name, tags=tags)


def judge(
    scores: OneRunScores,
    *,
    design: Design,
    control: OneRunScores | OneRunResult | None = None,
    gradients: bool = False,
    doubt: str | None = None,
    store: Store | str | os.PathLike[str] | None = None,
    name: str | None = None,
    tags: Iterable[str] = (),
) -> OneRunResult:
    """Test the claim of the design by the scores of one training.

    *refuted*: so many right guesses have a chance of at most 1 − confidence if the claim is true. *consistent*: not
    refuted, and this attack would have refuted a training with less noise. A positive control shows that, if its
    scores are so far apart that it would be refuted in four games of five. Without one, only ``gradients`` can show it,
    whose scores are the log-likelihood ratios of a claimed DP-SGD (:class:`~coalmine.one_run.hooks.OpacusCanaries` and
    our trainer give them) and are distributed in and out as that mechanism says: then it is the noise that hides the
    canaries. How far the scores of rows lie apart may have nothing to do with the noise: a training without any may
    look just like a right one, however its scores are shifted and scaled. *inconclusive*: not refuted, but that says
    nothing.

    Args:
        scores: Coins and scores; a larger score speaks for a canary that is in.
        design: What was fixed beforehand.
        control: The same game against a training that is known to break the claim: with half the noise, say.
        gradients: Whether the canaries are gradients, scored by the likelihood of every step.
        doubt: What is known to be wrong with the noise of single steps: then nothing is *consistent*.
        store: Keep the result there too; see :meth:`OneRunResult.keep`.
        name: What people call it in the store.
        tags: Words to find it by in the store.

    Returns:
        The verdict, and the lower bounds on ε that hold.

    >>> from coalmine.one_run.design import design
    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(2000) < 0.5
    >>> scores = OneRunScores(included, rng.normal(size=2000) + 2.0 * included)  # as of the Gaussian mechanism, ε = 10
    >>> str(judge(scores, design=design(EpsilonClaim(epsilon=2.0, delta=1e-5), canaries=2000)).verdict)
    'refuted'
    """
    _validate.instance("scores", scores, OneRunScores)
    _validate.instance("design", design, Design)
    counted = design.count(scores)
    twin = None if control is None else _checked_control(control, scores=scores, design=design)
    bounds = lower_bounds(scores, design=design)
    separation = separation_of(scores)
    outcome, reasons, power = _decide(scores, counted, design, twin, separation, gradients, doubt)
    result = OneRunResult(
        design=design,
        scores=scores,
        guesses=counted,
        p_value=design.test.p_value(counted),
        separation=separation,
        verdict=Verdict(
            outcome=outcome,
            confidence=design.confidence,
            reasons=tuple(reasons),
            power=power,
            ceiling=bounds[0].ceiling,
        ),
        bounds=bounds,
    )
    if store is not None:
        result.keep(store, name=name, tags=tags)
    return result


def lower_bounds(scores: OneRunScores, *, design: Design) -> tuple[LowerBound, ...]:
    """Every bound that these guesses give, that of the deciding method first; each holds on its own."""
    common: dict[str, Any] = {
        "delta": design.claim.delta,
        "confidence": design.confidence,
        "guess_numbers": [(design.guess_in, design.guess_out)],
        "seed": design.tie_seed,
    }
    free = [one_run(scores, **common), one_run_fdp(scores, family="epsilon_delta", **common)]
    if isinstance(design.claim, EpsilonClaim):
        if design.method == "one_run_fdp":
            free.reverse()
        return (*free, one_run_fdp(scores, family="gdp", **common))
    return (one_run_dpsgd(scores, mechanism=design.claim.mechanism, **common), *free)


def free_method(design: Design) -> str:
    """Of the methods that assume nothing about the training, the one that is expected to prove more by these guesses.

    It is known before a score is: the claim and the numbers of guesses decide it.

    >>> from coalmine.one_run.design import design
    >>> free_method(design(EpsilonClaim(epsilon=2.0, delta=1e-5), canaries=1000))
    'one_run'
    """
    named = {"one_run": "one_run", "one_run_fdp": "one_run_fdp_epsilon_delta"}
    if isinstance(design.claim, EpsilonClaim):
        return named[design.method]
    pair, law = (design.guess_in, design.guess_out), choosing.leak(design.claim)
    said = EpsilonClaim(epsilon=1.0, delta=design.claim.delta)  # a claim of this kind: its ε plays no part
    return named[
        max(
            named,
            key=lambda name: choosing.expected_bound(said, law, design.canaries, pair, method=name, level=design.level),
        )
    ]


def separation_of(scores: OneRunScores) -> float:
    """μ = √2·Φ⁻¹(A) of the scores, A the share of pairs in which the canary that was in scores higher; at least 0.

    >>> round(separation_of(OneRunScores([1, 1, 0, 0], [3.0, 1.0, 2.0, 0.0])), 3)
    0.954
    """
    inside, outside = scores.score[scores.included], scores.score[~scores.included]
    if not inside.size or not outside.size:
        return 0.0
    # No sample shows more than that one of its pairs is not the wrong way round.
    area = min(_area(inside, outside), 1.0 - 0.5 / (inside.size * outside.size))
    return max(0.0, math.sqrt(2.0) * float(special.ndtri(area)))


def _area(inside: NDArray[np.float64], outside: NDArray[np.float64]) -> float:
    """The share of pairs in which the canary that was in scores higher; a tie counts half."""
    ordered = np.sort(outside)
    below, level = (np.searchsorted(ordered, inside, side=side).mean() for side in ("left", "right"))
    return 0.5 * float(below + level) / outside.size


def _checked_control(control: OneRunScores | OneRunResult, *, scores: OneRunScores, design: Design) -> OneRunScores:
    """The scores of a control that was played as the audited run was, and is not that run itself."""
    _validate.instance("control", control, (OneRunScores, OneRunResult))
    if isinstance(control, OneRunResult):
        check_control(control.design, design=design)
        control = control.scores
    if control.score.size != design.canaries:
        raise InvalidInputError(
            f"control has scores of {control.score.size} canaries: expected {design.canaries}, as the audited run has"
        )
    if np.array_equal(control.score, scores.score) and np.array_equal(control.included, scores.included):
        raise InvalidInputError(
            "control is the audited run itself: expected a training of its own that is known to break the claim"
        )
    return control


def check_control(control: Design, *, design: Design) -> None:
    """Refuse a control that was designed for something else: it would say nothing about the audited run."""
    for field in dataclasses.fields(Design):
        mine, other = getattr(design, field.name), getattr(control, field.name)
        if mine != other:
            raise InvalidInputError(
                f"control was prepared with another {field.name.replace('_', ' ')} ({_said(other)}): expected that of "
                f"the audited run ({_said(mine)}), so that both are the same game"
            )


def check_same_canaries(control: str, *, audited: str) -> None:
    """Refuse a control that had other canaries, by the hashes of both; one that is not known says nothing."""
    if control and audited and control != audited:
        raise InvalidInputError(
            "control was played with other canaries (their rows, labels or gradients differ): expected exactly those "
            "of the audited run, because stronger ones would show what these cannot see"
        )


def _said(value: Any) -> str:
    """A field of a design, short."""
    return str(plain(value.to_dict()) if isinstance(value, EpsilonClaim | MechanismClaim) else value)


def _decide(
    scores: OneRunScores,
    counted: Guesses,
    design: Design,
    control: OneRunScores | None,
    separation: float,
    gradients: bool,
    known: str | None,
) -> tuple[Outcome, list[str], Power | None]:
    """The outcome, why, and what could have been refuted."""
    said = f"{counted.correct} of {counted.guesses} guesses about {counted.canaries} canaries were right"
    choice = design.choice()
    if design.test.refuted(counted, level=design.level):
        return (
            Outcome.REFUTED,
            [
                f"{said}; if the claim were true, {choice.critical} or more had a chance of at most "
                f"{100 * design.level:g}%"
            ],
            None,
        )
    if choice.critical is None:
        power = Power(alternative="an attack without a single error", probability=0.0)
        return Outcome.INCONCLUSIVE, [said, advice.too_few(design) or ""], power
    reasons = [f"{said}; {choice.critical} would have refuted the claim"]
    doubt = known or _blind(scores, counted) or _without_noise(scores, gradients) or _too_good(scores, design)
    if doubt is not None:
        return Outcome.INCONCLUSIVE, [*reasons, doubt], None
    if control is not None:
        outcome, why, power = _by_control(reasons, design, control, separation)
        if (
            outcome is Outcome.INCONCLUSIVE
            and gradients
            and design.test.refuted(design.count(control), level=design.level)
        ):
            # What was seen of the claimed noise itself may say more than one control does.
            return _by_itself(reasons, design, scores, separation, gradients)
        return outcome, why, power
    return _by_itself(reasons, design, scores, separation, gradients)


def _blind(scores: OneRunScores, counted: Guesses) -> str | None:
    """Why these scores tell nothing, whatever any control says; None if they tell something."""
    inside, outside = scores.score[scores.included], scores.score[~scores.included]
    if np.ptp(scores.score) == 0.0:
        return "every canary has the same score"
    if points_the_wrong_way(counted):
        return (
            "the scores point the wrong way: a larger score must speak for a canary that is in (minus the loss, not "
            "the loss)"
        )
    if not inside.size or not outside.size:
        return "the coins fell alike for all canaries"
    # The rank test of Mann and Whitney, by its normal approximation; ties make it stricter.
    spread = math.sqrt((scores.score.size + 1.0) / (12.0 * inside.size * outside.size))
    if special.ndtr((0.5 - _area(inside, outside)) / spread) > _BLIND:
        return (
            "the scores do not tell the canaries that were in from those that were left out, so they would hardly have "
            "shown a larger leak either, whatever a control shows: use a better score or stronger canaries"
        )
    return None


def _without_noise(scores: OneRunScores, gradients: bool) -> str | None:
    """A word on scores that are exactly equal: noise of a canary's own makes no two alike."""
    alike = int(np.unique(scores.score, return_counts=True)[1].max())
    if alike < max(_ALIKE, 0 if gradients else _ALIKE_ROWS * scores.score.size):
        return None
    finer = "score in full precision" if gradients else "use a finer score (a logit, not a rounded share)"
    return (
        f"{alike} canaries have exactly the same score, which noise for each of them does not give: look for "
        f"parameters without noise (coalmine probe), or {finer}"
    )


def _too_good(scores: OneRunScores, design: Design) -> str | None:
    """A word on guesses about all canaries that are right more often than any attack on the claimed training has them.

    Canaries without noise stand in the middle of the ranking, where nothing is guessed about them. So all are guessed
    here, the upper half IN. Where canaries do not disturb each other, each guess is right with a chance of at most
    (1 + TV)/2, TV = max(1 − α − f(α)) of the claimed curve f, whatever the score is. They may disturb each other, so
    this refutes nothing.
    """
    half = scores.score.size // 2
    found = count_guesses(scores, guess_in=half, guess_out=scores.score.size - half, seed=design.tie_seed)
    errors = np.linspace(0.0, 1.0, 10_001)
    best = 0.5 + 0.5 * float(np.max(1.0 - errors - claimed_curve(design.claim)(errors)))
    if best >= 1.0 or special.bdtrc(found.correct - 1, found.guesses, best) >= _TOO_GOOD:
        return None
    return (
        f"of guesses about all canaries (the upper half in, the lower half out) {found.correct} of {found.guesses} are "
        f"right, where no attack on the claimed training has more than {best:.1%} right on average: look for "
        "parameters without noise, whose canaries stand in the middle of the ranking (coalmine probe). It refutes "
        "nothing, because canaries that disturb each other may look like this too"
    )


def _by_control(
    reasons: list[str], design: Design, control: OneRunScores, separation: float
) -> tuple[Outcome, list[str], Power]:
    """What a training that is known to break the claim says about the power of this game."""
    guesses = design.count(control)
    caught = design.test.refuted(guesses, level=design.level)
    power = Power(alternative="a training as broken as the positive control", probability=_again(design, control))
    if not caught:
        return Outcome.INCONCLUSIVE, [*reasons, CONTROL_PASSED], power
    if power.probability < choosing.POWER:
        return (
            Outcome.INCONCLUSIVE,
            [
                *reasons,
                f"the positive control was refuted, but only just: from how far apart its scores are, such a training "
                f"is refuted with a probability of about {power.probability:.2f}; use more canaries, or stronger ones",
            ],
            power,
        )
    seen = separation_of(control)
    # What the control's attack would have seen of a training as claimed: at twice the control's noise, say.
    noise = max(1.0, choosing.seen_noise(design.claim, separation=seen) / choosing.HALF)
    expected = laws.leaking(design.claim, noise=noise).separation
    if separation < _SAME * expected:
        return (
            Outcome.INCONCLUSIVE,
            [
                *reasons,
                f"the positive control was refuted, with scores μ = {seen:.3g} apart: the same attack on the claimed "
                f"training is expected to see {expected:.3g}, this one saw {separation:.3g}; score both in the same "
                "way, or the control says nothing",
            ],
            power,
        )
    words = f"the positive control was refuted: {guesses.correct} of its {guesses.guesses} guesses were right"
    return Outcome.CONSISTENT, [*reasons, words], power


def _again(design: Design, control: OneRunScores) -> float:
    """How often a training as broken as the control is refuted by as many canaries: from how far apart its scores are.

    By the law of the claimed mechanism with as little noise as sets scores that far apart. One control knows its
    distance only so well, so that is taken one standard error smaller than it was seen (Hanley and McNeil 1982: of the
    share A of pairs the right way round, for exponential tails).
    """
    inside, outside = control.score[control.included], control.score[~control.included]
    if not inside.size or not outside.size:
        return 0.0
    share = _area(inside, outside)
    first, second = share / (2.0 - share) - share**2, 2.0 * share**2 / (1.0 + share) - share**2
    spread = share * (1.0 - share) + (inside.size - 1.0) * first + (outside.size - 1.0) * second
    less = share - math.sqrt(max(0.0, spread) / (inside.size * outside.size))
    less = min(less, 1.0 - 1.0 / (inside.size * outside.size))  # no sample shows more
    apart = math.sqrt(2.0) * float(special.ndtri(less)) if less > 0.5 else 0.0
    if apart <= 0.0:
        return 0.0
    noise = choosing.seen_noise(design.claim, separation=apart)
    return choosing.refutes(design.claim, canaries=design.canaries, choice=design.choice(), noise=noise)


def _by_itself(
    reasons: list[str], design: Design, scores: OneRunScores, separation: float, gradients: bool
) -> tuple[Outcome, list[str], Power | None]:
    """Whether the attack shows by its own result that it would have refuted half the noise."""
    few = advice.too_few(design)
    if few is not None:
        half = choosing.refutes(design.claim, canaries=design.canaries, choice=design.choice())
        power = Power(alternative="half the claimed noise, seen by the best attack there is", probability=half)
        return Outcome.INCONCLUSIVE, [*reasons, few], power
    ideal = laws.leaking(design.claim).separation
    apart = f"the scores are μ = {separation:.3g} apart, where the best attack on the claimed training has {ideal:.3g}"
    if not gradients or isinstance(design.claim, EpsilonClaim) or not as_claimed(scores, design.claim):
        what = "they are not the likelihood ratios that the claimed noise makes" if gradients else "canaries are rows"
        doubt = (
            f"{what}, so what limits this attack need not be the noise, and nothing shows that less noise would have "
            "been seen"
        )
        return Outcome.INCONCLUSIVE, [*reasons, f"{apart}; {doubt}: {advice.CONTROL}"], None
    noise = choosing.HALF * max(1.0, choosing.seen_noise(design.claim, separation=separation))
    power = Power(
        alternative="half the claimed noise, seen by an attack as strong as this one",
        probability=choosing.refutes(design.claim, canaries=design.canaries, choice=design.choice(), noise=noise),
    )
    words = (
        f"{apart}, and as a whole they are distributed as likelihood ratios under the claimed noise; "
        f"{power.alternative}, would have been refuted with probability {power.probability:.2f}"
    )
    if power.probability >= choosing.POWER:
        return Outcome.CONSISTENT, [*reasons, f"{words}; {_EVERYWHERE}"], power
    weak = f"this attack is too weak: use a better score, or {advice.CONTROL}"
    return Outcome.INCONCLUSIVE, [*reasons, f"{words}; {weak}"], power


def as_claimed(scores: OneRunScores, claim: MechanismClaim) -> bool:
    """Whether the scores, in and out, are distributed as the log-likelihood ratios of the claimed mechanism.

    By the distance of Kolmogorov, and by a hundred parts of equal chance, none of which may hold far too many: scores
    of parameters without noise lie close together. A right training fails with a probability of about 1e-4.

    >>> from coalmine.records import DpSgd
    >>> one_step = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=1e-5)
    >>> rng = np.random.default_rng(0)
    >>> included = rng.random(2000) < 0.5
    >>> ratio = rng.normal(size=2000) + included - 0.5
    >>> as_claimed(OneRunScores(included, ratio), one_step), as_claimed(OneRunScores(included, 2 * ratio), one_step)
    (True, False)
    """
    from coalmine.accounting.loss_law import loss_law

    losses, inside, outside = loss_law(claim.mechanism)
    for seen, law in ((scores.score[scores.included], inside), (scores.score[~scores.included], outside)):
        below = np.concatenate([[0.0], np.cumsum(law), [1.0]])
        edges = np.concatenate([[losses[0] - 1e-9], losses, [losses[-1] + 1e-9]])
        expected, places = np.interp(np.sort(seen), edges, below), np.arange(seen.size + 1) / seen.size
        distance = max(float(np.max(places[1:] - expected)), float(np.max(expected - places[:-1])))
        if distance > _DISTANCE / math.sqrt(seen.size) + _ROUNDING or _piled_up(expected):
            return False
    return True


def _piled_up(places: NDArray[np.float64]) -> bool:
    """Whether far too many of these, which should be spread evenly from 0 to 1, lie in one hundredth of it."""
    most = int(np.bincount(np.minimum((places * _PARTS).astype(np.int64), _PARTS - 1), minlength=_PARTS).max())
    return bool(_PARTS * special.bdtrc(most - 1, places.size, _LOOSE / _PARTS) < _PILED)
