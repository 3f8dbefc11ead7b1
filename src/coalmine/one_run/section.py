"""A result as data for a report: canaries with coins and scores, the guesses, the trade-off, the price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coalmine.one_run.claims import claimed_curve
from coalmine.one_run.judge import OneRunResult
from coalmine.records import plain

_POINTS = 50


def section(result: OneRunResult, *, price: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Everything that a report shows about one run, as plain JSON types.

    Args:
        result: What the judge gave.
        price: Accuracy ``with_canaries`` and ``without``, where it was measured.

    Returns:
        ``verdict``, ``design``, ``bounds``, ``guesses``; ``canaries``: id, coin, score and guess ("in", "out" or "")
        of each; ``trade_off``: the attack's error rates at some thresholds, with the least that the claim allows; and
        ``price``.

    >>> from coalmine.one_run.design import design
    >>> from coalmine.one_run.judge import judge
    >>> from coalmine.records import EpsilonClaim, OneRunScores
    >>> scores = OneRunScores([1, 0] * 20, [float(i % 2 == 0) for i in range(40)])
    >>> plan = design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=40, guess_in=10, guess_out=10)
    >>> found = section(judge(scores, design=plan))
    >>> found["canaries"]["guess"].count("in"), found["guesses"]["correct"]
    (10, 20)
    """
    scores, design = result.scores, result.design
    order = design.order(scores)
    guess = np.full(order.size, "", dtype=object)
    guess[order[: design.guess_out]] = "out"
    guess[order[order.size - design.guess_in :]] = "in"
    return {
        **result.to_dict(),
        "canaries": {
            "id": [str(name) for name in scores.ids],
            "included": scores.included.tolist(),
            "score": plain(scores.score),
            "guess": guess.tolist(),
        },
        "trade_off": _trade_off(result),
        "price": None if price is None else plain(dict(price)),
    }


def _trade_off(result: OneRunResult) -> list[dict[str, float]]:
    """Error rates of "score above a threshold", and the least false negatives that the claim allows."""
    scores = result.scores
    inside, outside = np.sort(scores.score[scores.included]), np.sort(scores.score[~scores.included])
    if not inside.size or not outside.size:
        return []
    thresholds = np.unique(np.quantile(scores.score, np.linspace(0.0, 1.0, _POINTS)))
    positives = 1.0 - np.searchsorted(outside, thresholds, side="right") / outside.size
    negatives = np.searchsorted(inside, thresholds, side="right") / inside.size
    allowed = claimed_curve(result.design.claim)(positives)
    return [
        {"false_positives": float(a), "false_negatives": float(b), "allowed": float(c)}
        for a, b, c in zip(positives, negatives, allowed, strict=True)
    ]
