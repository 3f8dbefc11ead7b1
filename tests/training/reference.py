"""A slow, plain DP-SGD in float64: one model, one example at a time, by autograd."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from coalmine.training import module
from coalmine.training.canary import ExampleCanary, GradientCanary


def load(network, vector, dtype=torch.float64) -> nn.Module:
    """The torch module with these parameters."""
    built = module(network).to(dtype)
    nn.utils.vector_to_parameters(torch.as_tensor(vector, dtype=dtype), built.parameters())
    return built


def example_gradient(built: nn.Module, x, y) -> torch.Tensor:
    """∇ℓ of one example, flat."""
    x = torch.as_tensor(np.asarray(x))
    x = x.to(next(built.parameters()).dtype) if x.is_floating_point() else x
    loss = nn.functional.cross_entropy(built(x[None]), torch.tensor([int(y)]))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(built.parameters()))])


def clip_to(g: torch.Tensor, clip: float) -> torch.Tensor:
    """clip_C(g)."""
    return g / max(1.0, float(g.norm()) / clip)


def clipped_sum(network, vector, neighbours, rows, clip) -> torch.Tensor:
    """Σ clip_C over rows; rows from n on are the canary's."""
    built = load(network, vector)
    base, canary = neighbours.base, neighbours.canary
    total = torch.zeros(len(torch.as_tensor(vector)), dtype=torch.float64)
    for row in rows:
        if row < base.rows:
            g = example_gradient(built, base.x[row], base.y[row])
        elif isinstance(canary, ExampleCanary):
            g = example_gradient(built, canary.x[row - base.rows], canary.y[row - base.rows])
        else:
            assert isinstance(canary, GradientCanary)
            g = torch.as_tensor(canary.gradient)
        total += clip_to(g, clip)
    return total
