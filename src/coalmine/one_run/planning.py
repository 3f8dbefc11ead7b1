"""How many canaries: what m of them are expected to prove and could refute, before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from coalmine import _validate
from coalmine.bounds.one_run import Guesses, one_run_epsilon
from coalmine.bounds.one_run_dpsgd import one_run_dpsgd
from coalmine.bounds.one_run_fdp import one_run_fdp
from coalmine.one_run import guesses
from coalmine.records import Claim, EpsilonClaim, Record
from coalmine.theory.curves import least_whole

SIZES = (100, 300, 1000, 3000, 10_000, 30_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast(Record):
    """What m canaries are worth for a claim, by the attack that is expected.

    ``expected`` is the ε that is proved if the training leaks exactly what is claimed; ``ceiling`` what not one wrong
    guess would prove. ``noise`` is the largest share of the claimed noise that is refuted with probability 0.8, and
    ``half`` the probability that half the noise is refuted.
    """

    canaries: int
    guess_in: int
    guess_out: int
    method: str
    expected: float
    ceiling: float
    noise: float | None
    half: float


def forecast(
    claim: Claim,
    *,
    canaries: int,
    confidence: float = 0.95,
    aim: str = "refute",
    attack: float | None = None,
    choice: guesses.Choice | None = None,
) -> Forecast:
    """What m canaries are expected to prove about this claim, and what they could refute.

    Args:
        claim: What will be tested.
        canaries: m, all runs together.
        confidence: Between 0 and 1.
        aim: As in :func:`~coalmine.one_run.guesses.choose`.
        attack: As there: μ of the attack that is expected; the best there is if left out.
        choice: What is guessed, where that is fixed already.

    Returns:
        The forecast; computed for canaries that do not disturb each other, so an upper estimate.

    >>> found = forecast(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=1000)
    >>> round(found.expected, 2), found.half < 0.2
    (0.19, True)
    """
    if choice is None:
        choice = guesses.choose(claim, canaries=canaries, confidence=confidence, aim=aim, attack=attack)
    law = guesses.leak(claim, attack=attack)
    counts = guesses.simulate(law, canaries=canaries, guess_in=choice.guess_in, guess_out=choice.guess_out)
    r = choice.guess_in + choice.guess_out
    sides = 2 if choice.guess_in and choice.guess_out else 1

    def proved(correct: int) -> float:
        seen = Guesses(canaries=canaries, guesses=r, correct=correct, sides=sides)
        if not isinstance(claim, EpsilonClaim):
            return one_run_dpsgd(seen, mechanism=claim.mechanism, delta=claim.delta, confidence=confidence).epsilon
        if choice.method == "one_run":
            return one_run_epsilon(seen, delta=claim.delta, level=1.0 - confidence)
        return one_run_fdp(seen, delta=claim.delta, confidence=confidence, family="epsilon_delta").epsilon

    return Forecast(
        canaries=canaries,
        guess_in=choice.guess_in,
        guess_out=choice.guess_out,
        method=choice.method,
        expected=proved(round(float(np.mean(counts)))),
        ceiling=proved(r),
        noise=choice.noise,
        half=guesses.refutes(claim, canaries=canaries, choice=choice, attack=attack),
    )


def forecasts(
    claim: Claim,
    *,
    sizes: Sequence[int] = SIZES,
    confidence: float = 0.95,
    attack: float | None = None,
) -> tuple[Forecast, ...]:
    """:func:`forecast` for several numbers of canaries."""
    return tuple(forecast(claim, canaries=m, confidence=confidence, attack=attack) for m in sizes)


def least_canaries(
    claim: Claim,
    *,
    noise: float = guesses.HALF,
    confidence: float = 0.95,
    attack: float | None = None,
    most: int = 200_000,
) -> int | None:
    """The smallest number of canaries that refute a training with ``noise`` times the claimed noise, 80 % of the time.

    Args:
        claim: What will be tested.
        noise: Share of the claimed noise that the training really has.
        confidence: Between 0 and 1.
        attack: As in :func:`forecast`.
        most: Where to give up.

    Returns:
        m, to about 3 %; None if ``most`` are too few.

    >>> from coalmine.records import DpSgd, MechanismClaim
    >>> one_step = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
    >>> 30 < least_canaries(MechanismClaim(mechanism=one_step, delta=1e-5), noise=0.3) < 50
    True
    """
    share = _validate.between("noise", noise, 0.0, 1.0)

    def enough(m: int) -> bool:
        choice = guesses.choose(claim, canaries=m, confidence=confidence, attack=attack)
        return guesses.refutes(claim, canaries=m, choice=choice, noise=share, attack=attack) >= guesses.POWER

    return least_whole(enough, start=8, most=most, parts=32)
