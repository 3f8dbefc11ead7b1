"""Which rows each trial uses at each step. Every trial draws its own batches: independence is what bounds rest on.

The sampler deals in slots. With ``add_remove`` the slots are the n base rows and, in world 1, the canary's k rows,
numbered n to n + k − 1. With ``replace`` the slots are the n base rows, and in world 1 the slots of the replaced rows
hold the canary's rows instead.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import seeds
from coalmine.records import Relation, Sampling
from coalmine.training.canary import Neighbours
from coalmine.training.config import TrainingConfig
from coalmine.training.data import ZeroGradients

Rows = NDArray[np.int64]
_CHUNK = 16_384
"""Poisson draws of several steps are made together, about this many rows at a time."""
_AHEAD = 64
"""Steps drawn while a device is busy with earlier ones: some steps cost a chunk of draws, most cost nothing."""
_THREADS = 4


def slots(neighbours: Neighbours, *, world: int) -> Rows:
    """The row in each slot of a world; rows from n on are the canary's.

    >>> from coalmine.training.data import Dataset
    >>> from coalmine.training.canary import ExampleCanary
    >>> base = Dataset([[0.0], [1.0]], [0, 1])
    >>> slots(Neighbours(base, canary=ExampleCanary([1.0], 1, copies=2)), world=1).tolist()
    [0, 1, 2, 3]
    """
    rows = neighbours.base.rows
    if world == 0:
        return np.arange(rows)
    if neighbours.relation is Relation.ADD_REMOVE:
        return np.arange(rows + neighbours.copies)
    table = np.arange(rows)
    table[list(neighbours.replaced)] = rows + np.arange(neighbours.copies)
    return table


def poisson(table: Rows, *, rate: float, steps: int, generator: np.random.Generator) -> Iterator[Rows]:
    """Batches without end: each slot on its own with probability ``rate``, anew each step.

    At most ``steps`` batches are drawn ahead: the slots of many steps are laid end to end, and the gaps between drawn
    slots are geometric. Since a geometric gap has no memory, cutting the line off at the end of a chunk and starting
    afresh changes nothing.
    """
    n = table.size
    if n == 0 or rate == 0.0 or rate == 1.0:
        while True:
            yield table if rate == 1.0 else table[:0]
    steps = min(steps, max(1, int(_CHUNK // max(1.0, n * rate))))
    length = steps * n
    expected = length * rate
    draw = int(expected + 6.0 * np.sqrt(expected) + 16)
    while True:
        parts = []
        last = -1
        while last < length:
            # A gap can exceed any sensible line when the rate is tiny: clip it before it can overflow the sum.
            gaps = np.minimum(generator.geometric(rate, size=draw), length + 1)
            positions = last + np.cumsum(gaps)
            parts.append(positions)
            last = int(positions[-1])
        line = np.concatenate(parts) if len(parts) > 1 else parts[0]
        ends = np.searchsorted(line, np.arange(1, steps + 1) * n)
        rows = table[line[: ends[-1]] % n]
        start = 0
        for end in ends.tolist():
            yield rows[start:end]
            start = end


def shuffle(table: Rows, *, batches: int, generator: np.random.Generator) -> Iterator[Rows]:
    """Batches without end: a fresh random order each epoch, dealt out to ``batches`` batches of equal size (± 1)."""
    while True:
        order = generator.permutation(table)
        for start in range(batches):
            yield order[start::batches]


def batches(
    neighbours: Neighbours, *, world: int, config: TrainingConfig, fingerprint: str, trial: int
) -> Iterator[Rows]:
    """The rows of each step of one trial, in its world, as the config's sampling draws them.

    ``shuffle`` makes ⌈n / batch size⌉ batches an epoch in both worlds. Where the base data has zero gradients, only
    the canary's rows are listed.
    """
    table = slots(neighbours, world=world)
    rows, idle = neighbours.base.rows, isinstance(neighbours.base, ZeroGradients)
    generator = seeds.generator(fingerprint, purpose="batches", trial=trial)
    if config.sampling is Sampling.SHUFFLE:
        assert config.batch_size is not None
        dealt = shuffle(table, batches=-(-rows // int(config.batch_size)), generator=generator)
        return (batch[batch >= rows] for batch in dealt) if idle else dealt
    # Each slot is drawn on its own, so the base rows need not be drawn where they do nothing.
    return poisson(
        table[table >= rows] if idle else table, rate=config.rate(rows), steps=config.steps, generator=generator
    )


def counts(
    neighbours: Neighbours, *, world: int, config: TrainingConfig, fingerprint: str, trial: int
) -> Iterator[tuple[int, int]]:
    """For base rows that are all alike: how many base rows and how many of the canary's each step uses.

    Poisson draws every row on its own, so the two numbers are Binomial(rows, q), independent of each other.
    """
    base, canary = neighbours.base.rows, neighbours.copies if world == 1 else 0
    present = (base - canary if neighbours.relation is Relation.REPLACE else base, canary)
    rate = config.rate(neighbours.base.rows)
    generator = seeds.generator(fingerprint, purpose="batches", trial=trial)
    while True:
        drawn = generator.binomial(present, rate, size=(min(config.steps, _CHUNK), 2))
        yield from (tuple(step) for step in drawn.tolist())


class DrawnAhead:
    """The draws of a stack, step by step, made by a few threads while a device is busy with earlier steps.

    Each model's draws come from a stream of its own, in its order, so nothing depends on how the threads run.

    >>> with DrawnAhead([iter("abc"), iter("xyz")], steps=3) as drawn:
    ...     [drawn.step() for _ in range(3)]
    [['a', 'x'], ['b', 'y'], ['c', 'z']]
    """

    def __init__(self, draws: Sequence[Iterator[Any]], *, steps: int) -> None:
        threads = max(1, min(_THREADS, os.cpu_count() or 1, len(draws)))
        ends = [len(draws) * part // threads for part in range(threads + 1)]
        # One thread for each group of models: a group's steps are drawn one after the other.
        self._groups = [(ThreadPoolExecutor(1), draws[begin:end]) for begin, end in itertools.pairwise(ends)]
        self._left = steps
        self._coming: deque[list[Future[list[Any]]]] = deque()
        for _ in range(_AHEAD):
            self._ask()

    def __enter__(self) -> DrawnAhead:
        return self

    def __exit__(self, *error: object) -> None:
        for pool, _ in self._groups:
            pool.shutdown(cancel_futures=True)

    def _ask(self) -> None:
        """Have one more step drawn, unless all are."""
        if self._left > 0:
            self._left -= 1
            self._coming.append([pool.submit(list, map(next, group)) for pool, group in self._groups])

    def step(self) -> list[Any]:
        """What each model draws in the next step."""
        self._ask()
        return [drawn for part in self._coming.popleft() for drawn in part.result()]
