"""How often ``watch`` refutes a training with the claimed noise, and after how many steps it refutes one with less.

``python -m benchmarks.levels_watch [RUNS]``: simulated scores along one canary, RUNS of each (1000 by default), at
level 0.01. Minutes; never a test.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from coalmine.probing import forecasts


def first_refuted(
    claimed: float, real: float, *, steps: int, runs: int, seed: int, repeated: bool = False
) -> np.ndarray:
    """The step in which each run is refuted; steps + 1 where none is."""
    rng = np.random.default_rng([seed, runs, steps])
    found = np.full(runs, steps + 1)
    for start in range(0, runs, 50):
        many = min(50, runs - start)
        coins = (rng.random((many, steps)) < 0.5).astype(float)
        noise = real * rng.standard_normal((many, 1 if repeated else steps)) * np.ones((1, steps))
        before = np.concatenate([np.full((many, 1), np.nan), noise[:, :-1]], axis=1)
        wealth = np.cumsum(forecasts.log_factors(noise, before, coins, claimed=claimed), axis=1)
        reached = forecasts.log_evidence(wealth) >= math.log(100.0)
        found[start : start + many] = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, steps + 1)
    return found


def main(runs: int) -> None:
    for claimed, real, steps in (
        (1.0, 0.5, 600),
        (1.0, 0.7, 2500),
        (1.0, 0.8, 6000),
        (1.0, 0.9, 20_000),
        (3.0, 1.5, 3000),
        (1.0, 0.001, 60),
    ):
        found = first_refuted(claimed, real, steps=steps, runs=runs, seed=1)
        low, mid, high = np.quantile(found, (0.1, 0.5, 0.9))
        print(
            f"claimed {claimed:g}, real {real:g}: median {mid:.0f} steps (10 % {low:.0f}, 90 % {high:.0f})", flush=True
        )
    same = first_refuted(1.0, 1.0, steps=200, runs=runs, seed=2, repeated=True)
    print(f"the same noise in every step: median {np.median(same):.0f} steps", flush=True)
    for claimed in (0.5, 1.0, 3.0):
        found = first_refuted(claimed, claimed, steps=5000, runs=runs, seed=3)
        print(f"claimed and real {claimed:g}: {(found <= 5000).sum()} of {runs} refuted within 5000 steps", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
