"""What the probe of one private step costs: CPU seconds and memory, beside the step itself."""

from __future__ import annotations

import multiprocessing
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.bench_trainer import peak_memory
from coalmine.integrations import opacus
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.probe import probe


def small_network() -> nn.Module:
    """64-32-10, as for the digits of scikit-learn."""
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def small_cnn() -> nn.Module:
    """26,010 parameters on 28 × 28 pixels: the four-layer network of Papernot et al. (2020)."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def large_cnn() -> nn.Module:
    """A million parameters on 28 × 28 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28)),
        nn.Conv2d(1, 16, 5, 2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5, 2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, 625),
        nn.ReLU(),
        nn.Linear(625, 10),
    )


def private_step(model: nn.Module, shape: tuple[int, ...], mode: str) -> PrivateStep:
    """An Opacus step on random rows."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, *shape), torch.arange(64) % 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            criterion=nn.CrossEntropyLoss(),
            data_loader=DataLoader(data, batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode=mode,
        )
    loss = made[2] if mode == "ghost" else nn.CrossEntropyLoss()
    return opacus.step(made[0], made[1], loss, loader=made[-1])


def plain_loop(model: nn.Module, shape: tuple[int, ...]) -> PrivateStep:
    """The same step by hand, one row after the other: no gradients of rows are kept, and no optimizer."""
    torch.manual_seed(0)
    loss, parameters = nn.CrossEntropyLoss(), list(model.parameters())

    def step(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        rows, labels = batch
        total = [torch.zeros_like(one) for one in parameters]
        for row, label in zip(rows, labels, strict=True):
            model.zero_grad()
            loss(model(row[None]), label[None]).backward()
            grads = [one.grad for one in parameters if one.grad is not None]
            norm = torch.sqrt(sum((one**2).sum() for one in grads))
            for into, grad in zip(total, grads, strict=True):
                into.add_(grad * (1.0 / norm).clamp(max=1.0))
        with torch.no_grad():
            for one, into in zip(parameters, total, strict=True):
                one.sub_(into.add_(torch.randn(into.shape)).mul_(0.1 / 8))

    return PrivateStep(
        step=step,
        batch=(torch.randn(8, *shape), torch.arange(8) % 10),
        clip_norm=1.0,
        noise_multiplier=1.0,
        state={"model": model},
        divisor=8,
        learning_rate=0.1,
    )


_BUILT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "64-32-10, hooks": (small_network, (64,), "hooks"),
    "64-32-10, ghost": (small_network, (64,), "ghost"),
    "CNN of 26,010, hooks": (small_cnn, (28, 28), "hooks"),
    "CNN of a million, hooks": (large_cnn, (28, 28), "hooks"),
    "CNN of a million, plain loop": (large_cnn, (28, 28), "loop"),
}


def _built(title: str) -> tuple[nn.Module, PrivateStep]:
    build, shape, mode = _BUILT[title]
    model = build()
    return model, plain_loop(model, shape) if mode == "loop" else private_step(model, shape, mode)


def _held(model: nn.Module) -> int:
    """Bytes that a step leaves at the parameters: values, gradients, and those of each row."""
    kept = [
        (one, one.grad, getattr(one, "grad_sample", None), getattr(one, "summed_grad", None))
        for one in model.parameters()
    ]
    return sum(one.numel() * one.element_size() for several in kept for one in several if one is not None)


def _cpu(action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of this process, and the result."""
    start = time.process_time()
    found = action()
    return time.process_time() - start, found


def _measured(title: str) -> dict[str, Any]:
    """One probe, in a process of its own; a small one before has loaded what every probe loads."""
    torch.set_num_threads(1)
    probe(_built("64-32-10, hooks")[1], replays=20, tries=10)
    model, step = _built(title)
    once = min(_cpu(lambda: step.step(step.batch))[0] for _ in range(3))
    held = _held(model)
    before = peak_memory()
    seconds, report = _cpu(lambda: probe(step))
    more = peak_memory() - before
    runs = report.details["runs"]
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "cpu_s": seconds,
        "runs": runs,
        "over_plain_steps": seconds / (runs * once),
        "held_mib": held / 2**20,
        "more_mib": more / 2**20,
        "verdict": str(report.verdict),
    }


def run() -> dict[str, Any]:
    """Measure, print and return the numbers."""
    results: dict[str, Any] = {}
    for title in _BUILT:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            found = results[title] = process.submit(_measured, title).result()
        print(
            f"{title}: {found['parameters']:,} parameters, {found['cpu_s']:.1f} s of CPU for {found['runs']} runs, "
            f"{found['over_plain_steps']:.2f} times as long as so many plain steps; {found['more_mib']:.0f} MiB more "
            f"memory, {found['more_mib'] / found['held_mib']:.1f} times what the step holds "
            f"({found['held_mib']:.1f} MiB); {found['verdict']}",
            flush=True,
        )
    return {"probe": results}


if __name__ == "__main__":
    run()
