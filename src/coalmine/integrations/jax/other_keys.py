"""Many other keys: with each of them rows are clipped and noise is added, whatever else is drawn from it.

All else is measured under one key or two. What a draw decides with probability p stays unseen here with probability
(1 − p)⁸⁸: for p = 0.05 in one probe of a hundred. A row that is clipped, and one ten times as large, are tried: where
clipping is left out, the larger one shows it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.reading import Reading
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement

_KEYS = 88
_NOTHING = 1e-7
"""Noise of this share of the usual size is none."""
_FURTHER = 1.5
"""A row that moves the sum so many times as far is not clipped as under the first key."""
NAME = "other keys"


def measure(reading: Reading) -> Measurement:
    """Noise, and what one row moves, under other keys."""
    bench, carriers, best = reading.bench, reading.carriers, reading.best
    if best is None:
        return reading.unmeasured(NAME, "What other keys do")
    numbers = list(range(2, 2 + _KEYS))
    silent = bench.run([reading.base] * _KEYS, numbers, [reading.quiet[1]] * _KEYS)

    def apart(shown: Any) -> NDArray[np.float64]:
        sides = [(shown[name] - silent[name]).reshape(_KEYS, -1) for name in carriers]
        return np.asarray(np.linalg.norm(np.concatenate(sides, axis=1), axis=1))

    found: list[Finding] = []
    sentence = f"With {_KEYS} other keys, too, rows are clipped and noise is added."
    if reading.outside:
        sentence = f"With {_KEYS} other keys, too, rows are clipped; whether noise is added shows in its law alone."
    else:
        noise = apart(bench.run([reading.base] * _KEYS, numbers, [1.0] * _KEYS))
        without = int((noise <= _NOTHING * np.median(noise)).sum())
        single = sum(silent[name][0].size for name in carriers) == 1
        if without >= (2 if single else 1):  # a single number may be 0 by chance
            said = f"With {without} of {_KEYS} keys no noise is added: what else is drawn decides that."
            witness = f"{without} keys"
            found.append(faults.finding(faults.NOISE_TOO_SMALL, said, number=0.0, allowed=1.0, witness=witness))
    largest = max(reading.largest, reading.allowed if reading.absolute else 0.0)
    larger = reading.grown(best, 10.0)
    for one in (best, larger):
        moved = apart(bench.run([bench.batch(one.row)] * _KEYS, numbers, [reading.quiet[1]] * _KEYS)) / reading.scale
        far = ~(moved <= _FURTHER * max(largest, one.far(carriers) / reading.scale))
        if far.any() and one.finite:
            most = float(moved.max())
            said = (
                f"With {far.sum()} of {_KEYS} keys one row moves the sum by up to {most:.4g}, and by "
                f"{reading.largest:.4g} with others: what else is drawn undoes the clipping."
            )
            witness = rows.describe(one.row)
            found.append(faults.finding(faults.TOO_SENSITIVE, said, number=most, allowed=largest, witness=witness))
            break
    return Measurement(name=NAME, sentence=found[0].sentence if found else sentence, findings=tuple(found))
