"""Small helpers for trainings with Opacus: which DP-SGD it was, and the released parameters as one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, Sampling


def mechanism(optimizer: Any, loader: Any, *, steps: int) -> DpSgd:
    """The DP-SGD that Opacus's optimiser and loader make up together after ``steps`` steps, for an exact accounting.

    The sampling rate is read from the loader itself, not from the accountant, and only Poisson sampling is taken: a
    loader that shuffles has another, larger privacy loss. The noise multiplier is that of the optimiser.
    """
    noise = getattr(optimizer, "noise_multiplier", None)
    if noise is None or getattr(optimizer, "max_grad_norm", None) is None:
        raise InvalidInputError(
            f"optimizer is of type {type(optimizer).__name__}: expected the DPOptimizer that make_private returned"
        )
    rate = getattr(getattr(loader, "batch_sampler", None), "sample_rate", None)
    if rate is None:
        raise UnsupportedError(
            f"loader is of type {type(loader).__name__} and does not sample by Poisson: its batches have another "
            "privacy loss than the one that is accounted for; use make_private(..., poisson_sampling=True)"
        )
    return DpSgd(
        sample_rate=float(rate),
        noise_multiplier=float(noise),
        steps=_validate.integer("steps", steps, at_least=1),
        sampling=Sampling.POISSON,
    )


def parameters(model: Any) -> NDArray[np.float64]:
    """All parameters of a torch module as one vector, in its own order."""
    return np.concatenate([one.detach().cpu().numpy().astype(np.float64).ravel() for one in model.parameters()])
