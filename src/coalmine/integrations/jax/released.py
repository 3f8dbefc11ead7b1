"""Everything that is released must carry noise where a row reaches it: numbers, whole numbers and truth values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.reading import Reading, Tried
from coalmine.probing import faults, rows
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import Sample

_KEYS, _MUCH = 20, 30.0
"""Other keys, and a factor of the noise with which it decides a sign."""
_HIDDEN = 100.0
"""How much further than its noise a row may move a function of what was noised."""


def measure(reading: Reading, samples: Sequence[Sample]) -> Measurement:
    """What a row reaches and no noise hides."""
    by_name = {one.name: one for one in samples}
    found: list[Finding] = []
    elsewhere: list[str] = []
    bent: list[str] = []
    for name in reading.bench.names:
        reached, one = _reached(reading, name)
        if one is None:
            continue
        if name not in reading.noisy and name not in reading.constant:
            if name in reading.by_draws and _added_by_hand(reading, name, one):
                elsewhere.append(name)
            elif name in reading.by_draws and _bent(reading, name, one):
                bent.append(name)
            else:
                found.append(_finding(name, "carries no noise", one))
        elif name in by_name:
            bare = int((reached & (by_name[name].squares == 0.0)).sum())
            if bare:
                found.append(_finding(name, f"carries no noise in {bare} of its {reached.size} numbers", one))
    found += [_finding(name, "carries no noise", one) for name, one in _exact(reading)]
    blind = ""
    if elsewhere:
        blind = (
            f"{elsewhere[0]} has noise that is not drawn by a function of jax.random, beside others that have: "
            "its size was not measured"
        )
    elif bent:
        blind = (
            f"{bent[0]} depends on the rows and on noise, but not in proportion: it is a function of what was noised "
            "(a power, a sign, the largest numbers), so neither was measured in it; while probing, leave that function "
            "out, so that the step gives what was noised"
        )
    sentence = "Everything that a row reaches carries noise." if not blind else f"Not measured: {blind}."
    return Measurement(
        name="coverage", sentence=found[0].sentence if found else sentence, findings=tuple(found[:3]), blind=blind
    )


def _finding(name: str, text: str, one: Tried) -> Finding:
    returned = name.startswith("returned")
    return faults.finding(
        faults.RETURNED if returned else faults.UNNOISED,
        f"The step {'returns' if returned else 'changes'} {name}, which depends on the rows and {text}.",
        allowed=0.0,
        witness=f"{name}, with one row more: {rows.describe(one.row)}",
    )


def _reached(reading: Reading, name: str) -> tuple[NDArray[np.bool_], Tried | None]:
    """Which numbers of a tensor rows move beyond rounding, and one that does."""
    least = 16.0 * reading.rounding(name, reading.plain[name])
    reached, witness = np.zeros(reading.plain[name].size, dtype=bool), None
    for one in reading.finite:
        now = np.abs(one.moved[name]) > least
        witness = one if witness is None and now.any() else witness
        reached |= now
    return reached, witness


def _added_by_hand(reading: Reading, name: str, one: Tried) -> bool:
    """Whether keys change a tensor by the same numbers with a row as without: by noise, and not by sampling."""
    bench, keys = reading.bench, list(range(2, 2 + _KEYS))
    without, with_it = (
        bench.run([batch] * _KEYS, keys, [0.0] * _KEYS)[name] for batch in (reading.base, bench.batch(one.row))
    )
    left = with_it - without - one.moved[name]
    return float(np.abs(left).max()) <= 16.0 * reading.rounding(name, np.abs(without).max(axis=0))


def _bent(reading: Reading, name: str, one: Tried) -> bool:
    """Whether keys change a tensor without a row, too, so that noise is in it, by as much as could hide one.

    Rows that are drawn or changed at random move nothing where there are none. A function of what was noised moves with
    its noise, in whatever way; what moves hundreds of times as far with a row is no such function.
    """
    bench, keys = reading.bench, list(range(2, 2 + _KEYS))
    nobody = bench.empty
    if bench.failure(nobody):  # rows that move as little as any
        weakest = min(reading.finite, key=lambda one: float(np.linalg.norm(one.moved[name])))
        nobody = bench.replaced(dict.fromkeys(range(rows.size(bench.base)), weakest.row))
    alone, without, with_it = (
        bench.run([batch] * _KEYS, keys, [0.0] * _KEYS)[name] for batch in (nobody, reading.base, bench.batch(one.row))
    )
    spread = np.linalg.norm(alone - alone.mean(axis=0), axis=1)
    moved = np.linalg.norm(with_it - without, axis=1)
    if not np.isfinite([*spread, *moved]).all():
        return False
    least = 16.0 * reading.rounding(name, np.abs(alone).max(axis=0))
    return bool(np.median(spread) > least and np.median(moved) <= _HIDDEN * np.median(spread))


def _exact(reading: Reading) -> list[tuple[str, Tried]]:
    """Whole numbers and truth values that a row changes, and that stay the same whatever the noise is."""
    bench, keys = reading.bench, list(range(2, 2 + _KEYS))
    moving = {}
    for name in bench.exact:
        one = next((one for one in reading.finite if one.moved[name].any()), None)
        if one is not None:
            moving[name] = one
    found = []
    for name, one in moving.items():
        batches = [reading.base, bench.batch(one.row)]
        hidden = False
        for batch in batches:
            once, much = (bench.run([batch] * _KEYS, keys, [one] * _KEYS)[name] for one in (1.0, _MUCH))
            quiet = once[:1] if reading.outside else bench.run([batch] * _KEYS, keys, [0.0] * _KEYS)[name]
            hidden = hidden or bool((once != quiet).any() or (much != quiet).any())
        if not hidden:
            found.append((name, one))
    return found
