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
from coalmine.theory.curves import gaussian_epsilon

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
PAIR_DELTA = 0.01
MIXTURE_SHARE, MIXTURE_RATIO = 0.5, 3.83


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


def _every_step(mechanism: DpSgd) -> Sampler:
    """The log likelihood ratio of all steps of DP-SGD."""
    q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps

    def sample(rng: np.random.Generator, world: int, n: int) -> Array:
        seen = sigma * rng.standard_normal((n, steps))
        if world:
            seen += rng.random((n, steps)) < q
        ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2.0 * seen - 1.0) / (2.0 * sigma**2))
        return np.asarray(ratio.sum(axis=1))

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


@functools.cache
def independent_trials(delta: float = 1e-5) -> tuple[Known, ...]:
    """The mechanisms for methods that need independent trials; the extremal pair has its own δ = 0.01.

    >>> [round(known.epsilon, 4) for known in independent_trials()[:4]]
    [0.0, 1.0, 1.0, 4.3772]
    """
    from coalmine.accounting import last_iterate, standard

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
        Known(
            name="subsampled Gaussian, q = 0.2, σ = 1.5, T = 20",
            delta=delta,
            epsilon=standard.epsilon(SUBSAMPLED, delta=delta).epsilon,
            sampler=_every_step(SUBSAMPLED),
            analysis="standard",
            mechanism=SUBSAMPLED,
        ),
        Known(
            name="last iterate of linear losses, q = 0.05, σ = 0.8, T = 200",
            delta=delta,
            epsilon=last_iterate.epsilon(LAST_ITERATE, delta=delta).epsilon,
            sampler=_last_iterate(LAST_ITERATE),
            analysis="last_iterate",
            mechanism=LAST_ITERATE,
        ),
        Known(
            name="rare canary, every step seen, q = 0.01, σ = 0.6, T = 50",
            delta=delta,
            epsilon=standard.epsilon(RARE, delta=delta).epsilon,
            sampler=_every_step(RARE),
            analysis="standard",
            mechanism=RARE,
        ),
        *(
            Known(
                name=f"rare canary, last iterate{words}, q = 0.01, σ = 0.3, T = 10",
                delta=delta,
                epsilon=last_iterate.epsilon(RARE_LAST, delta=delta).epsilon,
                sampler=_last_iterate(RARE_LAST, whole=whole),
                analysis="last_iterate",
                mechanism=RARE_LAST,
            )
            for words, whole in (("", False), (" in whole numbers", True))
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


@functools.cache
def one_runs(delta: float = 1e-5) -> tuple[KnownRun, ...]:
    """The mechanisms for the one-run methods.

    The last depends on one coin for all canaries: with probability ½ randomised response with likelihood ratio 3.83 on
    all bits at once, else silence. It is 1-GDP, and methods that take the canaries for independent fail on it.

    >>> [run.name for run in one_runs()][-1]
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
    )
