"""What is done with the private gradient: post-processing, so it costs no privacy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from coalmine.training.config import Adam, Sgd, TrainingConfig


class Update:
    """Applies m ← m − η·step(g + ∇r(m)) to a stack of parameter vectors, in place."""

    def __init__(self, config: TrainingConfig, parameters: Tensor) -> None:
        self._config = config
        self._parameters = parameters
        self._time = 0
        self._total = torch.zeros_like(parameters) if config.regularizer else None
        optimizer = config.optimizer
        self._first: Tensor | None = None
        self._second: Tensor | None = None
        if isinstance(optimizer, Adam):
            self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        elif optimizer.momentum:
            self._first = torch.zeros_like(parameters)

    def __call__(self, gradient: Tensor) -> None:
        """One step along the private gradient, which is left as it is."""
        config, parameters = self._config, self._parameters
        self._time += 1
        total = gradient
        if self._total is not None:
            if callable(config.regularizer):
                total = torch.add(gradient, config.regularizer(parameters), out=self._total)
            else:
                total = torch.add(gradient, parameters, alpha=config.regularizer, out=self._total)
        optimizer, rate = config.optimizer, config.learning_rate
        if isinstance(optimizer, Sgd):
            if self._first is None:
                parameters.add_(total, alpha=-rate)
            else:
                parameters.add_(self._first.mul_(optimizer.momentum).add_(total), alpha=-rate)
            return
        assert self._first is not None
        assert self._second is not None
        self._first.mul_(optimizer.beta1).add_(total, alpha=1.0 - optimizer.beta1)
        self._second.mul_(optimizer.beta2).addcmul_(total, total, value=1.0 - optimizer.beta2)
        size = rate / (1.0 - optimizer.beta1**self._time)
        spread = math.sqrt(1.0 - optimizer.beta2**self._time)
        denominator = self._second.sqrt().div_(spread).add_(optimizer.epsilon)
        parameters.addcdiv_(self._first, denominator, value=-size)
