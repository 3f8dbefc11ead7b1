"""How often ``probe_sampler`` is wrong about right samplers, and how many batches it needs to see what is wrong.

``python -m benchmarks.levels_sampler [RUNS]``: false alarms at level 0.01 over RUNS right samplers (10,000 by default),
and for each fault the number of batches with which it is found nine times in ten. Minutes; never a test.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from coalmine.probing.batches import Draws
from coalmine.probing.sampler import probe_draws

Sampler = Callable[[np.random.Generator, int, int], list[np.ndarray]]


def poisson(rates: float | np.ndarray) -> Sampler:
    return lambda rng, rows, steps: [np.flatnonzero(rng.random(rows) < rates) for _ in range(steps)]


def shuffle(size: int) -> Sampler:
    def draw(rng: np.random.Generator, rows: int, steps: int) -> list[np.ndarray]:
        out: list[np.ndarray] = []
        while len(out) < steps:
            order = rng.permutation(rows)
            out += [order[s : s + size] for s in range(0, rows, size)]
        return out[:steps]

    return draw


def fixed(size: int) -> Sampler:
    return lambda rng, rows, steps: [rng.choice(rows, size, replace=False) for _ in range(steps)]


def draws_of(sampler: Sampler, rng: np.random.Generator, rows: int, epochs: int, length: int) -> Draws:
    return Draws(rows=rows, ranks=(tuple(tuple(sampler(rng, rows, length)) for _ in range(epochs)),))


def false_alarms(runs: int) -> None:
    shapes = [(200, 0.05, 4), (1000, 0.02, 4), (50, 0.2, 16), (400, 0.005, 2), (120, 0.5, 20)]
    for rows, rate, epochs in shapes:
        rng = np.random.default_rng([1, rows])
        wrong: dict[str, int] = {}
        bad = 0
        for _ in range(runs // len(shapes)):
            draws = draws_of(poisson(rate), rng, rows, epochs, round(1 / rate))
            found = probe_draws(draws, sample_rate=rate, level=0.01).findings
            bad += bool(found)
            for one in found:
                wrong[one.fault] = wrong.get(one.fault, 0) + 1
        print(
            f"poisson, {rows} rows at {rate}, {epochs} epochs: {bad} of {runs // len(shapes)} refuted {wrong}",
            flush=True,
        )
    for promised, sampler, size in (("shuffle", shuffle(10), 10), ("fixed", fixed(10), 10)):
        rng = np.random.default_rng([2, size])
        bad = 0
        n = max(1, runs // 10)
        for _ in range(n):
            draws = draws_of(sampler, rng, 200, 4, 20)
            bad += bool(probe_draws(draws, promised=promised, sample_rate=0.05, batch_size=size, level=0.01).findings)
        print(f"{promised}, 200 rows in batches of 10, 4 epochs: {bad} of {n} refuted", flush=True)
    rng = np.random.default_rng(3)
    bad, n = 0, max(1, runs // 10)
    for _ in range(n):
        parts = [[] for _ in range(2)]
        for _ in range(4):
            deal = rng.permutation(200)
            for r in range(2):
                own = np.sort(deal[r::2])
                parts[r].append(tuple(own[rng.random(own.size) < 0.05] for _ in range(20)))
        draws = Draws(rows=200, ranks=tuple(tuple(part) for part in parts))
        bad += bool(probe_draws(draws, sample_rate=0.05, level=0.01).findings)
    print(f"two ranks, 200 rows at 0.05, 4 epochs: {bad} of {n} refuted", flush=True)


def power(repeats: int = 60) -> None:
    rows, rate = 1000, 0.02
    half = np.arange(rows) < rows // 2
    one = np.full(rows, rate)
    one[0] = 0.0
    faults: dict[str, tuple[Sampler, str]] = {
        "weights 2:1": (poisson(np.where(half, rate * 4 / 3, rate * 2 / 3)), "weighted sampler"),
        "rate x1.1": (poisson(rate * 1.1), "wrong sample rate"),
        "rate x0.9": (poisson(rate * 0.9), "wrong sample rate"),
        "shuffle": (shuffle(20), "shuffled batches accounted as Poisson"),
        "fixed size": (fixed(20), "fixed-size batches accounted as Poisson"),
        "one row never": (poisson(one), "a row of its own rate"),
    }
    for name, (sampler, fault) in faults.items():
        first: dict[str, int] = {}
        for steps in (4, 6, 8, 10, 16, 20, 30, 50, 80, 100, 120, 150, 200, 250, 300, 400, 600, 800, 1200):
            rng = np.random.default_rng(steps)
            seen = {"refuted": 0, "named": 0}
            for _ in range(repeats):
                length = min(50, steps // 2)
                draws = draws_of(sampler, rng, rows, steps // length, length)
                found = [one.fault for one in probe_draws(draws, sample_rate=rate, level=0.01).findings]
                seen["refuted"] += bool(found)
                seen["named"] += found == [fault]
            for word, count in seen.items():
                if count >= 0.9 * repeats:
                    first.setdefault(word, steps)
            if len(first) == 2:
                break
        print(f"{name}: batches of 20 of 1000 rows until nine in ten are {first}", flush=True)


if __name__ == "__main__":
    false_alarms(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    power()
