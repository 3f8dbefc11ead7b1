"""What the gallery audits and probes: one right training, and wrong ones."""

import numpy as np
import torch

import coalmine

worlds = coalmine.neighbours(np.zeros(20), 1.0)  # twenty rows, without and with the canary


def right(dataset, seed):
    """One step of DP-SGD on a linear loss, σ = 2: clip, add up, add noise."""
    return np.clip(dataset, -1.0, 1.0).sum() + 2.0 * np.random.default_rng(seed).normal()


def wrong(dataset, seed):
    """The same with half of the noise."""
    return np.clip(dataset, -1.0, 1.0).sum() + 1.0 * np.random.default_rng(seed).normal()


def score(model):
    """What was released; larger with the canary."""
    return model


def wrong_step():
    """A step that clips the mean of the batch instead of each row."""
    weight = torch.zeros(3)

    def step(rows):
        mean = rows.mean(dim=0) if len(rows) else torch.zeros(3)
        clipped = mean / mean.norm().clamp(min=1.0)
        weight.sub_(clipped + 2.0 * torch.randn(3) / 8)

    return coalmine.PrivateStep(
        step=step,
        state={"weight": weight},
        batch=torch.eye(3),
        clip_norm=1.0,
        noise_multiplier=2.0,
        divisor=8,
        learning_rate=1.0,
    )
