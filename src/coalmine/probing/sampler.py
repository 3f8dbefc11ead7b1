"""``probe_sampler``: does a sampler draw as the accountant was told, and if not, how does it draw?"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import special

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.probing import laws
from coalmine.probing.batches import Draws, RowsOf, count_rows, read_draws, stated_rate
from coalmine.probing.findings import Measurement, ProbeReport
from coalmine.probing.sampler_checks import (
    fixed_checks,
    poisson_checks,
    rank_checks,
    repeated_in_batch,
    shuffle_checks,
)
from coalmine.probing.sampler_counts import Check, Counted
from coalmine.probing.sampler_faults import name_faults

PROMISES = ("poisson", "shuffle", "fixed")
_ENOUGH_DRAWS = 3000
"""With so many draws a rate that is wrong by a tenth is found nine times in ten."""
_MOST_CELLS = 10**8
"""Steps times rows that are read unless the caller says otherwise: a Poisson sampler draws a number for each."""


def probe_sampler(
    loader: Any,
    *,
    promised: str = "poisson",
    sample_rate: float | None = None,
    batch_size: int | None = None,
    rows: int | None = None,
    rows_of: RowsOf | None = None,
    epochs: int = 16,
    steps: int | None = None,
    level: float = 0.01,
) -> ProbeReport:
    """Read which rows a sampler draws, and test them against what the accountant was told.

    Every test is exact for any number of rows and steps. Faults that the promise rules out (a row twice in a batch)
    need no statistics; all other tests share ``level``, so a sampler that keeps the promise is refuted with a chance of
    at most that. Under the promise of Poisson sampling the sizes of batches, how often each row is drawn, repeats
    within an epoch, overlaps of steps and of epochs, and pairs of rows are tested; what refutes it is then told apart:
    shuffling, a fixed order, weights, fixed sizes, draws with replacement, another rate.

    >>> rng = np.random.default_rng(0)
    >>> batches = (batch for _ in range(20) for batch in rng.permutation(100).reshape(10, 10))
    >>> report = probe_sampler(batches, rows=100, sample_rate=0.1)
    >>> report.findings[0].fault, report.findings[0].number
    ('shuffled batches accounted as Poisson', 0.0)

    Args:
        loader: A torch ``DataLoader``, a batch sampler, or any iterable of batches of row numbers; a list of these is
            one for each rank of a distributed training. No row is loaded, and random generators are put back.
        promised: ``"poisson"`` (each row on its own with probability ``sample_rate``), ``"shuffle"`` (each row once an
            epoch, in batches of ``batch_size``) or ``"fixed"`` (``batch_size`` distinct rows, drawn anew each step).
        sample_rate: The rate that the accountant was told. Default: what the sampler says of itself.
        batch_size: For the other two promises, over all ranks. Default: what the sampler says of itself.
        rows: The number of rows of the data. Default: what the loader or sampler says.
        rows_of: Gives the row numbers of a batch of data, for loaders that cannot be asked for indices.
        epochs: How many passes to read: with 16 of them even a single row that is never drawn is found.
        steps: How many steps to read in all. Default: ``epochs`` whole passes, more if batches are small, fewer
            if the data is so large that this would take long; a list of batches is read whole.
        level: The chance that a sampler that keeps the promise is refuted.

    Returns:
        A report with a measurement for each test and a finding for each fault.
    """
    started = time.perf_counter()
    promised = _validate.choice("promised", promised, PROMISES)
    level = _validate.open_unit("level", level)
    epochs = _validate.integer("epochs", epochs, at_least=1)
    sources, recorded = [loader], 0
    if isinstance(loader, (list, tuple)):  # one loader for each rank, or recorded batches, to be read once and whole
        recorded = len(loader) if _are_batches(loader) else 0
        sources = [iter(loader)] if recorded else list(loader)
    total = _validate.integer("rows", rows, at_least=1) if rows is not None else max(map(count_rows, sources))
    rate, size = _promise(promised, sources, sample_rate, batch_size, total)
    wanted = recorded or _default_steps(total, rate, epochs)
    wanted = _validate.integer("steps", steps, at_least=1) if steps is not None else wanted
    passes = min(epochs, max(2, wanted // 50))  # few steps say more in few passes
    draws = read_draws(sources, rows=total, steps=wanted, epochs=passes, rows_of=rows_of)
    report = probe_draws(draws, promised=promised, sample_rate=rate, batch_size=size, level=level)
    return dataclasses.replace(report, seconds=time.perf_counter() - started)


def probe_draws(
    draws: Draws, *, promised: str = "poisson", sample_rate: float, batch_size: int = 0, level: float = 0.01
) -> ProbeReport:
    """The same for batches that were already read: see :func:`probe_sampler`."""
    started = time.perf_counter()
    draws = _with_epochs(draws, sample_rate)
    counted = Counted.of(draws)
    if counted.draws == 0:
        raise InvalidInputError(f"the sampler gave {len(counted.steps)} batches without a row: nothing can be tested")
    checks = [repeated_in_batch(draws)]
    if promised == "poisson":
        checks += poisson_checks(counted, sample_rate)
    elif promised == "shuffle":
        checks += shuffle_checks(counted, size=batch_size)
    else:
        checks += fixed_checks(counted, size=batch_size)
    if len(draws.ranks) > 1:
        checks += rank_checks(draws)
    share = level / max(1, sum(not one.certain for one in checks))
    failed = {one.name: one for one in checks if one.p <= (0.0 if one.certain else share)}
    findings = name_faults(counted, failed, promised=promised, rate=sample_rate, share=share)
    measurements = [
        Measurement(
            name=one.name,
            sentence=_sentence(one, one.name in failed, share),
            findings=tuple(finding for finding, name in findings if name == one.name),
            blind=_blind(one, counted, sample_rate, share) if promised == "poisson" else "",
            details={"number": one.number, "expected": one.expected, "p_value": one.p, "level": share, **one.details},
            because=findings[0][0].fault if findings and one.name in failed else "",
        )
        for one in checks
    ]
    return ProbeReport(
        subject=f"the sampler ({counted.draws:,} draws in {len(counted.steps):,} steps of {counted.rows:,} rows)",
        measurements=tuple(measurements),
        level=level,
        seconds=time.perf_counter() - started,
    )


def _promise(
    promised: str, sources: Sequence[Any], sample_rate: float | None, batch_size: int | None, rows: int
) -> tuple[float, int]:
    """The promised rate and size, from the caller or from the sampler."""
    if promised == "poisson":
        given = sample_rate if sample_rate is not None else stated_rate(sources[0])
        if given is None:
            raise InvalidInputError("sample_rate is missing: expected the rate that the accountant was told")
        rate = _validate.unit("sample_rate", given)
        if not 0.0 < rate < 1.0:
            raise _validate.reject("sample_rate", given, "a number strictly between 0 and 1")
        return rate, 0
    size = batch_size if batch_size is not None else _stated_size(sources[0])
    if size is None and sample_rate is not None:
        size = round(_validate.unit("sample_rate", sample_rate) * rows)
    if size is None:
        raise InvalidInputError("batch_size is missing: expected the number of rows in a batch")
    size = _validate.integer("batch_size", size, at_least=1, at_most=rows) * (
        1 if batch_size is not None or len(sources) == 1 else len(sources)
    )
    return size / rows, size


def _stated_size(source: Any) -> int | None:
    """The batch size that a loader or batch sampler says it has."""
    for owner in (getattr(source, "batch_sampler", None), source):
        value = getattr(owner, "batch_size", None)
        if isinstance(value, int):
            return value
    return None


def _are_batches(value: Sequence[Any]) -> bool:
    """Whether a list is one stream of batches of row numbers, not a list of loaders (or of such streams)."""
    if not value:
        raise InvalidInputError("loader is an empty list: expected batches of row numbers, or a loader for each rank")
    first = value[0]
    return isinstance(first, (list, tuple, np.ndarray)) and not (len(first) and isinstance(first[0], (list, tuple)))


def _default_steps(rows: int, rate: float, epochs: int) -> int:
    """As many steps as the tests need, within reason."""
    wanted = max(epochs * round(1.0 / rate), math.ceil(_ENOUGH_DRAWS / (rows * rate)))
    return max(1, min(wanted, max(60, _MOST_CELLS // rows)))


def _with_epochs(draws: Draws, rate: float) -> Draws:
    """A stream without epochs is cut where an epoch should end, after 1/q steps."""
    length = max(1, round(1.0 / rate))
    if any(len(rank) != 1 for rank in draws.ranks) or len(draws.ranks[0][0]) < 2 * length:
        return draws
    ranks = tuple(
        tuple(rank[0][start : start + length] for start in range(0, len(rank[0]), length)) for rank in draws.ranks
    )
    return dataclasses.replace(draws, ranks=ranks)


def _sentence(check: Check, failed: bool, share: float) -> str:
    """A test's result for people."""
    seen = check.sentence[:1].upper() + check.sentence[1:]
    if check.certain:
        return f"{seen}."
    chance = f"{check.p:.2g}" if check.p > 1e-8 else "below 1e-8"
    end = f"under the level {share:.2g}" if failed else "as promised"
    return f"{seen} (about {check.expected:.4g} expected; chance {chance}, {end})."


def _blind(check: Check, counted: Counted, rate: float, share: float) -> str:
    """Why a test could not have found what it is for: a rate half as large again, or batches of one size."""
    if check.p <= share:
        return ""
    more = f"only {counted.draws} draws in {len(counted.steps)} steps were read; read more steps"
    if check.name == "sample rate":
        spread = math.sqrt((1.0 - rate) / (counted.rows * len(counted.steps) * rate))
        found = 1.0 + float(special.ndtri(1.0 - share / 2.0) + special.ndtri(0.9)) * spread
        return f"a rate that is half as large again would have been missed: {more}" if found > 1.5 else ""
    if check.name == "most common batch size":
        all_equal = float((laws.binomial_pmf(counted.rows, rate) ** len(counted.steps)).sum())
        return f"batches of a fixed size would have been missed: {more}" if all_equal > share else ""
    return ""
