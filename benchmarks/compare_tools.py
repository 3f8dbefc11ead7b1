"""Other tools' auditors and ours on the same simulated scores with a known ε: ``python -m benchmarks.compare_tools``.

jax_privacy's numbers come from its own CanaryScoreAuditor; those of opake, PrivacyGuard and ml_privacy_meter from their
formulas as ``coalmine.integrations.tool_claims`` states them again. Prints the tables of docs/elsewhere.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from jax_privacy import auditing

from coalmine import bounds
from coalmine.integrations import ToolClaim, ToolScores, tool_claims
from coalmine.records import OneRunScores, Scores
from coalmine.theory.curves import gaussian_epsilon
from coalmine.theory.rates import two_sided

LEVEL = 0.05
DELTA = 1e-5


def gaussian(rng, size):
    """Gaussian DP with μ = 1."""
    return Scores(rng.normal(size=size), rng.normal(1.0, size=size))


def laplace(rng, size):
    """The Laplace mechanism with ε = 1: its loss is ε on whole half-lines, so a lucky threshold is above it."""
    return Scores(rng.laplace(size=size), rng.laplace(1.0, size=size))


def nothing(rng, size):
    """Scores that say nothing: ε = 0."""
    return Scores(rng.normal(size=size), rng.normal(size=size))


TRUTHS = {
    "Gaussian, μ = 1": (gaussian, gaussian_epsilon(1.0, delta=DELTA)),
    "Laplace, ε = 1": (laplace, 1.0 + 2.0 * np.log1p(-DELTA)),
    "nothing, ε = 0": (nothing, 0.0),
}


def best_threshold(auditor):
    """The threshold that is best on these scores, as a user would pick it from the curve."""
    candidates = auditor._thresholds[np.isfinite(auditor._thresholds)]
    tried = [
        auditor.epsilon_clopper_pearson(LEVEL, DELTA, threshold_strategy=auditing.Explicit(value))
        for value in candidates
    ]
    return max(tried, default=0.0)


def theirs(scores: Scores, *, splits: bool = True) -> dict[str, float]:
    """jax_privacy's answers."""
    auditor = auditing.CanaryScoreAuditor(scores.world1, scores.world0)
    found = {"jax_privacy `epsilon_clopper_pearson`, `Bonferroni()`": auditor.epsilon_clopper_pearson(LEVEL, DELTA)}
    if splits:
        split = auditing.Split(seed=0)
        found["jax_privacy `epsilon_clopper_pearson`, `Split(seed=0)`"] = auditor.epsilon_clopper_pearson(
            LEVEL, DELTA, threshold_strategy=split
        )
    found["jax_privacy `epsilon_clopper_pearson`, `Explicit(best of these scores)`"] = best_threshold(auditor)
    found["jax_privacy `epsilon_raw_counts(min_count=50)` (an estimate)"] = auditor.epsilon_raw_counts(50, DELTA)
    found["jax_privacy `epsilon_from_gdp` (for Gaussian curves)"] = auditor.epsilon_from_gdp(LEVEL, DELTA)
    return {name: float(value) for name, value in found.items()}


def ours(scores: Scores) -> dict[str, float]:
    """Coalmine's answers: the best threshold, paid for."""
    common = {"delta": DELTA, "confidence": 1.0 - LEVEL}
    return {
        "Coalmine `clopper_pearson`, `Sup()` (the default)": bounds.lower_bound(scores, **common).epsilon,
        "Coalmine `gdp`, `Sup()` (for Gaussian curves)": bounds.lower_bound(scores, method="gdp", **common).epsilon,
    }


def responses(rng, canaries, epsilon=1.0):
    """One run that releases every coin by randomized response with ε: the worst case of one-run bounds."""
    coins = rng.random(canaries) < 0.5
    kept = rng.random(canaries) < 1.0 / (1.0 + np.exp(-epsilon))
    return OneRunScores(coins, np.where(kept, coins, ~coins) + 1e-3 * rng.random(canaries))


def silence(rng, canaries):
    """One run that releases nothing."""
    return OneRunScores(rng.random(canaries) < 0.5, rng.random(canaries))


RUNS = {"randomized response, ε = 1": (responses, 1.0), "nothing, ε = 0": (silence, 0.0)}


def one_run(scores: OneRunScores) -> dict[str, float]:
    """What the tools say of one run, by formulas that are quick."""
    auditor = auditing.CanaryScoreAuditor(scores.score[scores.included], scores.score[~scores.included])
    plain = bounds.one_run(scores, delta=DELTA, confidence=1.0 - LEVEL)
    return {
        "Coalmine `one_run` (guess numbers fixed beforehand)": plain.epsilon,
        "jax_privacy `epsilon_one_run`, `Bonferroni()`": float(auditor.epsilon_one_run(LEVEL, DELTA)),
        "ml_privacy_meter `eps_opt`": claims(scores, "ml-privacy-meter")[0].epsilon,
    }


def order_statistics(scores: OneRunScores) -> dict[str, float]:
    """opake's two methods."""
    gdp, plain = claims(scores, "opake")
    return {"opake `eps_delta()`": plain.epsilon, "opake `gdp()`, its default (for Gaussian curves)": gdp.epsilon}


def claims(scores: OneRunScores, tool: str) -> tuple[ToolClaim, ...]:
    """Another tool's formulas on one run."""
    return tool_claims(ToolScores(tool=tool, evidence=scores, notes=()), delta=DELTA, confidence=1.0 - LEVEL)


def misses(
    draw: Callable[[np.random.Generator, int], Scores | OneRunScores],
    truth: float,
    ask: Callable[..., dict[str, float]],
    *,
    size: int,
    audits: int,
) -> dict[str, tuple[float, int, int]]:
    """For every method the median ε, in how many audits it was above the truth, and how many there were."""
    found: dict[str, list[float]] = {}
    for audit in range(audits):
        for name, epsilon in ask(draw(np.random.default_rng([2026, audit]), size)).items():
            found.setdefault(name, []).append(epsilon)
    return {
        name: (float(np.median(values)), int(np.sum(np.array(values) > truth + 1e-9)), audits)
        for name, values in found.items()
    }


def same_scores() -> list[str]:
    """The same scores before both tools: one draw of 500 + 500, and one of 5000 + 5000."""
    small, large = (gaussian(np.random.default_rng(0), size) for size in (500, 5000))
    columns = [ours(one) | theirs(one) for one in (small, large)]
    lines = ["| from the same scores, δ = 1e-5, 95 % | 500 + 500 | 5000 + 5000 |", "|---|---|---|"]
    return lines + [f"| {name} | {columns[0][name]:.2f} | {columns[1][name]:.2f} |" for name in columns[0]]


def share(count: int, audits: int) -> str:
    """A miss rate with its 99 % interval."""
    low, high = two_sided(count, count, audits, confidence=0.99)
    return f"{100 * count / audits:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def table(audits: int, *, size: int = 500, canaries: int = 1000) -> list[str]:
    """Medians and miss rates of all methods; the slow ones in fewer audits, the first ones."""
    few = max(1, audits * 3 // 20)
    games = (
        (f"{size} + {size} independent trials", TRUTHS, size, ((ours, few), (theirs, audits))),
        (f"one run, {canaries} canaries", RUNS, canaries, ((one_run, audits), (order_statistics, few))),
    )
    lines: list[str] = []
    for title, truths, number, asked in games:
        found = {
            name: {
                method: values
                for ask, times in asked
                for method, values in misses(draw, truth, ask, size=number, audits=times).items()
            }
            for name, (draw, truth) in truths.items()
        }
        lines += [f"| {title} | " + " | ".join(found) + " | audits |", "|---|" + "---|" * (len(found) + 1)]
        for method in next(iter(found.values())):
            cells = [f"{one[method][0]:.2f}, {share(*one[method][1:])}" for one in found.values()]
            cells.append(str(next(iter(found.values()))[method][2]))
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=2000)
    print("\n".join([*same_scores(), "", *table(parser.parse_args().audits)]))
