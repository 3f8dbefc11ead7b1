"""A result as data for a report: canaries with coins and scores, the guesses, the trade-off, the price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coalmine.one_run.claims import claimed_curve
from coalmine.one_run.design import Design
from coalmine.one_run.judge import OneRunResult
from coalmine.records import OneRunScores, plain

_POINTS = 50


def section(result: OneRunResult, *, price: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Everything that a report shows about one run, as plain JSON types.

    Args:
        result: What the judge gave.
        price: Accuracy ``with_canaries`` and ``without``, where it was measured.

    Returns:
        ``verdict``, ``design``, ``bounds``, ``guesses``; what :func:`evidence` gives; and ``price``.

    >>> from coalmine.one_run.design import design
    >>> from coalmine.one_run.judge import judge
    >>> from coalmine.records import EpsilonClaim, OneRunScores
    >>> scores = OneRunScores([1, 0] * 20, [float(i % 2 == 0) for i in range(40)])
    >>> plan = design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=40, guess_in=10, guess_out=10)
    >>> found = section(judge(scores, design=plan))
    >>> found["canaries"]["guess"].count("in"), found["guesses"]["correct"]
    (10, 20)
    """
    return {
        **result.to_dict(),
        **evidence(result.scores, design=result.design),
        "price": None if price is None else plain(dict(price)),
    }


def evidence(scores: OneRunScores, *, design: Design) -> dict[str, Any]:
    """What was scored and guessed, as plain JSON types.

    ``canaries``: id, coin, score and guess ("in", "out" or "") of each; ``counts``: for each guess, how many canaries
    were in and out; ``trade_off``: the attack's error rates at some thresholds, with the least that the claim allows.

    >>> from coalmine.one_run.design import design
    >>> from coalmine.records import EpsilonClaim
    >>> plan = design(EpsilonClaim(epsilon=1.0, delta=1e-5), canaries=4, guess_in=1, guess_out=1)
    >>> evidence(OneRunScores([1, 0, 1, 0], [3.0, 1.0, 2.0, 0.0]), design=plan)["counts"]
    {'in': {'in': 1, 'out': 0}, 'out': {'in': 0, 'out': 1}, '': {'in': 1, 'out': 1}}
    """
    order = design.order(scores)
    guess = np.full(order.size, "", dtype=object)
    guess[order[: design.guess_out]] = "out"
    guess[order[order.size - design.guess_in :]] = "in"
    inside = {name: int(scores.included[guess == name].sum()) for name in ("in", "out", "")}
    return {
        "canaries": {
            "id": [str(name) for name in scores.ids],
            "included": scores.included.tolist(),
            "score": plain(scores.score),
            "guess": guess.tolist(),
        },
        "counts": {name: {"in": count, "out": int(np.sum(guess == name)) - count} for name, count in inside.items()},
        "trade_off": _trade_off(scores, design),
    }


def _trade_off(scores: OneRunScores, design: Design) -> list[dict[str, float]]:
    """Error rates of "score above a threshold", and the least false negatives that the claim allows."""
    inside, outside = np.sort(scores.score[scores.included]), np.sort(scores.score[~scores.included])
    if not inside.size or not outside.size:
        return []
    thresholds = np.unique(np.quantile(scores.score, np.linspace(0.0, 1.0, _POINTS)))
    positives = 1.0 - np.searchsorted(outside, thresholds, side="right") / outside.size
    negatives = np.searchsorted(inside, thresholds, side="right") / inside.size
    allowed = claimed_curve(design.claim)(positives)
    return [
        {"false_positives": float(a), "false_negatives": float(b), "allowed": float(c)}
        for a, b, c in zip(positives, negatives, allowed, strict=True)
    ]
