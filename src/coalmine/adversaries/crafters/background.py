"""What the other rows and the noise do to a step, and rows that are weighed against it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coalmine.training import in_parts, whole_lines


@dataclasses.dataclass(frozen=True, eq=False)
class Background:
    """What the other rows and the noise do to a step: Σ = noise·I + Σ_k variance_k·u_k u_kᵀ.

    ``directions`` are the leading u_k, orthonormal, ``[k, P]``; ``variances`` those of the other rows along them.
    """

    directions: NDArray[np.float64]
    variances: NDArray[np.float64]
    noise: float

    def whiten(self, gradients: Tensor) -> Tensor:
        """Σ⁻¹·g for each line of ``[S, P]``, in float64; no line depends on the others."""
        return in_parts(self._whiten, gradients)

    def strengths(self, gradients: Tensor) -> Tensor:
        """d² = gᵀ Σ⁻¹ g for each line, ``[S]``."""
        return in_parts(self._strengths, gradients)

    def _whiten(self, gradients: Tensor) -> Tensor:
        wide, parts = self._parts(gradients)
        directions = torch.as_tensor(self.directions, device=wide.device)
        if wide.device.type != "cpu":
            return (wide - parts @ directions) / self.noise
        along = [part @ directions for part in parts.unbind(0)]
        return (wide - torch.stack(along)) / self.noise if along else wide

    def _strengths(self, gradients: Tensor) -> Tensor:
        wide, parts = self._parts(gradients)
        shares = torch.as_tensor(self._shares, device=wide.device)
        return (whole_lines(wide * wide).sum(1) - whole_lines(parts * parts / shares).sum(1)) / self.noise

    @property
    def _shares(self) -> NDArray[np.float64]:
        """How much of a direction's part the other rows hide."""
        return self.variances / (self.variances + self.noise)

    def _parts(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The lines in float64, and what the other rows hide of each along each direction, ``[S, k]``."""
        wide = gradients.double()
        directions = torch.as_tensor(self.directions, device=wide.device)
        shares = torch.as_tensor(self._shares, device=wide.device)
        if wide.device.type != "cpu":
            return wide, (wide @ directions.T) * shares
        # On a CPU a product of a line's own, from memory that begins on a cache line: the same bits in every stack.
        lines = [directions @ line.clone() for line in wide.unbind(0)]
        return wide, (torch.stack(lines) if lines else wide.new_zeros((0, len(self.variances)))) * shares


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A row that the worlds may differ in, and its mean d² at shadow models."""

    x: NDArray[Any]
    y: int
    strength: float
    words: str
