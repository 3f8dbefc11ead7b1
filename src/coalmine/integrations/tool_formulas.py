"""What other auditing tools would say of the same scores: their formulas, stated again. None is a bound of ours.

Each is computed as the tool computes it by default and says in words what it leaves out. The formulas were read in the
tools' sources (docs/elsewhere.md has the versions) and are written here from the papers that the tools name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from coalmine import _validate
from coalmine.bounds.one_run import Guesses, one_run_epsilon
from coalmine.integrations.tool_files import ToolScores
from coalmine.records import OneRunScores, plain
from coalmine.theory.curves import gaussian_epsilon, largest_true
from coalmine.theory.rates import upper_limit

Array = NDArray[np.float64]

_ONE_TRAINING = "These scores come from one training, and the formula is for independent trials."
_MANY_TRAININGS = "The formula is for many canaries of one training."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolClaim:
    """An ε that another tool would give for the same scores.

    Attributes:
        formula: What the tool calls it.
        epsilon: Its value by the same formula.
        delta: The δ that the tool uses (ml_privacy_meter always 0).
        level: The chance of error that the tool speaks of, or None where it speaks of none.
        holds: What the number leaves out, or when it holds.
    """

    formula: str
    epsilon: float
    delta: float
    level: float | None
    holds: str

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        return {"kind": "claim_of_another_tool", **plain(dataclasses.asdict(self))}


def tool_claims(found: ToolScores, *, delta: float, confidence: float, seed: int = 0) -> tuple[ToolClaim, ...]:
    """What the tool that made these scores would say of them.

    Args:
        found: Scores as :func:`~coalmine.integrations.tool_files.read_tool_scores` gives them.
        delta: δ where the tool lets one choose it.
        confidence: One minus the level, where the tool lets one choose it.
        seed: Seed of the bootstrap (PrivacyGuard).

    Returns:
        The formulas of that tool, each with its value and with what it leaves out.

    >>> from coalmine.records import Scores
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(size=500), rng.normal(1.0, size=500))
    >>> claims = tool_claims(ToolScores(tool="jax-privacy", evidence=scores, notes=()), delta=1e-5, confidence=0.95)
    >>> claims[0].formula, round(claims[0].epsilon, 3)
    ('epsilon_clopper_pearson, Bonferroni()', 0.878)
    """
    _validate.instance("found", found, ToolScores)
    delta = _validate.half_open_unit("delta", delta)
    level = 1.0 - _validate.open_unit("confidence", confidence)
    seed = _validate.integer("seed", seed, at_least=0)
    tools: dict[str, Callable[[], list[ToolClaim]]] = {
        "jax-privacy": lambda: _jax_privacy(found, delta, level),
        "opake": lambda: _opake(found, delta, level),
        "privacyguard": lambda: _privacy_guard(found, delta, seed),
        "ml-privacy-meter": lambda: _privacy_meter(found),
    }
    return tuple(tools[found.tool]())


@dataclasses.dataclass(frozen=True)
class _Roc:
    """Errors at every threshold: members below it, non-members not below it."""

    missed: NDArray[np.int64]
    false: NDArray[np.int64]
    members: int
    nonmembers: int

    def take(self, where: NDArray[Any]) -> _Roc:
        """Some of the thresholds."""
        return dataclasses.replace(self, missed=self.missed[where], false=self.false[where])


def _roc(members: Array, nonmembers: Array) -> _Roc:
    """The errors of "member where score ≥ t" for every score t, from the lowest, and for a t above all of them."""
    thresholds = np.append(np.union1d(members, nonmembers), np.inf)
    missed = np.searchsorted(np.sort(members), thresholds, side="left")
    false = nonmembers.size - np.searchsorted(np.sort(nonmembers), thresholds, side="left")
    return _Roc(missed, false, members.size, nonmembers.size)


def _hull(roc: _Roc) -> _Roc:
    """The corners of the convex hull of the curve: no other threshold is best for any weights of the two errors."""
    kept: list[int] = []
    for place in range(roc.missed.size):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            before = (int(roc.missed[b] - roc.missed[a]), int(roc.false[a] - roc.false[b]))
            after = (int(roc.missed[place] - roc.missed[b]), int(roc.false[b] - roc.false[place]))
            if before[1] * after[0] - after[1] * before[0] > 0:
                break
            kept.pop()
        kept.append(place)
    return roc.take(np.array(kept))


def _log_ratio(power: Array, error: Array, delta: float) -> float:
    """The largest ln((power − δ)/error), at least 0."""
    fine = power > delta
    if not fine.any():
        return 0.0
    return max(0.0, float(np.max(np.log(power[fine] - delta) - np.log(error[fine]))))


def _jax_privacy(found: ToolScores, delta: float, level: float) -> list[ToolClaim]:
    """jax_privacy.auditing.CanaryScoreAuditor: its bounds at their defaults, and its estimate."""
    roc = _hull(_roc(found.members, found.nonmembers))
    corners = roc.missed.size
    independent = not isinstance(found.evidence, OneRunScores)

    def clopper_pearson(share: float) -> float:
        missed = upper_limit(roc.missed, roc.members, share / 2.0)
        return _log_ratio(1.0 - missed, upper_limit(roc.false, roc.nonmembers, share / 2.0), delta)

    claims = [
        ToolClaim(
            formula="epsilon_clopper_pearson, Bonferroni()",
            epsilon=clopper_pearson(level / corners),
            delta=delta,
            level=level,
            holds=f"Shares its level among the {corners} corners of the curve's hull, which the scores chose."
            if independent
            else _ONE_TRAINING,
        ),
        ToolClaim(
            formula="epsilon_clopper_pearson, Explicit(best threshold of these scores)",
            epsilon=clopper_pearson(level),
            delta=delta,
            level=level,
            holds="Does not pay for the choice of its threshold: too high more often than its level says.",
        ),
        ToolClaim(
            formula="epsilon_raw_counts(min_count=50)",
            epsilon=_raw_counts(roc, delta, min_count=50),
            delta=delta,
            level=None,
            holds="An estimate, as the tool says too: no confidence belongs to it.",
        ),
    ]
    if delta > 0.0:
        claims += [
            ToolClaim(
                formula="epsilon_from_gdp",
                epsilon=_from_gdp(roc, delta, level),
                delta=delta,
                level=level,
                holds="Holds for a Gaussian trade-off curve alone; takes |μ|, so that scores which prove nothing give "
                "a large ε.",
            ),
            ToolClaim(
                formula="epsilon_one_run, Bonferroni()",
                epsilon=max(
                    one_run_epsilon(
                        Guesses(canaries=roc.members + roc.nonmembers, guesses=right + wrong, correct=right),
                        delta=delta,
                        level=level / corners,
                    )
                    if right + wrong
                    else 0.0
                    for right, wrong in zip((roc.members - roc.missed).tolist(), roc.false.tolist(), strict=True)
                ),
                delta=delta,
                level=level,
                holds=_MANY_TRAININGS
                if independent
                else f"Shares its level among the {corners} corners of the curve's hull, which the scores chose; "
                "guesses IN alone.",
            ),
        ]
    return claims


def _raw_counts(roc: _Roc, delta: float, *, min_count: int) -> float:
    """The largest ln((TPR − δ)/FPR) with at least so many false positives; between corners the curve is a line."""
    if min_count >= roc.nonmembers:
        return 0.0
    power = (roc.members - roc.missed[::-1]) / roc.members
    error = roc.false[::-1] / roc.nonmembers
    least = min_count / roc.nonmembers
    inside = error >= least
    return _log_ratio(np.append(power[inside], np.interp(least, error, power)), np.append(error[inside], least), delta)


def _from_gdp(roc: _Roc, delta: float, level: float) -> float:
    """ε(δ) of the largest |Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)| over Clopper-Pearson limits at level/(2·corners)."""
    share = level / (2.0 * roc.missed.size)
    false = upper_limit(roc.false, roc.nonmembers, share)
    missed = upper_limit(roc.missed, roc.members, share)
    fine = np.maximum(false, missed) < 1.0 - delta
    if not fine.any():
        return 0.0
    mu = float(np.max(np.abs(-special.ndtri(false[fine]) - special.ndtri(missed[fine]))))
    return gaussian_epsilon(mu, delta=delta)


def _opake(found: ToolScores, delta: float, level: float) -> list[ToolClaim]:
    """opake.auditing.one_run: both methods of Xiang et al. 2025, at the threshold with the fewest errors."""
    roc = _roc(found.members, found.nonmembers)
    canaries = roc.members + roc.nonmembers
    errors = int(np.min(roc.missed + roc.false))
    counted = max(canaries - round(canaries * delta), 1)
    rate = float(upper_limit(errors, counted, level))
    unpaid = "Guesses all canaries at the threshold with the fewest errors on these scores; the choice is not paid for."
    claims = [
        ToolClaim(
            formula="one_run(...).eps_delta().epsilon_at",
            epsilon=max(0.0, float(special.logit(1.0 - rate))) if rate < 0.5 else 0.0,
            delta=delta,
            level=level,
            holds=unpaid,
        )
    ]
    if delta > 0.0:
        mu = _order_statistics_mu(canaries, errors, level)
        claims.insert(
            0,
            ToolClaim(
                formula="one_run(...).epsilon_at (its default, gdp())",
                epsilon=gaussian_epsilon(mu, delta=delta) if mu > 0.0 else 0.0,
                delta=delta,
                level=level,
                holds=f"{unpaid} Assumes a Gaussian trade-off curve, and that canaries do not influence each other. "
                "The tool rounds μ down by up to 1 %.",
            ),
        )
    return claims


_EXACT_RANKS = 2000


def _order_statistics_mu(canaries: int, errors: int, level: float) -> float:
    """The largest μ for which so few errors have a Chernoff bound below the level (Xiang et al. 2025, Theorems 2, 3).

    The canary whose |privacy loss| has rank k of m is guessed wrong with v_k = E[1/(1 + e^|L|)], L the loss at the k-th
    order statistic of m draws from ½N(0, 1) + ½N(μ, 1): |L| = μW, and W has the law Φ(w − μ/2) + Φ(w + μ/2) − 1.
    Ranks below the 2000 highest count as the lowest of those, as in the tool.
    """
    ranks = np.arange(max(1, canaries - _EXACT_RANKS + 1), canaries + 1)
    more = canaries - ranks.size
    nodes, weights = np.polynomial.legendre.leggauss(16)
    # The quantiles of the k-th of m uniform numbers do not depend on μ.
    uniform = special.betaincinv(ranks[:, None], canaries - ranks[:, None] + 1.0, (nodes[None, :] + 1.0) / 2.0)
    counts = np.ones(ranks.size)
    counts[0] += more

    def tail(mu: float) -> float:
        width = np.linspace(0.0, mu / 2.0 + 9.0, 20_001)
        law = special.ndtr(width - mu / 2.0) - special.ndtr(-width - mu / 2.0)
        wrong = special.expit(-mu * np.interp(uniform, law, width)) @ (weights / 2.0)
        if errors >= float(counts @ wrong):
            return 1.0
        if errors == 0:
            return math.exp(float(counts @ np.log1p(-wrong)))

        def slope(tilt: float) -> float:
            tilted = wrong * math.exp(tilt)
            return float(counts @ (tilted / (1.0 - wrong + tilted))) - errors

        best = optimize.brentq(slope, -50.0, 0.0) if slope(-50.0) < 0.0 else -50.0
        return math.exp(-best * errors + float(counts @ np.log1p(wrong * math.expm1(best))))

    high = 1.0
    while tail(high) < level and high < 64.0:
        high *= 2.0
    low = 1e-3
    return largest_true(lambda mu: tail(mu) < level, low, high, relative=1e-6) if tail(low) < level else 0.0


def _bends(roc: _Roc) -> _Roc:
    """The curve from the highest threshold down, without points on a straight stretch, as scikit-learn gives it."""
    turned = _Roc(roc.missed[::-1][1:], roc.false[::-1][1:], roc.members, roc.nonmembers)
    if turned.missed.size > 2:
        bent = (np.diff(turned.missed, 2) != 0) | (np.diff(turned.false, 2) != 0)
        turned = turned.take(np.flatnonzero(np.r_[True, bent, True]))
    return dataclasses.replace(turned, missed=np.append(roc.members, turned.missed), false=np.append(0, turned.false))


def _privacy_guard(found: ToolScores, delta: float, seed: int) -> list[ToolClaim]:
    """privacy_guard's AnalysisNode: ``eps``, the upper end of a bootstrap interval, and ``eps_cp``; always at 95 %."""
    members, nonmembers = found.members, found.nonmembers
    half = min(members.size // 2, nonmembers.size // 2)
    claims = [
        ToolClaim(
            formula="AnalysisNode: eps (upper end of a bootstrap interval at a TPR of 1 %)",
            epsilon=_bootstrap(members, nonmembers, delta, seed),
            delta=delta,
            level=None,
            holds="The upper end of an interval of an estimate: by design rather too high than too low. Depends on "
            "random draws.",
        )
    ]
    if half:
        roc = _bends(_roc(members[:half], nonmembers[:half]))
        missed, false = upper_limit(roc.missed, half, 0.025), upper_limit(roc.false, half, 0.025)
        forth = (1.0 - missed - delta) / np.maximum(false, 1e-30)
        back = (1.0 - false - delta) / np.maximum(missed, 1e-30)
        claims.append(
            ToolClaim(
                formula="AnalysisNode: eps_cp (first half of each world, n_users_for_eval not smaller)",
                epsilon=math.log(max(float(forth.max()), float(back.max()), 1e-30)),
                delta=delta,
                level=0.05,
                holds="The best of all thresholds and of both directions, whose choice is not paid for."
                + ("" if not isinstance(found.evidence, OneRunScores) else f" {_ONE_TRAINING}"),
            )
        )
    return claims


def _bootstrap(members: Array, nonmembers: Array, delta: float, seed: int) -> float:
    """The 97.5 % quantile over 1000 resamples of ln((TPR − δ)/FPR) where TPR first reaches 1 %, at most ln n."""
    rng = np.random.default_rng([0xB007, seed])
    size = min(members.size, nonmembers.size)
    values = []
    for _ in range(1000):
        inside = members[rng.integers(0, members.size, size)]
        roc = _bends(_roc(inside, nonmembers[rng.integers(0, nonmembers.size, size)]))
        power = 1.0 - roc.missed / size
        place = min(int(np.searchsorted(power, 0.01, side="left")), power.size - 1)
        top, error = float(power[place]) - delta, float(roc.false[place]) / size
        value = math.inf if error == 0.0 and top > 0.0 else math.log(top / error) if top > 0.0 else -math.inf
        values.append(min(value, math.log(size)))
    return float(np.sort(values)[975])


def _privacy_meter(found: ToolScores) -> list[ToolClaim]:
    """ml_privacy_meter's compute_abstain_attack_results: the best of a grid of guess numbers, each at 5 %, δ = 0."""
    order = np.argsort(np.concatenate([found.members, found.nonmembers]), kind="stable")
    inside = np.repeat([1, 0], [found.members.size, found.nonmembers.size])[order]
    canaries = inside.size
    step = math.isqrt(canaries)
    low, high = (
        grid.ravel() for grid in np.meshgrid(np.arange(0, canaries, step), np.arange(0, canaries, step), indexing="ij")
    )
    low, high = low[low < high], high[low < high]
    outs = np.append(0, np.cumsum(1 - inside))
    ins = np.append(0, np.cumsum(inside))
    guesses = low + canaries - high
    right = outs[low] + ins[-1] - ins[high]
    rates = special.betaincinv(np.maximum(right, 0.5), guesses - right + 1.0, 0.05)
    best = float(np.max(np.where(right > 0, rates, 0.0), initial=0.5))
    holds = "The best of {} pairs of guess numbers, each tested at the whole level; δ is always 0."
    return [
        ToolClaim(
            formula="compute_abstain_attack_results: eps_opt",
            epsilon=max(0.0, float(special.logit(best))),
            delta=0.0,
            level=0.05,
            holds=holds.format(low.size) + ("" if isinstance(found.evidence, OneRunScores) else f" {_MANY_TRAININGS}"),
        )
    ]
