"""The step as a game: thousands of replays with fresh noise, a coin for the canary, and what they prove.

A trial is one private step, from the same state, on the same rows, with or without the canary. The scores bound the
noise of this one step; composed over T steps at rate q, that bounds the whole training, *if every step is like this
one* (Nasr et al. 2023, "Tight auditing of differentially private machine learning"). The model itself takes no step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate, bounds
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, LowerBound, Outcome, Power, Relation, Sampling, Scores, Verdict

Release = Callable[[bool, int], Any]
"""``release(with_canary, seed)`` replays the step and gives a score, or the released numbers as a vector."""

_LEARNED = 0.1
"""The share of the trials that a direction is learned from, where the release is a vector."""
_ONE_STEP = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1, sampling=Sampling.FULL)
"""With the canary in by the coin, a step is one Gaussian mechanism; its noise is what is not known."""
_STEP = "every trial is this one step, from the same state, with fresh noise; the trials are independent"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepGame:
    """What the replays of one step prove: about the step, and about a training of such steps.

    ``step`` is the bound for the step with the canary in or out. ``training`` is that of ``claim``'s steps at its rate,
    with the noise that the step was proved to have at most; it rests on every step being like this one.
    """

    step: LowerBound
    training: LowerBound
    claim: DpSgd
    scores: Scores
    verdict: Verdict

    def in_words(self) -> str:
        """The verdict, and both bounds."""
        sigma = self.step.details["noise_multiplier"]
        noise = f"below {sigma:.3g}" if math.isfinite(sigma) else "not bounded"
        return (
            f"{str(self.verdict).capitalize()}: {self.verdict.reasons[0]} One step proves ε ≥ {self.step.epsilon:.3g} "
            f"(noise multiplier {noise}); {self.claim.steps} such steps at rate {self.claim.sample_rate:g} prove "
            f"ε ≥ {self.training.epsilon:.3g} at δ = {self.training.delta:g}, if every step is like this one."
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types, without the scores."""
        return {
            "kind": "step_game",
            "verdict": self.verdict.to_dict(),
            "step": self.step.to_dict(),
            "training": self.training.to_dict(),
        }


def play_step(
    release: Release,
    *,
    claim: DpSgd,
    trials: int = 2000,
    delta: float = 1e-5,
    confidence: float = 0.99,
    seed: int = 0,
) -> StepGame:
    """Replay one step ``trials`` times, each with a coin for the canary, and bound its ε and that of the training.

    >>> def release(with_canary, seed):  # a step that adds half the noise that it claims
    ...     return float(with_canary) + 0.5 * np.random.default_rng(seed).normal()
    >>> game = play_step(release, claim=DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=100), trials=1000)
    >>> game.verdict.outcome.value, round(game.step.details["noise_multiplier"], 2)
    ('refuted', 0.54)

    Args:
        release: ``release(with_canary, seed)`` takes the step from its one starting state, with fresh noise from
            ``seed``. It gives one number, larger with the canary, or a vector: then a tenth of the trials, which are
            not used again, teach the direction along which the canary moves it. See also :func:`replayed`.
        claim: The DP-SGD that the training claims to be: noise, rate and steps.
        trials: How many replays.
        delta: The δ at which ε is stated.
        confidence: Of both bounds.
        seed: Of the coins, and of the seeds of the replays.

    Returns:
        Both bounds, the scores and the verdict on the claimed noise multiplier.
    """
    _validate.instance("claim", claim, DpSgd)
    if claim.sampling is Sampling.SHUFFLE or claim.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError(
            "claim must add or remove a row and sample by Poisson, or take every row: a bound on one step is composed "
            "for these alone"
        )
    trials = _validate.integer("trials", trials, at_least=20)
    delta, confidence = _validate.open_unit("delta", delta), _validate.open_unit("confidence", confidence)
    coins = np.random.default_rng([seed, 15])
    worlds = coins.random(trials) < 0.5
    seeds = coins.choice(2**31, size=trials, replace=False)
    shown = [
        _shown(release(bool(world), int(one)), number)
        for number, (world, one) in enumerate(zip(worlds, seeds, strict=True))
    ]
    scores = _scores(shown, worlds)
    step = bounds.dpsgd(scores, mechanism=_ONE_STEP, delta=delta, confidence=confidence)
    step = dataclasses.replace(step, assumptions=(_STEP, *step.assumptions))
    return StepGame(
        step=step,
        training=_composed(step, claim),
        claim=claim,
        scores=scores,
        verdict=_verdict(step, claim, scores),
    )


class Replays(Protocol):
    """What is needed of the probe's bench: a step that can be run again, silent or with new noise, with another row."""

    def world(self, extra: Mapping[int, Any] | None = None) -> Any:
        """The batch, with more rows."""

    def silent(self, world: Any) -> Any:
        """A run without noise; its ``gradients`` are those that the optimizer was handed."""

    def renewed(self, world: Any) -> Any:
        """A run with new noise."""


def replayed(bench: Replays, canary: Any) -> Release:
    """The release of a step on the probe's bench: how far along the canary's own gradient the optimizer is moved.

    Two silent runs tell the canary's gradient, so the score is 0 without and 1 with the canary but for the noise. Noise
    is drawn by the step's own generators, which go on from replay to replay; the seed is not needed.

    Args:
        bench: :class:`coalmine.probing.bench.Bench` after its recording was made.
        canary: A batch of one row.

    Returns:
        The function that :func:`play_step` plays.
    """
    worlds = {False: bench.world(), True: bench.world({0: canary})}
    without, with_it = (_gradients(bench.silent(worlds[one])) for one in (False, True))
    direction = with_it - without
    size = float(direction @ direction)
    if not size > 0.0:
        raise InvalidInputError("canary does not change the step: expected a row whose gradient is not zero")

    def release(with_canary: bool, seed: int) -> float:
        return float((_gradients(bench.renewed(worlds[with_canary])) - without) @ direction) / size

    return release


def _gradients(shown: Any) -> NDArray[np.float64]:
    """Everything that the optimizers were handed, in the order of the names."""
    return np.concatenate([np.asarray(shown.gradients[name].double()).ravel() for name in sorted(shown.gradients)])


def _shown(value: Any, number: int) -> NDArray[np.float64]:
    """A release as a vector of numbers."""
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value, dtype=np.float64).ravel()
    if array.size == 0 or not np.isfinite(array).all():
        raise InvalidInputError(f"release gave {value!r} in trial {number}: expected finite numbers"[:200])
    return array


def _scores(shown: list[NDArray[np.float64]], worlds: NDArray[np.bool_]) -> Scores:
    """One number a trial; along the learned direction, where a release has several."""
    if len({one.size for one in shown}) > 1:
        raise InvalidInputError("release gave vectors of different lengths: expected as many numbers in every trial")
    if shown[0].size == 1:
        values = np.concatenate(shown)
    else:
        first = max(10, int(_LEARNED * len(shown)))
        learned, in_it = np.stack(shown[:first]), worlds[:first]
        if in_it.all() or not in_it.any():
            raise InvalidInputError(f"trials = {len(shown)} is not allowed: too few to learn the canary's direction")
        values = np.stack(shown[first:]) @ (learned[in_it].mean(axis=0) - learned[~in_it].mean(axis=0))
        worlds = worlds[first:]
    if worlds.all() or not worlds.any():
        raise InvalidInputError(f"trials = {len(shown)} is not allowed: expected enough for both worlds")
    return Scores(values[~worlds], values[worlds])


def _composed(step: LowerBound, claim: DpSgd) -> LowerBound:
    """ε of the claimed training with the noise that the step has at most, rounded down."""
    from coalmine.accounting import standard

    sigma = float(step.details["noise_multiplier"])
    value = 0.0
    if math.isfinite(sigma):
        value = standard.epsilon_at_least(claim.with_noise(sigma), delta=step.delta)
    return dataclasses.replace(
        step,
        epsilon=value,
        method="dpsgd, composed",
        ceiling=None,
        relation=claim.relation,
        assumptions=(
            f"every one of the {claim.steps} steps is like the one that was replayed",
            f"{claim.sampling.value} sampling at rate {claim.sample_rate:g}; every iterate may be seen",
            *step.assumptions,
        ),
    )


def _verdict(step: LowerBound, claim: DpSgd, scores: Scores) -> Verdict:
    """Refuted if the claimed noise is; consistent if half of it would have been, nine times in ten."""
    sigma, claimed = float(step.details["noise_multiplier"]), claim.noise_multiplier
    count = sum(step.trials)
    power = Power(alternative="half the claimed noise", probability=_power(scores, claimed, step))
    weak = _separation(scores) < 0.8 / claimed
    if sigma <= claimed:
        outcome = Outcome.REFUTED
        reason = f"the noise multiplier of the step is below {sigma:.3g}, and {claimed:g} is claimed."
    elif weak:
        outcome = Outcome.INCONCLUSIVE
        reason = "the canary moves the score by less than a row may, so missing noise could stay unseen."
    elif power.probability >= 0.9:
        outcome = Outcome.CONSISTENT
        reason = f"{count} replays do not refute the noise multiplier {claimed:g}, and would refute half of it."
    else:
        outcome = Outcome.INCONCLUSIVE
        reason = f"{count} replays are too few: half of the noise multiplier {claimed:g} could be missing unseen."
    return Verdict(outcome=outcome, confidence=step.confidence, reasons=(reason,), power=power, ceiling=step.ceiling)


def _separation(scores: Scores) -> float:
    """The distance of the worlds in standard deviations, three standard errors too large."""
    spread = math.sqrt(0.5 * (float(scores.world0.var()) + float(scores.world1.var())))
    error = math.sqrt(1.0 / scores.world0.size + 1.0 / scores.world1.size)
    return (float(scores.world1.mean() - scores.world0.mean()) / spread if spread > 0.0 else math.inf) + 3.0 * error


def _power(scores: Scores, claimed: float, step: LowerBound) -> float:
    """0.9 if half the noise would be refuted nine times in ten, else 0: from normal scores at their quantiles.

    The distance μ = 2/σ between the worlds is taken 1.3 standard errors too small for that.
    """
    n, m = scores.world0.size, scores.world1.size
    distance = 2.0 / claimed - 1.3 * math.sqrt(1.0 / n + 1.0 / m)
    if distance <= 0.0:
        return 0.0
    usual = [special.ndtri((np.arange(size) + 0.5) / size) for size in (n, m)]
    likely = Scores(usual[0], usual[1] + distance)
    found = bounds.dpsgd(likely, mechanism=_ONE_STEP, delta=step.delta, confidence=step.confidence)
    return 0.9 if float(found.details["noise_multiplier"]) <= claimed else 0.0
