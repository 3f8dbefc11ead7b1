"""Time of the last-iterate analysis beside dp-accounting's PLD for the same parameters."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from coalmine.accounting import last_iterate
from coalmine.records import DpSgd

SAMPLE_RATE, NOISE, DELTA = 0.01, 1.1, 1e-5
STEPS = (10_000, 100_000, 1_000_000, 10_000_000)


def _best_time(action: Callable[[], object], repeats: int) -> float:
    """The shortest of several runs, in seconds: the one that other programs disturbed least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def _pld(steps: int) -> float:
    """ε by dp-accounting as its users call it, with its own defaults."""
    accountant = PLDAccountant()
    event = dp_event.PoissonSampledDpEvent(SAMPLE_RATE, dp_event.GaussianDpEvent(NOISE))
    accountant.compose(dp_event.SelfComposedDpEvent(event, steps))
    return float(accountant.get_epsilon(DELTA))


def run() -> dict[str, Any]:
    """Measure, print and return the numbers."""
    results: dict[str, Any] = {}
    print(f"last iterate beside PLD, q = {SAMPLE_RATE}, sigma = {NOISE}, delta = {DELTA:g}")
    for steps in STEPS:
        mechanism = DpSgd(sample_rate=SAMPLE_RATE, noise_multiplier=NOISE, steps=steps)
        ours = _best_time(lambda m=mechanism: last_iterate.epsilon(m, delta=DELTA), 21)  # type: ignore[misc]
        worst = _best_time(lambda m=mechanism: last_iterate.worst(m, delta=DELTA), 3)  # type: ignore[misc]
        entry = {"last_iterate_s": ours, "last_iterate_worst_s": worst}
        line = f"T = {steps:>10,}: last iterate {1e3 * ours:7.3f} ms, worst over t {1e3 * worst:7.1f} ms"
        if steps <= 100_000:
            entry["pld_s"] = _best_time(lambda t=steps: _pld(t), 3)  # type: ignore[misc]
            entry["pld_over_last_iterate"] = entry["pld_s"] / ours
            line += f", PLD {1e3 * entry['pld_s']:7.1f} ms, {entry['pld_over_last_iterate']:.0f} times as long"
        results[str(steps)] = entry
        print(line)
    ratio = results["1000000"]["last_iterate_s"] / results["10000"]["last_iterate_s"]
    print(f"T = 1,000,000 takes {ratio:.1f} times as long as T = 10,000")
    results["million_over_ten_thousand"] = ratio
    return {"last_iterate": results}


if __name__ == "__main__":
    run()
