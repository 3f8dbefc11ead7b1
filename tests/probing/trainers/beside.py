"""What a probe of one step cannot see: samplers, accountants and ranks, wrong and right, as functions of a seed.

Each function gives the report of the check that belongs to it.
"""

from __future__ import annotations

import os
import warnings

import numpy as np
import torch
from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from coalmine.accounting import standard
from coalmine.probing.accountant import check_accountant
from coalmine.probing.processes import probe_processes
from coalmine.probing.sampler import probe_sampler
from coalmine.records import DpSgd

ROWS, BATCH, LEVEL = 1000, 20, 1e-4
RAN = DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4)


# Samplers.


def sampled(seed, **options):
    torch.manual_seed(seed)
    data = TensorDataset(torch.zeros(ROWS, 1))
    return probe_sampler(DataLoader(data, **options), sample_rate=BATCH / ROWS, level=LEVEL)


def poisson(seed):
    generator = torch.Generator().manual_seed(seed)
    return sampled(
        seed,
        batch_sampler=UniformWithReplacementSampler(num_samples=ROWS, sample_rate=BATCH / ROWS, generator=generator),
    )


def shuffled(seed):
    return sampled(seed, batch_size=BATCH, shuffle=True)


def in_order(seed):
    return sampled(seed, batch_size=BATCH)


def weighted(seed):
    weights = np.where(np.arange(ROWS) < ROWS // 2, 2.0, 1.0).tolist()
    return sampled(seed, batch_size=BATCH, sampler=WeightedRandomSampler(weights, ROWS))


# Accountants.


def told(kind, *history):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "GDP accounting is experimental"
        made = kind()
    made.history = list(history)
    return made


class StepsWhenRead:
    """Every reading counts as a step."""

    def __init__(self):
        self.history = [(1.0, 0.5, 4)]

    def get_epsilon(self, delta):
        (sigma, rate, steps), value = self.history[0], standard.epsilon(RAN, delta=delta).epsilon
        self.history = [(sigma, rate, steps + 1)]
        return value


def right_accountant(seed):
    return check_accountant(told(PRVAccountant, (1.0, 0.5, 4)), delta=1e-5, ran=RAN)


def right_renyi_accountant(seed):
    return check_accountant(told(RDPAccountant, (1.0, 0.5, 4)), delta=1e-5, ran=RAN)


def steps_when_read(seed):
    return check_accountant(StepsWhenRead(), delta=1e-5, ran=RAN)


def negative_epsilon(seed):
    return check_accountant(lambda delta: -0.3, delta=1e-5, ran=RAN)


def target_overshot(seed):
    """The noise that the central limit finds for a target of 6."""
    return check_accountant(6.0, delta=1e-5, ran=RAN, target_epsilon=6.0)


def central_limit(seed):
    return check_accountant(told(GaussianAccountant, (1.0, 0.5, 4)), delta=1e-5, ran=RAN)


def other_rate(seed):
    return check_accountant(told(RDPAccountant, (1.0, 0.25, 4)), delta=1e-5, ran=RAN)


def other_steps(seed):
    return check_accountant(told(RDPAccountant, (1.0, 0.5, 3)), delta=1e-5, ran=RAN)


def virtual_steps(seed):
    return check_accountant(told(RDPAccountant, (1.0, 0.5, 16)), delta=1e-5, ran=RAN)


# Ranks.


def ranks(seed, step, loader=None):
    os.environ["COALMINE_TEST_SEED"] = str(seed)  # the ranks are processes of their own
    rate = 0.05 if loader else None
    loader = f"rank_trainers:{loader}" if loader else None
    return probe_processes(f"rank_trainers:{step}", make_loader=loader, sample_rate=rate, level=LEVEL)


def right_ranks(seed):
    return ranks(seed, "right", "loader")


def right_opacus_ranks(seed):
    return ranks(seed, "opacus_ddp")


def opacus_ranks_short(seed):
    """A distributed optimizer that divides the noise once too often (opacus issue 324)."""
    return ranks(seed, "opacus_ddp_short")


def ranks_short_and_overlapping(seed):
    return ranks(seed, "short", "overlapping_loader")


def ranks_with_equal_seeds(seed):
    return ranks(seed, "equal_seeds", "loader_with_equal_seeds")


BROKEN = [
    (3, shuffled, "shuffled batches accounted as Poisson"),
    (3, in_order, "batches in a fixed order accounted as Poisson"),
    (4, weighted, "weighted sampler"),
    (17, steps_when_read, "the accountant changes when it is read"),
    (17, negative_epsilon, "negative epsilon"),
    (17, target_overshot, "the target epsilon is exceeded"),
    (32, weighted, "weighted sampler"),
    (32, shuffled, "shuffled batches accounted as Poisson"),
    (33, central_limit, "epsilon understated"),
    (33, other_rate, "wrong sample rate"),
    (33, other_steps, "wrong number of steps"),
    (33, virtual_steps, "virtual steps counted as steps"),
]
"""The row of the list of public bugs, the check, and the name that it must be found by."""
RIGHT = [poisson, right_accountant, right_renyi_accountant]

BROKEN_RANKS = [
    (8, opacus_ranks_short, "noise too small on several ranks"),
    (21, ranks_short_and_overlapping, "noise too small on several ranks"),
    (29, ranks_with_equal_seeds, "ranks add the same noise"),
    (32, ranks_short_and_overlapping, "ranks overlap"),
]
RIGHT_RANKS = [right_ranks, right_opacus_ranks]
"""Ranks take seconds to start."""
