"""Poisson batches drawn by a GPU itself, for kernels that compute each model with programs of its own.

A batch is a function of (64 bits of the trial's key, step) alone: geometric gaps from Philox-4x32-10, 53 bits each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from coalmine.training import sampling
from coalmine.training.backends import triton_kernels as kernels
from coalmine.training.canary import AdaptiveGradient, GradientCanary
from coalmine.training.job import Job, Share
from coalmine.training.noise import key_words

Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""A kernel, its grid, its arguments, and what is fixed when it is compiled."""
MAX_BATCH = 4096
"""Rows that a batch may have room for."""


def room_for_a_batch(job: Job) -> int:
    """A multiple of 64 of rows: a Poisson batch exceeds it with probability below 1e-18 a step.

    By Chernoff's bound, P[Binomial(n, q) ≥ m] ≤ exp(−n·KL(m/n ‖ q)).
    """
    rows = job.rows + job.neighbours.copies
    rate = job.config.rate(job.rows)
    lanes = max(64, int(rows * rate) // 64 * 64)
    while lanes <= rows and lanes <= MAX_BATCH:
        share = lanes / rows
        if share > rate and rows * (special.rel_entr(share, rate) + special.rel_entr(1 - share, 1 - rate)) > 41.5:
            break
        lanes += 64
    return lanes


class DeviceDraws:
    """The batches of S trials, step by step: row numbers ``index`` ``[S, lanes]`` and how many, ``count`` ``[S]``.

    Rows of a canary that is no example are not among them; ``times`` ``[S]`` says how many of those were drawn.
    Shares of several jobs have the same base rows, and examples as canaries, whose rows follow each other behind them.
    """

    def __init__(self, *shares: Share, device: torch.device) -> None:
        jobs = [share.job for share in shares]
        self.lanes = max(room_for_a_batch(job) for job in jobs)
        self._apart = isinstance(jobs[0].neighbours.canary, GradientCanary | AdaptiveGradient)
        self._base = jobs[0].rows
        tables: list[NDArray[np.int64]] = []
        misses: list[float] = []
        worlds: list[int] = []
        before = 0
        for job, share in zip(jobs, shares, strict=True):
            worlds += [len(tables) + world for world in share.worlds]  # each job has two worlds of its own
            for world in (0, 1):
                rows = sampling.slots(job.neighbours, world=world)
                tables.append(np.where(rows < self._base, rows, rows + before))
                rate = job.config.rate(job.rows)
                misses.append(math.log1p(-rate) if rate < 1.0 else -math.inf)
            before += job.neighbours.copies
        self._table = torch.zeros((len(tables), max(table.size for table in tables)), dtype=torch.int32, device=device)
        for number, table in enumerate(tables):
            self._table[number, : table.size] = torch.from_numpy(table)
        self._slots = torch.tensor([table.size for table in tables], dtype=torch.int32, device=device)
        self._worlds = torch.tensor(worlds, dtype=torch.int32, device=device)
        self._log_miss = torch.tensor(misses, dtype=torch.float64, device=device)
        keys = [key_words(share.job.fingerprint, share.trials, purpose="gpu") for share in shares]
        self.keys = torch.cat(keys).to(device)
        self.index = torch.zeros((len(worlds), self.lanes), dtype=torch.int32, device=device)
        self.count = torch.zeros(len(worlds), dtype=torch.int32, device=device)
        self.times = torch.zeros_like(self.count)
        self._overflow = torch.zeros(1, dtype=torch.int32, device=device)

    def drawn(self, step: int) -> DeviceDraws:
        """The batches of this step, in place of those of the step before."""
        kernel, grid, given, options = self.launch(step)
        kernel[grid](*given, **options)
        return self

    def launch(self, step: int) -> Launch:
        """The kernel that draws them."""
        given = (self.keys, step, self._worlds, self._slots, self._table, self._table.shape[1], self._base)
        rest = (self._log_miss, self.index, self.count, self.times, self._overflow)
        constants = {"LANES": 1 << (self.lanes - 1).bit_length(), "ROOM": self.lanes, "APART": self._apart}
        return kernels.draw, (self.index.shape[0],), given + rest, constants

    def check(self) -> None:
        """To be called after the last step: no batch may have been cut off."""
        if int(self._overflow.item()):
            raise RuntimeError("a Poisson batch outgrew its room, which should happen once in 1e18 steps")
