"""Models per second on the reference job of jagielski-2020's Table 2, beside Opacus on the same cores.

The job: a 784-32-2 network, 6000 rows, Poisson batches of 250 expected, 576 steps, C = 1, σ = 1.55, learning rate 0.15.
Data are random numbers of that shape; on a GPU ``--pictures`` makes them bytes divided by 255, as those of pictures
are, which its kernels read in half the bytes.

``python -m benchmarks trainer`` measures on every core of the machine: one process a core, each with one thread, all
started together; the median of three rounds. Opacus runs as its documentation has it, with the Poisson data loader that
``make_private`` gives; ``…_tensors`` is the same with batches cut straight from one tensor, without any loader.
Because Opacus is slow, a round of it is one epoch of 24 steps, scaled up to 576.

``python benchmarks/bench_trainer.py --device cuda --models 4096`` measures on a GPU; it needs torch, NumPy and SciPy.
``--jobs 16`` divides the models among so many jobs with noise and canaries of their own: one after the other, by
threads that share launches, and as one job, which is the limit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROWS, INPUTS, HIDDEN, CLASSES = 6000, 784, 32, 2
STEPS, BATCH, CLIP, NOISE, RATE = 576, 250, 1.0, 1.55, 0.15
ROUNDS = 3
EPOCH = ROWS // BATCH
OPACUS = ("ghost", "hooks", "ghost_tensors", "hooks_tensors")
PRODUCT = 2048
FLOPS = 2 * BATCH * (2 * INPUTS * HIDDEN + 3 * HIDDEN * CLASSES) * STEPS
"""Of one model: two products with the first layer's weights a step (its input needs no error), three with the rest."""


def _data(*, pictures: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.random((ROWS, INPUTS), dtype=np.float32)
    if pictures:
        x = np.floor(x * 256) / np.float32(255)
    return x, rng.integers(0, CLASSES, size=ROWS)


def _ours(
    steps: int, *, device: str = "cpu", products: str = "float32", pictures: bool = False
) -> Callable[[int, int], Any]:
    """A function that trains so many models from a given trial on."""
    from coalmine.training import Dataset, ExampleCanary, Mlp, Neighbours, TrainingConfig, train

    x, y = _data(pictures=pictures)
    neighbours = Neighbours(Dataset(x, y), canary=ExampleCanary(x[0], 1))
    config = TrainingConfig(
        steps=steps, batch_size=BATCH, clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE, products=products
    )

    def work(first: int, models: int) -> Any:
        trials = np.arange(first, first + models)
        return train(
            Mlp(INPUTS, hidden=(HIDDEN,), classes=CLASSES),
            neighbours=neighbours,
            config=config,
            fingerprint="benchmark",
            trials=trials,
            worlds=np.asarray(trials) % 2,
            device=device,
        )

    return work


def _opacus(mode: str, *, loader: bool) -> Callable[[], None]:
    """A function that takes one Opacus model through an epoch: rows over expected batch size, so 24 steps."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn

    x, y = (torch.from_numpy(a) for a in _data())
    rng = np.random.default_rng(os.getpid())
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    loss = nn.CrossEntropyLoss()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=BATCH),
        criterion=loss,
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )
    wrapped, optimiser, batches = made[0], made[1], made[-1]
    criterion = made[2] if mode == "ghost" else loss

    def step(inputs: Any, labels: Any) -> None:
        optimiser.zero_grad()
        criterion(wrapped(inputs), labels).backward()
        optimiser.step()

    def work() -> None:
        if loader:
            for inputs, labels in batches:
                step(inputs, labels)
            return
        for _ in range(EPOCH):
            rows = torch.from_numpy(np.flatnonzero(rng.random(ROWS) < BATCH / ROWS))
            step(x[rows], y[rows])

    return work


def _worker(job: str, amount: int) -> None:
    """Say ready, then do one round for each line read, and its seconds."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if job == "ours":
        ours = _ours(STEPS)
        _ours(8)(0, 2)

        def round_() -> None:
            ours(0, amount)
    elif job == "product":
        a = torch.randn(PRODUCT, PRODUCT)

        def round_() -> None:
            for _ in range(amount):
                torch.mm(a, a)

        round_()
    else:
        mode, _, tensors = job.partition("_")
        round_ = _opacus(mode, loader=not tensors)
        round_()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.process_time()
        round_()
        print(time.process_time() - start, flush=True)


def peak_memory(process: int | str = "self") -> int:
    """Bytes that a process has held at most, on Linux.

    Not ``ru_maxrss``: that of a new process begins at what the process that started it held.
    """
    status = Path(f"/proc/{process}/status")
    return int(status.read_text().split("VmHWM:")[1].split()[0]) * 1024 if status.exists() else 0


def _on_every_core(job: str, amount: int) -> tuple[float, float, int]:
    """Rounds of a job a second, over all cores together (median of three rounds); the same by processor time, which
    other load on the machine disturbs less; and bytes of all processes.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", job, "--amount", str(amount)]
    cores = len(os.sched_getaffinity(0))
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(cores)
    ]
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "ready\n":
            raise RuntimeError(f"the benchmark's worker for {job} did not start")
    walls, busy, peak = [], [], 0
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        seconds = [float(worker.stdout.readline()) for worker in workers if worker.stdout]
        walls.append(time.perf_counter() - start)
        busy.append(statistics.mean(seconds))
        peak = sum(peak_memory(worker.pid) for worker in workers)
    for worker in workers:
        worker.communicate()
    return cores / statistics.median(walls), cores / statistics.median(busy), peak


def run(*, models: int = 8) -> dict[str, Any]:
    """All cores of this machine."""
    product, _, _ = _on_every_core("product", 4)
    peak = product * 4 * 2 * PRODUCT**3
    rounds, busy_rounds, memory = _on_every_core("ours", models)
    ours = rounds * models
    found: dict[str, Any] = {
        "models_per_second": ours,
        "models_per_processor_second": busy_rounds * models,
        "peak_flops": peak,
        "peak_fraction": ours * FLOPS / peak,
        "peak_memory_bytes": memory,
        "processes": len(os.sched_getaffinity(0)),
        "opacus_ghost": None,
        "opacus_hooks": None,
        "ratio": None,
    }
    print(f"coalmine        {ours:8.3f} models/s, {found['peak_fraction']:.0%} of the measured matrix-product peak "
          f"({peak / 1e9:.0f} GFLOP/s), {memory / 2**20:.0f} MiB in all processes")  # fmt: skip
    if importlib.util.find_spec("opacus") is None:
        print("opacus is not installed (extra 'opacus'): no comparison")
        return {"trainer": found}
    busy = {}
    for job in OPACUS:
        found[f"opacus_{job}"], busy[job] = (rate * EPOCH / STEPS for rate in _on_every_core(job, 1)[:2])
        print(f"opacus {job:14s} {found[f'opacus_{job}']:8.3f} models/s ({EPOCH} of {STEPS} steps timed)")
    found["ratio"] = found["models_per_second"] / found["opacus_ghost"]
    found["ratio_processor_time"] = found["models_per_processor_second"] / busy["ghost"]
    found["ratio_tensors"] = found["models_per_second"] / found["opacus_ghost_tensors"]
    print(f"ratio to ghost  {found['ratio']:8.2f} ({found['ratio_processor_time']:.2f} by processor time; "
          f"{found['ratio_tensors']:.2f} to ghost without its loader)")  # fmt: skip
    return {"trainer": found}


def run_gpu(models: int, *, device: str, products: str, pictures: bool = False) -> dict[str, Any]:
    """So many models on one GPU: the median of three rounds, after one round to compile and to warm up."""
    import torch

    work = _ours(STEPS, device=device, products=products, pictures=pictures)
    seconds = []
    torch.cuda.reset_peak_memory_stats()
    for number in range(ROUNDS + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = work(number * models, models)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        assert result.succeeded.all()
    speed = models / statistics.median(seconds[1:])
    found = {
        "models_per_second": speed,
        "first_round_seconds": seconds[0],
        "models": models,
        "stack": result.stack,
        "precision": result.precision,
        "device": torch.cuda.get_device_name(),
        "useful_flops_per_second": speed * FLOPS,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(),
    }
    print(json.dumps(found, indent=2))
    return {"trainer_gpu": found}


def run_jobs(models: int, *, jobs: int, device: str, products: str, network: tuple[int, int, int]) -> dict[str, Any]:
    """So many models in so many jobs on one GPU: models a second, medians of three rounds after one that compiles."""
    import torch

    from coalmine.training import Dataset, ExampleCanary, Mlp, Neighbours, TrainingConfig, train

    inputs, hidden, classes = network
    rng = np.random.default_rng(0)
    base = Dataset(rng.random((1442, inputs), dtype=np.float32), rng.integers(0, classes, size=1442))

    def work(job: int, count: int) -> None:
        config = TrainingConfig(
            steps=200, batch_size=60, clip=1.0, noise_multiplier=1.0 + 0.1 * job, learning_rate=0.3, products=products
        )
        trials = np.arange(count)
        canary = ExampleCanary(base.x[job], 1)
        result = train(
            Mlp(inputs, hidden=(hidden,), classes=classes), neighbours=Neighbours(base, canary=canary), config=config,
            fingerprint=f"job {job}", trials=trials, worlds=trials % 2, device=device,
        )  # fmt: skip
        assert result.succeeded.all()

    each = models // jobs
    with ThreadPoolExecutor(8) as threads:
        ways: dict[str, Callable[[], Any]] = {
            "one after the other": lambda: [work(job, each) for job in range(jobs)],
            "by threads": lambda: list(threads.map(lambda job: work(job, each), range(jobs))),
            "as one job": lambda: work(0, models),
        }
        found: dict[str, float] = {}
        for name, way in ways.items():
            seconds = []
            for _ in range(ROUNDS + 1):
                torch.cuda.synchronize()
                start = time.perf_counter()
                way()
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
            found[name] = models / statistics.median(seconds[1:])
            print(
                f"{inputs}-{hidden}-{classes}, {jobs} jobs of {each}, {name}: {found[name]:,.0f} models/s", flush=True
            )
    return {f"trainer_gpu {jobs} jobs of {each}": found}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu (every core) or cuda")
    parser.add_argument("--models", type=int, default=8, help="models a round (in each process on a CPU)")
    parser.add_argument("--products", default="float32", help="on a GPU: float32, tf32 or bf16")
    parser.add_argument("--pictures", action="store_true", help="on a GPU: rows of bytes divided by 255")
    parser.add_argument("--jobs", type=int, help="on a GPU: divide the models of 64-16-10 among so many jobs")
    parser.add_argument("--worker", choices=("ours", "product", *OPACUS), help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _worker(options.worker, options.amount)
    elif options.device == "cpu":
        run(models=options.models)
    elif options.jobs:
        run_jobs(
            options.models, jobs=options.jobs, device=options.device, products=options.products, network=(64, 16, 10)
        )
    else:
        run_gpu(options.models, device=options.device, products=options.products, pictures=options.pictures)


if __name__ == "__main__":
    main()
