"""Exact tests of what a sampler drew against what was promised of it.

Poisson sampling is promised: each row is in each batch on its own with probability q. Then sizes of batches, counts of
rows, repeats within an epoch and overlaps of batches have laws that are known exactly (:mod:`.laws`), whatever the
number of rows and steps. Shuffling is promised: each row once an epoch; given the sizes of the batches, every way to
deal the rows to them is equally likely, so a permutation test is exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from coalmine.probing import laws, sampler_extremes
from coalmine.probing.batches import Draws, Rows
from coalmine.probing.sampler_counts import Check, Counted

Floats = NDArray[np.float64]

_MOST_PAIRS = 4_000_000
"""How many co-occurrences of two rows are counted at most; with more, a random part of the rows is taken."""
_PERMUTATIONS = 4999
_MOST_SHUFFLED = 600


def repeated_in_batch(draws: Draws) -> Check:
    """No row is twice in a batch."""
    for e, epoch in enumerate(draws.epochs):
        for s, batch in enumerate(epoch):
            values, often = np.unique(batch, return_counts=True)
            if values.size < batch.size:
                row = int(values[np.argmax(often)])
                return Check(
                    name="rows within a batch",
                    sentence=f"row {row} is {int(often.max())} times in one batch",
                    p=0.0,
                    number=float(often.max()),
                    expected=1.0,
                    witness=f"row {row}, step {s} of epoch {e}",
                    certain=True,
                )
    return Check(
        name="rows within a batch", sentence="no row is twice in a batch", p=1.0, number=1.0, expected=1.0, certain=True
    )


def poisson_checks(counted: Counted, q: float, *, seed: int = 0) -> list[Check]:
    """All tests of Poisson sampling at rate ``q``; how many there are does not depend on what was drawn."""
    checks = [
        rate(counted, q),
        size_spread(counted, q),
        size_mode(counted, q),
        sampler_extremes.largest(counted, q),
        sampler_extremes.smallest(counted, q),
        empty(counted, q),
        row_spread(counted, q),
        row_extremes(counted, q),
        repeats(counted, q),
        following(counted, q),
        equal_batches(counted, q),
        neighbors(counted, q),
        pairs(counted, q, seed=seed),
    ]
    if len(counted.epochs) > 1:
        checks.append(same_place(counted, q))
    return checks


def rate(counted: Counted, q: float) -> Check:
    """All draws together are Binomial(N·T, q)."""
    cells = counted.rows * len(counted.steps)
    seen = counted.draws / cells
    return Check(
        name="sample rate",
        sentence=f"rows are drawn at rate {seen:.4g}",
        p=laws.two_sided(laws.binomial_tails(min(counted.draws, cells), cells, q)),
        number=seen,
        expected=q,
    )


def size_spread(counted: Counted, q: float) -> Check:
    """The sizes of batches are independent Binomial(N, q): their variance is N·q·(1 − q)."""
    variance = float(np.mean((counted.sizes - counted.rows * q) ** 2))
    expected = counted.rows * q * (1.0 - q)
    return Check(
        name="batch sizes",
        sentence=f"batch sizes vary with variance {variance:.4g}",
        p=laws.two_sided(laws.spread_tails(np.minimum(counted.sizes, counted.rows), counted.rows, q)),
        number=variance,
        expected=expected,
        witness=f"sizes of the first steps: {', '.join(map(str, counted.sizes[:8]))}",
    )


def size_mode(counted: Counted, q: float) -> Check:
    """No size is too common: P(some size occurs k times) ≤ Σ over sizes of P(Binomial(T, P(size)) ≥ k)."""
    values, often = np.unique(counted.sizes, return_counts=True)
    k, steps = int(often.max()), len(counted.steps)
    single = laws.binomial_pmf(counted.rows, q)
    single = single[single > 1e-300]
    upper = special.betainc(k, steps - k + 1, np.clip(single, 0.0, 1.0))
    size = int(values[np.argmax(often)])
    return Check(
        name="most common batch size",
        sentence=f"{k} of {steps} batches have {size} rows",
        p=min(1.0, float(upper.sum())),
        number=float(k),
        expected=steps * float(single.max()),
        witness=f"sizes of the first steps: {', '.join(map(str, counted.sizes[:8]))}",
    )


def empty(counted: Counted, q: float) -> Check:
    """Empty batches are Binomial(T, (1 − q)^N)."""
    seen = int((counted.sizes == 0).sum())
    chance = float(np.exp(counted.rows * np.log1p(-q))) if q < 1.0 else 0.0
    return Check(
        name="empty batches",
        sentence=f"{seen} of {len(counted.steps)} batches are empty",
        p=laws.two_sided(laws.binomial_tails(seen, len(counted.steps), chance)),
        number=float(seen),
        expected=len(counted.steps) * chance,
    )


def row_spread(counted: Counted, q: float) -> Check:
    """How often each row is drawn: independent Binomial(T, q)."""
    steps = len(counted.steps)
    variance = float(np.mean((counted.counts - steps * q) ** 2))
    return Check(
        name="inclusion rates",
        sentence=f"the number of times that a row is drawn varies with variance {variance:.4g}",
        p=laws.two_sided(laws.spread_tails(counted.counts, steps, q)),
        number=variance,
        expected=steps * q * (1.0 - q),
        witness=_most_and_least(counted),
    )


def row_extremes(counted: Counted, q: float) -> Check:
    """The row that is drawn most (or least) often; over N independent rows, 1 − (1 − p)^N."""
    steps = len(counted.steps)
    low, high = int(counted.counts.min()), int(counted.counts.max())
    ends = ((low, laws.binomial_tails(low, steps, q)[0]), (high, laws.binomial_tails(high, steps, q)[1]))
    count, tail = min(ends, key=lambda end: end[1])
    row = int(np.flatnonzero(counted.counts == count)[0])
    p = float(-np.expm1(counted.rows * np.log1p(-min(1.0 - 1e-15, 2.0 * tail))))
    return Check(
        name="rows of their own rate",
        sentence=f"row {row} is drawn in {count} of {steps} steps",
        p=min(1.0, p),
        number=float(count),
        expected=steps * q,
        witness=f"row {row}",
    )


def repeats(counted: Counted, q: float) -> Check:
    """How many rows come twice or more often within an epoch: a sum of binomials."""
    parts = []
    seen = 0
    for epoch in counted.epochs:
        often = np.bincount(np.concatenate(epoch), minlength=counted.rows)
        seen += int((often > 1).sum())
        parts.append((counted.rows, laws.binomial_tails(2, len(epoch), q)[1] if len(epoch) > 1 else 0.0))
    expected = float(sum(n * p for n, p in parts))
    return Check(
        name="repeats within an epoch",
        sentence=f"{seen} times a row came again within its epoch",
        p=laws.two_sided(laws.sum_of_binomials_tails(seen, parts)),
        number=float(seen),
        expected=expected,
    )


def following(counted: Counted, q: float) -> Check:
    """Rows that two steps in a row share; disjoint pairs of steps, so Binomial(pairs·N, q²)."""
    couples = [
        (epoch[s], epoch[s + 1], (e, s)) for e, epoch in enumerate(counted.epochs) for s in range(0, len(epoch) - 1, 2)
    ]
    return _shared("steps in a row", "two steps in a row", couples, counted.rows, q)


def same_place(counted: Counted, q: float) -> Check:
    """Rows that the same step of two epochs in a row share, as :func:`following`."""
    couples = [
        (one, other, (e, s))
        for e in range(0, len(counted.epochs) - 1, 2)
        for s, (one, other) in enumerate(zip(counted.epochs[e], counted.epochs[e + 1], strict=False))
    ]
    return _shared("the same step of two epochs", "the same step of two epochs", couples, counted.rows, q)


def _shared(name: str, what: str, couples: Sequence[tuple[Rows, Rows, tuple[int, int]]], rows: int, q: float) -> Check:
    """The number of rows that the two batches of each couple share."""
    shared = [np.intersect1d(one, other, assume_unique=True).size for one, other, _ in couples]
    seen, cells = int(sum(shared)), len(couples) * rows
    first = couples[int(np.argmax(shared))][2] if couples else (0, 0)
    return Check(
        name=name,
        sentence=f"{what} share {seen} rows over {len(couples)} pairs of steps",
        p=laws.two_sided(laws.binomial_tails(seen, cells, q * q)) if couples else 1.0,
        number=float(seen),
        expected=cells * q * q,
        witness=f"step {first[1]} of epoch {first[0]}",
    )


def equal_batches(counted: Counted, q: float) -> Check:
    """No two batches hold the same rows: the chance of any such pair is at most T(T − 1)/2·(q² + (1 − q)²)^N."""
    first: dict[bytes, int] = {}
    where: tuple[int, int] | None = None
    again = 0
    for s, batch in enumerate(counted.steps):
        if batch.size == 0:
            continue
        before = first.setdefault(batch.tobytes(), s)
        if before != s:
            again += 1
            where = where or (before, s)
    t = len(counted.steps)
    bound = float(np.exp(np.log(max(t * (t - 1) / 2.0, 1.0)) + counted.rows * np.log(q * q + (1.0 - q) ** 2)))
    return Check(
        name="equal batches",
        sentence=f"{again} batches hold the same rows as an earlier one",
        p=min(1.0, bound) if again else 1.0,
        number=float(again),
        expected=min(bound, 1.0),
        witness=f"steps {where[0]} and {where[1]}" if where else "",
    )


def neighbors(counted: Counted, q: float) -> Check:
    """How often rows 2i and 2i + 1 come together: Binomial(T·⌊N/2⌋, q²). Blocks of rows drawn as one are found here."""
    half = counted.rows // 2
    seen = 0
    for batch in counted.steps:
        even = batch[(batch % 2 == 0) & (batch // 2 < half)]
        seen += np.intersect1d(even + 1, batch, assume_unique=True).size
    cells = len(counted.steps) * half
    return Check(
        name="neighboring rows",
        sentence=f"neighboring rows (0 and 1, 2 and 3, …) were {seen} times in one batch",
        p=laws.two_sided(laws.binomial_tails(seen, cells, q * q)) if half else 1.0,
        number=float(seen),
        expected=cells * q * q,
    )


def pairs(counted: Counted, q: float, *, seed: int) -> Check:
    """The two rows that come together most often, over all pairs: at most N(N − 1)/2·P(Binomial(T, q²) ≥ k)."""
    chosen = _some_rows(counted, q, seed)
    inverse = np.full(counted.rows, -1)
    inverse[chosen] = np.arange(chosen.size)
    columns = [inverse[batch] for batch in counted.steps]
    columns = [column[column >= 0] for column in columns]
    pointers = np.concatenate([[0], np.cumsum([column.size for column in columns])])
    flat = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    table = sparse.csr_array((np.ones(flat.size, dtype=np.int32), flat, pointers), (len(columns), chosen.size))
    together = sparse.triu(table.T @ table, k=1).tocoo()
    k, where = 0, ""
    if together.nnz:
        place = int(np.argmax(together.data))
        k = int(together.data[place])
        a, b = chosen[together.row[place]], chosen[together.col[place]]
        where = f"rows {a} and {b}"
    couples = chosen.size * (chosen.size - 1) / 2.0
    return Check(
        name="pairs of rows",
        sentence=f"of {chosen.size} rows, the two that meet most often meet in {k} of {len(counted.steps)} batches",
        p=min(1.0, couples * laws.binomial_tails(k, len(counted.steps), q * q)[1]),
        number=float(k),
        expected=len(counted.steps) * q * q,
        witness=where,
    )


def _some_rows(counted: Counted, q: float, seed: int) -> Rows:
    """All rows, or as many random ones as can be compared with each other in reasonable time."""
    share = (_MOST_PAIRS / (len(counted.steps) + 1.0)) ** 0.5 / max(q, 1e-12)
    if share >= counted.rows:
        return np.arange(counted.rows)
    return np.sort(np.random.default_rng(seed).choice(counted.rows, size=max(2, int(share)), replace=False))


def _most_and_least(counted: Counted) -> str:
    """The two ends, as witnesses."""
    most, least = int(np.argmax(counted.counts)), int(np.argmin(counted.counts))
    return f"row {most} was drawn {counted.counts[most]} times, row {least} {counted.counts[least]} times"


def shuffle_checks(counted: Counted, *, size: int, seed: int = 0) -> list[Check]:
    """All tests of shuffling: batches of ``size`` rows, each row once an epoch, a fresh random order each time."""
    last = set(np.cumsum([len(epoch) for epoch in counted.epochs]) - 1)  # may be smaller
    wrong = [s for s, n in enumerate(counted.sizes) if n > size or (n < size and s not in last)]
    again, missing, where = 0, 0, ""
    for e, epoch in enumerate(counted.epochs):
        often = np.bincount(np.concatenate(epoch), minlength=counted.rows)
        if (often > 1).any():
            again += int((often > 1).sum())
            where = where or f"row {int(np.argmax(often))} comes {int(often.max())} times in epoch {e}"
        if len(epoch) >= counted.rows // size:  # a whole pass: only a last, smaller batch may be left out
            missing = max(missing, int((often == 0).sum()) - (size - 1))
    checks = [
        Check(
            name="batch sizes",
            sentence=f"{len(wrong)} of {len(counted.steps)} batches have another size than {size}",
            p=0.0 if wrong else 1.0,
            number=float(counted.sizes[wrong[0]]) if wrong else float(size),
            expected=float(size),
            witness=f"step {wrong[0]}" if wrong else "",
            certain=True,
        ),
        Check(
            name="repeats within an epoch",
            sentence=f"{again} times a row came again within its epoch",
            p=0.0 if again else 1.0,
            number=float(again),
            expected=0.0,
            witness=where,
            certain=True,
        ),
        Check(
            name="rows left out of an epoch",
            sentence=f"{max(missing, 0)} more rows than a last batch holds were left out of an epoch",
            p=0.0 if missing > 0 else 1.0,
            number=float(max(missing, 0)),
            expected=0.0,
            certain=True,
        ),
    ]
    if not again:
        checks += _order_checks(counted, seed)
    return checks


def _order_checks(counted: Counted, seed: int) -> list[Check]:
    """Is the deal of rows to batches random, and anew in each epoch? Permutation tests, exact for any size."""
    rng = np.random.default_rng(seed)
    chosen = np.arange(counted.rows)
    if chosen.size > _MOST_SHUFFLED:  # a window of rows in a row: an order that was kept shows there as well
        start = int(rng.integers(counted.rows - _MOST_SHUFFLED))
        chosen = chosen[start : start + _MOST_SHUFFLED]
    places = []
    for epoch in counted.epochs:
        place = np.full(
            counted.rows, len(epoch), dtype=np.float64
        )  # rows that were left out count as a batch of their own
        for s, batch in enumerate(epoch):
            place[batch] = s
        places.append(place[chosen])
    deals = np.array(places)
    orders = rng.permuted(np.tile(np.arange(chosen.size), (_PERMUTATIONS, 1)), axis=1)
    index = np.arange(chosen.size, dtype=np.float64)

    def along(deal: Floats) -> Floats:
        return np.asarray(_correlation(deal, index))

    def blocks(deal: Floats) -> Floats:
        return np.asarray((deal[..., 1:] == deal[..., :-1]).sum(axis=-1), dtype=np.float64)

    checks = [
        _permuted(
            "order of the rows", "the order of the rows and their batches are correlated", along, deals[0], orders
        ),
        _permuted("neighboring rows", "neighboring rows are in one batch", blocks, deals[0], orders),
    ]
    if len(places) > 1:
        first = deals[0]

        def like_the_first(deal: Floats) -> Floats:
            return np.asarray(_correlation(deal, first))

        checks.append(_permuted("epochs in a row", "two epochs deal the rows alike", like_the_first, deals[1], orders))
    return checks


def _permuted(name: str, what: str, statistic: Any, deal: Floats, orders: NDArray[np.int64]) -> Check:
    """A two-sided permutation test: the rank of what was seen among random deals."""
    seen = float(statistic(deal))
    drawn = statistic(deal[orders])
    lower = (1.0 + float((drawn <= seen).sum())) / (1.0 + drawn.size)
    upper = (1.0 + float((drawn >= seen).sum())) / (1.0 + drawn.size)
    return Check(
        name=name,
        sentence=f"{what}: {seen:.4g}",
        p=laws.two_sided((lower, upper)),
        number=seen,
        expected=float(drawn.mean()),
    )


def _correlation(deal: Floats, other: Floats) -> Floats:
    """The correlation of the last axis with one vector; 0 where nothing varies."""
    a = deal - deal.mean(axis=-1, keepdims=True)
    b = other - other.mean()
    norm = np.sqrt((a**2).sum(axis=-1) * (b**2).sum())
    return np.asarray(np.where(norm > 0.0, (a * b).sum(axis=-1) / np.maximum(norm, 1e-300), 0.0))


def fixed_checks(counted: Counted, *, size: int) -> list[Check]:
    """All tests of batches of ``size`` rows that are drawn anew in each step, no row twice in one."""
    wrong = np.flatnonzero(counted.sizes != size)
    q = size / counted.rows
    law = _hypergeometric(counted.rows, size)
    checks = [
        Check(
            name="batch sizes",
            sentence=f"{wrong.size} of {len(counted.steps)} batches have another size than {size}",
            p=0.0 if wrong.size else 1.0,
            number=float(counted.sizes[wrong[0]]) if wrong.size else float(size),
            expected=float(size),
            witness=f"step {wrong[0]}" if wrong.size else "",
            certain=True,
        ),
        dataclasses.replace(row_extremes(counted, q), p=_union_of_extremes(counted, q)),
    ]
    couples = [following(counted, q)]
    if len(counted.epochs) > 1:
        couples.append(same_place(counted, q))
    for one in couples:
        pairs_of_steps = round(one.expected / (counted.rows * q * q)) if q else 0
        tails = laws.sum_tails(int(one.number), law, pairs_of_steps) if pairs_of_steps else (1.0, 1.0)
        checks.append(dataclasses.replace(one, p=laws.two_sided(tails)))
    return checks


def _union_of_extremes(counted: Counted, q: float) -> float:
    """Rows are dependent here, so the chances of all rows are added up."""
    steps = len(counted.steps)
    low = laws.binomial_tails(int(counted.counts.min()), steps, q)[0]
    high = laws.binomial_tails(int(counted.counts.max()), steps, q)[1]
    return min(1.0, 2.0 * counted.rows * min(low, high))


def _hypergeometric(rows: int, size: int) -> Floats:
    """How many rows two batches of ``size`` out of ``rows`` share."""
    k = np.arange(size + 1.0)
    top = _log_choose(size, k) + _log_choose(rows - size, size - k) - _log_choose(rows, size)
    return np.asarray(np.where(size - k <= rows - size, np.exp(top), 0.0))


def _log_choose(n: float, k: Any) -> Any:
    """log of the binomial coefficient."""
    inside = np.clip(np.asarray(k, dtype=np.float64), 0.0, n)
    return special.gammaln(n + 1.0) - special.gammaln(inside + 1.0) - special.gammaln(n - inside + 1.0)


def rank_checks(draws: Draws, *, seed: int = 0) -> list[Check]:
    """The ranks beside each other: as many steps, no row on two of them in one step, sizes that are not tied."""
    lengths = list(zip(*[[len(epoch) for epoch in rank] for rank in draws.ranks], strict=False))
    uneven = next((e for e, one in enumerate(lengths) if len(set(one)) > 1), None)
    shown = lengths[uneven or 0]
    twice, drawn, where = 0, 0, ""
    for e, epochs in enumerate(zip(*draws.ranks, strict=False)):
        for s, parts in enumerate(zip(*epochs, strict=False)):
            values, often = np.unique(np.concatenate([np.unique(part) for part in parts]), return_counts=True)
            drawn += values.size
            twice += int((often > 1).sum())
            if (often > 1).any() and not where:
                row = int(values[np.argmax(often)])
                on = [str(r) for r, part in enumerate(parts) if row in part]
                where = f"row {row} in step {s} of epoch {e} on ranks {' and '.join(on)}"
    return [
        Check(
            name="steps of the ranks",
            sentence="the ranks take " + " and ".join(map(str, shown)) + f" steps in epoch {uneven or 0}",
            p=1.0 if uneven is None else 0.0,
            number=float(max(shown)),
            expected=float(min(shown)),
            certain=True,
        ),
        Check(
            name="rows of the ranks",
            sentence=f"{twice} of {drawn} draws are on two ranks in the same step",
            p=0.0 if twice else 1.0,
            number=twice / max(drawn, 1),
            expected=0.0,
            witness=where,
            certain=True,
        ),
        _tied_sizes(draws, seed),
    ]


def _tied_sizes(draws: Draws, seed: int) -> Check:
    """Do the sizes of the ranks' batches go together? A permutation of the steps of each rank is as likely as any."""
    sizes = [np.array([batch.size for epoch in rank for batch in epoch], dtype=np.float64) for rank in draws.ranks]
    steps = min(one.size for one in sizes)
    table = np.array([one[:steps] for one in sizes])
    rng = np.random.default_rng(seed)
    seen = float(((table[1:] - table[0]) ** 2).sum())
    drawn = np.zeros(_PERMUTATIONS)
    for one in table[1:]:
        orders = rng.permuted(np.tile(one, (_PERMUTATIONS, 1)), axis=1)
        drawn += ((orders - table[0]) ** 2).sum(axis=1)
    same = float((table[1:] == table[0]).all(axis=0).mean()) if steps else 0.0
    return Check(
        name="seeds of the ranks",
        sentence=f"the ranks' batches have the same size in {same:.3g} of the steps",
        p=(1.0 + float((drawn <= seen).sum())) / (1.0 + drawn.size),
        number=same,
        expected=float("nan") if not steps else _expected_equal(table),
        witness=f"sizes of the first steps: {table[:, :6].astype(int).tolist()}",
    )


def _expected_equal(table: Floats) -> float:
    """How often sizes agree when steps are paired at random."""
    values = np.unique(table)
    shares = np.array([[(one == value).mean() for value in values] for one in table])
    return float(shares.prod(axis=0).sum())
