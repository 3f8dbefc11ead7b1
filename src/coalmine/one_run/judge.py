"""The judge of one training: from scores and coins to a verdict that cannot flatter, with every bound that holds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from coalmine import _validate
from coalmine.bounds.one_run import Guesses, one_run
from coalmine.bounds.one_run_dpsgd import one_run_dpsgd
from coalmine.bounds.one_run_fdp import one_run_fdp
from coalmine.one_run import guesses as choosing
from coalmine.one_run.design import Design
from coalmine.one_run.laws import GaussianLaw
from coalmine.records import EpsilonClaim, LowerBound, OneRunScores, Outcome, Power, Verdict, plain

_WRONG_WAY = 1e-3
"""Fewer right guesses than this share of coin flippers has: the scores point the wrong way."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OneRunResult:
    """What one training (or several, pooled) says about a claim.

    ``bounds`` begin with that of the method that decides; each of them holds at the design's confidence on its own.
    ``separation`` is μ of the attack as it was: scores as far apart as N(0, 1) and N(μ, 1), from how often a canary
    that was in scores above one that was out. ``runs`` trainings were pooled.
    """

    design: Design
    scores: OneRunScores
    guesses: Guesses
    p_value: float
    separation: float
    verdict: Verdict
    bounds: tuple[LowerBound, ...]
    runs: int = 1

    @property
    def epsilon(self) -> float:
        """ε that is proved by the method that decides."""
        return self.bounds[0].epsilon

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the scores."""
        return {
            "kind": "one_run",
            "runs": self.runs,
            "design": self.design.to_dict(),
            "guesses": plain(dataclasses.asdict(self.guesses)),
            "p_value": plain(self.p_value),
            "separation": plain(self.separation),
            "verdict": self.verdict.to_dict(),
            "bounds": [bound.to_dict() for bound in self.bounds],
        }


def judge(scores: OneRunScores, *, design: Design, control: OneRunScores | None = None) -> OneRunResult:
    """Test the claim of the design by the scores of one training.

    *refuted*: so many right guesses have a chance of at most 1 − confidence if the claim is true. *consistent*: not
    refuted, and a training with half the noise would have been with probability 0.8 or more: either the positive
    control says so, or scores that lie twice as far apart as these would have refuted the claim. *inconclusive*: not
    refuted, but that says nothing.

    Args:
        scores: Coins and scores; a larger score speaks for a canary that is in.
        design: What was fixed beforehand.
        control: Scores of the same game against a training that is known to break the claim.

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
    bounds = lower_bounds(scores, design=design)
    separation = separation_of(scores)
    outcome, reasons, power = _decide(scores, counted, design, control, bounds[0], separation)
    return OneRunResult(
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
    ordered = np.sort(outside)
    below, level = (np.searchsorted(ordered, inside, side=side).mean() for side in ("left", "right"))
    area = 0.5 * float(below + level) / outside.size  # a tie counts half
    # No sample shows more than that one of its pairs is not the wrong way round.
    area = min(area, 1.0 - 0.5 / (inside.size * outside.size))
    return max(0.0, math.sqrt(2.0) * float(special.ndtri(area)))


def _decide(
    scores: OneRunScores,
    counted: Guesses,
    design: Design,
    control: OneRunScores | None,
    bound: LowerBound,
    separation: float,
) -> tuple[Outcome, list[str], Power | None]:
    """The outcome, why, and what could have been refuted."""
    said = f"{counted.correct} of {counted.guesses} guesses about {counted.canaries} canaries were right"
    choice = design.choice()
    if design.test.refuted(counted, level=design.level):
        return (
            Outcome.REFUTED,
            [
                f"{said}; if the claim were true, {choice.critical} or more had a chance of at most "
                f"{100 * design.level:g} %"
            ],
            None,
        )
    if choice.critical is None:
        return (
            Outcome.INCONCLUSIVE,
            [
                f"even {counted.guesses} right guesses of {counted.guesses} would not have refuted the claim: more "
                f"canaries are needed (the most that could be proved is ε = {bound.ceiling or 0.0:.3g})"
            ],
            Power(alternative="an attack without a single error", probability=0.0),
        )
    reasons = [f"{said}; {choice.critical} would have refuted the claim"]
    if np.ptp(scores.score) == 0.0:
        return Outcome.INCONCLUSIVE, [*reasons, "every canary has the same score"], None
    if special.bdtr(counted.correct, counted.guesses, 0.5) < _WRONG_WAY:
        return (
            Outcome.INCONCLUSIVE,
            [
                *reasons,
                "the scores point the wrong way: a larger score must speak for a canary that is in (minus the loss, "
                "not the loss)",
            ],
            None,
        )
    if control is not None:
        return _by_control(reasons, design, control)
    alternative = f"scores twice as far apart as these (μ = {2 * separation:.3g}, what half the noise does to them)"
    power = Power(
        alternative=alternative,
        probability=choosing.power(GaussianLaw(mu=2.0 * separation), canaries=design.canaries, choice=choice),
    )
    words = f"{alternative} would have refuted it with probability {power.probability:.2f}"
    if power.probability >= choosing.POWER:
        return Outcome.CONSISTENT, [*reasons, words], power
    return Outcome.INCONCLUSIVE, [*reasons, f"{words}: this attack is too weak, or the canaries are too few"], power


def _by_control(reasons: list[str], design: Design, control: OneRunScores) -> tuple[Outcome, list[str], Power]:
    """What a training that is known to break the claim says about the power of this game."""
    caught = design.test.refuted(design.count(control), level=design.level)
    power = Power(alternative="the positive control, played once", probability=1.0 if caught else 0.0)
    if caught:
        return Outcome.CONSISTENT, [*reasons, "the positive control was refuted by the same game"], power
    return (
        Outcome.INCONCLUSIVE,
        [*reasons, "the positive control was not refuted: this game would not have seen a broken training"],
        power,
    )
