"""PyDP, Google's building blocks for Python: algorithms at their ε; neighbors differ in one row added or removed.

Its randomness comes from the system, so the seed of a trial decides nothing and a trial cannot be repeated.
"""

from __future__ import annotations

import numpy as np
from cases import Trainings
from pydp.algorithms import laplacian

import coalmine

EPSILON = 1.0
few = coalmine.neighbours(np.zeros(10), 1.0)
many = coalmine.neighbours(np.full(200, 1.0), 1000.0)


def released(number):
    return float(number)


def bounded_sum(dataset, seed, epsilon=EPSILON):
    algorithm = laplacian.BoundedSum(epsilon=epsilon, delta=0, lower_bound=0, upper_bound=1, dtype="float")
    return algorithm.quick_result(dataset.tolist())


def bounded_sum_twice(dataset, seed):
    return bounded_sum(dataset, seed, 2.0 * EPSILON)


def count(dataset, seed, epsilon=EPSILON):
    return laplacian.Count(epsilon=epsilon, dtype="float").quick_result(dataset.tolist())


def count_twice(dataset, seed):
    return count(dataset, seed, 2.0 * EPSILON)


def bounded_mean(dataset, seed, epsilon=EPSILON):
    algorithm = laplacian.BoundedMean(epsilon=epsilon, delta=0, lower_bound=0, upper_bound=1, dtype="float")
    return algorithm.quick_result(dataset.tolist())


def bounded_mean_eightfold(dataset, seed):
    return bounded_mean(dataset, seed, 8.0 * EPSILON)


def mean_without_bounds(dataset, seed, epsilon=EPSILON):
    try:
        return laplacian.BoundedMean(epsilon=epsilon, delta=0, dtype="float").quick_result(dataset.tolist())
    except RuntimeError:  # no bounds were found: what the library says then is released as well
        return -1.0


def mean_without_bounds_more(dataset, seed):
    return mean_without_bounds(dataset, seed, 20.0 * EPSILON)


CASES = [
    Trainings(
        name="BoundedSum(epsilon=1, bounds 0 and 1)",
        train=bounded_sum,
        control=bounded_sum_twice,
        score=released,
        worlds=few,
        epsilon=EPSILON,
    ),
    Trainings(name="Count(epsilon=1)", train=count, control=count_twice, score=released, worlds=few, epsilon=EPSILON),
    Trainings(
        name="BoundedMean(epsilon=1, bounds 0 and 1)",
        train=bounded_mean,
        control=bounded_mean_eightfold,
        score=released,
        worlds=few,
        epsilon=EPSILON,
    ),
    Trainings(
        name="BoundedMean(epsilon=1), bounds found by the library",
        train=mean_without_bounds,
        control=mean_without_bounds_more,
        score=released,
        worlds=many,
        epsilon=EPSILON,
    ),
]
