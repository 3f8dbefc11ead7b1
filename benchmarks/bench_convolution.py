"""Model-steps a second of DP-SGD on convolution networks: Coalmine, a torch.func ensemble, and one model in Opacus.

``--network perceptron`` is the reference job of ``bench_trainer.py``, for the same peers on a GPU.

``python benchmarks/bench_convolution.py --device cuda --network mnist --products tf32`` trains a stack of models from
their starts, batches and noise included; ``--peers`` times the same steps by ``torch.func`` (per-example gradients of
several models at once, by ``vmap`` over models and examples) and by Opacus (one model), without their data loaders.
``--adversaries`` times a step under adversaries that look at every model. Rows are random numbers: what is computed
does not depend on them. Every number is the median of three rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap

from coalmine.adversaries import Scene, adversary
from coalmine.adversaries.attack import Attack
from coalmine.adversaries.crafters.background import OwnBackground
from coalmine.roles import Observer, View
from coalmine.training import (
    BernauCnn,
    Dataset,
    ExampleCanary,
    GradientCanary,
    Mlp,
    NasrCnn,
    Neighbours,
    TrainingConfig,
    clipped_sums,
    compiled_stages,
    module,
    parameter_count,
    stages,
    train,
)
from coalmine.training.canary import StackState
from coalmine.training.job import Job
from coalmine.training.sums import Vectors

CLIP, NOISE, RATE = 1.0, 1.1, 0.15
ROUNDS = 3
MODELS, STEPS = 2, 40
"""On a CPU: enough steps to hide what is done once (starts, rows copied together)."""
NETWORKS: dict[str, tuple[Any, int, int]] = {
    "mnist": (NasrCnn(), 60_000, 256),
    "cifar10": (NasrCnn(input_shape=(3, 32, 32)), 50_000, 256),
    "bernau": (BernauCnn(), 100, 100),
    "perceptron": (Mlp(784, hidden=(32,), classes=2), 6_000, 250),
    "wide": (Mlp(784, hidden=(512, 512), classes=10), 6_000, 250),
}
"""Network, rows, and rows a step (all of them: full batches)."""


SHADOWS = {"shadows": 2, "shadow_data": "base", "shadow_steps": 2, "ascent_steps": 1}
CRAFTED = {
    **{"copies": 4, "norms": (2.5,), "labels": 2, "shadows": 1, "shadow_steps": 2},
    **{"background": "shadows", "every": 10**6},
}
ADVERSARIES: dict[str, tuple[str, dict[str, Any]]] = {
    "static-poison": ("static-poison", SHADOWS),
    "intermediate-poison": ("intermediate-poison", {**SHADOWS, "statistic": "both"}),
    "adaptive-poison": ("adaptive-poison", SHADOWS),
    "gradient, others' rows left alone": ("gradient", {"every": 0, "measure": 1}),
    "crafted-row-steps, others' rows left alone": ("crafted-row-steps", CRAFTED),
    "adaptive-row, others' rows left alone": ("adaptive-row", CRAFTED),
}


def _data(network: Any, rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.random((rows, *network.input_shape), dtype=np.float32)
    return x, rng.integers(0, network.classes, size=rows)


def _median(work: Callable[[int], None], *, device: str) -> float:
    """Seconds of a round, after one that compiles and warms up."""
    seconds = []
    for number in range(ROUNDS + 1):
        _wait(device)
        start = time.perf_counter()
        work(number)
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


class _Along(Observer):
    """Adds up what every step shows along a direction, as attackers who see every model do."""

    view = View.ALL_ITERATES

    def __init__(self, direction: Any, device: str) -> None:
        self._direction = torch.from_numpy(direction).to(device, torch.float32)

    def start(self, trials: Any) -> None:
        self._sums: Any = 0.0

    def observe(self, iterate: Any) -> None:
        self._sums = self._sums + iterate.private_gradient @ self._direction

    def finish(self, models: Any) -> Any:
        return self._sums.double().cpu().numpy()


def ours(name: str, *, models: int, steps: int, device: str, products: str, watched: bool = False) -> dict[str, Any]:
    """Trainings of so many models for so many steps, everything included.

    ``watched``: a gradient as canary, and somebody who looks at every step.
    """
    network, rows, batch = NETWORKS[name]
    x, y = _data(network, rows)
    direction = np.random.default_rng(1).normal(size=parameter_count(network))
    canary = GradientCanary(direction) if watched else ExampleCanary(x[0], 1)
    neighbours = Neighbours(Dataset(x, y), canary=canary)
    sampling: dict[str, Any] = {"sampling": "full"} if batch == rows else {"batch_size": batch}
    config = TrainingConfig(
        steps=steps, clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE, products=products, **sampling
    )
    found = {}

    def work(number: int) -> None:
        trials = np.arange(number * models, (number + 1) * models)
        result = train(
            network, neighbours=neighbours, config=config, fingerprint="benchmark", trials=trials, worlds=trials % 2,
            device=device, observer=_Along(direction, device) if watched else None,
        )  # fmt: skip
        assert result.succeeded.all()
        found.update(precision=result.precision, stack=result.stack)

    seconds = _median(work, device=device)
    return {"model_steps_per_second": models * steps / seconds, "models": models, "steps": steps, **found}


def attacked(name: str, *, models: int, steps: int, device: str, products: str) -> dict[str, float]:
    """Milliseconds of a step under each adversary of ``ADVERSARIES``, and of a look at all rows for every model.

    Such a look is their sum (``gradient``), or their sums in parts and the directions that they hide (``"own"``
    backgrounds).

    A step is the difference of trainings of ``steps`` and of six times as many, over five times ``steps``.
    """
    network, rows, batch = NETWORKS[name]
    base = Dataset(*_data(network, rows))
    found = {}
    for label, (kind, options) in ADVERSARIES.items():
        seconds = []
        for length in (steps, 6 * steps):
            config = TrainingConfig(
                steps=length, clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE, products=products, batch_size=batch
            )
            scene = Scene(base=base, classes=network.classes, network=network, training=config)
            attack = adversary(kind, **options).craft(scene)
            assert isinstance(attack, Attack)

            def work(number: int, attack: Attack = attack, config: TrainingConfig = config) -> None:
                trials = np.arange(number * models, (number + 1) * models)
                train(
                    network, neighbours=attack.neighbours, config=config, fingerprint="benchmark", trials=trials,
                    worlds=trials % 2, device=device, observer=attack.distinguisher,
                )  # fmt: skip

            seconds.append(_median(work, device=device))
        found[label] = 1000.0 * (seconds[1] - seconds[0]) / (5 * steps)
        print(f"{name} {products}: {label} {found[label]:.2f} ms a step of {models} models", flush=True)
    vectors = torch.from_numpy(np.random.default_rng(2).normal(size=(models, parameter_count(network)), scale=0.05))
    vectors = vectors.to(device, torch.float32)
    label = "clipped sum of all rows"
    found[label] = 1000.0 * _median(
        lambda number: clipped_sums(network, vectors, dataset=base, config=config).sum().item(), device=device
    )
    print(f"{name} {products}: {label} {found[label]:.0f} ms for {models} models", flush=True)
    label = "background of the models' own"
    own = OwnBackground(base, network=network, training=config, noise=1.0, every=1, stream=np.random.default_rng(3))
    found[label] = 1000.0 * _median(lambda number: own.renew(1, vectors * (1.0 + number / 100)), device=device)
    print(f"{name} {products}: {label} {found[label]:.0f} ms for {models} models", flush=True)
    return found


def sums_alone(name: str, *, models: int, steps: int, device: str, products: str) -> dict[str, Any]:
    """The clipped sums of a stack by stages, on batches that were drawn before: without starts, noise and updates."""
    network, rows, batch = NETWORKS[name]
    config = TrainingConfig(
        steps=steps, batch_size=batch, clip=CLIP, noise_multiplier=NOISE, learning_rate=RATE, products=products
    )
    job = Job(network, Neighbours(Dataset(*_data(network, rows))), config, "benchmark", torch.device(device))
    if not (stages.fits(job) or compiled_stages.fits(job)):
        return {"sums_alone_per_second": None}
    size, worlds = parameter_count(network), np.zeros(models, dtype=np.int64)
    parameters, gradient = (torch.zeros((models, -(-size // 32) * 32), device=device)[:, :size] for _ in range(2))
    parameters.copy_(job.initial(list(range(models))))
    vectors = Vectors(parameters, gradient, worlds, models)
    kind = stages.StageSums if stages.fits(job) else compiled_stages.CompiledStages
    sums = kind(job, vectors, stages.StageTable(job))
    rng = np.random.default_rng(1)
    drawn = [np.flatnonzero(rng.random(rows) < batch / rows) for _ in range(models)]

    def work(number: int) -> None:
        for _ in range(steps):
            sums(drawn, StackState(worlds, 1, parameters, None))

    return {"sums_alone_per_second": models * steps / _median(work, device=device)}


def ensemble(name: str, *, models: int, steps: int, device: str) -> dict[str, Any]:
    """The same steps by torch.func: per-example gradients of all models, clipped and added up."""
    network, rows, batch = NETWORKS[name]
    x, y = (torch.from_numpy(part).to(device) for part in _data(network, rows))
    built = [module(network).to(device) for _ in range(models)]
    parameters, buffers = stack_module_state(built)  # type: ignore[arg-type]
    parameters = {key: value.detach() for key, value in parameters.items()}
    base = module(network).to("meta")

    def loss(weights: Any, row: Any, label: Any) -> Any:
        logits = functional_call(base, (weights, buffers), (row[None],))
        return nn.functional.cross_entropy(logits, label[None])

    gradients = vmap(vmap(grad(loss), in_dims=(None, 0, 0)), in_dims=(0, 0, 0))

    def work(number: int) -> None:
        for _ in range(steps):
            drawn = torch.randint(rows, (models, batch), device=device)
            found = gradients(parameters, x[drawn], y[drawn])
            norms = sum(g.flatten(2).square().sum(2) for g in found.values()).sqrt()  # type: ignore[union-attr]
            factors = 1.0 / (norms / CLIP).clamp(min=1.0)
            for key, value in parameters.items():
                total = torch.einsum("sb,sb...->s...", factors, found[key])
                value -= RATE * (total + NOISE * CLIP * torch.randn_like(value)) / batch

    seconds = _median(work, device=device)
    return {"model_steps_per_second": models * steps / seconds, "models": models, "steps": steps}


def opacus(name: str, *, steps: int, device: str, mode: str) -> dict[str, Any]:
    """One model in Opacus, its batches cut straight from a tensor on the device."""
    from opacus import GradSampleModule
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network, rows, batch = NETWORKS[name]
    x, y = (torch.from_numpy(part).to(device) for part in _data(network, rows))
    built, criterion = module(network).to(device), nn.CrossEntropyLoss()
    options: dict[str, Any] = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": batch}
    loss: Any = criterion
    if mode == "ghost":
        wrapped: Any = GradSampleModuleFastGradientClipping(built, max_grad_norm=CLIP, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(torch.optim.SGD(wrapped.parameters(), lr=RATE), **options)
        loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(reduction="mean"))
    else:
        wrapped = GradSampleModule(built)
        optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=RATE), **options)

    def work(number: int) -> None:
        for _ in range(steps):
            drawn = torch.randint(rows, (batch,), device=device)
            optimizer.zero_grad()
            loss(wrapped(x[drawn]), y[drawn]).backward()
            optimizer.step()

    return {"model_steps_per_second": steps / _median(work, device=device), "models": 1, "steps": steps}


def run() -> dict[str, Any]:
    """The papers' convolution networks on one core of a CPU, with their peers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in ("mnist", "cifar10", "bernau"):
        found |= measured(name)
    torch.set_num_threads(threads)
    return found


def measured(
    name: str,
    *,
    models: int = MODELS,
    steps: int = STEPS,
    device: str = "cpu",
    products: str = "float32",
    peers: bool = True,
    watched: bool = False,
) -> dict[str, Any]:
    """All numbers of one network, by default on a CPU."""
    if products == "tf32":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    options: dict[str, Any] = {"models": models, "steps": steps, "device": device, "products": products}
    found: dict[str, Any] = {"coalmine": ours(name, watched=watched, **options)}
    found["coalmine"] |= sums_alone(name, models=models, steps=min(steps, 10), device=device, products=products)
    print(f"{name} {products}: coalmine {found['coalmine']}", flush=True)
    if peers:
        warnings.simplefilter("ignore")
        jobs: dict[str, Callable[[], dict[str, Any]]] = {
            "torch.func ensemble": lambda: ensemble(name, models=16, steps=5, device=device),
            "opacus hooks": lambda: opacus(name, steps=20, device=device, mode="hooks"),
            "opacus ghost": lambda: opacus(name, steps=20, device=device, mode="ghost"),
        }
        for key, job in jobs.items():
            try:
                found[key] = job()
            except ImportError:
                found[key] = None  # not installed
            print(f"{name} {products}: {key} {found[key]}", flush=True)
        own = found["coalmine"]["model_steps_per_second"]
        ratios = {key: own / found[key]["model_steps_per_second"] for key in jobs if found[key]}
        print(
            f"{name} {products}: ratios {', '.join(f'{key} {value:.2f}' for key, value in ratios.items())}", flush=True
        )
        found["ratios"] = ratios
    return {f"convolution {name} {products} {device}": found}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--network", default="mnist", choices=sorted(NETWORKS))
    parser.add_argument("--products", default="float32", help="on a GPU: float32 or tf32")
    parser.add_argument("--models", type=int, default=MODELS, help="models that are trained together")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--peers", action="store_true", help="time torch.func and Opacus too")
    parser.add_argument("--watched", action="store_true", help="a gradient as canary, and an observer of every step")
    parser.add_argument("--adversaries", action="store_true", help="what adversaries add to a step, instead")
    parser.add_argument("--output", help="a file for the numbers, as JSON")
    options = parser.parse_args()
    job: dict[str, Any] = {
        "models": options.models, "steps": options.steps, "device": options.device, "products": options.products,
    }  # fmt: skip
    if options.adversaries:
        found: dict[str, Any] = {"adversaries": attacked(options.network, **job)}
    else:
        found = measured(options.network, peers=options.peers, watched=options.watched, **job)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=2)


if __name__ == "__main__":
    main()
