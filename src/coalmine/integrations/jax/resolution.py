"""Noise on a grid that is coarser than the numbers that are released: bfloat16 added to single precision, say.

The grid of the noise is then moved by the exact sum, and whether a release lies on the grid tells whether a row was
there. In the precision of the release, noise that is drawn f times as large is f times as large; on a coarser grid it
is not. Where the noised sum is rounded as a whole, the release lies on that grid whatever the rows are: it follows from
the noised sum, and so does nothing more. Then a row adds another amount with the noise than without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.reading import Reading
from coalmine.probing.findings import Measurement

_FACTORS = 1.37, 0.71, 0.53
"""Not by powers of two, which keep the digits of a number."""
_OFF = 2.0**-15
"""Relative: how far noise is off that has less than half of the digits of single precision."""
_ROUNDINGS = 32.0
NAME = "resolution"


def measure(reading: Reading) -> Measurement | None:
    """Whether noise times a number is that number times the noise; None where it cannot be scaled."""
    if not reading.carriers or reading.outside or reading.best is None:
        return None
    rough = {name: off for name in reading.carriers if (off := _off(reading, name)) > 0.0}
    if not rough:
        said = "Noise has all the digits of what is released, as far as that shows."
        return Measurement(name=NAME, sentence=said)
    worst = max(rough, key=lambda name: rough[name])
    blind = (
        f"the noise in {worst} is rounded: its numbers are off by {rough[worst]:.2g} of their size, more than the "
        "precision of the release explains, and the sum beside it is not rounded, so whether a release lies on the "
        "grid of the noise may tell of a row; draw and scale the noise in the precision of the sum"
    )
    return Measurement(name=NAME, sentence=f"{blind[0].upper()}{blind[1:]}.", blind=blind, details={"off": rough})


def _off(reading: Reading, name: str) -> float:
    """How far noise is off proportion, over its size; 0 where rounding of the release explains it, or rounds all."""
    bench, home = reading.bench, reading.quiet[0]
    assert reading.best is not None
    base, more = reading.base, bench.replaced({0: reading.best.row})  # of one size: with the same draws
    factors = [0.0, 1.0, *_FACTORS]
    shown = bench.run([base] * len(factors) + [more] * len(factors), [home] * 2 * len(factors), factors * 2)[name]
    alone, with_row = shown[: len(factors)], shown[len(factors) :]
    size = float(np.linalg.norm(alone[1] - alone[0]))
    if size == 0.0 or not np.isfinite(shown).all():
        return 0.0
    floor = _ROUNDINGS * max(reading.rounding(name, one) for one in (*alone, *with_row)) / size
    off = _most([(n - alone[0]) - f * (alone[1] - alone[0]) for f, n in zip(_FACTORS, alone[2:], strict=True)]) / size
    # The row adds the same amount under each of these noises, unless what is rounded is the noised sum.
    adds = _most([(b - a) - (with_row[0] - alone[0]) for a, b in zip(alone, with_row, strict=True)]) / size
    return off if off > max(_OFF, floor) and adds <= max(_OFF, floor) else 0.0


def _most(vectors: list[NDArray[np.float64]]) -> float:
    return max(float(np.linalg.norm(one)) for one in vectors)
