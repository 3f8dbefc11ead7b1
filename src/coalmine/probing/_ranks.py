"""What one rank of :func:`~coalmine.probing.processes.probe_processes` does. Rank 0 writes what all of them saw."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import random
import socket
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from coalmine.errors import CoalmineError
from coalmine.probing import rows
from coalmine.probing.batches import read_draws, stated_rate
from coalmine.probing.tape_torch import Listener, TorchRequest

_KEPT = 4000
"""Numbers of a rank's own part that are kept for the correlation of ranks."""
_SCALES = (1.0, 1e3, -1e3)
_SEED = 20_011


class _Noise:
    """Counts the normal numbers that a step draws; with ``silent`` each of them gives its mean."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.count = 0
        self.digest = hashlib.blake2b(digest_size=16)

    def answer(self, request: TorchRequest) -> torch.Tensor:
        """What the step gets for a draw."""
        drawn = request.live()
        if request.normal is None:
            return drawn
        local = _local(drawn)
        self.count += local.numel()
        self.digest.update(local.detach().cpu().contiguous().numpy().tobytes())
        if self.silent:
            mean = request.normal[0]
            drawn.copy_(mean) if isinstance(mean, torch.Tensor) else drawn.fill_(mean)
        return drawn


class _Step:
    """The user's step on this rank: run it, see what the optimizer is handed, and put the parameters back."""

    def __init__(self, built: Any) -> None:
        self.built = built
        self.optimizers = _optimizers(built.state)
        if not self.optimizers:
            raise CoalmineError("state holds no torch optimizer: expected the one that takes the private step")
        self.parameters = [
            p for one in self.optimizers for g in one.param_groups for p in g["params"] if p.requires_grad
        ]
        self.before = [p.detach().clone() for p in self.parameters]
        self.handed: list[torch.Tensor] = []
        for one in self.optimizers:
            one.register_step_pre_hook(self._see)

    def _see(self, *_: Any) -> None:
        self.handed = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in self.parameters]

    def take(self, batch: Any, *, silent: bool = False) -> tuple[list[torch.Tensor], _Noise]:
        """One step; the gradients that the optimizer was handed, and the noise that was drawn."""
        self.handed = []
        noise = _Noise(silent=silent)
        with Listener(noise.answer):
            self.built.step(batch)
        if not self.handed:
            raise CoalmineError("the step did not call its torch optimizer: nothing was released")
        with torch.no_grad():
            for p, value in zip(self.parameters, self.before, strict=True):
                p.copy_(value)
        return self.handed, noise


def work(rank: int, job: str) -> None:
    """Everything that one rank does, from its start to its end."""
    task = json.loads(job)
    sys.path[:] = task["path"]
    torch.set_num_threads(1)
    with _together(rank, task):
        try:
            seen = _measure(task)
        except CoalmineError as error:
            Path(task["folder"], f"problem-{rank}").write_text(str(error), encoding="utf-8")
            os._exit(0)
        if rank == 0:
            Path(task["folder"], "result.json").write_text(json.dumps(seen), encoding="utf-8")
        distributed.barrier()
    os._exit(0)  # threads of the communication library may still run, and can abort an ordinary exit


@contextlib.contextmanager
def _together(rank: int, task: dict[str, Any]) -> Iterator[None]:
    """A process group over a file (no port that could clash), on the loopback interface where there is one."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in ("lo", "lo0") if name in names), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    store = Path(task["folder"], "store")
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=task["world"],
        timeout=timedelta(seconds=120),
    )
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _measure(task: dict[str, Any]) -> dict[str, Any]:
    """What rank 0 reports; every rank takes part in all of it."""
    built = _called(task["functions"]["step"])
    step = _Step(built)
    divisor = None if built.divisor is None else float(built.divisor)
    # In the unit of the sum: σ·C is 1 then. Without a divisor in the unit of the gradient itself.
    unit = (divisor or 1.0) / (float(built.noise_multiplier) * float(built.clip_norm))
    runs = [step.take(built.batch) for _ in range(task["replays"])]
    noise = runs[0][1]
    wholes = [[_whole(one) for one in handed] for handed, _ in runs]
    apart = _gathered(_vector(wholes[0]))
    size = max(float(np.linalg.norm(apart[0])), 1e-30)
    distances = [float(np.linalg.norm(other - apart[0])) / size for other in apart]
    squares, freedom = [], []
    for place in range(len(step.parameters)):
        values = np.array([whole[place].ravel() for whole in wholes])
        squares.append(float(((values - values.mean(axis=0)) ** 2).sum()) * unit**2)
        freedom.append((len(runs) - 1) * values.shape[1])
    moved, witness = _influence(step, built, (divisor or 1.0) / float(built.clip_norm))
    seen: dict[str, Any] = {
        "world": task["world"],
        "replays": task["replays"],
        "divisor": divisor,
        "apart": max(distances),
        "apart_rank": int(np.argmax(distances)),
        "names": [f"tensor {place} of shape {list(p.shape)}" for place, p in enumerate(step.parameters)],
        "squares": squares,
        "freedom": freedom,
        "moved": moved,
        "witness": witness,
        "drawn": _gathered(noise.count),
        "equal": len(set(_gathered([one.digest.hexdigest() for _, one in runs], freeze=True))) == 1,
        "correlation": _correlation(step, runs),
    }
    if "loader" in task["functions"]:
        seen |= _draws(task)
    return seen


def _influence(step: _Step, built: Any, unit: float) -> tuple[float | None, str]:
    """The furthest that one more row on one rank moves what the optimizer is handed, without noise."""
    rank, world = distributed.get_rank(), distributed.get_world_size()

    def again(batch: Any) -> np.ndarray:
        torch.manual_seed(_SEED + rank)  # what else is random, such as dropout, is the same each time
        np.random.seed(_SEED + rank)  # noqa: NPY002
        random.seed(_SEED + rank)
        return _vector([_whole(one) for one in step.take(batch, silent=True)[0]])

    first = again(built.batch)
    if not all(_gathered(bool(np.array_equal(first, again(built.batch))))):
        return None, ""
    best, witness = 0.0, ""
    for owner in sorted({0, world - 1}):
        for row in range(min(2, rows.size(built.batch))):
            for scale in _SCALES:
                moved = again(_with_row(built.batch, row, scale) if rank == owner else built.batch) - first
                distance = float(np.linalg.norm(moved)) * unit
                if distance > best:
                    best, witness = distance, f"row {row} times {scale:g}, once more on rank {owner}"
    return best, witness


def _correlation(step: _Step, runs: list[tuple[list[torch.Tensor], _Noise]]) -> tuple[float, int] | None:
    """The correlation between the noise of two ranks' own parts, where gradients are sharded."""
    if not any(hasattr(p, "to_local") for p in step.parameters):
        return None
    parts = [_vector([_local(one) for one in handed])[:_KEPT] for handed, _ in runs]
    values = np.array(parts)
    own = values - values.mean(axis=0)
    first, second = _gathered(own)[:2]
    width = min(first.shape[1], second.shape[1])
    a, b = first[:, :width].ravel(), second[:, :width].ravel()
    spread = float(np.sqrt((a @ a) * (b @ b)))
    # Means were taken off, so that many of the numbers are not free.
    return (float(a @ b) / spread, (len(runs) - 1) * width) if spread > 0.0 else None


def _draws(task: dict[str, Any]) -> dict[str, Any]:
    """What this rank's loader draws, beside the others'."""
    loader = _called(task["functions"]["loader"])
    rate = task["rate"] if task["rate"] is not None else stated_rate(loader)
    if rate is None:
        raise CoalmineError("sample_rate is missing: expected the rate that the accountant was told")
    steps = max(200, 4 * round(1.0 / rate))
    draws = read_draws([loader], rows=None, steps=steps, epochs=4, rows_of=None)
    own = [[batch.tolist() for batch in epoch] for epoch in draws.ranks[0]]
    return {"batches": _gathered(own), "rows": max(_gathered(draws.rows)), "rate": rate}


def _called(name: str) -> Any:
    """What ``module:function`` gives."""
    module, _, path = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), path)
    except (ImportError, AttributeError) as error:
        raise CoalmineError(f"{name} cannot be imported: {error}") from None
    return function()


def _gathered(value: Any, *, freeze: bool = False) -> list[Any]:
    """The values of all ranks, in their order."""
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, value)
    return [tuple(one) for one in every] if freeze else every


def _local(value: Any) -> torch.Tensor:
    """The part of a tensor that is on this rank."""
    found: torch.Tensor = value.to_local() if hasattr(value, "to_local") else value
    return found


def _whole(value: Any) -> np.ndarray:
    """A gradient as an array; of a sharded one all parts."""
    full = value.full_tensor() if hasattr(value, "full_tensor") else value
    return np.asarray(full.detach().cpu().double().numpy())


def _vector(parts: list[Any]) -> np.ndarray:
    """All parts in a row."""
    arrays = [
        np.asarray(one.detach().cpu().double().numpy() if isinstance(one, torch.Tensor) else one) for one in parts
    ]
    return np.concatenate([one.ravel() for one in arrays])


def _flat(state: Any) -> list[Any]:
    """Everything in lists, tuples and dicts."""
    if isinstance(state, dict):
        return [one for value in state.values() for one in _flat(value)]
    if isinstance(state, (list, tuple)):
        return [one for value in state for one in _flat(value)]
    return [state]


def _optimizers(state: Any) -> list[torch.optim.Optimizer]:
    """The torch optimizers that really step, past Opacus's."""
    found = []
    for one in _flat(state):
        while hasattr(one, "original_optimizer"):
            one = one.original_optimizer
        if isinstance(one, torch.optim.Optimizer) and one not in found:
            found.append(one)
    return found


def _with_row(batch: Any, row: int, scale: float) -> Any:
    """The batch with one of its rows once more, its features scaled."""
    one = rows.take(batch, [row])
    scaled = [value * scale if value.dtype.kind == "f" else value for value in rows.numbers(one)]
    return rows.join([batch, rows.changed(one, scaled)])
