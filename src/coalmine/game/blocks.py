"""Which trials make up a block, and which world each trial plays in.

Trial t plays in world t mod 2, and block b holds trials b·SIZE to (b+1)·SIZE − 1: both follow from the index alone, so
asking for more trials later only adds blocks.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate, seeds

ACCURACY = "accuracy"
"""The column in which each trial keeps its model's share of right answers on test rows."""
WITH_CANARIES = "accuracy_with_canaries"
"""The column with the accuracy of a model that was trained with many canaries; without them it is in ``ACCURACY``."""
BLOCK_SIZE = 16
"""Trials a block: small enough that a crash loses seconds, large enough that storing costs nothing."""


def trials_of(block: int) -> NDArray[np.int64]:
    """The trial indices of a block.

    >>> trials_of(1)[:3].tolist()
    [16, 17, 18]
    """
    first = _validate.integer("block", block, at_least=0) * BLOCK_SIZE
    return np.arange(first, first + BLOCK_SIZE, dtype=np.int64)


def worlds_of(trials: NDArray[np.int64]) -> NDArray[np.int8]:
    """The world of each trial: the worlds alternate, so every even number of trials is balanced."""
    return np.asarray(trials % 2, dtype=np.int8)


def coins_of(fingerprint: str, *, training: int, canaries: int) -> NDArray[np.bool_]:
    """Where trials are canaries of one training: which of them are in. A stream that nothing else draws from.

    >>> coins_of("a run", training=0, canaries=4).tolist()
    [False, True, True, False]
    """
    stream = seeds.generator(fingerprint, purpose="coins", trial=training)
    return np.asarray(stream.random(canaries) < 0.5)


def blocks_for(trials: int, *, done: Collection[int] = ()) -> tuple[int, ...]:
    """The blocks that are still missing for this many trials, in order.

    >>> blocks_for(40, done=[1])
    (0, 2)
    """
    count = -(-_validate.integer("trials", trials, at_least=2) // BLOCK_SIZE)
    finished = set(done)
    return tuple(block for block in range(count) if block not in finished)
