"""What computes outputs and clipped sums of a stack of models, by what the network is and where the models are."""

from __future__ import annotations

import torch
from torch import Tensor

from coalmine.training import stages
from coalmine.training.clipping import ClosedForm
from coalmine.training.modules import Opaque, PerExample
from coalmine.training.networks import Network


class StageForm(ClosedForm):
    """Closed forms, and on a GPU the kernels of the stages for those who ask all models the same."""

    def __init__(self, network: Network, *, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(network, device=device, dtype=dtype)
        self._stages = stages.StageAnswers(network, device)

    def answers(self, parameters: Tensor, inputs: Tensor) -> Tensor:
        """Outputs of every model at the same inputs: ``[S, W, classes]``."""
        return self._stages(parameters, inputs)


def make_engine(network: Network, *, device: torch.device, dtype: torch.dtype) -> ClosedForm | PerExample:
    """What computes clipped sums for this network: closed forms where every layer has one."""
    first = network.layers()[0]
    if isinstance(first, Opaque):
        return PerExample(first, device=device, dtype=dtype)
    form = StageForm if stages.there(network, device=device, dtype=dtype) else ClosedForm
    return form(network, device=device, dtype=dtype)
