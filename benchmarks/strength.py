"""What the crafted attacks prove beside a perfect attack, over several audits with trials of their own.

``python -m benchmarks.strength [--device cuda] [--trials 10000] [--audits 4] [--perfect 8] [--copies 1]
[--seconds 280]``: the setting of `coalmine audit` without a config. Each audit crafts its attacks anew, trains them,
and reads all scores by the same method at the same confidence as the perfect attack: exact likelihood ratios of the
same steps with as many trials, for one row whatever ``--copies`` says; with several, their own perfect attack is
shown too. No further audit begins when it would not end within ``--seconds``.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import time
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from coalmine import bounds
from coalmine.adversaries import Attack, Scene, adversary
from coalmine.auditing import config
from coalmine.auditing.setting import Setting, prepare
from coalmine.bounds.known import every_step
from coalmine.records import DpSgd, Scores
from coalmine.roles import Distinguisher
from coalmine.training import Neighbours, train

ATTACKS = ("crafted-row", "crafted-row-steps", "adaptive-row", "crafted-gradient")


def read(
    zero: NDArray[np.float64], one: NDArray[np.float64], mechanism: DpSgd, confidence: float, copies: int
) -> tuple[float, ...]:
    """ε if DP-SGD, ε that is proved, and d′."""
    scores = Scores(zero, one)
    options = {"delta": 1e-5, "confidence": confidence, "copies": copies}
    assumed = bounds.dpsgd(scores, mechanism=mechanism, added=True, **options)
    proved = bounds.clopper_pearson(scores, **options)
    share = stats.mannwhitneyu(one, zero).statistic / (zero.size * one.size)
    return assumed.epsilon, proved.epsilon, math.sqrt(2.0) * float(special.ndtri(share))


def perfect(seed: int, trials: int, mechanism: DpSgd, confidence: float, copies: int) -> tuple[float, ...]:
    """The same of exact likelihood ratios."""
    sample, rng = every_step(mechanism, copies), np.random.default_rng([0xBE57, seed])
    return read(sample(rng, 0, trials // 2), sample(rng, 1, trials // 2), mechanism, confidence, copies)


def played(setting: Setting, attack: Attack, observer: Distinguisher, trials: int, device: str, name: str) -> Any:
    """The scores of the two worlds."""
    worlds = np.arange(trials) % 2
    result = train(
        setting.network,
        neighbours=Neighbours(attack.neighbours.base, canary=attack.neighbours.canary),
        config=setting.training,
        fingerprint=name,
        trials=np.arange(trials),
        worlds=worlds,
        observer=observer,
        device=device,
    )
    return result.scores[worlds == 0], result.scores[worlds == 1]


def audit(setting: Setting, seed: int, trials: int, device: str, copies: int) -> dict[str, Any]:
    """The scores of every attack of one audit."""
    scene = Scene(
        base=setting.base,
        classes=setting.classes,
        network=setting.network,
        training=setting.training,
        picture=setting.picture,
        held_out=setting.test,
        seed=seed,
    )
    found: dict[str, Any] = {}
    for name in ATTACKS:
        attack = adversary(name, copies=copies).craft(scene)
        label = f"strength of {name} {seed}" + (f", {copies} copies" if copies > 1 else "")
        found[name] = played(setting, attack, attack.distinguisher, trials, device, label)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    numbers = {"--trials": 10_000, "--audits": 4, "--perfect": 8, "--copies": 1, "--workers": 12, "--first": 1000}
    for name, value in numbers.items():
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--seconds", type=float, default=280.0)
    parser.add_argument("--confidence", type=float, default=1.0 - 0.01 / 6.0)
    given, begun = parser.parse_args(), time.monotonic()
    setting = prepare(config.load(None))
    mechanism = setting.mechanism
    assert mechanism is not None
    reading: dict[str, list[Future[tuple[float, ...]]]] = {}
    with ProcessPoolExecutor(given.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for copies in sorted({1, given.copies}):
            name = "a perfect attack" if copies == 1 else f"perfect, {copies} copies"
            reading[name] = [
                pool.submit(perfect, seed, given.trials, mechanism, given.confidence, copies)
                for seed in range(given.perfect)
            ]
        longest = 0.0
        for number in range(given.audits):
            started = time.monotonic()
            if started - begun + 1.1 * longest > given.seconds - 40.0:  # the last bounds take a while too
                print(f"{number} audits fit into {given.seconds:g} seconds")
                break
            scores = audit(setting, given.first + number, given.trials, given.device, given.copies)
            for name, pair in scores.items():
                job = pool.submit(read, *pair, mechanism, given.confidence, given.copies)
                reading.setdefault(name, []).append(job)
            # The first one also compiles: it says little about the others.
            longest = time.monotonic() - started
            print(f"audit {number}: {longest:.0f} s", flush=True)
        found = {name: np.array([one.result() for one in results]) for name, results in reading.items()}
    whole = found["a perfect attack"].mean(axis=0)
    print(f"{given.trials} trials, {100 * given.confidence:.2f} % confidence: mean ± standard error (ratio to perfect)")
    for name, values in found.items():
        error = values.std(axis=0, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else np.full(3, np.nan)
        words = [
            f"{label} {mean:.3f} ± {width:.3f} ({mean / best:.2f})"
            for label, mean, width, best in zip(
                ("if DP-SGD", "proved", "d′"), values.mean(axis=0), error, whole, strict=True
            )
        ]
        lowest = (
            f"; if DP-SGD {values[:, 0].min():.2f} to {values[:, 0].max():.2f}, proved from {values[:, 1].min():.2f}"
        )
        print(f"{name:18s} {len(values)} audits: " + ", ".join(words) + lowest)
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
