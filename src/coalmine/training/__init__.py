"""DP-SGD for a whole stack of models at once, on torch, NumPy and SciPy alone. What is listed here is public."""

from coalmine.training.backends import hardware, precision
from coalmine.training.canary import (
    AdaptiveExample,
    AdaptiveGradient,
    Canary,
    ChosenExample,
    ExampleCanary,
    GradientCanary,
    GradientRows,
    Neighbours,
    StackState,
)
from coalmine.training.clipping import clip_divisors
from coalmine.training.config import Adam, GivenWeights, Glorot, Sgd, TrainingConfig
from coalmine.training.convolution import Conv2d, GroupNorm, Pad2d, Pool2d
from coalmine.training.data import AlikeRows, Dataset, ZeroGradients
from coalmine.training.gaussian_steps import GaussianSteps, log_mixture, log_ratio
from coalmine.training.identity import class_identity, network_identity
from coalmine.training.layers import Activation, Embedding, Flatten, Linear, MeanPositions
from coalmine.training.modules import FromModule, Functional
from coalmine.training.networks import (
    AnnamalaiCnn,
    BernauCnn,
    LogisticRegression,
    Mlp,
    NasrCnn,
    Network,
    Sequential,
    Vector,
    glorot,
    module,
    parameter_count,
    takes_tokens,
)
from coalmine.training.pair import check_pair
from coalmine.training.products import dots, in_parts, line_norms, parts_of_one_size, whole_lines
from coalmine.training.services import PartSums, RowGradients, accuracy, clipped_sums, losses
from coalmine.training.stack import as_scores
from coalmine.training.starts import load_weights, pretrained
from coalmine.training.trainer import (
    TrainingResult,
    alone,
    at_once,
    check_fit,
    device_named,
    one_thread,
    stack_for,
    train,
)

__all__ = [
    "Activation",
    "Adam",
    "AdaptiveExample",
    "AdaptiveGradient",
    "AlikeRows",
    "AnnamalaiCnn",
    "BernauCnn",
    "Canary",
    "ChosenExample",
    "Conv2d",
    "Dataset",
    "Embedding",
    "ExampleCanary",
    "Flatten",
    "FromModule",
    "Functional",
    "GaussianSteps",
    "GivenWeights",
    "Glorot",
    "GradientCanary",
    "GradientRows",
    "GroupNorm",
    "Linear",
    "LogisticRegression",
    "MeanPositions",
    "Mlp",
    "NasrCnn",
    "Neighbours",
    "Network",
    "Pad2d",
    "PartSums",
    "Pool2d",
    "RowGradients",
    "Sequential",
    "Sgd",
    "StackState",
    "TrainingConfig",
    "TrainingResult",
    "Vector",
    "ZeroGradients",
    "accuracy",
    "alone",
    "as_scores",
    "at_once",
    "check_fit",
    "check_pair",
    "class_identity",
    "clip_divisors",
    "clipped_sums",
    "device_named",
    "dots",
    "glorot",
    "hardware",
    "in_parts",
    "line_norms",
    "load_weights",
    "log_mixture",
    "log_ratio",
    "losses",
    "module",
    "network_identity",
    "one_thread",
    "parameter_count",
    "parts_of_one_size",
    "precision",
    "pretrained",
    "stack_for",
    "takes_tokens",
    "train",
    "whole_lines",
]
