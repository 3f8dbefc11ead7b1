"""How many canaries to guess, chosen for the claim before a score is seen, and what such guesses can refute.

The choice uses the claim, the number of canaries and the confidence alone, so it costs nothing. Everything here is
computed for canaries that do not disturb each other; that concerns how good the choice is, never whether a bound holds.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.one_run import Guesses, one_run_epsilon
from coalmine.bounds.one_run_fdp import one_run_fdp
from coalmine.one_run import claims, laws
from coalmine.records import Claim, EpsilonClaim

POWER = 0.8
"""The chance of refuting at which numbers of guesses are compared, and which a conclusive audit must have."""
HALF = 0.5
"""The share of the claimed noise that a conclusive audit must have been able to refute."""
AIMS = ("refute", "bound")
NOISES = tuple(round(0.95**step, 4) for step in range(1, 45))
"""Trainings with so much of the noise they should have: what could be refuted is found among these."""
_CANDIDATES = 20
_MOST_GUESSES = 40_000
_SIMULATIONS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """Numbers of guesses for a claim: how many of the highest scores are guessed IN, of the lowest OUT.

    ``critical`` is the number of right guesses from which on the claim is refuted, None if not even all of them refute
    it. ``noise`` is the largest share of the claimed noise at which the attack refutes the claim with probability 0.8
    (None if there is none above a tenth): the nearer to 1, the smaller the excess that is found.
    """

    guess_in: int
    guess_out: int
    method: str
    critical: int | None
    noise: float | None


def simulate(
    law: laws.Law, *, canaries: int, guess_in: int, guess_out: int, repetitions: int = _SIMULATIONS, seed: int = 0
) -> NDArray[np.int64]:
    """Right guesses in so many runs whose canaries are independent and have scores of this law.

    The share of scores above the (k + 1)-th highest of m is Beta distributed, and given that share the k above it are
    independent, each in with the probability that the law gives: no score has to be drawn.

    >>> found = simulate(laws.GaussianLaw(mu=1.0), canaries=5000, guess_in=100, guess_out=100)
    >>> round(float(found.mean()) / 200, 2)
    0.93
    """
    rng = np.random.default_rng([0x517, seed])
    rest = max(canaries - 1 - guess_in - guess_out, 1)
    parts = [rng.standard_gamma(k + 1.0, repetitions) for k in (guess_in, guess_out)]
    whole = parts[0] + parts[1] + rng.standard_gamma(rest, repetitions)
    right = np.zeros(repetitions, dtype=np.int64)
    for k, part, rate in zip((guess_in, guess_out), parts, (law.right_in, law.right_out), strict=True):
        if k:
            right += rng.binomial(k, rate(part / whole))
    return right


def power(law: laws.Law, *, canaries: int, choice: Choice) -> float:
    """The chance that a run with scores of this law refutes the claim that ``choice`` was made for.

    >>> choice = Choice(guess_in=100, guess_out=100, method="one_run_fdp", critical=186, noise=None)
    >>> 0.3 < power(laws.GaussianLaw(mu=1.0), canaries=5000, choice=choice) < 0.7
    True
    """
    if choice.critical is None:
        return 0.0
    counts = simulate(law, canaries=canaries, guess_in=choice.guess_in, guess_out=choice.guess_out)
    return float(np.mean(counts >= choice.critical))


def refutes(claim: Claim, *, canaries: int, choice: Choice, noise: float = HALF, attack: float | None = None) -> float:
    """The chance that a training with ``noise`` times the claimed noise is refuted by these guesses.

    The plan, the judge and the warning of ``prepare`` all ask here: the claim's own law says what less noise does to
    scores (half the noise of a subsampled mechanism sets them more than twice as far apart).

    Args:
        claim: What is tested.
        canaries: m, all runs together.
        choice: The guesses.
        noise: Share of the claimed noise that the training really has.
        attack: As in :func:`choose`.

    Returns:
        A probability, for canaries that do not disturb each other.

    >>> from coalmine.records import DpSgd, MechanismClaim
    >>> claim = MechanismClaim(mechanism=DpSgd(sample_rate=0.1, noise_multiplier=0.95, steps=100), delta=1e-5)
    >>> choice = choose(claim, canaries=1000, confidence=0.95)
    >>> refutes(claim, canaries=1000, choice=choice) > 0.99
    True
    """
    return power(leak(claim, attack=attack, noise=noise), canaries=canaries, choice=choice)


def seen_noise(claim: Claim, *, separation: float) -> float:
    """The share of the claimed noise at which the best attack sets canaries this far apart: above 1 for a weaker one.

    >>> from coalmine.records import DpSgd, MechanismClaim
    >>> one_step = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=1e-5)
    >>> round(seen_noise(one_step, separation=0.8), 2)
    1.25
    """
    low, high = math.log(0.1), math.log(100.0)
    for _ in range(20):
        middle = 0.5 * (low + high)
        nearer = laws.leaking(claim, noise=math.exp(middle)).separation > separation
        low, high = (middle, high) if nearer else (low, middle)
    return math.exp(0.5 * (low + high))


def candidates(canaries: int, *, one_sided: bool) -> tuple[tuple[int, int], ...]:
    """Numbers of guesses that are compared, from 2 to half of the canaries: as many IN as OUT, or IN alone too."""
    most = max(1, min(canaries // 2, _MOST_GUESSES // 2))
    sizes = np.unique(np.geomspace(min(2, most), most, _CANDIDATES).round().astype(int)).tolist()
    return tuple((k, out) for k in sizes for out in ((k, 0) if one_sided else (k,)))


@functools.lru_cache(maxsize=64)
def choose(
    claim: Claim,
    *,
    canaries: int,
    confidence: float,
    aim: str = "refute",
    attack: float | None = None,
    method: str | None = None,
) -> Choice:
    """The numbers of guesses, and the method, for this claim.

    ``aim`` "refute": those with which the smallest excess refutes the claim (``Choice.noise`` is largest). ``aim``
    "bound": those that prove the largest ε if the training leaks exactly what is claimed.

    Args:
        claim: What will be tested.
        canaries: m, all runs together.
        confidence: Between 0 and 1.
        aim: "refute" or "bound".
        attack: μ of the attack that is expected: scores N(0, 1) without and N(μ, 1) with the canary where the training
            leaks what is claimed. Left out, the attack is the best there is.
        method: Only this one; the better of all that can test the claim if left out.

    Returns:
        The choice.

    >>> from coalmine.records import EpsilonClaim
    >>> found = choose(EpsilonClaim(epsilon=2.0, delta=1e-5), canaries=1000, confidence=0.95)
    >>> (found.guess_in, found.guess_out, found.method, found.noise)
    (49, 49, 'one_run', 0.3774)
    """
    m = _validate.integer("canaries", canaries, at_least=2)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    names = claims.methods(claim) if method is None else (_validate.choice("method", method, claims.methods(claim)),)
    # Where low scores say as much as high ones, guesses on one side never win.
    pairs = candidates(m, one_sided=not isinstance(leak(claim, attack=attack), laws.GaussianLaw))
    tried = [(pair, name) for name in names for pair in pairs]
    if _validate.choice("aim", aim, AIMS) == "bound":
        law = leak(claim, attack=attack)
        pair, name = max(tried, key=lambda one: expected_bound(claim, law, m, one[0], method=one[1], level=level))
        return weigh(claim, m, pair, method=name, level=level, attack=attack)
    found = [weigh(claim, m, pair, method=name, level=level, attack=attack) for pair, name in tried]
    if any(each.noise is not None for each in found):
        best = max(each.noise or 0.0 for each in found)
        equal = [each for each in found if each.noise == best]
        return max(equal, key=lambda each: power(leak(claim, attack=attack, noise=best), canaries=m, choice=each))
    # Nothing refutes it: the most guesses come nearest to it.
    return max(found, key=lambda each: each.guess_in + each.guess_out)


def leak(claim: Claim, *, attack: float | None = None, noise: float = 1.0) -> laws.Law:
    """The scores of a training with ``noise`` times the noise, by the attack that is expected."""
    if attack is None:
        return laws.leaking(claim, noise=noise)
    return laws.GaussianLaw(mu=_validate.positive("attack", attack) / noise)


def expected_bound(
    claim: Claim, law: laws.Law, canaries: int, pair: tuple[int, int], *, method: str, level: float
) -> float:
    """What the expected number of right guesses proves if scores have this law: ε at δ; for a mechanism, ε of the
    Gaussian curve, which is near its own.
    """
    right = round(sum(pair) * right_share(law, canaries, pair))
    guesses = Guesses(canaries=canaries, guesses=sum(pair), correct=right, sides=2 if all(pair) else 1)
    if method == "one_run":
        return one_run_epsilon(guesses, delta=claim.delta, level=level)
    family = "epsilon_delta" if isinstance(claim, EpsilonClaim) else "gdp"
    return one_run_fdp(guesses, delta=claim.delta, confidence=1.0 - level, family=family).epsilon


def right_share(law: laws.Law, canaries: int, pair: tuple[int, int]) -> float:
    """The expected share of right guesses.

    >>> round(right_share(laws.GaussianLaw(mu=1.0), 5000, (100, 100)), 3)
    0.933
    """
    sides = zip(pair, (law.right_in, law.right_out), strict=True)
    return sum(k * float(rate(np.array([k / canaries]))[0]) for k, rate in sides if k) / sum(pair)


@functools.lru_cache(maxsize=4096)
def weigh(
    claim: Claim, canaries: int, pair: tuple[int, int], *, method: str, level: float, attack: float | None = None
) -> Choice:
    """What these numbers of guesses need to refute the claim."""
    critical = claims.Test(claim=claim, method=method).critical(
        canaries=canaries, guesses=sum(pair), level=level, sides=2 if all(pair) else 1
    )
    choice = Choice(guess_in=pair[0], guess_out=pair[1], method=method, critical=critical, noise=None)
    if critical is None:
        return choice

    def enough(place: int) -> bool:
        law = leak(claim, attack=attack, noise=NOISES[place])
        # As if the share of scores above the last guess were k/m exactly: quick, and near enough to compare choices.
        return float(special.bdtrc(critical - 1, sum(pair), right_share(law, canaries, pair))) >= POWER

    first = bisect.bisect_left(range(len(NOISES)), True, key=enough)  # less noise refutes more
    return dataclasses.replace(choice, noise=NOISES[first] if first < len(NOISES) else None)
