"""Audit a training with Opacus: with the noise that was accounted for, and with half of it.

    python examples/opacus_training.py

or, from the command line, with the claim as (sampling rate, noise multiplier, steps):

    cd examples
    coalmine audit --train opacus_training:train --score opacus_training:score --claim-dpsgd 0.5,1.0,4 --trials 400 \
        --control-train opacus_training:train_with_half_the_noise
    coalmine audit --train opacus_training:train_with_half_the_noise --score opacus_training:score \
        --claim-dpsgd 0.5,1.0,4 --trials 400
"""

import functools
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import coalmine
from coalmine.integrations import opacus as helper

NOISE_MULTIPLIER = 1.0
EPOCHS = 2
ROWS, FEATURES = 20, 8


def network():
    """The network with its public starting point: the same in every trial, because it does not depend on the data."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        model[0].weight[:, -1] = 0.0
    return model


def worlds():
    """Twenty rows that never use the last feature, without and with one row that uses it alone.

    Opacus takes its sampling rate and its divisor from the number of rows. With 20 or 21 rows and a batch size of 11
    both are the same in the two worlds (1/2 and 10); otherwise they would tell the worlds apart by themselves.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)) * (np.arange(FEATURES) < FEATURES - 1)
    dataset = TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(rng.integers(0, 2, ROWS)))
    canary = (100.0 * (torch.arange(FEATURES) == FEATURES - 1), 1)
    return coalmine.neighbours(dataset, canary)


def train(dataset, seed, noise_multiplier=NOISE_MULTIPLIER):
    """An ordinary Opacus training loop; what is released are the parameters."""
    model, _ = fit(dataset, seed, noise_multiplier)
    return helper.parameters(model)


def fit(dataset, seed, noise_multiplier):
    """Train, and say which DP-SGD it was."""
    torch.manual_seed(seed)
    model = network()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus warns that its noise is not cryptographic, torch about hooks
        model, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
            data_loader=DataLoader(dataset, batch_size=11),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
        )
        steps = 0
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                steps += 1
    return model, helper.mechanism(optimizer, loader, steps=steps)


train_with_half_the_noise = functools.partial(train, noise_multiplier=NOISE_MULTIPLIER / 2)


def score(parameters, canary):
    """How far training went along the canary's own gradient at the starting point."""
    start = network()
    x, y = canary
    nn.functional.cross_entropy(start(x[None]), torch.tensor([y])).backward()
    direction = np.concatenate([p.grad.numpy().ravel() for p in start.parameters()])
    return -float((parameters - helper.parameters(start)) @ direction / np.linalg.norm(direction))


if __name__ == "__main__":
    _, claim = fit(worlds().world0, seed=0, noise_multiplier=NOISE_MULTIPLIER)
    for name, function in (("right noise", train), ("half the noise", train_with_half_the_noise)):
        result = coalmine.audit_function(
            function, score, worlds=worlds, claim_dpsgd=claim, control=train_with_half_the_noise, trials=400, workers=2
        )
        proved = result.strongest.bound.epsilon
        print(f"{name}: {result.verdict}; claimed ε = {result.claim_epsilon:.2f}, proved ε ≥ {proved:.2f}")
