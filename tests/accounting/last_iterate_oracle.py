"""An independent truth for the last-iterate pair: mpmath at 40 digits, plain sums over every k, no shared code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mpmath as mp

DIGITS = 40


def normal_cdf(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


def binomial_weights(q: float, steps: int, low: int = 0, high: int | None = None) -> tuple[list[int], list[mp.mpf]]:
    """Binomial probabilities by the recursion from the first k, for low ≤ k ≤ high."""
    high = steps if high is None else high
    p = mp.mpf(q)
    first = mp.binomial(steps, low) * p**low * (1 - p) ** (steps - low)
    weights = [first]
    for k in range(low, high):
        weights.append(weights[-1] * (steps - k) / (k + 1) * p / (1 - p))
    return list(range(low, high + 1)), weights


def hockey_sticks(
    values: Sequence[object], weights: Sequence[mp.mpf], scale: object, epsilon: float
) -> tuple[mp.mpf, mp.mpf]:
    """H(P, Q) and H(Q, P) at e^ε for P = Σ w·N(v, s²), Q = N(0, s²): invert the ratio by bisection, then sum."""
    with mp.workdps(DIGITS):
        s, e = mp.mpf(scale), mp.mpf(epsilon)
        v = [mp.mpf(x) for x in values]

        def ratio(y: mp.mpf) -> mp.mpf:
            return mp.fsum(w * mp.exp((2 * x * y - x * x) / (2 * s * s)) for x, w in zip(v, weights, strict=True))

        def invert(target: mp.mpf) -> mp.mpf:
            low, high = mp.mpf(-1), mp.mpf(1)
            while ratio(low) > target:
                low *= 2
            while ratio(high) < target:
                high *= 2
            # δ is stationary in the threshold, so half the digits suffice for it.
            for _ in range(75):
                middle = (low + high) / 2
                low, high = (middle, high) if ratio(middle) < target else (low, middle)
            return (low + high) / 2

        y = invert(mp.exp(e))
        forward = mp.fsum(w * normal_cdf((x - y) / s) for x, w in zip(v, weights, strict=True)) - mp.exp(
            e
        ) * normal_cdf(-y / s)
        at_zero = mp.fsum(w for x, w in zip(v, weights, strict=True) if x == 0)
        if mp.exp(-e) <= at_zero:
            return forward, mp.mpf(0)
        y = invert(mp.exp(-e))
        backward = normal_cdf(y / s) - mp.exp(e) * mp.fsum(
            w * normal_cdf((y - x) / s) for x, w in zip(v, weights, strict=True)
        )
        return forward, backward


def delta(q: float, sigma: float, steps: int, epsilon: float, window: tuple[int, int] | None = None) -> mp.mpf:
    """δ(ε) of Theorem 1, eq. (2)."""
    with mp.workdps(DIGITS):
        low, high = window or (0, steps)
        values, weights = binomial_weights(q, steps, low, high)
        scale = mp.mpf(sigma) * mp.sqrt(steps)
        return max(hockey_sticks(values, weights, scale, epsilon))


def delta_by_integration(q: float, sigma: float, steps: int, epsilon: float) -> mp.mpf:
    """The same by numerical integration of (p − e^ε·q)₊ and (q − e^ε·p)₊: no formula but the densities."""
    with mp.workdps(25):
        values, weights = binomial_weights(q, steps)
        s = mp.mpf(sigma) * mp.sqrt(steps)
        top = mp.exp(mp.mpf(epsilon))

        def density(y: mp.mpf, v: object = 0) -> mp.mpf:
            return mp.npdf(y, mp.mpf(v), s)

        def p(y: mp.mpf) -> mp.mpf:
            return mp.fsum(w * density(y, v) for v, w in zip(values, weights, strict=True))

        reach = 12 * s
        nodes = mp.linspace(-reach, steps + reach, 60)
        results = []
        for gap in (lambda y: p(y) - top * density(y), lambda y: density(y) - top * p(y)):
            # Cut the line where the gap changes sign, so that quadrature never meets the kink.
            cuts = []
            for a, b in itertools.pairwise(nodes):
                if gap(a) * gap(b) < 0:
                    cuts.append(mp.findroot(gap, (a, b), solver="anderson", tol=1e-40, verify=False))
            points = sorted([*nodes, *cuts])
            positive = [(a, b) for a, b in itertools.pairwise(points) if gap((a + b) / 2) > 0]
            results.append(mp.fsum(mp.quad(gap, [a, b]) for a, b in positive))
        return max(results)
