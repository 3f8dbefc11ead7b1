"""The clipped sum against Opacus 1.6 on the same batch and weights, σ = 0 (an independent implementation)."""

import warnings

import numpy as np
import pytest
import reference
import torch
from recorders import Everything
from torch import nn

from coalmine.training import BernauCnn, Dataset, Mlp, NasrCnn, Neighbours, TrainingConfig, train

pytest.importorskip("opacus", reason="needs the extra 'opacus'")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "network",
    [
        Mlp(20, hidden=(8, 6), classes=3),
        Mlp(784, hidden=(32,), classes=2),
        NasrCnn(classes=4),
        BernauCnn(input_shape=(1, 14, 14), classes=4),
    ],
    ids=["mlp", "reference job", "nasr-2021", "bernau-2021"],
)
@pytest.mark.parametrize("clip", [0.1, 3.0])
def test_equal_to_opacus_without_noise(network, clip):
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    rng = np.random.default_rng(2)
    rows = 12
    base = Dataset(
        rng.normal(size=(rows, *network.input_shape)).astype(np.float32), rng.integers(0, network.classes, size=rows)
    )
    seen = Everything()
    train(
        network, neighbours=Neighbours(base),
        config=TrainingConfig(steps=2, clip=clip, noise_multiplier=0, learning_rate=0.1, sampling="full"),
        fingerprint="opacus", trials=[0], worlds=[0], observer=seen,
    )  # fmt: skip
    for step in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wrapped = GradSampleModule(reference.load(network, seen.before[0][step], torch.float32))
            optimizer = DPOptimizer(
                torch.optim.SGD(wrapped.parameters(), lr=0.1), noise_multiplier=0.0, max_grad_norm=clip,
                expected_batch_size=rows,
            )  # fmt: skip
            loss = nn.functional.cross_entropy(wrapped(torch.from_numpy(base.x)), torch.from_numpy(base.y))
            loss.backward()
            optimizer.pre_step()
        theirs = torch.cat([p.grad.flatten() for p in wrapped.parameters()]).numpy()
        np.testing.assert_allclose(seen.gradients[0][step], theirs, rtol=0, atol=1e-5)
        assert np.abs(theirs).max() > 1e-3
