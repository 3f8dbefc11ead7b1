"""What the probe of one private step costs: CPU seconds and memory, beside the step itself."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


def run() -> dict[str, Any]:
    """Measure, print and return the numbers."""
    results: dict[str, Any] = {}
    for title, build, shape, mode in (
        ("64-32-10, hooks", small_network, (64,), "hooks"),
        ("64-32-10, ghost", small_network, (64,), "ghost"),
        ("CNN of 26,010, hooks", small_cnn, (28, 28), "hooks"),
        ("CNN of a million, hooks", large_cnn, (28, 28), "hooks"),
    ):
        model = build()
        numbers = sum(one.numel() for one in model.parameters())
        step = private_step(model, shape, mode)
        once = min(_cpu(lambda s=step: s.step(s.batch))[0] for _ in range(3))  # type: ignore[misc]
        held = _held(model)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds, report = _cpu(lambda s=step: probe(s))  # type: ignore[misc]
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        runs = report.details["runs"]
        results[title] = {
            "parameters": numbers,
            "cpu_s": seconds,
            "runs": runs,
            "over_plain_steps": seconds / (runs * once),
            "memory_over_held": more / held,
            "verdict": str(report.verdict),
        }
        print(
            f"{title}: {numbers:,} parameters, {seconds:.1f} s of CPU for {runs} runs, {seconds / (runs * once):.2f} "
            f"times as long as so many plain steps; {more / 2**20:.0f} MiB more memory, {more / held:.1f} times what "
            f"the step holds ({held / 2**20:.1f} MiB); {report.verdict}",
            flush=True,
        )
    return {"probe": results}


if __name__ == "__main__":
    run()
