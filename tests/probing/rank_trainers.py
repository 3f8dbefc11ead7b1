"""Private steps on several ranks, right and wrong, as people write them: each is built on its rank by a function."""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader, TensorDataset

SIGMA, NORM, ROWS = 1.5, 1.0, 4
SEED = 1000 * int(os.environ.get("COALMINE_TEST_SEED", "0"))


@dataclasses.dataclass
class Step:
    """What :func:`probe_processes` needs of a private step."""

    step: Any
    batch: Any
    state: Any
    divisor: float | None
    clip_norm: float = NORM
    noise_multiplier: float = SIGMA


def rows(seed):
    made = torch.Generator().manual_seed(SEED + seed)
    return torch.randn(ROWS, 6, generator=made), torch.randn(ROWS, 1, generator=made)


def summed(*, share=1.0, equal_seeds=False, after=None, clip=True, divide=1.0, divisor=True):
    """DDP by hand: clip row by row, add noise of ``share``·σC/√R on each rank, add up over ranks, divide.

    ``after`` adds the noise after the sum instead, from the same seed on all ranks or from different ones.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(SEED)
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.Generator().manual_seed(SEED + (7 if equal_seeds or after == "same" else 100 + rank))

    def draw(one, scale):
        return scale * SIGMA * NORM * torch.randn(one.shape, generator=noise)

    def step(batch):
        parameters = list(model.parameters())
        total = [torch.zeros_like(one) for one in parameters]
        for x, y in zip(*batch, strict=True):
            gradients = torch.autograd.grad(((model(x) - y) ** 2).sum(), parameters)
            norm = torch.cat([one.reshape(-1) for one in gradients]).norm()
            factor = min(1.0, float(NORM / norm)) if clip else 1.0
            for one, gradient in zip(total, gradients, strict=True):
                one += factor * gradient
        for one, parameter in zip(total, parameters, strict=True):
            if after is None:
                one += draw(one, share / world**0.5)
            distributed.all_reduce(one)
            if after is not None:
                one += draw(one, share)
            parameter.grad = one / (divide * ROWS * world)
        optimizer.step()

    return Step(step, rows(10 + rank), [model, optimizer], float(ROWS * world) if divisor else None)


def right():
    return summed()


def right_after_the_sum():
    return summed(after="same")


def right_without_a_divisor():
    return summed(divisor=False)


def short():
    return summed(share=2**-0.5)  # each of two ranks adds σ/2 of noise


def short_without_a_divisor():
    return summed(share=2**-0.5, divisor=False)


def equal_seeds():
    return summed(equal_seeds=True)


def parting():
    return summed(after="different")


def unclipped():
    return summed(clip=False)


def divided_twice():
    return summed(divide=2.0)


def hanging():
    if distributed.get_rank() == 0:
        distributed.barrier()
    return summed()


def failing():
    raise ValueError("no such data")


def opacus(*, sharded=False, seeds=(1, 2), optimizer_class=None, torch_ddp=False):
    """The same by Opacus: DPDDP with its distributed optimizer, or FSDP with ghost clipping."""
    from opacus import PrivacyEngine
    from opacus.distributed import DifferentiallyPrivateDistributedDataParallel

    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(SEED)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    warnings.simplefilter("ignore")
    if sharded:
        from opacus.utils.fsdp_utils import FSDP2Wrapper
        from torch.distributed.device_mesh import init_device_mesh

        model = FSDP2Wrapper(model, mesh=init_device_mesh("cpu", (world,)))
    elif torch_ddp:
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        model = DifferentiallyPrivateDistributedDataParallel(model)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 2, (64,)))
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=torch.nn.CrossEntropyLoss(),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=SIGMA,
        max_grad_norm=NORM,
        grad_sample_mode="ghost_fsdp" if sharded else "hooks",
    )
    model, optimizer, loss = made[0], made[1], made[2] if sharded else torch.nn.CrossEntropyLoss()
    if optimizer_class is not None:
        optimizer.__class__ = optimizer_class(type(optimizer))
    torch.manual_seed(SEED + seeds[rank])

    def step(batch):
        optimizer.zero_grad()
        loss(model(batch[0]), batch[1]).backward()
        optimizer.step()

    # expected_batch_size is that of one rank; gradients are averaged over ranks.
    return Step(
        step,
        (rows(10 + rank)[0], torch.tensor([0, 1, 0, 1])),
        [model, optimizer],
        float(optimizer.expected_batch_size) * world,
    )


def opacus_ddp():
    return opacus()


def opacus_ddp_short():
    def halved(kind):
        class Short(kind):
            def add_noise(self):
                self.noise_multiplier /= self.world_size**0.5
                super().add_noise()
                self.noise_multiplier *= self.world_size**0.5

        return Short

    return opacus(optimizer_class=halved)


def opacus_torch_ddp():
    return opacus(torch_ddp=True)


def opacus_fsdp():
    return opacus(sharded=True)


def sharded_by_hand():
    """FSDP where each rank adds noise to its own part, all from the same seed."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(SEED)
    model = torch.nn.Linear(6, 16)
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    noise = torch.Generator().manual_seed(SEED + 5)

    def step(batch):
        optimizer.zero_grad()
        (torch.tanh(model(batch[0])).sum() * 1e-3).backward()
        for one in model.parameters():
            part = one.grad.to_local()
            part += SIGMA * NORM / ROWS * torch.randn(part.shape, generator=noise)
        optimizer.step()

    return Step(step, rows(10 + rank), [model, optimizer], float(ROWS))


class Poisson:
    """Poisson batches from this rank's part of the rows, or from all of them."""

    def __init__(self, seed, *, shards):
        self.generator, self.total_size = torch.Generator().manual_seed(SEED + seed), 400
        part = slice(distributed.get_rank(), None, distributed.get_world_size()) if shards else slice(None)
        self.part, self.rate = torch.arange(self.total_size)[part], 0.05 if shards else 0.025

    def __iter__(self):
        for _ in range(20):
            yield self.part[torch.rand(len(self.part), generator=self.generator) < self.rate]


def loader():
    return Poisson(distributed.get_rank(), shards=True)


def loader_with_equal_seeds():
    return Poisson(1, shards=True)


def overlapping_loader():
    return Poisson(distributed.get_rank(), shards=False)
