"""The one-run bound that knows the algorithm: DP-SGD with known sampling rate and steps, unknown noise.

The recursion of :mod:`coalmine.bounds.one_run_fdp` against the trade-off curve of DP-SGD itself, for one noise
multiplier after the other. Rounding is to the safe side: the curve of a profile whose δ is never too small is
never too high, the noise multiplier that is reported was itself refuted, and its ε is rounded down.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import numpy as np

from coalmine import _validate
from coalmine.bounds.method import Evidence, Method
from coalmine.bounds.one_run import Guesses, choose_guesses, one_run_record
from coalmine.bounds.one_run_fdp import largest_mu, refutes
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, LowerBound, OneRunScores, Relation, Sampling
from coalmine.theory.curves import GaussianCurve, TradeOff

_OCTAVE = 512
"""Steps in σ, to a doubling: 0.14 %."""
_SIGMAS = (2.0**-6, 2.0**12)


@functools.lru_cache(maxsize=256)
def mechanism_curve(mechanism: DpSgd) -> TradeOff:
    """The trade-off curve of DP-SGD when every iterate may be seen, never too high.

    >>> round(float(mechanism_curve(DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=4))(0.05)), 6)
    0.740489
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError(
            "sampling = 'shuffle' has no known trade-off curve: expected 'poisson' or 'full', or a claim of ε and δ"
        )
    if mechanism.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError(
            "relation = 'replace' does not fit one run: a coin decides whether a canary is there, so expected "
            "'add_remove'"
        )
    if mechanism.sample_rate == 1.0:
        return GaussianCurve(mu=math.sqrt(mechanism.steps) / mechanism.noise_multiplier)
    from coalmine.accounting import standard

    return standard.trade_off(mechanism)


def one_run_dpsgd(
    evidence: Guesses | OneRunScores,
    *,
    mechanism: DpSgd,
    delta: float,
    confidence: float,
    guess_numbers: Sequence[tuple[int, int]] | None = None,
    seed: int = 0,
) -> LowerBound:
    """The smallest noise multiplier that one run refutes for DP-SGD at this rate and number of steps, as ε at δ.

    Args:
        evidence: Counted guesses, or scores of one run.
        mechanism: Its sampling rate, steps and sampling are taken as known; its noise multiplier is not used.
        delta: Where ε is stated.
        confidence: Between 0 and 1.
        guess_numbers: As in :func:`coalmine.bounds.one_run`.
        seed: Order of tied scores.

    Returns:
        The bound, with σ in its details.

    >>> guesses = Guesses(canaries=1000, guesses=1000, correct=700)
    >>> found = one_run_dpsgd(
    ...     guesses, mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=4), delta=1e-5, confidence=0.95)
    >>> round(found.epsilon, 2)
    1.37
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    delta = _validate.open_unit("delta", delta)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    tested = choose_guesses(evidence, guess_numbers, seed=seed)
    share = level / len(tested)
    found = [_smallest_refuted(guesses, mechanism, share) for guesses, _ in tested]
    best = int(np.argmin(found))
    perfect = (dataclasses.replace(guesses, correct=guesses.guesses) for guesses, _ in tested)
    return one_run_record(
        ONE_RUN_DPSGD,
        epsilon=_epsilon(mechanism, found[best], delta),
        delta=delta,
        confidence=confidence,
        tested=tested,
        best=best,
        relation=mechanism.relation,
        ceiling=max(_epsilon(mechanism, _smallest_refuted(each, mechanism, share), delta) for each in perfect),
        assumptions=(
            f"the mechanism is DP-SGD with sampling rate {mechanism.sample_rate:g}, "
            f"{_validate.counted(mechanism.steps, 'step')} and {mechanism.sampling.value} sampling; only its noise is "
            "unknown",
        ),
        details={"noise_multiplier": found[best]},
    )


@functools.lru_cache(maxsize=1024)
def _smallest_refuted(guesses: Guesses, mechanism: DpSgd, level: float) -> float:
    """The smallest σ whose curve is refuted, to one step of the grid; infinite if none is."""

    def refuted(step: int) -> bool:
        sigma = _SIGMAS[1] * 2.0 ** (-step / _OCTAVE)
        return refutes(guesses, mechanism_curve(mechanism.with_noise(sigma)), level=level)

    mu = largest_mu(guesses, level=level)
    if mu <= 0.0:
        return math.inf
    top = round(math.log2(_SIGMAS[1] / _SIGMAS[0]) * _OCTAVE)
    near = 1.0 / math.sqrt(math.log1p(mu**2 / (mechanism.sample_rate**2 * mechanism.steps)))
    if mechanism.sample_rate == 1.0:
        near = math.sqrt(mechanism.steps) / mu
    probe = min(max(round(math.log2(_SIGMAS[1] / near) * _OCTAVE), 0), top)
    low, high, stride = -1, top + 1, 16  # low is refuted (−1: nothing is known to be), high is not
    while high - low > 1:
        if refuted(probe):
            low = probe
            probe = low + stride if high > top else (low + high) // 2
        else:
            high = probe
            probe = high - stride if low < 0 else (low + high) // 2
        stride *= 4
        if not low < probe < high:
            probe = (low + high) // 2
    return math.inf if low < 0 else float(_SIGMAS[1] * 2.0 ** (-low / _OCTAVE))


@functools.lru_cache(maxsize=256)
def _epsilon(mechanism: DpSgd, sigma: float, delta: float) -> float:
    """ε at δ with that noise, never too large."""
    if math.isinf(sigma):
        return 0.0
    from coalmine.accounting import standard

    return standard.epsilon_at_least(mechanism.with_noise(sigma), delta=delta)


ONE_RUN_DPSGD = Method(
    name="one_run_dpsgd",
    words="If it is DP-SGD of unknown noise, one training",
    short="if DP-SGD",
    evidence=Evidence.ONE_RUN,
    needs_mechanism=True,
    from_run=one_run_dpsgd,
)
