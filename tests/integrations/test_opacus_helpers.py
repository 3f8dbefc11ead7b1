"""Which DP-SGD an Opacus training was: read from the loader and the optimiser, and refused where it is another."""

import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.integrations import opacus as helper

opacus = pytest.importorskip("opacus")


def private(*, poisson):
    model = torch.nn.Linear(2, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.zeros(40, 2)), batch_size=10),
            noise_multiplier=1.5,
            max_grad_norm=1.0,
            poisson_sampling=poisson,
        )


def test_the_mechanism_is_read_from_what_runs():
    _, optimizer, loader = private(poisson=True)
    found = helper.mechanism(optimizer, loader, steps=8)
    assert (found.sample_rate, found.noise_multiplier, found.steps) == (0.25, 1.5, 8)


def test_shuffled_batches_are_not_accounted_as_poisson():
    _, optimizer, loader = private(poisson=False)
    with pytest.raises(UnsupportedError, match="does not sample by Poisson"):
        helper.mechanism(optimizer, loader, steps=8)


def test_an_optimiser_without_privacy_is_refused():
    model, _, loader = private(poisson=True)
    with pytest.raises(InvalidInputError, match="optimizer is of type SGD: expected the DPOptimizer"):
        helper.mechanism(torch.optim.SGD(model.parameters(), lr=0.1), loader, steps=8)


def test_parameters_are_one_vector():
    model = torch.nn.Linear(2, 1)
    assert np.allclose(helper.parameters(model), [*model.weight.tolist()[0], *model.bias.tolist()])
