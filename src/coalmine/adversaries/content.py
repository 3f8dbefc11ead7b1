"""Data that is compared by its content, so that what costs time is found once for each data set."""

from __future__ import annotations

import hashlib

import numpy as np

from coalmine.training import Dataset


class Content:
    """A data set as a key: equal where rows and labels are equal.

    >>> Content(Dataset([[0.0, 1.0]], [0])) == Content(Dataset([[0.0, 1.0]], [0]))
    True
    """

    def __init__(self, data: Dataset) -> None:
        self.data = data
        digest = hashlib.blake2b(np.ascontiguousarray(data.x).tobytes())
        digest.update(data.y.tobytes())
        self._digest = (digest.digest(), data.x.shape)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)
