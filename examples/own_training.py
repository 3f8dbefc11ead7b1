"""Audit a training of your own in a few lines. Run it with: python examples/own_training.py"""

import functools

import numpy as np

import coalmine


def train(dataset, seed, sigma=2.0):  # one step of DP-SGD on a linear loss: clip, add up, add noise
    return np.clip(dataset, -1.0, 1.0).sum() + sigma * np.random.default_rng(seed).normal()


def score(model):  # one number for what was released; a larger one speaks for world 1
    return model


worlds = coalmine.neighbours(np.zeros(20), 1.0)  # twenty rows, without and with the canary
claim = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1)
half_the_noise = functools.partial(train, sigma=1.0)  # the control, a broken twin: the same score must refute it

if __name__ == "__main__":
    result = coalmine.audit_function(train, score, worlds=worlds, claim_dpsgd=claim, control=half_the_noise, workers=2)
    print(f"{result.verdict}: the trials prove ε ≥ {result.strongest.bound.epsilon:.2f}")
