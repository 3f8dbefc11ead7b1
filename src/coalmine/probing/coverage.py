"""Is everything that the rows reach covered by noise?

With a row more, noise can be shifted so that every carrier shows what it shows without the row. If all that is
released follows from the noised sum, then *everything* is as it was without the row: parameters, momentum, buffers,
returned values. What still differs has seen the row by another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coalmine.probing import faults, rows
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading, Shifter, delta, rounding
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.release import Observation
from coalmine.probing.search import Influence, with_row

_ROWS = 6
_RESCALED = (faults.DIVISOR.name, faults.NOISE_DEPENDS.name, faults.LEFT_OUT.name)
_LEFT = 0.02
"""What may be left of a difference once noise hides the row: rounding, which an optimizer may amplify."""


def hide(bench: Bench, reading: Reading, shifter: Shifter, row: Any) -> tuple[Observation, Observation]:
    """The step with a row more: with the recorded noise, and with noise that hides the row from every carrier."""
    world = with_row(bench, row)
    plain = bench.scaled(world, 1.0)
    moves = {one.name: delta(plain[one.name], reading.plain[one.name]) for one in reading.noised if one.name in plain}
    return plain, bench.shifted(world, shifter.hiding(moves))


def _floor(a: torch.Tensor, b: torch.Tensor) -> float:
    return 20.0 * max(rounding(a), rounding(b))


def noise_error(bench: Bench, reading: Reading, name: str) -> float:
    """What the rounding of the draws does to a tensor: noise cannot be shifted by less than their own spacing."""
    kinds = {bench.tape.draw(key).value.dtype for key in bench.tape.noise_keys()}
    eps = max((torch.finfo(one).eps for one in kinds if one.is_floating_point), default=0.0)
    return 20.0 * eps * float(delta(reading.plain[name], reading.silent[name]).norm())


def measure(
    bench: Bench, reading: Reading, influence: Influence, shifter: Shifter, *, known: Sequence[Finding] = ()
) -> Measurement:
    """Find what the rows change and the noise does not cover.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        shifter: moves noise.
        known: what rows do to the noise; a row whose noise is another cannot be hidden, and is not counted again.
    """
    rescaled = any(one.fault in _RESCALED for one in known)
    if not reading.noise:
        return Measurement(name="coverage", sentence="Without noise nothing is covered.", details={"reached": 0})
    found: dict[str, Finding] = {}
    reached: set[str] = set()
    for one in influence.witnesses(len(reading.carriers))[:_ROWS]:
        plain, hidden = (
            hide(bench, reading, shifter, one.row)
            if shifter.complete
            else (bench.scaled(with_row(bench, one.row), 1.0), None)
        )
        if plain.error:
            continue
        for name, before in reading.plain.released.items():
            if name in found or name not in plain:
                continue
            after = plain[name]
            if after.shape != before.shape:
                found[name] = _finding(name, "its shape follows the rows", one.row, None)
                continue
            apart = delta(after, before)
            floor = _floor(after, before)
            size = float(apart.norm())
            if not size > floor:
                continue
            reached.add(name)
            bare = apart[~reading.touched[name]] if name in reading.touched else apart
            if float(bare.norm()) > floor:
                text = (
                    "it carries no noise" if name not in reading.noisy else f"{bare.numel()} of its numbers carry none"
                )
                found[name] = _finding(name, text, one.row, float(bare.norm()))
            elif hidden is not None and name in hidden and not hidden.error:
                left = float(delta(hidden[name], before).norm())
                shown = floor + noise_error(bench, reading, name)
                if left > _LEFT * size + shown and not (rescaled and not name.startswith("returned")):
                    found[name] = _beside(name, left / size, one.row)
    if found:
        first = next(iter(found.values()))
        sentence = first.sentence if len(found) == 1 else f"{first.sentence} So do {len(found) - 1} more."
    else:
        how = "and noise can hide the row from every one" if shifter.complete else "and each carries noise"
        sentence = f"Rows reach {len(reached)} released tensors, {how}."
    return Measurement(
        name="coverage",
        sentence=sentence,
        findings=tuple(_few(list(found.values()))),
        details={"reached": len(reached), "uncovered": sorted(found), "hidden": shifter.complete},
    )


def _few(found: list[Finding]) -> list[Finding]:
    """At most three of a kind: the details list all."""
    shown: list[Finding] = []
    for one in found:
        if sum(other.fault == one.fault for other in shown) < 3:
            shown.append(one)
    return shown


def _finding(name: str, text: str, row: Any, number: float | None) -> Finding:
    fault = faults.RETURNED if name.startswith("returned") else faults.UNNOISED
    what = "The step returns a value" if name.startswith("returned") else f"The step changes {name}"
    return faults.finding(
        fault,
        f"{what} that depends on the rows, and {text}.",
        number=number,
        allowed=0.0,
        witness=f"{name}, with one row more: {rows.describe(row)}",
    )


def _beside(name: str, left: float, row: Any) -> Finding:
    return faults.finding(
        faults.RETURNED if name.startswith("returned") else faults.PARTLY_NOISED,
        f"{name} still shows the row ({left:.3g} of the difference) when noise hides it from the private sum.",
        number=left,
        allowed=0.0,
        witness=f"{name}, with one row more: {rows.describe(row)}",
    )
