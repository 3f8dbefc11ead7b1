"""Where noise does not enter the release in proportion: was it clipped together with the rows?

Clipped rows beyond the clip norm are all alike, so noise that is added after clipping does not depend on how large they
are. Noise that is clipped with the rows, or with their sum, is pushed out by rows that are a thousand times as large.
"""

from __future__ import annotations

import numpy as np

from coalmine.integrations.jax.reading import Reading
from coalmine.probing import faults, rows
from coalmine.probing.findings import Measurement

_SIZES = 1e2, 1e5
_KEYS = 8
_PUSHED = 0.1
"""Of the noise with the smaller rows: what is left is less than this."""
NAME = "order"


def measure(reading: Reading) -> Measurement | None:
    """The noise of large rows and of much larger ones; None where noise enters in proportion."""
    if reading.linear or not reading.noisy or reading.bench.subject.bounds is not None:
        return None
    bench, keys = reading.bench, list(range(2, 2 + _KEYS))
    sizes = []
    for times in _SIZES:
        made = [[one * times if one.dtype.kind == "f" and one.size > 1 else one for one in rows.numbers(row)]
                for row in (rows.take(bench.base, [slot]) for slot in range(bench.count))]  # fmt: skip
        batch = bench.filled(rows.join([reading.crafter.row(values) for values in made]))
        loud = bench.run([batch] * _KEYS, keys, [1.0] * _KEYS)
        quiet = bench.run([batch] * _KEYS, keys, [0.0] * _KEYS)
        sizes.append(np.array([np.linalg.norm(loud[name] - quiet[name]) for name in reading.noisy]))
    small, large = sizes
    if (
        not np.isfinite(large).all()
        or not (small > 0.0).any()
        or float((large[small > 0.0] / small[small > 0.0]).max()) >= _PUSHED
    ):
        return Measurement(name=NAME, sentence="Larger rows leave the noise as it is.")
    share = float(large.sum() / small.sum())
    text = f"Rows {_SIZES[1] / _SIZES[0]:.0f} times as large leave {share:.2g} of the noise: it is clipped with them."
    found = faults.finding(
        faults.NOISE_BEFORE_CLIPPING, text, number=share, allowed=1.0, witness=f"all rows, {_SIZES[1]:g} times as large"
    )
    return Measurement(name=NAME, sentence=text, findings=(found,))
