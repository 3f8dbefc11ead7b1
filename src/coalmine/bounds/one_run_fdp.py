"""The one-run bound for any trade-off curve: Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-DP in one run".

For a training whose trade-off curve is at least f, so many right guesses have a chance below the level only if a
recursion over the possible counts stays under a limit; if it does not, f is refuted. The outputs may depend on each
other in any way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.bounds.method import Evidence, Method
from coalmine.bounds.one_run import Guesses, choose_guesses, one_run_record
from coalmine.records import LowerBound, OneRunScores, Relation
from coalmine.theory.curves import TradeOff, gaussian_epsilon

Array = NDArray[np.float64]

FAMILIES = ("gdp", "epsilon_delta")
_PER_ROUND = 129


def refutes(guesses: Guesses, curve: TradeOff, *, level: float) -> bool:
    """Whether the guesses refute the trade-off curve at ``level``.

    r_v = level·v/m, h_v = level·(r − v)/m; for i = v − 1 … 0: h_i = max(h_{i+1}, f(1 − r_{i+1})) and
    r_i = r_{i+1} + i/(r − i)·(h_i − h_{i+1}); refuted when r_0 + h_0 > r/m, for r guesses of which v are right among m
    canaries. f(1 − x) is the smallest false-positive rate at which the power x can be reached.

    When all guesses are on one side, half of the canaries cannot be guessed right whatever the output is, and the
    recursion holds with m/2 in place of m (docs/one-run.md has the proof).

    >>> from coalmine.theory.curves import GaussianCurve
    >>> guesses = Guesses(canaries=1000, guesses=1000, correct=700)
    >>> refutes(guesses, GaussianCurve(mu=0.3), level=0.05), refutes(guesses, GaussianCurve(mu=2.0), level=0.05)
    (True, False)
    """
    _validate.instance("guesses", guesses, Guesses)
    level = _validate.open_unit("level", level)
    return bool(_refuted(guesses, np.array([level]), _inverse_of(curve))[0])


def fdp_p_value(guesses: Guesses, curve: TradeOff) -> float:
    """The smallest level, to one part in a thousand, at which the guesses refute the curve; 1 if none below 1 does.

    What is returned was itself refuted, so it is never below the smallest such level.

    >>> from coalmine.theory.curves import GaussianCurve
    >>> round(fdp_p_value(Guesses(canaries=1000, guesses=100, correct=90), GaussianCurve(mu=0.6)), 3)
    0.048
    """
    _validate.instance("guesses", guesses, Guesses)
    inverse = _inverse_of(curve)
    low, high = 1e-12, 1.0
    for _ in range(3):
        levels = np.geomspace(low, high, _PER_ROUND)
        hit = np.flatnonzero(_refuted(guesses, levels, inverse))
        if not hit.size:
            return 1.0
        if hit[0] == 0:
            return float(levels[0])
        low, high = float(levels[hit[0] - 1]), float(levels[hit[0]])
    return high


def critical_count(curve: TradeOff, *, canaries: int, guesses: int, level: float, sides: int = 2) -> int | None:
    """The smallest number of right guesses that refutes the curve at ``level``; None if not even all of them do.

    >>> from coalmine.theory.curves import GaussianCurve
    >>> critical_count(GaussianCurve(mu=0.6), canaries=1000, guesses=100, level=0.05)
    90
    """
    level = _validate.open_unit("level", level)
    inverse = _inverse_of(curve)
    perfect = Guesses(canaries=canaries, guesses=guesses, correct=guesses, sides=sides)
    m, r = _effective(perfect), perfect.guesses
    low, high = 0, r + 1  # no count up to low refutes, every one from high on does
    while high - low > 1:
        tried = np.unique(np.linspace(low + 1, high - 1, 31).astype(int))
        hit = _refuted_counts(m, r, tried, np.full(tried.size, level), inverse)
        first = int(np.flatnonzero(hit)[0]) if hit.any() else tried.size
        high = int(tried[first]) if first < tried.size else high
        low = int(tried[first - 1]) if first else low
    return high if high <= r else None


def _inverse_of(curve: TradeOff) -> Callable[[Array], Array]:
    return lambda x: np.atleast_1d(curve(1.0 - x))


def _refuted(guesses: Guesses, levels: Array, inverse: Callable[[Array], Array]) -> NDArray[np.bool_]:
    """The recursion for several levels or several curves at once; ``inverse(x)`` is f(1 − x) of each."""
    counts = np.full(levels.size, guesses.correct)
    return _refuted_counts(_effective(guesses), guesses.guesses, counts, levels, inverse)


def _effective(guesses: Guesses) -> float:
    """m, or half of it when all guesses are on one side: P[in, S] is at most ½·(1 − f(2·P[out, S])) then.

    With more guesses than half of the canaries nothing is gained, and nothing is claimed.
    """
    half = guesses.canaries / 2.0
    return half if guesses.sides == 1 and guesses.guesses <= half else float(guesses.canaries)


def _refuted_counts(
    m: float, r: int, counts: NDArray[np.int64], levels: Array, inverse: Callable[[Array], Array]
) -> NDArray[np.bool_]:
    """The recursion for several numbers of right guesses at once, each at its level."""
    right, wrong = levels * counts / m, levels * (r - counts) / m
    limit = r / m
    least, most = int(counts.min()), int(counts.max())
    for i in range(most - 1, -1, -1):
        grown = np.maximum(wrong, inverse(np.minimum(right, 1.0)))
        if i >= least:
            grown = np.where(i < counts, grown, wrong)
        right = right + i / (r - i) * (grown - wrong)
        wrong = grown
        if i % 64 == 0 and i < least and np.all(right + wrong > limit):
            break
    # Rounding in a long sum must not refute: ask for a little more than the limit.
    return np.asarray(right + wrong > limit * (1.0 + 1e-9))


class _Inverse:
    """f_θ(1 − x) for a whole vector of θ at once: the smallest false-positive rate with power x."""

    def __init__(self, family: str, delta: float, thetas: Array) -> None:
        self._gdp, self._delta, self._thetas = family == "gdp", delta, thetas

    def __call__(self, x: Array) -> Array:
        if self._gdp:
            return np.asarray(special.ndtr(special.ndtri(x) - self._thetas))
        steep = x - self._delta
        return np.maximum(
            0.0, np.maximum(np.exp(-self._thetas) * steep, 1.0 - self._delta - np.exp(self._thetas) * (1.0 - x))
        )


@functools.lru_cache(maxsize=4096)
def _largest_refuted(guesses: Guesses, *, family: str, delta: float, level: float) -> float:
    """The largest θ of the family that is refuted, by rounds of 129 at once; what is returned was itself refuted."""

    def refuted(thetas: Array) -> NDArray[np.bool_]:
        return _refuted(guesses, np.full(thetas.size, level), _Inverse(family, delta, thetas))

    grid = np.concatenate([[0.0], 2.0 ** np.arange(-10.0, 8.0)])
    low = 0.0
    for _ in range(4):
        answers = refuted(grid)
        if not answers[0]:
            return low
        last = int(np.argmin(answers)) - 1 if not np.all(answers) else grid.size - 1
        low = float(grid[last])
        if last == grid.size - 1 or grid[last + 1] - low <= 1e-9 * low:
            return low
        grid = np.linspace(low, float(grid[last + 1]), _PER_ROUND)
    return low


def largest_mu(guesses: Guesses, *, level: float) -> float:
    """The largest μ whose Gaussian curve is refuted at ``level``; 0 if none is.

    >>> round(largest_mu(Guesses(canaries=5000, guesses=400, correct=395), level=0.05), 3)
    1.18
    """
    return _largest_refuted(guesses, family="gdp", delta=0.5, level=_validate.open_unit("level", level))


def one_run_fdp(
    evidence: Guesses | OneRunScores,
    *,
    delta: float,
    confidence: float,
    family: str = "gdp",
    guess_numbers: Sequence[tuple[int, int]] | None = None,
    relation: Relation = Relation.ADD_REMOVE,
    seed: int = 0,
) -> LowerBound:
    """The one-run bound of Mahloujifar, Melis and Chaudhuri 2024, in the family "gdp" or "epsilon_delta".

    The largest μ (or ε at this δ) whose curve is refuted; μ is turned into ε at δ. ``guess_numbers`` as in
    :func:`coalmine.bounds.one_run`.

    >>> found = one_run_fdp(Guesses(canaries=1000, guesses=1000, correct=700), delta=1e-5, confidence=0.95)
    >>> round(found.epsilon, 3)
    1.372
    """
    family = _validate.choice("family", family, FAMILIES)
    delta = _validate.open_unit("delta", delta) if family == "gdp" else _validate.half_open_unit("delta", delta)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    tested = choose_guesses(evidence, guess_numbers, seed=seed)
    share = level / len(tested)

    def theta(guesses: Guesses) -> float:
        return _largest_refuted(guesses, family=family, delta=delta, level=share)

    def epsilon(value: float) -> float:
        return gaussian_epsilon(value, delta=delta) if family == "gdp" and value > 0.0 else value

    thetas = [theta(guesses) for guesses, _ in tested]
    best = int(np.argmax(thetas))
    perfect = max(theta(dataclasses.replace(guesses, correct=guesses.guesses)) for guesses, _ in tested)
    gaussian = ("the mechanism's trade-off curve is that of a Gaussian mechanism",) if family == "gdp" else ()
    return one_run_record(
        ONE_RUN_FDP if family == "gdp" else ONE_RUN_EPSILON_DELTA,
        epsilon=epsilon(thetas[best]),
        delta=delta,
        confidence=confidence,
        tested=tested,
        best=best,
        relation=relation,
        ceiling=epsilon(perfect),
        assumptions=gaussian,
        details={"mu": thetas[best]} if family == "gdp" else {},
    )


ONE_RUN_FDP = Method(
    name="one_run_fdp",
    words="If the leak is Gaussian, one training",
    short="if Gaussian",
    base="one_run_fdp",
    variant="gdp",
    evidence=Evidence.ONE_RUN,
    from_run=one_run_fdp,
)
ONE_RUN_EPSILON_DELTA = Method(
    name="one_run_fdp_epsilon_delta",
    words="Nothing assumed about the algorithm, one training",
    short="proved",
    base="one_run_fdp",
    variant="epsilon_delta",
    evidence=Evidence.ONE_RUN,
    decides=True,
    from_run=functools.partial(one_run_fdp, family="epsilon_delta"),
)
