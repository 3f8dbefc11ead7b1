"""Many other keys: with each of them rows are clipped and noise is added, whatever else is drawn from it.

All else is measured under one key or two. What a draw decides with probability p stays unseen here with probability
(1 − p)⁸⁸: for p = 0.05 in one probe of a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.bench import Bench
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement

_KEYS = 88
_NOTHING = 1e-7
"""Noise of this share of the usual size is none."""
_FURTHER = 1.5
"""A row that moves the sum so many times as far is not clipped as under the first key."""


def measure(bench: Bench, base: Any, *, row: Any, largest: float, carriers: Sequence[str], scale: float) -> Measurement:
    """Noise, and what one row moves, under other keys.

    Args:
        bench: the step.
        base: its batch.
        row: the row that moved the sum most under the first key.
        largest: how far.
        carriers: what shows the noise.
        scale: what a unit of the sum is in them.
    """
    numbers = list(range(2, 2 + _KEYS))
    silent, once = (bench.run([base] * _KEYS, numbers, [factor] * _KEYS) for factor in (0.0, 1.0))
    larger = bench.run([bench.batch(row)] * _KEYS, numbers, [0.0] * _KEYS)

    def apart(shown: Any) -> NDArray[np.float64]:
        sides = [(shown[name] - silent[name]).reshape(_KEYS, -1) for name in carriers]
        return np.asarray(np.linalg.norm(np.concatenate(sides, axis=1), axis=1))

    noise, moved = apart(once), apart(larger) / scale
    without = int((noise <= _NOTHING * np.median(noise)).sum())
    found: list[Finding] = []
    single = sum(silent[name][0].size for name in carriers) == 1
    if without >= (2 if single else 1):  # a single number may be 0 by chance
        said = f"With {without} of {_KEYS} keys no noise is added: what else is drawn decides that."
        found.append(faults.finding(faults.NOISE_TOO_SMALL, said, number=0.0, allowed=1.0, witness=f"{without} keys"))
    far = moved > _FURTHER * largest
    if far.any():
        most = float(moved.max())
        said = (
            f"With {far.sum()} of {_KEYS} keys one row moves the sum by up to {most:.4g}, and by {largest:.4g} with "
            "others: what else is drawn undoes the clipping."
        )
        witness = rows.describe(row)
        found.append(faults.finding(faults.TOO_SENSITIVE, said, number=most, allowed=largest, witness=witness))
    sentence = f"With {_KEYS} other keys, too, rows are clipped and noise is added."
    return Measurement(name="other keys", sentence=found[0].sentence if found else sentence, findings=tuple(found))
