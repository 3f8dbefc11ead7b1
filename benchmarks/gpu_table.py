"""The table of docs/performance.md: one run on one GPU, an earlier state of Coalmine beside this one and their peers.

``git worktree add build/first COMMIT`` and ``python benchmarks/gpu_table.py --first build/first/src`` train each job by
both, in a process of its own for each state, one after the other, and then by ``torch.func`` and Opacus. Everything is
included: starts, batches, noise, data to the card. Every number is the median of three rounds after one that compiles;
the perceptron's (the reference job of ``bench_trainer.py``) are models a second, all others model-steps a second. An
earlier state trains fewer models for fewer steps where it would take long. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 3
CNN = {"clip": 1.0, "noise_multiplier": 1.1, "learning_rate": 0.15}
JOBS: dict[str, dict[str, Any]] = {
    "perceptron, any rows, float32": {"network": "perceptron", "products": "float32"},
    "perceptron, pictures, float32": {"network": "perceptron", "products": "float32", "pictures": True},
    "perceptron, any rows, tf32": {"network": "perceptron", "products": "tf32"},
    "nasr-2021 MNIST, float32": {"network": "mnist", "products": "float32"},
    "nasr-2021 MNIST, tf32": {"network": "mnist", "products": "tf32"},
    "nasr-2021 CIFAR-10, float32": {"network": "cifar10", "products": "float32", "earlier": False},
    "nasr-2021 CIFAR-10, tf32": {"network": "cifar10", "products": "tf32"},
    "bernau-2021 MNIST, float32": {"network": "bernau", "products": "float32", "earlier": False},
    "bernau-2021 MNIST, tf32": {"network": "bernau", "products": "tf32"},
}
AMOUNTS = {"perceptron": (8192, 576), "mnist": (512, 100), "cifar10": (512, 60), "bernau": (1024, 60)}
"""Models and steps of a round."""
EARLIER = {"perceptron": (4096, 576), "mnist": (256, 16), "cifar10": (256, 10), "bernau": (256, 16)}


def _worker(amounts: dict[str, tuple[int, int]], jobs: dict[str, dict[str, Any]]) -> None:
    """Every job by the Coalmine that Python finds: a line of JSON for each. Only what both states have is used."""
    import torch

    from coalmine.training import (
        BernauCnn,
        Dataset,
        ExampleCanary,
        Mlp,
        NasrCnn,
        Neighbours,
        TrainingConfig,
        train,
    )

    shapes: dict[str, tuple[Any, int, dict[str, Any]]] = {
        "perceptron": (
            Mlp(784, hidden=(32,), classes=2),
            6_000,
            {"batch_size": 250, "clip": 1.0, "noise_multiplier": 1.55, "learning_rate": 0.15},
        ),
        "mnist": (NasrCnn(), 60_000, {"batch_size": 256, **CNN}),
        "cifar10": (NasrCnn(input_shape=(3, 32, 32)), 50_000, {"batch_size": 256, **CNN}),
        "bernau": (BernauCnn(), 100, {"sampling": "full", **CNN}),
    }
    for name, job in jobs.items():
        network, rows, training = shapes[job["network"]]
        models, steps = amounts[job["network"]]
        rng = np.random.default_rng(0)
        x = rng.random((rows, *network.input_shape), dtype=np.float32)
        if job.get("pictures"):
            x = np.floor(x * 256) / np.float32(255)
        neighbours = Neighbours(Dataset(x, rng.integers(0, network.classes, size=rows)), canary=ExampleCanary(x[0], 1))
        config = TrainingConfig(steps=steps, products=job["products"], **training)
        seconds = []
        for number in range(ROUNDS + 1):
            trials = np.arange(number * models, (number + 1) * models)
            start = time.perf_counter()
            result = train(
                network, neighbours=neighbours, config=config, fingerprint="benchmark", trials=trials,
                worlds=trials % 2, device="cuda",
            )  # fmt: skip
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
            assert result.succeeded.all()
        amount = models if job["network"] == "perceptron" else models * steps
        rounds = [amount / one for one in seconds[1:]]
        found = {"job": name, "median": statistics.median(rounds), "rounds": rounds, "precision": result.precision}
        print(json.dumps(found), flush=True)


def by(source: Path, amounts: str, only: str) -> dict[str, Any]:
    """These jobs by the Coalmine in this folder of sources."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, __file__, "--worker", amounts, "--only", only]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {one["job"]: one for one in map(json.loads, done.stdout.splitlines())}


def peers(networks: Iterable[str]) -> dict[str, dict[str, float]]:
    """The same steps by ``torch.func`` (several models) and by Opacus (one), with TF32 products."""
    import torch

    from bench_convolution import ensemble, opacus

    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    found: dict[str, dict[str, float]] = {}
    for network in networks:
        models = 64 if network == "perceptron" else 16
        rows = {
            "torch.func ensemble": ensemble(network, models=models, steps=5, device="cuda"),
            "Opacus, hooks": opacus(network, steps=20, device="cuda", mode="hooks"),
            "Opacus, ghost clipping": opacus(network, steps=20, device="cuda", mode="ghost"),
        }
        found[network] = {key: one["model_steps_per_second"] for key, one in rows.items()}
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--first", type=Path, help="the folder src of an earlier state")
    parser.add_argument("--output", help="a file for the numbers, as JSON")
    parser.add_argument("--only", default="", help="jobs whose names have this: perceptron, CIFAR-10, tf32")
    parser.add_argument("--worker", choices=("now", "earlier"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    jobs = {name: job for name, job in JOBS.items() if options.only in name}
    if not jobs:
        parser.error(f"--only {options.only!r} is in no job's name: {', '.join(JOBS)}")
    if options.worker:
        earlier = {name: job for name, job in jobs.items() if job.get("earlier", True)}
        _worker(*((AMOUNTS, jobs) if options.worker == "now" else (EARLIER, earlier)))
        return
    found: dict[str, Any] = {"now": by(Path(__file__).parents[1] / "src", "now", options.only)}
    found["peers"] = peers(dict.fromkeys(job["network"] for job in jobs.values()))
    found["first"] = by(options.first, "earlier", options.only) if options.first else {}
    for name, job in jobs.items():
        now, first = found["now"][name]["median"], found["first"].get(name, {}).get("median")
        steps = AMOUNTS["perceptron"][1] if job["network"] == "perceptron" else 1
        beside = [f"{key} {rate / steps:,.4g}" for key, rate in found["peers"][job["network"]].items()]
        before = f"first {first:,.0f}, now {now / first:.2f} times that" if first else "no earlier state"
        print(f"{name}: {now:,.0f} a second ({before}); {', '.join(beside)}", flush=True)
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
