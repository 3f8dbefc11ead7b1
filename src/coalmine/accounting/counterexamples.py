"""Losses for which the last-iterate heuristic is too small: last-iterate-2024, Sections 4.1 and 4.2.

One dimension, a linear loss for the canary and the regularizer r(m) = λ·m²/2, learning rate 1. Each step shrinks what
came before by 1 − λ, so after T steps the adversary has to tell

    Q = N(0, b²)   from   P = N(X, b²),   X = Σ_{i=1..T} (1 − λ)^{i−1}·Bernoulli(q),
                                          b² = σ²·Σ_{i=1..T} (1 − λ)^{2(i−1)}.

λ = 0 is the linear loss of Theorem 1; λ = 1 is the example of Section 4.1, which forgets all but the last step.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from coalmine import _validate
from coalmine.accounting import _shifted, last_iterate
from coalmine.accounting._common import check_counterexample
from coalmine.accounting._shifted import Array, FiniteShift
from coalmine.records import DpSgd, plain

EXACT_STEPS = 20
"""Up to this many steps all 2^T values of X are enumerated."""

# The paper's rounding: values under the floor go up to it, the others up to the next power of the ratio.
FLOOR = 0.0005
RATIO = 1.05
_GRID = 2**17
_MOST_CELLS = 2**30
"""Cells of the grid times steps: a few seconds of work."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counterexample:
    """What one example really leaks, beside what the heuristic says for the same parameters.

    ``method`` is "exact" (``epsilon`` is the example's own ε) or "rounded_up" (``epsilon`` is an upper bound on it).
    ``heuristic`` is the last-iterate value at T and ``heuristic_worst`` the largest over t ≤ T.
    """

    epsilon: float
    delta: float
    regularizer: float
    method: str
    heuristic: float
    heuristic_worst: float

    @property
    def refutes_heuristic(self) -> bool:
        """Whether the example provably leaks more than the heuristic at T says."""
        return self.method == "exact" and self.epsilon > self.heuristic + 1e-6

    @property
    def refutes_worst(self) -> bool:
        """Whether the example provably leaks more than the heuristic at any t ≤ T says."""
        return self.method == "exact" and self.epsilon > self.heuristic_worst + 1e-6

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON types."""
        verdict = {"refutes_heuristic": self.refutes_heuristic, "refutes_worst": self.refutes_worst}
        return {"kind": "counterexample", **plain(dataclasses.asdict(self)), **verdict}


def regularized(mechanism: DpSgd, *, regularizer: float, delta: float) -> Counterexample:
    """ε at δ of the linear loss with quadratic regularizer λ (last-iterate-2024, Section 4.2).

    Exact for λ in {0, 1} and while 2^T is small. Beyond, X is rounded up, first to a fine grid and then as in the
    paper (to 0.0005 at least, and to the next power of 1.05); a larger X is easier to tell from 0 (Choquette-Choo et
    al. 2024, Lemma 4.5), so the result is an upper bound on the example's ε, and ``method`` says so.

    >>> mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=3)
    >>> round(regularized(mechanism, regularizer=0.5, delta=1e-6).epsilon, 6)
    2.274875
    """
    check_counterexample(mechanism)
    regularizer = _validate.unit("regularizer", regularizer)
    delta = _validate.open_unit("delta", delta)
    method = "exact"
    if regularizer == 0.0 or mechanism.sample_rate == 0.0:
        value = last_iterate.epsilon(mechanism, delta=delta).epsilon
    elif regularizer == 1.0 or mechanism.steps == 1:
        value = last_iterate.epsilon(mechanism.with_steps(1), delta=delta).epsilon
    else:
        keep = 1.0 - regularizer
        if mechanism.steps <= EXACT_STEPS:
            values, weights = _enumerate(mechanism.sample_rate, keep, mechanism.steps)
        else:
            method = "rounded_up"
            values, weights = _round_up(*_on_grid(mechanism.sample_rate, keep, mechanism.steps))
        scale = mechanism.noise_multiplier * math.sqrt(_geometric(keep * keep, mechanism.steps))
        kept = weights > 0.0
        pair = FiniteShift(values[kept], np.log(weights[kept]), scale)
        value = _shifted.epsilon(pair, log_delta=math.log(delta))
    return Counterexample(
        epsilon=value,
        delta=delta,
        regularizer=regularizer,
        method=method,
        heuristic=last_iterate.epsilon(mechanism, delta=delta).epsilon,
        heuristic_worst=last_iterate.worst(mechanism, delta=delta).epsilon,
    )


def zeroing(mechanism: DpSgd, *, delta: float) -> Counterexample:
    """The example of Section 4.1: a regularizer that wipes out all but the last step, so that ε is that of one step.

    It refutes the heuristic wherever ε_T < ε_1.

    >>> example = zeroing(DpSgd(sample_rate=0.01, noise_multiplier=0.5, steps=100), delta=1e-6)
    >>> example.refutes_heuristic, example.refutes_worst
    (True, False)
    """
    return regularized(mechanism, regularizer=1.0, delta=delta)


def _geometric(ratio: float, terms: int) -> float:
    """1 + r + … + r^(terms − 1) for 0 ≤ r < 1."""
    return -math.expm1(terms * math.log(ratio)) / (1.0 - ratio) if ratio > 0.0 else 1.0


def _enumerate(q: float, keep: float, steps: int) -> tuple[Array, Array]:
    """All 2^T values of X and their probabilities."""
    values, weights = np.zeros(1), np.ones(1)
    for i in range(steps):
        values = np.concatenate([values, values + keep**i])
        weights = np.concatenate([weights * (1.0 - q), weights * q])
    order = np.argsort(values)
    return values[order], weights[order]


def _on_grid(q: float, keep: float, steps: int) -> tuple[Array, Array]:
    """X rounded up to a grid, by X ← Bernoulli(q) + (1 − λ)·X, T times; each step adds less than one grid cell."""
    largest = _geometric(keep, steps)
    per_unit = max(16, int(_GRID / largest))
    size = int(largest * per_unit) + math.ceil(largest) + 2  # each shrinking adds less than one cell, then shrinks
    if size * steps > _MOST_CELLS:
        raise _validate.reject("steps", steps, f"at most {_MOST_CELLS // size} with regularizer = {1.0 - keep:.6g}")
    shrunk = np.ceil(keep * np.arange(size)).astype(np.intp)
    weights = np.zeros(size)
    weights[0] = 1.0
    for _ in range(steps):
        scaled = np.bincount(shrunk, weights=weights, minlength=size)
        moved = np.zeros(size)
        moved[per_unit:] = q * scaled[: size - per_unit]
        overflow = q * float(np.sum(scaled[size - per_unit :]))
        weights = (1.0 - q) * scaled + moved
        weights[-1] += overflow
    return np.arange(size) / per_unit, weights


def _round_up(values: Array, weights: Array) -> tuple[Array, Array]:
    """The paper's rounding: to the floor at least, and up to the next power of the ratio."""
    powers = np.ceil(np.log(np.maximum(values, FLOOR)) / math.log(RATIO) - 1e-12)
    unique, index = np.unique(powers, return_inverse=True)
    return RATIO**unique, np.asarray(np.bincount(index, weights=weights), dtype=np.float64)
