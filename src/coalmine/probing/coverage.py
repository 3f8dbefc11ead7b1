"""Is everything that the rows reach covered by noise?

With a row more, noise can be shifted so that every carrier shows what it shows without the row. If all that is
released follows from the noised sum, then *everything* is as it was without the row: parameters, momentum, buffers,
returned values. What still differs has seen the row by another way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coalmine.probing import elsewhere, faults, rows, text
from coalmine.probing.after_noise import touched_at_last
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading, cannot_replay, rounding
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.hiding import bend, effective, hide, may_follow_a_curve, noise_error
from coalmine.probing.noise import SHARES, Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, with_row
from coalmine.probing.shifter import Shifter
from coalmine.probing.vectors import distance, norm, pieces

_ROWS = 6
_RESCALED = (faults.DIVISOR.name, faults.NOISE_DEPENDS.name, faults.LEFT_OUT.name)
_SHOWN = 3
"""Findings of one kind that are listed."""
_LEFT = 0.02
"""What may be left of a difference once noise hides the row: rounding, which an optimizer may amplify."""


def _floor(a: torch.Tensor, b: torch.Tensor) -> float:
    return 20.0 * max(rounding(a), rounding(b))


def measure(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    shifter: Shifter,
    samples: Sequence[Sample],
    *,
    level: float,
    known: Sequence[Finding] = (),
) -> Measurement:
    """Find what the rows change and the noise does not cover.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        shifter: moves noise.
        samples: the noise in each carrier.
        level: of the whole probe.
        known: what rows do to the noise; a row whose noise is another cannot be hidden, and is not counted again.
    """
    rescaled = any(one.fault in _RESCALED for one in known)
    if not reading.noise:
        return Measurement(name="coverage", sentence="Without noise nothing is covered.", details={"reached": 0})
    found: dict[str, Finding] = {}
    reached: set[str] = set()
    # A row that is not clipped reaches what counts such rows; one that moves most is clipped.
    least = min(influence.tried, key=lambda one: one.total)
    tried = [(one, with_row(bench, one.row)) for one in (*influence.witnesses(len(reading.carriers))[:_ROWS], least)]
    tried.append((influence.best, bench.replaced({0: influence.best.row})))
    bench.scaled(reading.base, 1.0)
    unread = ""
    outside, shows = elsewhere.read(bench.subject.step, bench.release), dict[str, str]()
    bench.scaled(reading.base, 1.0)
    unsteady = _shown_elsewhere(bench, outside)
    for one, world in tried:
        hidden = hide(bench, reading, shifter, world) if shifter.complete else None
        plain = bench.scaled(world, 1.0) if hidden is None else hidden.plain
        if hidden is not None:
            shows |= _shown_elsewhere(bench, outside)
        if plain.error:
            continue
        bent: dict[str, float] = {}
        for name in _there_in_one(reading.plain, plain):
            if name not in found and (hidden is None or name in _there_in_one(reading.plain, hidden.shown)):
                found[name] = _finding(name, "whether it is there follows the rows", one.row, None)
        for name, before in reading.plain.released.items():
            if name in found or name not in plain:
                continue
            if plain[name].shape != before.shape:
                if hidden is None or name not in hidden.shown or hidden.shown[name].shape != before.shape:
                    found[name] = _finding(name, "its shape follows the rows", one.row, None)
                continue
            floor = _floor(plain[name], before)
            size = distance(plain[name], before)
            if not size > floor:
                continue
            reached.add(name)
            touched = reading.touched.get(name, torch.zeros(before.numel(), dtype=torch.bool))
            bare = norm(x.sub_(y)[t == 0.0] for x, y, t in pieces(plain[name], before, touched))
            if bare > floor and name in reading.noisy and not reading.outside:
                touched = touched_at_last(bench, reading.base, reading.silent, name, touched)
                reading.touched[name] = touched
                bare = norm(x.sub_(y)[t == 0.0] for x, y, t in pieces(plain[name], before, touched))
            if bare > floor:
                many = int((~touched).sum())
                why = "it carries no noise" if name not in reading.noisy else f"{many} of its numbers carry none"
                found[name] = _finding(name, why, one.row, bare)
            elif hidden is not None and name in hidden.shown and not hidden.shown.error:
                left = distance(hidden.shown[name], before)
                within = _LEFT * size + floor + noise_error(bench, reading, name)
                if left > within and not (rescaled and not name.startswith("returned")):
                    price = None
                    if may_follow_a_curve(reading, name):
                        price = bend(bench, shifter, hidden, name, before, within=within)
                    if price is None and name.endswith(text.MARK):
                        unread = unread or name.removesuffix(text.MARK)
                    elif price is None:
                        found[name] = _beside(name, left / size, one.row)
                    else:
                        bent[name] = price
        if bent:
            real = effective(
                reading, one, samples, float(np.linalg.norm(list(bent.values()))), level=level * SHARES["size"]
            )
            if real is not None and real < bench.subject.noise_multiplier * (1.0 - _LEFT):
                found[", ".join(bent)] = _together(bent, real, bench.subject.noise_multiplier, one.row, level)
        del hidden, plain  # room for the next row
    _check_replayed(bench, reading, found)
    if found:
        first = next(iter(found.values()))
        sentence = first.sentence if len(found) == 1 else f"{first.sentence} So do {len(found) - 1} more."
    else:
        how = "and noise can hide the row from every one" if shifter.complete else "and each carries noise"
        sentence = f"Rows reach {len(reached)} released tensor{'' if len(reached) == 1 else 's'}, {how}."
    return Measurement(
        name="coverage",
        sentence=sentence,
        findings=tuple(_few(list(found.values()))),
        blind=_named([name for name in shows if name not in unsteady]) or _unsteady(list(unsteady)) or _text(unread),
        details={"reached": len(reached), "uncovered": sorted(found), "hidden": shifter.complete},
    )


def _check_replayed(bench: Bench, reading: Reading, found: Mapping[str, Finding]) -> None:
    """An error where what seems to show a row is another one in every run: a clock that seldom moves."""
    if not found:
        return
    again = bench.scaled(reading.base, 1.0)
    for name, before in reading.plain.released.items():
        there = name in found and name in again and again[name].shape == before.shape
        if there and distance(again[name], before) > _floor(again[name], before):
            raise cannot_replay(name)


def _shown_elsewhere(bench: Bench, before: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """What the last run left outside its state that differs although noise hid the row."""
    after = elsewhere.read(bench.subject.step, bench.release)
    found = {}
    for name in (*before, *after):
        if name not in before or name not in after or before[name].shape != after[name].shape:
            found[name.removesuffix(text.MARK)] = name
            continue
        if name.endswith(text.MARK) and before[name][0] != after[name][0]:  # other words
            found[name.removesuffix(text.MARK)] = name
            continue
        size = norm(one for (one,) in pieces(before[name]))
        if not distance(after[name], before[name]) <= 1e-3 * size + _floor(after[name], before[name]):
            found[name.removesuffix(text.MARK)] = name
    return found


def _named(names: list[str]) -> str:
    """The blindness that values outside the state leave."""
    if not names:
        return ""
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"the step also changes {names[0]}{more}, which is not in state and shows a row that noise hides from the "
        "private sum; if anybody ever sees it, hand it over in state or return it; if nobody does, say "
        f'kept=("{names[0]}",). And does it decide anything later (how a row is clipped, a rate, what is left '
        "out)? Then each row must stay within its bound whatever it holds; the first eight steps are tried for that"
    )


def _unsteady(names: list[str]) -> str:
    """The blindness that a clock outside the state leaves."""
    if not names:
        return ""
    return (
        f"the step also changes {names[0]}, which is not in state and differs between two runs with the same rows and "
        "the same draws, as a clock does; so it is not known whether it shows a row; if nobody outside sees it, say "
        f'kept=("{names[0]}",)'
    )


def _there_in_one(first: Observation, second: Observation) -> set[str]:
    """What only one of two runs released; a run that failed is another measure's matter."""
    return set() if first.error or second.error else set(first.released) ^ set(second.released)


def _text(name: str) -> str:
    """The blindness that a text with numbers of its own noise leaves."""
    if not name:
        return ""
    return f"{name} is a text that depends on rows and on noise; hand over or return the numbers in it instead"


def _few(found: list[Finding]) -> list[Finding]:
    """At most three of a kind; the last one says how many more there are, and the details list all."""
    shown: list[Finding] = []
    for fault in dict.fromkeys(one.fault for one in found):
        alike = [one for one in found if one.fault == fault]
        if len(alike) > _SHOWN:
            more = f" So it is in {len(alike) - _SHOWN} more."
            alike = [*alike[: _SHOWN - 1], dataclasses.replace(alike[_SHOWN - 1], sentence=alike[2].sentence + more)]
        shown += alike
    return shown


def _finding(name: str, why: str, row: Any, number: float | None) -> Finding:
    name = name.removesuffix(text.MARK)
    fault = faults.RETURNED if name.startswith("returned") else faults.UNNOISED
    said = f"The step changes {name}, which depends on the rows, and {why}."
    if name.startswith("returned"):
        said = (
            f"The step returns a value ({name}) that depends on the rows, and {why}. If nobody outside sees it, say "
            f'kept=("{name}",).'
        )
    return faults.finding(
        fault,
        said,
        number=number,
        allowed=0.0,
        witness=f"{name}, with one row more: {rows.describe(row)}",
    )


def _together(names: Iterable[str], real: float, promised: float, row: Any, level: float) -> Finding:
    """Values with noise of their own, released beside the private sum, of which too little is left."""
    return faults.finding(
        faults.TOO_SENSITIVE,
        f"With {', '.join(names)} released beside the private sum, the noise multiplier is at most {real:.3g}, where "
        f"{promised:.3g} is promised.",
        number=real,
        allowed=promised,
        witness=rows.describe(row),
        level=level * SHARES["size"],
    )


def _beside(name: str, left: float, row: Any) -> Finding:
    share = "all" if left > 0.99 else f"{left:.3g}"
    say = f' If nobody outside sees it, say kept=("{name}",).' if name.startswith("returned") else ""
    return faults.finding(
        faults.RETURNED if name.startswith("returned") else faults.PARTLY_NOISED,
        f"One row changes {name} in a way that its noise cannot hide: when noise hides the row from the private sum, "
        f"{share} of the change is still there.{say}",
        number=left,
        allowed=0.0,
        witness=f"{name}, with one row more: {rows.describe(row)}",
    )
