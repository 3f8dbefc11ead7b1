"""Numbers that no row can reach need no noise: the vector of a padding token, or what a fixed mask holds still.

Numbers without any noise make that of their tensor look too small. Where no row that was tried moves them, alone or as
part of the batch, and the rows that were tried hold every token of an embedding, they are left out and the rest is
tested.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine.probing import noise, rows
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Measurement
from coalmine.probing.noise import Sample
from coalmine.probing.search import Influence, with_row
from coalmine.probing.vectors import pieces


def left_out(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    noised: Measurement,
    samples: list[Sample],
    *,
    level: float,
) -> tuple[Measurement, list[Sample]]:
    """The noise without numbers that no row reaches; the same where there are none, or they explain nothing."""
    sizes = [one.num_embeddings for one in bench.modules if isinstance(one, torch.nn.Embedding)]
    if not noised.findings or reading.coarse or not bench.grows or (sizes and not _all_tokens(influence, max(sizes))):
        return noised, samples
    silent = {one.name: one.squares == 0.0 for one in samples}
    dead = {name: where for name, where in silent.items() if 0 < int(where.sum()) < where.size}
    worlds = [with_row(bench, one.row) for one in influence.tried] if dead else []
    worlds += [bench.world(keep=[k for k in range(bench.count) if k != row]) for row in range(bench.count)]
    for world in worlds if dead else ():
        shown = bench.quiet(world)
        for name, where in dead.items():
            if name in shown:
                parts = [(x.sub_(y) == 0.0).numpy() for x, y in pieces(shown[name], reading.silent[name])]
                where &= np.concatenate(parts)
    if not any(where.any() for where in dead.values()):
        return noised, samples
    kept = [_without(one, dead[one.name]) if one.name in dead else one for one in samples]
    return noise.judged(reading, kept, noise.promised(bench, reading), runs=kept[0].runs, level=level), kept


def _all_tokens(influence: Influence, count: int) -> bool:
    """Whether the rows that were tried hold every token of an embedding."""
    whole = [part for one in influence.tried for part in rows.numbers(one.row) if part.dtype.kind in "iu"]
    return bool(whole) and set(range(count)) <= {int(token) for part in whole for token in part.reshape(-1)}


def _without(one: Sample, dead: NDArray[np.bool_]) -> Sample:
    """The noise of the other numbers."""
    alive = ~dead
    first = alive[: one.values.shape[1]]
    return Sample(
        one.name,
        (int(alive.sum()),),
        one.squares[alive],
        one.values[:, first],
        None,
        one.runs,
        one.sums,
        one.span,
        one.twice,
        None if one.grain is None else one.grain[first],
    )
