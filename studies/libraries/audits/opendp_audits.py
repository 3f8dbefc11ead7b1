"""OpenDP: measurements at the ε that their own privacy maps state, with the neighbors of their input metric.

The symmetric distance of 1 is one row added or removed; where the size is known, the distance of 2 is one row replaced.
OpenDP takes its randomness from the system, so the seed of a trial decides nothing and a trial cannot be repeated.
"""

from __future__ import annotations

import math

import numpy as np
import opendp.prelude as dp
from cases import Trainings

import coalmine

ROWS = 10


def rows_between(size=None):
    """Rows from 0 to 1."""
    dp.enable_features("contrib")
    return dp.vector_domain(dp.atom_domain(bounds=(0.0, 1.0), nan=False), size=size), dp.symmetric_distance()


def released(number):
    return float(number)


added = coalmine.neighbours(np.zeros(ROWS), 1.0)
replaced = coalmine.neighbours(np.zeros(ROWS), 1.0, relation="replace")
bit = coalmine.neighbours(np.zeros(1, dtype=bool), True, relation="replace")


def laplace_sum(dataset, seed, scale=1.0):
    return (rows_between() >> dp.t.then_sum() >> dp.m.then_laplace(scale=scale))(dataset.tolist())


def laplace_sum_half(dataset, seed):
    return laplace_sum(dataset, seed, scale=0.5)


def gaussian_sum(dataset, seed, scale=1.0):
    return (rows_between() >> dp.t.then_sum() >> dp.m.then_gaussian(scale=scale))(dataset.tolist())


def gaussian_sum_half(dataset, seed):
    return gaussian_sum(dataset, seed, scale=0.5)


def laplace_mean(dataset, seed, scale=0.1):
    return (rows_between(ROWS) >> dp.t.then_mean() >> dp.m.then_laplace(scale=scale))(dataset.tolist())


def laplace_mean_half(dataset, seed):
    return laplace_mean(dataset, seed, scale=0.05)


def randomized_response(dataset, seed, prob=0.75):
    dp.enable_features("contrib")
    return dp.m.make_randomized_response_bool(prob=prob)(bool(dataset[0]))


def randomized_response_less(dataset, seed):
    return randomized_response(dataset, seed, prob=0.9)


CASES = [
    Trainings(
        name="then_sum() >> then_laplace(1.0)",
        train=laplace_sum,
        control=laplace_sum_half,
        score=released,
        worlds=added,
        epsilon=1.0 + 1e-8,  # what its privacy map states
        trials=3000,
    ),
    Trainings(
        name="then_sum() >> then_gaussian(1.0)",
        train=gaussian_sum,
        control=gaussian_sum_half,
        score=released,
        worlds=added,
        mechanism=coalmine.DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1),
        delta=1e-5,
        trials=3000,
    ),
    Trainings(
        name="then_mean() >> then_laplace(0.1), ten rows",
        train=laplace_mean,
        control=laplace_mean_half,
        score=released,
        worlds=replaced,
        epsilon=1.0 + 1e-8,
        trials=3000,
    ),
    Trainings(
        name="make_randomized_response_bool(0.75)",
        train=randomized_response,
        control=randomized_response_less,
        score=released,
        worlds=bit,
        epsilon=math.log(3.0),
        trials=4000,
    ),
]
