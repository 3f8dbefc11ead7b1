"""What every test of a sampler looks at, and what it gives."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.probing.batches import Draws, Epoch, Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One exact test: ``number`` was seen, ``expected`` is usual under the promise, ``p`` the chance of such a number.

    ``certain`` means that the promise rules the fault out: then ``p`` is 0 or 1.
    """

    name: str
    sentence: str
    p: float
    number: float
    expected: float
    witness: str = ""
    certain: bool = False
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False)
class Counted:
    """What all tests look at: batches without repeated rows, their sizes, and how often each row was drawn."""

    rows: int
    epochs: tuple[Epoch, ...]
    steps: tuple[Rows, ...]
    sizes: NDArray[np.int64]
    draws: int
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, draws: Draws) -> Counted:
        """Count once, for all tests."""
        epochs = draws.epochs
        raw = [batch for epoch in epochs for batch in epoch]
        distinct = tuple(tuple(np.unique(batch) for batch in epoch) for epoch in epochs)
        steps = tuple(batch for epoch in distinct for batch in epoch)
        together = np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)
        return cls(
            rows=draws.rows,
            epochs=distinct,
            steps=steps,
            sizes=np.array([batch.size for batch in raw], dtype=np.int64),
            draws=sum(batch.size for batch in raw),
            counts=np.bincount(together, minlength=draws.rows),
        )
