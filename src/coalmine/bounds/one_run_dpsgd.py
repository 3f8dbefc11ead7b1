"""The one-run bound that knows the algorithm: DP-SGD with known sampling rate and steps, unknown noise.

The recursion of :mod:`coalmine.bounds.one_run_fdp` against the trade-off curve of DP-SGD itself, for one noise
multiplier after the other. Rounding is to the safe side: the curve of a profile whose δ is never too small is
never too high, the noise multiplier that is reported was itself refuted, and its ε is rounded down.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from coalmine import _validate
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.method import Evidence, Method
from coalmine.bounds.one_run import Guesses, choose_guesses, one_run_record
from coalmine.bounds.one_run_fdp import largest_mu, refutes
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, LowerBound, OneRunScores, Relation


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
    family = DpSgdNoise(mechanism=mechanism, delta=delta)
    if mechanism.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError(
            "relation = 'replace' does not fit one run: a coin decides whether a canary is there, so expected "
            "'add_remove'"
        )
    level = 1.0 - _validate.open_unit("confidence", confidence)
    tested = choose_guesses(evidence, guess_numbers, seed=seed)
    share = level / len(tested)
    found = [_most_refuted(guesses, family, share) for guesses, _ in tested]
    best = int(np.argmax(found))
    perfect = (dataclasses.replace(guesses, correct=guesses.guesses) for guesses, _ in tested)
    return one_run_record(
        ONE_RUN_DPSGD,
        epsilon=family.epsilon(found[best]),
        delta=family.delta,
        confidence=confidence,
        tested=tested,
        best=best,
        relation=mechanism.relation,
        ceiling=max(family.epsilon(_most_refuted(each, family, share)) for each in perfect),
        assumptions=family.assumptions[:1],  # coins need no word on what the adversary sees
        details=family.details(found[best]),
    )


@functools.lru_cache(maxsize=1024)
def _most_refuted(guesses: Guesses, family: DpSgdNoise, level: float) -> float:
    """The largest θ of the family (the smallest σ of its grid) whose curve is refuted; 0 if none is."""
    mu = largest_mu(guesses, level=level)
    if mu <= 0.0:
        return 0.0
    return family.search(
        lambda theta: theta == 0.0 or refutes(guesses, family.curve(theta), level=level), start=family.near(mu)
    )


ONE_RUN_DPSGD = Method(
    name="one_run_dpsgd",
    words="If it is DP-SGD of unknown noise, one training",
    short="if DP-SGD",
    evidence=Evidence.ONE_RUN,
    needs_mechanism=True,
    from_run=one_run_dpsgd,
)
