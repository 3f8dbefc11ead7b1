"""DP-SGD for a whole stack of models at once, on torch, NumPy and SciPy alone."""

from coalmine.training.architectures import BernauCnn, NasrCnn, Sequential
from coalmine.training.canary import (
    AdaptiveExample,
    AdaptiveGradient,
    Canary,
    ExampleCanary,
    GradientCanary,
    Neighbours,
    StackState,
)
from coalmine.training.config import Adam, GivenWeights, Glorot, Sgd, TrainingConfig
from coalmine.training.data import AlikeRows, Dataset, ZeroGradients
from coalmine.training.models import BlackBox, StackedModels
from coalmine.training.modules import FromModule
from coalmine.training.networks import Head, LogisticRegression, Mlp, Network, Vector, module, parameter_count
from coalmine.training.trainer import TrainingResult, alternating_worlds, choose_stack, device_named, train

__all__ = [
    "Adam",
    "AdaptiveExample",
    "AdaptiveGradient",
    "AlikeRows",
    "BernauCnn",
    "BlackBox",
    "Canary",
    "Dataset",
    "ExampleCanary",
    "FromModule",
    "GivenWeights",
    "Glorot",
    "GradientCanary",
    "Head",
    "LogisticRegression",
    "Mlp",
    "NasrCnn",
    "Neighbours",
    "Network",
    "Sequential",
    "Sgd",
    "StackState",
    "StackedModels",
    "TrainingConfig",
    "TrainingResult",
    "Vector",
    "ZeroGradients",
    "alternating_worlds",
    "choose_stack",
    "device_named",
    "module",
    "parameter_count",
    "train",
]
