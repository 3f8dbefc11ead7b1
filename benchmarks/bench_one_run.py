"""What 5000 gradient canaries cost a training: processor time on our own trainer, with them and without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from coalmine.adversaries import Scene
from coalmine.one_run.adversaries import OneRunWhiteBox
from coalmine.training import Dataset, Mlp, Neighbours, TrainingConfig, one_thread, train

CANARIES, ROWS, STEPS, REPEATS = 5000, 6000, 100, 5


def _seconds(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start


def _ratio(sample_rate: float) -> dict[str, float]:
    """Plain, with canaries and scores, and their ratio: medians of pairs that ran one after the other."""
    rng = np.random.default_rng(0)
    base = Dataset(rng.uniform(size=(ROWS, 784)).astype(np.float32), rng.integers(0, 2, size=ROWS))
    network = Mlp(784, hidden=(32,), classes=2)
    config = TrainingConfig(steps=STEPS, sample_rate=sample_rate, clip=1.0, noise_multiplier=1.0, learning_rate=0.15)
    scene = Scene(base=base, classes=2, network=network, training=config)
    attack = OneRunWhiteBox(canaries=CANARIES).craft(scene)
    taken = attack.taken(rng.random(CANARIES) < 0.5)

    def play(canary: Any, observer: Any) -> object:
        return train(
            network,
            neighbours=Neighbours(base, canary=canary),
            config=config,
            fingerprint="bench",
            trials=[1],
            worlds=[1],
            observer=observer,
        )

    play(taken, attack.scorer)  # kernels are compiled
    pairs = []
    with one_thread():
        for _ in range(REPEATS):
            plain = _seconds(lambda: play(None, None))
            pairs.append((plain, _seconds(lambda: play(taken, attack.scorer))))
    return {
        "plain_s": statistics.median(a for a, _ in pairs),
        "canaries_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def run() -> dict[str, Any]:
    """Measure, print and return the numbers."""
    results = {}
    print(f"{CANARIES} Dirac canaries, 784-32-2, {ROWS} rows, {STEPS} steps, one thread, processor time")
    for batch in (250, 1200):
        found = _ratio(batch / ROWS)
        results[f"batch_{batch}"] = found
        times = f"{found['plain_s']:.2f} s plain, {found['canaries_s']:.2f} s with canaries"
        print(f"batches of {batch:>5}: {times}, {found['ratio']:.2f} times")
    return {"one_run": results}


if __name__ == "__main__":
    run()
