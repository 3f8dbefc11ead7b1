"""Which rows a sampler puts into its batches: read from loaders and samplers, without touching the data.

A torch ``DataLoader`` is asked through its batch sampler, so no row is loaded. Random generators (torch, NumPy, Python,
and those that the sampler holds) are put back afterwards: a training that follows draws what it would have drawn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError

Rows = NDArray[np.int64]
Epoch = tuple[Rows, ...]
RowsOf = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """What samplers drew: ``ranks[r][e][s]`` holds the rows of step s of epoch e on rank r, in their order."""

    rows: int
    ranks: tuple[tuple[Epoch, ...], ...]

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        """The ranks together: step by step the rows of all of them."""
        if len(self.ranks) == 1:
            return self.ranks[0]
        return tuple(
            tuple(np.concatenate(parts) for parts in zip(*ranks, strict=False))
            for ranks in zip(*self.ranks, strict=False)
        )


def read_draws(
    sources: Sequence[Any], *, rows: int | None, steps: int | None, epochs: int, rows_of: RowsOf | None
) -> Draws:
    """The batches of every source (a loader or sampler for each rank): ``epochs`` passes, ``steps`` in all at most."""
    total = rows if rows is not None else max(count_rows(source) for source in sources)
    ranks = tuple(_read(source, steps=steps, epochs=epochs, rows_of=rows_of) for source in sources)
    for batch in (batch for rank in ranks for epoch in rank for batch in epoch):
        if batch.size and (batch.min() < 0 or batch.max() >= total):
            bad = int(batch.min() if batch.min() < 0 else batch.max())
            raise InvalidInputError(f"the sampler gave row {bad}: expected 0 to {total - 1}, for rows = {total}")
    return Draws(rows=total, ranks=ranks)


def count_rows(source: Any) -> int:
    """How many rows the data behind a loader or sampler has."""
    inner = batch_sampler_of(source)
    for owner, name in ((source, "dataset"), (inner, "total_size"), (inner, "num_samples")):
        value = getattr(owner, name, None)
        if name == "dataset" and value is not None:
            with contextlib.suppress(TypeError):
                return len(value)
        elif isinstance(value, int):
            return value
    below = getattr(inner, "sampler", None)
    data = getattr(below, "data_source", None)
    if data is not None:
        return len(data)
    raise InvalidInputError(
        "rows is missing: expected the number of rows of the data, as in rows=1000; batches of row numbers do not tell "
        "it, a DataLoader or a sampler with a data source does"
    )


def stated_rate(source: Any) -> float | None:
    """The sampling rate that a Poisson sampler says it has, if it says so."""
    rate = getattr(batch_sampler_of(source), "sample_rate", None)
    return float(rate) if isinstance(rate, (int, float)) else None


def batch_sampler_of(source: Any) -> Any:
    """What gives the index batches of a loader or sampler, past the splitting of large batches into virtual steps."""
    torch = sys.modules.get("torch")
    found = source
    if torch is not None and isinstance(source, torch.utils.data.DataLoader):
        found = source.batch_sampler if source.batch_sampler is not None else source.sampler
    # The splitting of Opacus would hand out parts of a batch, and tell the optimizer that it did.
    while hasattr(found, "max_batch_size") and hasattr(found, "sampler"):
        found = found.sampler
    return found


def _read(source: Any, *, steps: int | None, epochs: int, rows_of: RowsOf | None) -> tuple[Epoch, ...]:
    """All epochs of one source."""
    if rows_of is None:
        batches = batch_sampler_of(source)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(batches, torch.utils.data.DataLoader):
            raise UnsupportedError("a loader over an IterableDataset has no row numbers: give rows_of(batch)")
    else:
        batches = source
    if not isinstance(batches, Iterable):
        raise _validate.reject("loader", source, "a DataLoader, a batch sampler, or batches of row numbers")
    once = iter(batches) is batches
    share = None if steps is None else -(-steps // (1 if once else epochs))
    read: list[Epoch] = []
    taken = 0
    with _left_as_it_was(source, batches):
        while taken < steps if steps is not None else len(read) < epochs:
            for owner in (batches, getattr(batches, "sampler", None)):
                if owner is not None and hasattr(owner, "set_epoch"):
                    owner.set_epoch(len(read))  # as a training must
            limit = None if share is None or steps is None else min(share, steps - taken)
            epoch = tuple(_rows(batch, rows_of) for batch in itertools.islice(batches, limit))
            if not epoch:
                break
            read.append(epoch)
            taken += len(epoch)
            if once:
                break
    return tuple(read)


def _rows(batch: Any, rows_of: RowsOf | None) -> Rows:
    """One batch as row numbers."""
    given = batch if rows_of is None else rows_of(batch)
    array = np.asarray(given if isinstance(given, np.ndarray) else _listed(given))
    if array.size == 0:
        return np.zeros(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        what = f"{type(given).__name__} {given!r}"[:80]
        wanted = "expected a list of row numbers; for batches of data give rows_of(batch)"
        if array.ndim == 0:
            wanted = "expected a batch of row numbers, not single rows: give the batch sampler, or a DataLoader"
        raise InvalidInputError(f"the sampler gave {what}: {wanted}")
    return array.astype(np.int64)


def _listed(given: Any) -> Any:
    """A tensor or list of numbers or of tensors with one number each, as NumPy takes it."""
    if hasattr(given, "tolist"):
        return given.tolist()
    if isinstance(given, (list, tuple)):
        return [int(one) if getattr(one, "ndim", None) == 0 else one for one in given]
    return given


@contextlib.contextmanager
def _left_as_it_was(*owners: Any) -> Iterator[None]:
    """Put every generator back, and the epoch of a distributed sampler."""
    torch = sys.modules.get("torch")
    held = list(owners)
    for owner in owners:
        held += [getattr(owner, name) for name in ("sampler", "batch_sampler") if hasattr(owner, name)]
    generators = {id(one): one for one in (getattr(owner, "generator", None) for owner in held) if one is not None}
    states = [(one, _state(one)) for one in generators.values()]
    marks = [(owner, owner.epoch) for owner in held if isinstance(getattr(owner, "epoch", None), int)]
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])  # noqa: NPY002
        if torch:
            torch.set_rng_state(kept[2])
        for one, state in states:
            _set_state(one, state)
        for owner, epoch in marks:
            owner.epoch = epoch


def _state(generator: Any) -> Any:
    """The state of a torch or NumPy generator; None for any other, which cannot be put back."""
    if hasattr(generator, "get_state"):
        return generator.get_state()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else None


def _set_state(generator: Any, state: Any) -> None:
    """Put a state back."""
    if hasattr(generator, "set_state"):
        generator.set_state(state)
    elif state is not None:
        generator.bit_generator.state = state
