"""Mechanisms whose ε is known exactly, with the score that distinguishes them best: the yardsticks of the bounds."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine.records import DpSgd, OneRunScores, Scores
from coalmine.theory.curves import gaussian_delta, gaussian_epsilon, smallest_true

Array = NDArray[np.float64]
Sampler = Callable[[np.random.Generator, int, int], Array]

RESPONSE = 1.0
LAPLACE = 1.0
MU = 1.0
SUBSAMPLED = DpSgd(sample_rate=0.2, noise_multiplier=1.5, steps=20)
LAST_ITERATE = DpSgd(sample_rate=0.05, noise_multiplier=0.8, steps=200)
# Canaries that are rarely drawn: most trials of world 1 look like world 0, and few trials carry all the evidence.
RARE = DpSgd(sample_rate=0.01, noise_multiplier=0.6, steps=50)
RARE_LAST = DpSgd(sample_rate=0.01, noise_multiplier=0.3, steps=10)
# A δ that accountants cannot resolve. Their ε are where a contour integral of the composition gives δ, to 1e-6 (a test
# computes it): the accountant that the bounds use has no part in them.
SMALL_DELTA = DpSgd(sample_rate=0.3, noise_multiplier=1.5, steps=50), 1e-13, 14.850232
MANY_STEPS = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=1000), 1e-12, 39.012630
PAIR_DELTA = 0.01
MIXTURE_SHARE, MIXTURE_RATIO = 0.5, 3.83
# Just above a level of 5 %: what these leak in few runs is as much as a 1-GDP training can leak in so few.
RARE_SHARE = 0.06
FLAGGED = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """Two worlds, their scores, and the true ε at ``delta``; ``gaussian`` when its trade-off curve is Gaussian."""

    name: str
    delta: float
    epsilon: float
    sampler: Sampler
    gaussian: bool = False
    analysis: str | None = None
    mechanism: DpSgd | None = None
    copies: int = 1
    """How many rows the worlds differ in; ε is that of one."""

    @property
    def draws(self) -> int:
        """How many random numbers one score takes, about."""
        return self.mechanism.steps if self.mechanism is not None and self.analysis == "standard" else 1

    def scores(self, rng: np.random.Generator, trials: int) -> Scores:
        """Scores of ``trials`` independent trials in each world."""
        return Scores(self.sampler(rng, 0, trials), self.sampler(rng, 1, trials))


def _nothing(rng: np.random.Generator, world: int, n: int) -> Array:
    return rng.standard_normal(n)


def _response(rng: np.random.Generator, world: int, n: int) -> Array:
    honest = rng.random(n) < special.expit(RESPONSE)
    return np.where(honest, world, 1 - world).astype(np.float64)


def _laplace(rng: np.random.Generator, world: int, n: int) -> Array:
    # The log likelihood ratio is flat outside [0, 1]: clipping keeps all that the score says and makes ties.
    return np.clip(rng.laplace(world, 1.0 / LAPLACE, n), 0.0, 1.0)


def _gaussian(rng: np.random.Generator, world: int, n: int) -> Array:
    return rng.standard_normal(n) + MU * world


def every_step(mechanism: DpSgd, copies: int = 1) -> Sampler:
    """The log likelihood ratio of all steps of DP-SGD, for a row or for ``copies`` that are all alike."""
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps
    if copies > 1:
        return _every_step_of_copies(q, sigma, steps, copies)

    def sample(rng: np.random.Generator, world: int, n: int) -> Array:
        seen = rng.standard_normal((n, steps), dtype=np.float32)
        if world:
            seen += (rng.random((n, steps), dtype=np.float32) < q) * np.float32(1.0 / sigma)
        ratio = np.exp((seen - np.float32(0.5 / sigma)) * np.float32(1.0 / sigma))
        ratio *= np.float32(q)
        ratio += np.float32(1.0 - q)
        return np.asarray(np.log(ratio).sum(axis=1, dtype=np.float64))

    return sample


def _every_step_of_copies(q: float, sigma: float, steps: int, copies: int) -> Sampler:
    """Each step shows b + σ·z, where b ~ Binomial(k, q) of the copies are drawn; the mixture is summed term by term."""
    chances = [math.comb(copies, b) * q**b * (1.0 - q) ** (copies - b) for b in range(copies + 1)]

    def sample(rng: np.random.Generator, world: int, n: int) -> Array:
        seen = sigma * rng.standard_normal((n, steps))
        if world:
            seen += rng.binomial(copies, q, size=(n, steps))
        ratio = np.full_like(seen, chances[0])
        for b in range(1, copies + 1):
            ratio += chances[b] * np.exp((b * seen - 0.5 * b * b) / sigma**2)
        return np.asarray(np.log(ratio).sum(axis=1))

    return sample


def _last_iterate(mechanism: DpSgd, *, whole: bool = False) -> Sampler:
    """The last iterate of linear losses; ``whole`` numbers keep less of it and make ties."""
    steps = mechanism.steps

    def sample(rng: np.random.Generator, world: int, n: int) -> Array:
        noise = mechanism.noise_multiplier * math.sqrt(steps) * rng.standard_normal(n)
        score = noise + (rng.binomial(steps, mechanism.sample_rate, n) if world else 0)
        return np.round(score) if whole else score

    return sample


def _pair(rng: np.random.Generator, world: int, n: int) -> Array:
    # World 0: 0 with probability δ, else 1 or 2 by randomised response; world 1 mirrored, with 3 in place of 0.
    answer = 1.0 + _response(rng, world, n)
    return np.where(rng.random(n) < PAIR_DELTA, 3.0 * world, answer)


def _named(words: str, mechanism: DpSgd) -> str:
    """A mechanism by its numbers."""
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps
    return f"{words}, q = {q:g}, σ = {sigma:g}, T = {steps}"


def _dpsgd(
    words: str,
    mechanism: DpSgd,
    delta: float,
    *,
    sampler: Sampler | None = None,
    epsilon: float | None = None,
    copies: int = 1,
) -> Known:
    """DP-SGD whose every step is seen; with a ``sampler``, its last iterate on linear losses."""
    from coalmine.accounting import last_iterate, standard

    analysis = "standard" if sampler is None else "last_iterate"
    accountant = standard.epsilon if sampler is None else last_iterate.epsilon
    return Known(
        name=_named(words, mechanism),
        delta=delta,
        epsilon=accountant(mechanism, delta=delta).epsilon if epsilon is None else epsilon,
        sampler=sampler or every_step(mechanism, copies),
        analysis=analysis,
        mechanism=mechanism,
        copies=copies,
    )


@functools.cache
def independent_trials(delta: float = 1e-5) -> tuple[Known, ...]:
    """The mechanisms for methods that need independent trials; the extremal pair has its own δ = 0.01.

    >>> [round(known.epsilon, 4) for known in independent_trials()[:4]]
    [0.0, 1.0, 1.0, 4.3772]
    """
    response = math.log(math.exp(RESPONSE) - delta * (1.0 + math.exp(RESPONSE)))
    return (
        Known(name="nothing leaks", delta=delta, epsilon=0.0, sampler=_nothing, gaussian=True),
        Known(name="randomised response", delta=delta, epsilon=response, sampler=_response),
        Known(name="Laplace", delta=delta, epsilon=LAPLACE + 2.0 * math.log1p(-delta), sampler=_laplace),
        Known(
            name="Gaussian, μ = 1",
            delta=delta,
            epsilon=gaussian_epsilon(MU, delta=delta),
            sampler=_gaussian,
            gaussian=True,
        ),
        _dpsgd("subsampled Gaussian", SUBSAMPLED, delta),
        _dpsgd("two copies of the canary, every step seen", SUBSAMPLED, delta, copies=2),
        _dpsgd("last iterate of linear losses", LAST_ITERATE, delta, sampler=_last_iterate(LAST_ITERATE)),
        _dpsgd("rare canary, every step seen", RARE, delta),
        _dpsgd("rare canary, last iterate", RARE_LAST, delta, sampler=_last_iterate(RARE_LAST)),
        _dpsgd(
            "rare canary, last iterate in whole numbers",
            RARE_LAST,
            delta,
            sampler=_last_iterate(RARE_LAST, whole=True),
        ),
        *(
            dataclasses.replace(_dpsgd(words, one, small, epsilon=epsilon), name=f"{_named(words, one)}, δ = {small:g}")
            for words, (one, small, epsilon) in (("small δ", SMALL_DELTA), ("small δ, many steps", MANY_STEPS))
        ),
        Known(name="extremal (1, 0.01) pair", delta=PAIR_DELTA, epsilon=RESPONSE, sampler=_pair),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class KnownRun:
    """One run with many canaries, the true ε at δ for any (ε, δ) statement, and for the smallest Gaussian curve."""

    name: str
    epsilon: float
    gaussian_epsilon: float
    sampler: Callable[[np.random.Generator, NDArray[np.bool_]], Array]

    def scores(self, rng: np.random.Generator, canaries: int) -> OneRunScores:
        """Scores of one run in which every canary was included by its own fair coin."""
        included = rng.random(canaries) < 0.5
        return OneRunScores(included, self.sampler(rng, included))


def _response_run(rng: np.random.Generator, included: NDArray[np.bool_], epsilon: float) -> Array:
    honest = rng.random(included.size) < special.expit(epsilon)
    return np.where(honest, included, ~included).astype(np.float64)


def _mixture_run(rng: np.random.Generator, included: NDArray[np.bool_]) -> Array:
    # One coin for the whole run: either every bit goes through randomised response, or nothing is said.
    if rng.random() < MIXTURE_SHARE:
        return _response_run(rng, included, math.log(MIXTURE_RATIO))
    return np.zeros(included.size)


def _rare_run(rng: np.random.Generator, included: NDArray[np.bool_]) -> Array:
    # In few runs every bit goes through randomised response with the largest ratio that 1-GDP allows for that.
    if rng.random() < RARE_SHARE:
        return _response_run(rng, included, math.log(rare_ratio()))
    return np.zeros(included.size)


def _flags_run(rng: np.random.Generator, included: NDArray[np.bool_]) -> Array:
    # In few runs some canaries are flagged: many that are in, and as few that are out as 1-GDP demands.
    if rng.random() < RARE_SHARE:
        inside, outside = flag_rates()
        return (rng.random(included.size) < np.where(included, inside, outside)).astype(np.float64)
    return np.zeros(included.size)


@functools.cache
def rare_ratio() -> float:
    """The largest likelihood ratio of randomised response that keeps 1-GDP if it is used in 6 % of runs alone.

    It needs 0.06·(L − e^ε)/(1 + L) ≤ δ(ε) for every ε, with δ(ε) of the Gaussian mechanism.

    >>> round(rare_ratio(), 2)
    11.71
    """
    grid = np.linspace(0.0, 6.0, 6001)
    share = np.array([gaussian_delta(MU, epsilon=float(e)) for e in grid]) / RARE_SHARE
    below = share < 1.0
    return float(np.min((share[below] + np.exp(grid[below])) / (1.0 - share[below])))


@functools.cache
def flag_rates() -> tuple[float, float]:
    """How often a canary that is in, or out, is flagged in 6 % of runs: on the curve of 1-GDP, 3 % flagged in all.

    >>> [round(rate, 4) for rate in flag_rates()]
    [0.0582, 0.0018]
    """

    def inside(outside: float) -> float:
        return float(special.ndtr(special.ndtri(RARE_SHARE * outside) + MU)) / RARE_SHARE

    outside = smallest_true(lambda rate: inside(rate) + rate >= 2.0 * FLAGGED, 1e-9, 2.0 * FLAGGED)
    return inside(outside), outside


@functools.cache
def one_runs(delta: float = 1e-5) -> tuple[KnownRun, ...]:
    """The mechanisms for the one-run methods.

    The last three depend on one coin for all canaries: with probability ½ randomised response with likelihood ratio
    3.83 on all bits at once, else silence; the same in 6 % of runs with ratio 11.71; and in 6 % of runs flags that
    nearly all stand on canaries that are in. They are 1-GDP, and methods that need independent canaries fail on them.

    >>> [run.name for run in one_runs()][3]
    'mixture: half the time randomised response, 3.83 to 1'
    """
    response = math.log(math.exp(RESPONSE) - delta * (1.0 + math.exp(RESPONSE)))
    share = delta / MIXTURE_SHARE
    mixture = math.log(MIXTURE_RATIO - share * (1.0 + MIXTURE_RATIO))
    gaussian = gaussian_epsilon(MU, delta=delta)
    # Randomised response with likelihood ratio e is μ-GDP with μ = 2·Φ⁻¹(e/(1 + e)): the curves touch at α = β.
    response_gaussian = gaussian_epsilon(2.0 * float(special.ndtri(special.expit(RESPONSE))), delta=delta)
    return (
        KnownRun(
            name="nothing leaks",
            epsilon=0.0,
            gaussian_epsilon=0.0,
            sampler=lambda rng, included: rng.standard_normal(included.size),
        ),
        KnownRun(
            name="independent randomised response",
            epsilon=response,
            gaussian_epsilon=response_gaussian,
            sampler=lambda rng, included: _response_run(rng, included, RESPONSE),
        ),
        KnownRun(
            name="independent Gaussian, μ = 1",
            epsilon=gaussian,
            gaussian_epsilon=gaussian,
            sampler=lambda rng, included: rng.standard_normal(included.size) + MU * included,
        ),
        KnownRun(
            name="mixture: half the time randomised response, 3.83 to 1",
            epsilon=mixture,
            gaussian_epsilon=gaussian,
            sampler=_mixture_run,
        ),
        KnownRun(
            name="mixture: in 6 % of runs randomised response, 11.71 to 1",
            epsilon=math.log(rare_ratio() - delta / RARE_SHARE * (1.0 + rare_ratio())),
            gaussian_epsilon=gaussian,
            sampler=_rare_run,
        ),
        KnownRun(
            name="mixture: in 6 % of runs flags on canaries that are in",
            epsilon=math.log((flag_rates()[0] - delta / RARE_SHARE) / flag_rates()[1]),
            gaussian_epsilon=gaussian,
            sampler=_flags_run,
        ),
    )
