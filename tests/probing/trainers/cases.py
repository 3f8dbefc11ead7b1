"""Every bug that a step on one CPU can have, each with its right twin and the name it must be found by.

The number is the row of the list of public bugs that the trainers stand for. What belongs to samplers, accountants and
several processes is tested with their own meters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from trainers import by_hand, with_opacus

from coalmine.probing.faults import (
    CARRIED_OVER,
    DIVISOR,
    EMPTY_BATCH,
    INTERACT,
    LEFT_OUT,
    MICROBATCH,
    NO_CLIPPING,
    NO_NOISE,
    NOISE_BEFORE_CLIPPING,
    NOISE_DEPENDS,
    NOISE_TOO_SMALL,
    NOT_FINITE,
    NOT_NORMAL,
    PARTLY_NOISED,
    PER_LAYER,
    REPLACED,
    RETURNED,
    SAME_NOISE,
    SETUP,
    SHARED_NOISE,
    TOO_SENSITIVE,
    UNNOISED,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A broken trainer, its right twin, and the faults that must be among those found."""

    row: int
    broken: Callable[[int], Any]
    right: Callable[[int], Any]
    faults: tuple[Any, ...]

    @property
    def name(self) -> str:
        return f"{self.row}-{self.broken.__name__}"


CASES = [
    Case(1, by_hand.ClipsTheMean, by_hand.Trainer, (MICROBATCH,)),
    Case(2, with_opacus.from_data_set, with_opacus.fixed_divisor, (DIVISOR,)),
    Case(5, with_opacus.ghost_with_another_clip_norm, with_opacus.small_clip_ghost, (TOO_SENSITIVE,)),
    Case(6, with_opacus.ghost_with_wrong_bias_norm, with_opacus.ghost, (TOO_SENSITIVE,)),
    Case(6, by_hand.ForgetsTheBias, by_hand.Trainer, (TOO_SENSITIVE,)),
    Case(7, with_opacus.steps_the_other_optimizer, with_opacus.hooks, (NO_NOISE, NO_CLIPPING)),
    Case(9, by_hand.TwoBatchesOneNoise, by_hand.Trainer, (CARRIED_OVER,)),
    Case(9, by_hand.NeverZeroed, by_hand.Trainer, (CARRIED_OVER,)),
    Case(9, by_hand.RawGradientsMixedIn, by_hand.Trainer, (NO_CLIPPING,)),
    Case(10, by_hand.OneKeyForTwoTensors, by_hand.AKeyForEachTensor, (SHARED_NOISE,)),
    Case(11, by_hand.ClipsPairs, by_hand.Trainer, (MICROBATCH,)),
    Case(12, with_opacus.noise_forgotten, with_opacus.hooks, (NO_NOISE,)),
    Case(13, by_hand.FailsOnEmptyBatch, by_hand.Trainer, (EMPTY_BATCH,)),
    Case(13, by_hand.SkipsEmptyBatch, by_hand.Trainer, (EMPTY_BATCH,)),
    Case(13, by_hand.NaNSpreads, by_hand.SetsBrokenRowsToZero, (NOT_FINITE,)),
    Case(14, by_hand.ReplacedRows, by_hand.ReplacedRowsCountedTwice, (REPLACED,)),
    Case(15, by_hand.SharedPositions, by_hand.OwnPositions, (INTERACT,)),
    Case(16, by_hand.BatchNorm, by_hand.GroupNorm, (INTERACT,)),
    Case(18, with_opacus.standardized_from_data_set, with_opacus.standardized_with_constants, (SETUP,)),
    Case(20, by_hand.NoNoise, by_hand.Trainer, (NO_NOISE,)),
    Case(20, by_hand.HalfTheNoise, by_hand.Trainer, (NOISE_TOO_SMALL,)),
    Case(20, by_hand.NoiseInsideTheClipping, by_hand.Trainer, (NOISE_BEFORE_CLIPPING,)),
    Case(20, by_hand.NoiseOnTheLastLayerOnly, by_hand.Trainer, (UNNOISED,)),
    Case(20, by_hand.NoClipping, by_hand.Trainer, (NO_CLIPPING,)),
    Case(20, with_opacus.seeded_generator, with_opacus.hooks, (SAME_NOISE,)),
    Case(21, by_hand.EightTenthsOfTheNoise, by_hand.Trainer, (NOISE_TOO_SMALL,)),
    Case(21, by_hand.NoiseDividedTwice, by_hand.Trainer, (NOISE_TOO_SMALL,)),
    Case(22, by_hand.ClipsEachLayer, by_hand.ClipsEachLayerToItsShare, (PER_LAYER,)),
    Case(23, by_hand.NoisedSumClipped, by_hand.NoisedSumClippedAgain, (NOISE_BEFORE_CLIPPING,)),
    Case(24, by_hand.BatchNorm, by_hand.GroupNorm, (INTERACT, UNNOISED)),
    Case(25, by_hand.Standardizes, by_hand.StandardizesWithConstants, (INTERACT,)),
    Case(25, by_hand.WeighsClasses, by_hand.Trainer, (INTERACT,)),
    Case(26, by_hand.GradScalerSkips, by_hand.ScaledLoss, (LEFT_OUT,)),
    Case(27, by_hand.BaseNotFrozen, by_hand.AdapterTrainer, (UNNOISED,)),
    Case(27, by_hand.BaseTrainedAfterwards, by_hand.AdapterTrainer, (PARTLY_NOISED,)),
    Case(27, by_hand.EmbeddingOutside, by_hand.TokenTrainer, (UNNOISED,)),
    Case(27, by_hand.NoiseOnSeenTokensOnly, by_hand.TokenTrainer, (NOISE_DEPENDS,)),
    Case(28, by_hand.MomentumBeforeNoise, by_hand.Momentum, (UNNOISED,)),
    Case(28, by_hand.HiddenMomentumBeforeNoise, by_hand.Momentum, (CARRIED_OVER,)),
    Case(28, by_hand.AdamStateBeforeNoise, by_hand.AdamByHand, (UNNOISED,)),
    Case(29, by_hand.NoiseSeededInTheStep, by_hand.NoiseSeededAnew, (SAME_NOISE,)),
    Case(29, by_hand.NoiseBroadcast, by_hand.Trainer, (SHARED_NOISE,)),
    Case(29, by_hand.LaplaceNoise, by_hand.Trainer, (NOT_NORMAL,)),
    Case(30, by_hand.ReturnsTheLoss, by_hand.ReturnsNoNumberOfTheRows, (RETURNED,)),
    Case(30, by_hand.PlateauSchedule, by_hand.StepSchedule, (PARTLY_NOISED,)),
    Case(31, by_hand.RealizedBatchSize, by_hand.Trainer, (DIVISOR,)),
    Case(31, by_hand.RealizedBatchSizeForTheSum, by_hand.Trainer, (DIVISOR,)),
]

RIGHT = list(
    dict.fromkeys(
        [
            *(case.right for case in CASES),
            by_hand.Dropout,
            by_hand.LoopsOverRows,
            by_hand.Momentum,
            by_hand.NumpyLoop,
            with_opacus.functorch,
            with_opacus.per_layer,
            with_opacus.split_batches,
            with_opacus.adam,
            with_opacus.momentum,
            with_opacus.secure,
        ]
    )
)
"""Every right twin, and right trainings of other kinds."""


def made(maker, seed):
    """The private step of a trainer's class, or of a function."""
    found = maker(seed)
    return found.private_step() if hasattr(found, "private_step") else found
