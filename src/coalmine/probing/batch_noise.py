"""The noise of another batch: is it that of the batch itself?

The recorded draws are played for both. If they add the same in both, times a factor, the factor is the answer. A step
that adds noise in each of k parts of a batch makes other draws where k follows the rows. What counts then is the law:
noise Σⱼ bⱼ·zⱼ of independent standard normal draws zⱼ has standard deviation ‖b‖ in each number. The draws zⱼ of
some runs and what they add are known, so b solves a system of linear equations: no chance is left in ‖b‖.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping

import torch

from coalmine.probing.bench import Bench, World
from coalmine.probing.carriers import TOLERANCE, Reading, delta, rounding
from coalmine.probing.release import Observation
from coalmine.probing.tape_draws import Key
from coalmine.probing.vectors import inner, pieces, residual

_RUNS = 40
"""Runs at most that the equations for b are taken from."""
_SPARE = 8
"""More equations than draws, so that no chance solves them."""
_ROUNDINGS = 8.0


@dataclasses.dataclass
class Ratio:
    """How the noise in one tensor of another batch compares with that of the batch itself."""

    what: str
    name: str
    number: float
    other: float
    """What is left of the noise once it is scaled back: draws that play another part."""
    draws: tuple[int, int] | None = None
    """Where it is a sum of whole draws: of how many in the batch itself, and in the other one."""

    @property
    def size(self) -> float:
        """How large the noise is."""
        return self.number if self.draws is not None else math.hypot(self.number, self.other)


def ratios(
    bench: Bench, reading: Reading, world: World, what: str, *, silent: Observation | None = None, law: bool = True
) -> list[Ratio]:
    """The noise of another batch, against that of the batch itself; nothing where the step failed.

    Args:
        bench: the step.
        reading: its carriers.
        world: the other batch.
        what: which one it is, in words.
        silent: what it shows without noise, where that is known.
        law: whether sizes are compared where draws play another part, which takes many runs; otherwise those tensors
            are left out.
    """
    plain, silent = bench.scaled(world, 1.0), bench.silent(world) if silent is None else silent
    if plain.error or silent.error:
        return []
    found = []
    for one in reading.noised:
        size = one.response
        if size == 0.0:
            continue
        if one.name not in plain or one.name not in silent:
            found.append(Ratio(what, one.name, 0.0, 0.0))
            continue
        noise = plain[one.name], silent[one.name]
        if not all(bool(torch.isfinite(x.sub_(y)).all()) for x, y in pieces(*noise)):
            return []
        ratio = inner(*noise, one.plain, one.silent) / size**2
        floor = _ROUNDINGS * max(rounding(plain[one.name]), rounding(reading.plain[one.name])) / size
        left = residual(*noise, one.plain, one.silent, ratio) / size
        found.append(Ratio(what, one.name, 1.0 if abs(ratio - 1.0) <= floor else ratio, max(left - floor, 0.0)))
    single = {one.name for one in reading.noised if one.numbers == 1}  # any two noises of one number agree
    unclear = [one for one in found if one.other > TOLERANCE or (one.name in single and one.number not in (0.0, 1.0))]
    if unclear and not law:
        return [one for one in found if one not in unclear]
    return _by_law(bench, reading, world, found, unclear) if unclear else found


def _by_law(bench: Bench, reading: Reading, world: World, found: list[Ratio], unclear: list[Ratio]) -> list[Ratio]:
    """The same, where draws play another part: the size of the noise instead of the noise itself, if both are sums."""
    here, there = _sums(bench, reading, reading.base), _sums(bench, reading, world)
    changed = []
    for one in found:
        if one in unclear and one.name in here and one.name in there:
            number = float(there[one.name].norm() / here[one.name].norm())
            same = abs(number - 1.0) <= TOLERANCE
            draws = _count(here[one.name]), _count(there[one.name])
            changed.append(dataclasses.replace(one, number=number, other=0.0 if same else one.other, draws=draws))
        else:
            changed.append(one)
    return changed


def _count(weights: torch.Tensor) -> int:
    return int((weights.abs() > TOLERANCE * weights.norm()).sum())


def _sums(bench: Bench, reading: Reading, world: World) -> dict[str, torch.Tensor]:
    """For each tensor b, where its noise in a world is Σⱼ bⱼ·zⱼ over draws of its size, or its parts of larger ones."""
    sizes = {one.name: one.numbers for one in reading.noised}
    starts = dict(zip(sizes, itertools.accumulate(sizes.values(), initial=0), strict=False))
    silent = bench.silent(world)
    draws: dict[str, list[torch.Tensor]] = {name: [] for name in sizes}
    noise: dict[str, list[torch.Tensor]] = {name: [] for name in sizes}
    runs = needed = 1
    while runs <= needed <= _RUNS:
        heard: dict[Key, torch.Tensor] = {}
        shown = bench.renewed(world, heard=heard)
        parts = {name: _parts(heard, size, starts[name], sum(sizes.values())) for name, size in sizes.items()}
        if shown.error or any(name not in shown or name not in silent for name in sizes):
            return {}
        for name, part in parts.items():
            draws[name].append(part)
            noise[name].append(delta(shown[name], silent[name]))
        needed = max(-(-(part.shape[1] + _SPARE) // sizes[name]) for name, part in parts.items())
        runs += 1
    found = {}
    for name in sizes:
        if (
            len({part.shape for part in draws[name]}) == 1
            and len(draws[name]) * sizes[name] > draws[name][0].shape[1] > 0
        ):
            matrix, added = torch.cat(draws[name]), torch.cat(noise[name])
            weights = torch.linalg.lstsq(matrix, added[:, None]).solution[:, 0]
            error = _ROUNDINGS * rounding(shown[name]) * math.sqrt(len(draws[name]))
            if float((matrix @ weights - added).norm()) <= TOLERANCE * float(added.norm()) + error:
                found[name] = weights
    return found


def _parts(heard: Mapping[Key, torch.Tensor], size: int, start: int, total: int) -> torch.Tensor:
    """Every draw of this size as a column, and of a draw for all tensors the part that is this tensor's."""
    whole = [one.double().reshape(-1).cpu() for one in heard.values()]
    found = [one if len(one) == size else one[start : start + size] for one in whole if len(one) in (size, total)]
    return torch.stack(found, dim=1) if found else torch.zeros(size, 0, dtype=torch.float64)
