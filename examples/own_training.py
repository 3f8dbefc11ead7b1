"""Audit a training of your own: ten lines. Run it with: python examples/own_training.py"""

import numpy as np

import coalmine


def train(dataset, seed):
    """DP gradient descent on the mean of rows in [-1, 1]: clipped by design, noise multiplier 2 in each of 4 steps."""
    rng, weight = np.random.default_rng(seed), 0.0
    for _ in range(4):
        gradients = np.clip(weight - dataset, -1.0, 1.0)
        weight -= 0.01 * (gradients.sum() + 2.0 * rng.normal())
    return weight


def score(model):
    return model  # the canary pulls the weight up, so a larger weight speaks for world 1


def worlds():
    return coalmine.neighbours(np.zeros(20), 1.0)  # without, and with one more row: the canary


if __name__ == "__main__":
    result = coalmine.audit_function(train, score, worlds=worlds, claim_epsilon=4.5, trials=1000, workers=2)
    print(f"{result.verdict}: the trials prove ε ≥ {result.strongest.bound.epsilon:.2f}")
