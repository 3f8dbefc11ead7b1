"""A row, hidden: noise shifted so that every carrier shows what it shows without the row.

Carriers are linear in noise, so their shift is known. A value that follows another noise by a curve (a clip norm times
exp of a noised count) is hidden by Newton's method on the draw that moves it. What that costs in privacy is the shift,
in standard deviations of the draw.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading, delta, rounding
from coalmine.probing.noise import Sample
from coalmine.probing.release import Observation
from coalmine.probing.search import Tried
from coalmine.probing.shifter import Shifter
from coalmine.probing.tape_draws import Key
from coalmine.probing.vectors import distance, inner

Shift = dict[Key, torch.Tensor]
_STEPS = 8
"""Of Newton's method: a curve that takes more is none that noise follows."""


@dataclasses.dataclass
class Hidden:
    """The step with a row more: as it is, and with noise that hides the row."""

    world: World
    plain: Observation
    shift: Shift
    shown: Observation


def hide(bench: Bench, reading: Reading, shifter: Shifter, world: World) -> Hidden:
    """Hide from every carrier what a world has that the batch has not."""
    plain = bench.scaled(world, 1.0)
    shift = shifter.hiding(plain, like=reading.plain)
    shown = bench.shifted(world, shift)
    # A draw weighs less in a batch whose noise is the sum of more of them: shift it as much further.
    names = [one.name for one in reading.noised if one.name in plain and one.name in shown]
    weights = {name: _weight(plain[name], shown[name], reading.plain[name]) for name in names}
    if not shown.error and any(abs(one - 1.0) > TOLERANCE for one in weights.values()):
        shift = shifter.hiding(plain, like=reading.plain, weights=weights)
        shown = bench.shifted(world, shift)
    return Hidden(world, plain, shift, shown)


def _weight(plain: torch.Tensor, shown: torch.Tensor, like: torch.Tensor) -> float:
    """How much of a move was taken back; 1 where that is nothing."""
    size = inner(plain, like, plain, like)
    share = inner(plain, shown, plain, like) / size if size > 0.0 else 1.0
    return share if share > TOLERANCE else 1.0


def noise_error(bench: Bench, reading: Reading, name: str) -> float:
    """What the rounding of the draws does to a tensor: noise cannot be shifted by less than their own spacing."""
    kinds = {bench.tape.draw(key).value.dtype for key in bench.tape.noise_keys()}
    eps = max((torch.finfo(one).eps for one in kinds if one.is_floating_point), default=0.0)
    return 20.0 * eps * distance(reading.plain[name], reading.silent[name])


def may_follow_a_curve(reading: Reading, name: str) -> bool:
    """Whether a value may have noise of its own; the noise of a parameter is that of the private sum, and linear."""
    one = reading.silent[name].numel() == 1
    door = any(carrier.door for carrier in reading.carriers)
    return (one or door) and f"gradient of {name}" not in reading.silent.gradients


def bend(
    bench: Bench, shifter: Shifter, hidden: Hidden, name: str, target: torch.Tensor, *, within: float
) -> float | None:
    """Hide the row from one value more, by a draw that moves no carrier; ``hidden`` then holds the shift.

    Args:
        bench: the step.
        shifter: knows which draws the carriers have; it is told which one moves this value.
        hidden: the row, hidden from the carriers.
        name: the value.
        target: what it is without the row.
        within: how close it must come.

    Returns:
        the length of the shift in standard deviations of the draw, or None where no draw can hide the row.
    """
    known = shifter.curved.get(name)
    for key in [known] if known is not None else shifter.free(target.numel()):
        found = _solved(bench, hidden, key, name, target, within)
        if found is not None and _separate(bench, hidden, key, name, found[0]):
            shifter.curved[name] = key
            hidden.shift[key], hidden.shown = found
            law = bench.tape.draw(key).normal
            scale = torch.as_tensor(1.0 if law is None else law[1], dtype=torch.float64).reshape(-1).cpu()
            return float((hidden.shift[key] / scale).norm())
    return None


def _solved(
    bench: Bench, hidden: Hidden, key: Key, name: str, target: torch.Tensor, within: float
) -> tuple[torch.Tensor, Observation] | None:
    """The shift of one draw, number by number, that brings a value to its target."""
    drawn = bench.tape.draw(key).value
    at = torch.zeros(drawn.numel(), dtype=torch.float64)
    off = delta(hidden.shown[name], target)
    best: tuple[torch.Tensor, Observation] | None = None
    step = torch.full_like(at, 0.1 * max(float(drawn.double().abs().mean()), 1e-3))
    for _ in range(_STEPS):
        shown = bench.shifted(hidden.world, {**hidden.shift, key: at + step})
        if shown.error or name not in shown or shown[name].shape != target.shape:
            break
        after = delta(shown[name], target)
        slope = (after - off) / step
        if bool(((slope == 0.0) & (after != 0.0)).any()) or not bool(torch.isfinite(slope).all()):
            break
        at, off = at + step, after
        if float(off.norm()) <= within:
            best = at, shown
        if float(off.norm()) <= 4.0 * rounding(target):
            break
        step = torch.where(off == 0.0, torch.full_like(off, 1e-12), -off / slope)
    return best


def _separate(bench: Bench, hidden: Hidden, key: Key, name: str, shift: torch.Tensor) -> bool:
    """Whether each number of a value follows its own number of the draw: otherwise the shift is one of many."""
    if shift.numel() == 1:
        return True
    moved = torch.arange(shift.numel()) % 2 == 0
    half = bench.shifted(hidden.world, {**hidden.shift, key: torch.where(moved, shift, 0.0)})
    if half.error or name not in half:
        return False
    apart = delta(half[name], hidden.shown[name])
    return not bool(apart[~moved].any())


def effective(reading: Reading, one: Tried, samples: Sequence[Sample], more: float, *, level: float) -> float | None:
    """The noise multiplier that is left for a row when ``more`` is released beside; None where noise is not known."""
    by_name = {sample.name: sample for sample in samples}
    every = [*reading.carriers, *reading.extras]
    if not samples or any(carrier.name not in by_name for carrier in every):
        return None
    stds = [by_name[carrier.name].upper_std(level / len(samples)) / (carrier.scale or 1.0) for carrier in every]
    worst = float(np.hypot(np.linalg.norm(np.append(one.moves, one.beside) / np.array(stds)), more))
    return 1.0 / worst if worst > 0.0 else None
