"""DP-SGD as it is written down: one model, one row at a time, autograd, float64. What every engine is held to."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from coalmine.training import ExampleCanary, GradientCanary, GradientRows, module


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


def clipped_sum(network, vector, neighbours, rows, clip, *, chosen=None) -> torch.Tensor:
    """Σ clip_C over rows; rows from n on are the canary's: its own, or what an adaptive one has ``chosen``.

    ``chosen`` has an example (x, y) or a gradient for each of the canary's rows.
    """
    built = load(network, vector)
    base, size = neighbours.base, len(torch.as_tensor(vector))
    chosen = canary_rows(neighbours.canary, size) if chosen is None else chosen
    total = torch.zeros(size, dtype=torch.float64)
    for row in rows:
        one = (base.x[row], base.y[row]) if row < base.rows else chosen[row - base.rows]
        g = example_gradient(built, *one) if isinstance(one, tuple) else torch.as_tensor(one, dtype=torch.float64)
        total += clip_to(g, clip)
    return total


def canary_rows(canary, size) -> list:
    """The rows of a canary that does not change: examples, or gradients."""
    if isinstance(canary, ExampleCanary):
        return list(zip(canary.x, canary.y, strict=True))
    if isinstance(canary, GradientCanary):
        return [canary.gradient] * canary.copies
    if isinstance(canary, GradientRows):
        dense = np.zeros((canary.copies, size))
        np.add.at(dense, (np.arange(canary.copies)[:, None], canary.indices), canary.values)
        return list(dense)
    return []


def private_gradient(network, vector, neighbours, rows, config, *, chosen=None) -> np.ndarray:
    """The clipped sum over the expected batch size: a step's private gradient where there is no noise."""
    total = clipped_sum(network, vector, neighbours, rows, config.clip, chosen=chosen)
    return total.numpy() / config.expected_batch(neighbours.base.rows)
