"""Trained models that can be asked: outputs and losses of a whole stack at chosen inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from coalmine.errors import InvalidInputError
from coalmine.training.data import inputs_array, labels_array
from coalmine.training.networks import Network


class Engine(Protocol):
    """What computes the outputs of a stack of models."""

    @property
    def takes_tokens(self) -> bool:
        """Whether inputs are token numbers and not features."""

    def answers(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every model ``[S, P]`` at the same inputs ``[W, ...]``: ``[S, W, classes]``."""


class BlackBox:
    """S trained models, shown through their outputs alone."""

    def __init__(
        self,
        engine: Engine,
        parameters: Tensor,
        trials: NDArray[np.int64],
        network: Network,
        initial: Callable[[], Tensor] | None = None,
    ) -> None:
        """``initial`` gives the parameters that the trainings started from."""
        self._engine, self._parameters, self._initial = engine, parameters, initial
        self.trials = trials
        """The trial number of each model, ``[S]``."""
        self._shape, self._classes = network.input_shape, network.classes

    def logits(self, x: ArrayLike) -> NDArray[np.float64]:
        """Outputs of every model at B inputs (before the softmax): ``[S, B, classes]``."""
        return self._logits(x).double().cpu().numpy()

    def losses(self, x: ArrayLike, y: ArrayLike) -> NDArray[np.float64]:
        """Cross-entropy loss of every model at B labelled inputs: ``[S, B]``, computed in float64 from the logits."""
        labels = labels_array("y", y)
        bad = np.flatnonzero(labels >= self._classes)
        if bad.size:
            raise InvalidInputError(
                f"y[{bad[0]}] = {labels[bad[0]]} is not allowed: the network has {self._classes} "
                f"classes, 0 to {self._classes - 1}"
            )
        logits = self.logits(x)
        if labels.size != logits.shape[1]:
            raise InvalidInputError(f"y has {labels.size} labels: expected {logits.shape[1]}, one for each row of x")
        top = logits.max(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore", over="ignore"):
            total = np.log(np.exp(logits - top).sum(axis=-1)) + top[..., 0]
        chosen = np.take_along_axis(logits, np.broadcast_to(labels[None, :, None], (*logits.shape[:2], 1)), axis=-1)
        return np.asarray(total - chosen[..., 0])

    def _logits(self, x: ArrayLike) -> Tensor:
        array = inputs_array("x", x)
        if array.shape[1:] != self._shape or not array.size:
            raise InvalidInputError(
                f"x has shape {array.shape}: expected (queries, {', '.join(map(str, self._shape))})"
            )
        parameters = self._parameters
        queries = torch.from_numpy(np.array(array, order="C")).to(parameters.device)  # a copy: rows may be read-only
        queries = queries.to(torch.int64 if self._engine.takes_tokens else parameters.dtype)
        return self._engine.answers(parameters, queries)


class StackedModels(BlackBox):
    """S trained models with their parameters."""

    @property
    def parameters(self) -> Tensor:
        """Parameters of every model, ``[S, P]``."""
        return self._parameters

    @functools.cached_property
    def initial_parameters(self) -> Tensor:
        """Parameters each training started from, ``[S, P]``, drawn again from their streams when first asked for."""
        assert self._initial is not None
        return self._initial()
