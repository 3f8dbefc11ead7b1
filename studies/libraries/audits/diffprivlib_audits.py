"""diffprivlib: with bounds or norm given, and with those taken from the data, of which the library itself warns.

Its sensitivities, (upper − lower)/n and Chaudhuri's for regression, are for one row replaced: so are the worlds here.
"""

from __future__ import annotations

import numpy as np
from cases import Trainings
from diffprivlib import tools
from diffprivlib.models import GaussianNB, LogisticRegression

import coalmine

EPSILON = 1.0
ROWS = 10


def released(number):
    return float(number)


# The mean of numbers in [0, 1]: ten zeros, or nine and a one.
numbers = coalmine.neighbours(np.zeros(ROWS), 1.0, relation="replace")


def mean_given(dataset, seed):
    return tools.mean(dataset, epsilon=EPSILON, bounds=(0.0, 1.0), random_state=seed)


def mean_half(dataset, seed):
    return tools.mean(dataset, epsilon=2.0 * EPSILON, bounds=(0.0, 1.0), random_state=seed)


def mean_own(dataset, seed):
    return tools.mean(dataset, epsilon=EPSILON, random_state=seed)


# The number of ones in a histogram: one row less or more is what its sensitivity of 1 is for.
counted = coalmine.neighbours(np.full(ROWS, 0.25), 0.75)


def histogram(dataset, seed):
    return tools.histogram(dataset, epsilon=EPSILON, bins=2, range=(0.0, 1.0), random_state=seed)[0][1]


def histogram_half(dataset, seed):
    return tools.histogram(dataset, epsilon=2.0 * EPSILON, bins=2, range=(0.0, 1.0), random_state=seed)[0][1]


# Two classes on one feature; the last row is small in world 0 and has norm 1 in world 1, or has the other label.
x = np.where(np.arange(ROWS) % 2, 0.01, -0.01)[:, None]
y = np.arange(ROWS) % 2
norms = coalmine.neighbours((x, y), (np.array([1.0]), 1), relation="replace")
labels = coalmine.neighbours((np.sign(x), y), (np.array([-1.0]), 1), relation="replace", row=0)


def regression(dataset, seed, **options):
    rows, classes = dataset
    model = LogisticRegression(
        random_state=seed, fit_intercept=False, max_iter=20, tol=1e-3, **{"epsilon": EPSILON, **options}
    )
    return float(model.fit(rows, classes).coef_[0, 0])


def regression_given(dataset, seed):
    return regression(dataset, seed, data_norm=1.0)


def regression_fourfold(
    dataset, seed
):  # twice is not enough: its noise is for a gradient change of 2, and 1 is possible
    return regression(dataset, seed, data_norm=1.0, epsilon=4.0 * EPSILON)


def regression_own(dataset, seed):
    return regression(dataset, seed)


def size(coefficient):
    return abs(coefficient)


def opposite(coefficient):
    return -coefficient


def bayes(dataset, seed, **options):
    rows, classes = dataset
    model = GaussianNB(random_state=seed, **{"epsilon": EPSILON, **options}).fit(rows, classes)
    return float(model.theta_[1, 0])


def bayes_given(dataset, seed):
    return bayes(dataset, seed, bounds=(-1.0, 1.0))


def bayes_tenfold(dataset, seed):
    """Its ε is shared among counts, means and variances, and this attack sees the means alone."""
    return bayes(dataset, seed, bounds=(-1.0, 1.0), epsilon=10.0 * EPSILON)


def bayes_own(dataset, seed):
    return bayes(dataset, seed)


CASES = [
    Trainings(
        name="tools.mean(epsilon=1, bounds=(0, 1))",
        train=mean_given,
        control=mean_half,
        score=released,
        worlds=numbers,
        epsilon=EPSILON,
    ),
    Trainings(
        name="tools.mean(epsilon=1)", train=mean_own, score=released, worlds=numbers, epsilon=EPSILON, trials=1000
    ),
    Trainings(
        name="tools.histogram(epsilon=1, range=(0, 1))",
        train=histogram,
        control=histogram_half,
        score=released,
        worlds=counted,
        epsilon=EPSILON,
    ),
    Trainings(
        name="LogisticRegression(epsilon=1, data_norm=1)",
        train=regression_given,
        control=regression_fourfold,
        score=opposite,
        worlds=labels,
        epsilon=EPSILON,
        trials=3000,
    ),
    Trainings(
        name="LogisticRegression(epsilon=1)",
        train=regression_own,
        score=size,
        worlds=norms,
        epsilon=EPSILON,
        trials=1000,
    ),
    Trainings(
        name="GaussianNB(epsilon=1, bounds=(-1, 1))",
        train=bayes_given,
        control=bayes_tenfold,
        score=released,
        worlds=norms,
        epsilon=EPSILON,
        trials=2000,
    ),
    Trainings(
        name="GaussianNB(epsilon=1)", train=bayes_own, score=released, worlds=norms, epsilon=EPSILON, trials=1000
    ),
]
