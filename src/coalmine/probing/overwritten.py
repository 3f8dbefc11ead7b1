"""A step that writes into its batch: where the batch shares memory with the data, later epochs train on what it wrote.

What is written into a row and follows from that row alone changes nothing: the row is still one row. What follows from
other rows carries them past the clipping, into a row that is clipped for itself. Whether the memory is shared cannot be
seen, so this refutes nothing.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine.probing import rows
from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Measurement
from coalmine.probing.search import Influence, with_row

NAME = "the batch itself"
_ROUNDING = 1e-5
_ROWS = 3
Values = NDArray[Any]


def measure(bench: Bench, reading: Reading, influence: Influence) -> Measurement | None:
    """Whether rows are overwritten, and with what; None where they stay as they are."""
    before, after = rows.numbers(reading.base.batch), _written(bench, reading.base)
    if after is None:
        return None
    names = rows.names(bench.base)
    changed = [leaf for leaf, (a, b) in enumerate(zip(before, after, strict=True)) if not _same(a, b)]
    same = bench.count if bench.grows else bench.count - 1  # rows that are in every world, and come first
    for one in sorted(influence.tried, key=lambda each: -each.reach)[:_ROWS]:
        other = _written(bench, with_row(bench, one.row))
        for leaf, (a, b) in enumerate(zip(after, other or after, strict=True)):
            if not _same(a[:same], b[:same]):
                return Measurement(
                    name=NAME,
                    sentence=f"The step writes into {names[leaf]}, and one row changes what it writes into others.",
                    blind=(
                        f"the step writes into {names[leaf]}, and what it writes into one row depends on other rows: "
                        "if the batch shares its memory with the data, later epochs train on it, and clipping a row no "
                        "longer bounds what another one did; write into a copy (clone())"
                    ),
                    details={"overwritten": names[leaf]},
                )
    if not changed:
        return None
    where = ", ".join(names[leaf] for leaf in changed)
    said = f"The step writes into {where}; what it writes into a row follows from that row alone."
    return Measurement(name=NAME, sentence=said, details={"overwritten": where})


def _written(bench: Bench, world: World) -> list[Values] | None:
    """The numbers of the batch after a run without noise; None where the run fails."""
    factor = 1.0 if bench.loud else 0.0
    play = bench.tape.scale(factor, slots=world.slots, force=bench.force)
    batch = rows.take(world.batch, range(rows.size(world.batch)))
    bench.put_back()
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            with play:
                bench.subject.step(batch)
            return rows.numbers(batch)
        except Exception:  # noqa: BLE001  # the user's code may raise anything: another measure says so
            return None


def _same(a: Values, b: Values) -> bool:
    """Whether two columns hold the same, up to rounding."""
    if a.shape != b.shape or a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    return bool(np.allclose(a, b, rtol=_ROUNDING, atol=0.0, equal_nan=True))
