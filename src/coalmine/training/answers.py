"""Outputs of a stack of models that are all asked at the same inputs."""

from __future__ import annotations

import abc
import functools

import torch
from torch import Tensor

from coalmine.training.products import Counts, in_parts, padded

_AT_ONCE = 512


class Answers(abc.ABC):
    """Whoever computes outputs of models can be asked for those at the same inputs."""

    @abc.abstractmethod
    def logits(self, parameters: Tensor, x: Tensor, counts: Counts) -> Tensor:
        """Outputs of every model ``[S, P]`` at its inputs ``[S, W, ...]``: ``[S, W, classes]``."""

    def answers(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every model ``[S, P]`` at inputs ``[W, ...]``: ``[S, W, classes]``, the same bits in any stack."""
        parts = []
        for chunk in torch.split(inputs, _AT_ONCE):
            rows = chunk.shape[0]
            filled = torch.zeros((padded(rows), *chunk.shape[1:]), dtype=chunk.dtype, device=chunk.device)
            filled[:rows] = chunk
            counts = [rows] * parameters.shape[0] if parameters.device.type == "cpu" else None
            parts.append(in_parts(functools.partial(self._ask, filled, counts), parameters)[:, :rows])
        return torch.cat(parts, dim=1)

    def _ask(self, inputs: Tensor, counts: list[int] | None, parameters: Tensor) -> Tensor:
        # A copy: the next call writes into the same room.
        return self.logits(parameters, inputs.expand(parameters.shape[0], *inputs.shape), counts).clone()
