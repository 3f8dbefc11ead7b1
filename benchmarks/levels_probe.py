"""How often the probe's statistical measures refute a right step.

``python -m benchmarks.levels_probe [STEPS]``: the noise of right steps is simulated (10,000 by default), 200 replays of
each for the measures of one step and four consecutive steps for freshness, and goes through the probe's own tests. What
else the probe finds is seen and not inferred, so it has no level. Some minutes; never a test.
"""

from __future__ import annotations

import collections
import itertools
import sys

import numpy as np
import torch
from scipy import stats

from coalmine.probing import freshness, noise

NETWORKS: dict[str, list[tuple[str, tuple[int, ...]]]] = {
    "6-8-3 network": [("0.weight", (8, 6)), ("0.bias", (8,)), ("2.weight", (3, 8)), ("2.bias", (3,))],
    "logistic regression": [("weight", (1, 10)), ("bias", (1,))],
    "one vector of 3": [("weight", (3,))],
    "40-60 network": [("weight", (60, 40)), ("bias", (60,))],
}
REPLAYS, SCALE = 200, 1.0 / 6.0


def refuted(tensors: list[tuple[str, tuple[int, ...]]], rng: np.random.Generator, level: float) -> set[str]:
    """The faults that one right step is refuted for."""
    sizes = [int(np.prod(shape)) for _, shape in tensors]
    ends = np.cumsum(sizes)[:-1]

    def drawn(runs: int) -> list[list[np.ndarray]]:
        return [np.split(one, ends) for one in SCALE * rng.standard_normal((runs, sum(sizes)))]

    samples = noise.collect(tensors, drawn(REPLAYS))
    found, _ = noise.findings_of(samples, {name: SCALE for name, _ in tensors}, level=level, runs=REPLAYS)
    pairs = {name: freshness.Pairs() for name, _ in tensors}
    for last, following in itertools.pairwise(drawn(freshness.STEPS)):
        for one, first, second in zip(pairs.values(), last, following, strict=True):
            one.add(torch.from_numpy(first), torch.from_numpy(second), torch.zeros(len(second), dtype=torch.float64))
    again = freshness.repeated(pairs, level * noise.SHARES["steps"])
    return {one.fault for one in found} | ({again.fault} if again is not None else set())


def main(steps: int, level: float = 0.01) -> None:
    """Count, with the exact interval that 99 % of such counts would give."""
    rng = np.random.default_rng(1)
    per = -(-steps // len(NETWORKS))
    total, wrong = 0, 0
    for title, tensors in NETWORKS.items():
        kinds: collections.Counter[str] = collections.Counter()
        refutations = 0
        for _ in range(per):
            faults = refuted(tensors, rng, level)
            refutations += bool(faults)
            kinds.update(faults)
        total, wrong = total + per, wrong + refutations
        print(f"{title}: {refutations} of {per} refuted at level {level:g} {dict(kinds)}", flush=True)
    interval = stats.binomtest(wrong, total).proportion_ci(0.99)
    print(f"all: {wrong} of {total}, a rate of {wrong / total:.4f} (99 %: {interval.low:.4f} to {interval.high:.4f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
