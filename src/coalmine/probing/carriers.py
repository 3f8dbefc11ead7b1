"""Where the private sum can be read: the tensors in which noise is linear, and what a unit of the sum becomes there.

Such a tensor is a *carrier*: first of all the gradient at an optimizer's door, else a parameter that a plain loop
moves. It shows noise and rows side by side, whatever an optimizer then makes of them. A second tensor that holds the
same noise times a constant (the momentum beside the parameter) is left out, or rows would count twice.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.probing import resolution, rows, text
from coalmine.probing.after_noise import in_proportion, with_own_noise
from coalmine.probing.bench import SPARE, Bench, World
from coalmine.probing.noise import TOLERANCE as TOLERANCE
from coalmine.probing.release import Observation
from coalmine.probing.tape_draws import Site
from coalmine.probing.tape_recording import Layout
from coalmine.probing.vectors import distance, inner, norm, pieces, residual, slices

_CALLS = 4
"""Calls after which a step that has changed nothing is given up."""
_GROWS = 2
"""Runs in which a number that grew from one run to the next must go on growing, to be a clock."""
_GRAINS = 0.025
"""Beside an optimizer's door: the most that rounding may be of a tensor's noise, or it says nothing."""
_FAR = (-30.0, -3e3, 3e3)
"""Factors for noise that turn every sign: an optimizer that keeps only signs (Adam, at first) responds to them too."""


@dataclasses.dataclass
class Carrier:
    """A tensor in which noise is linear.

    ``scale`` is what one unit of the sum of clipped gradients becomes here, where it is known.
    """

    name: str
    scale: float | None
    door: bool
    plain: torch.Tensor
    """What it is with the recorded noise."""
    silent: torch.Tensor
    """What it is without."""

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return self.silent.numel()

    @property
    def response(self) -> float:
        """The length of what the recorded noise adds here."""
        return distance(self.plain, self.silent)


@dataclasses.dataclass
class Reading:
    """What a step's noise does to everything that the step shows."""

    base: World
    silent: Observation
    """Without noise; where noise cannot be silenced, with one that every run shares."""
    plain: Observation
    carriers: list[Carrier]
    noisy: frozenset[str]
    """Tensors that respond to noise."""
    touched: dict[str, torch.Tensor]
    """For each released tensor, which of its coordinates respond to noise."""
    nonlinear: tuple[str, ...] = ()
    """Tensors that should carry the private sum, but do not respond to noise in proportion."""
    for_each_row: bool = False
    """Noise is drawn for each row, inside the sum."""
    extras: list[Carrier] = dataclasses.field(default_factory=list)
    """Released tensors with noise of their own, beside the private sum (a noised count, for instance)."""
    outside: bool = False
    """Noise is there, but not on the tape: it can be renewed, not silenced."""
    bent: bool = False
    """It is on the tape, but what is added is no multiple of what was drawn (truncated, or changed afterwards)."""
    shared: tuple[tuple[str, str], ...] = ()
    """Pairs of parameters whose noise is the same up to a constant."""
    coarse: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    """Carriers whose noise is no larger than the spacing of their numbers, each with which of them these are."""

    @property
    def noise(self) -> bool:
        """Whether anything responds to noise."""
        return bool(self.noisy)

    @property
    def noised(self) -> list[Carrier]:
        """Everything with noise of its own."""
        return [one for one in (*self.carriers, *self.extras) if one.name in self.noisy]

    def grain(self, name: str, where: slice | NDArray[np.intp]) -> NDArray[np.float64]:
        """The spacing of some of a tensor's numbers."""
        return resolution.spacing(self.plain[name].reshape(-1)[where])

    @property
    def too_small(self) -> str:
        """What rounding hides, in words; empty where everything is shown well."""
        if not self.coarse:
            return ""
        name, where = next(iter(self.coarse.items()))
        kind = str(self.silent[name].dtype).removeprefix("torch.")
        many = f"{int(where.sum())} of the {where.numel()} numbers of {name}"
        more = f" (and in {len(self.coarse) - 1} more tensors)" if len(self.coarse) > 1 else ""
        return (
            f"the noise in {many}{more} is too small to measure at this learning rate: next to it, {kind} rounds the "
            "parameters; probe the same step with a larger learning rate, or hand over the optimizer"
        )

    @property
    def absolute(self) -> bool:
        """Whether the size of a unit of the sum is known."""
        return all(one.scale is not None for one in self.carriers)


def delta(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a − b in double precision, as a vector."""
    wide = a.to(torch.float64, copy=True)
    return wide.sub_(b if b.is_floating_point() else b.double()).reshape(-1).cpu()


def rounding(value: torch.Tensor) -> float:
    """How far rounding alone may move a tensor."""
    if not value.is_floating_point():
        return 0.0
    return float(torch.finfo(value.dtype).eps * torch.linalg.vector_norm(value, dtype=torch.float64))


def record(bench: Bench) -> World:
    """Record the step with spare rows and without them; the world without them is the one all others differ from."""
    base = bench.world()
    _settle(bench, base)
    large = bench.world({slot: rows.take(bench.base, [slot]) for slot in range(SPARE)})
    if bench.record(large).error:
        bench.grows = False  # the step takes batches of one size only: a row can be replaced, not added
        bench.record(base)
    else:
        bench.learn(base)
    return base


def _settle(bench: Bench, base: World) -> None:
    """Find a call that changes something: a step that gathers several batches first releases nothing."""
    returns = False
    for _ in range(_CALLS):
        shown = bench.check(bench.record(base), "its own batch")
        # A counter moves in every call; what is released moves a tensor, where there is one.
        moved = [name for name in _moved(shown, bench.start) if shown[name].ndim and not name.endswith(text.MARK)]
        only_numbers = not any(one.ndim for name, one in bench.start.items() if not name.endswith(text.MARK))
        if shown.gradients or moved or (only_numbers and _moved(shown, bench.start)):
            return
        returns = returns or any(name.startswith("returned") for name in shown.released)
        bench.advance()
    bench.settle_back()
    bench.record(base)
    if not returns and not _moved(bench.scaled(base, _FAR[-1]), bench.start):  # only rounding may hide an update
        raise InvalidInputError(
            f"step changes nothing of its state in {_CALLS} calls and returns nothing: expected a step that changes "
            "what state holds, and a batch that no guard of it (on loss, size) leaves out" + _other_library()
        )


def _other_library() -> str:
    """Where a step may belong that is none of torch or NumPy."""
    return "; a step in JAX goes to coalmine.integrations.jax.probe (docs/jax.md)" if "jax" in sys.modules else ""


def _moved(shown: Observation, before: Mapping[str, torch.Tensor]) -> list[str]:
    return [
        name
        for name, value in shown.released.items()
        if name in before and (value.shape != before[name].shape or not _same(value, before[name]))
    ]


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(torch.equal(x.nan_to_num_(), y.nan_to_num_()) for x, y in pieces(a, b))


def unseen_randomness(bench: Bench, base: World) -> list[str]:
    """Tensors that differ between two runs with the same rows and the same tape, beyond rounding; and clocks."""
    first, second = bench.silent(base), bench.silent(base)
    found = _clocks(bench, base, first, second)
    for name in (*first.gradients, *first.released):
        if name not in second or first[name].shape != second[name].shape:
            found.append(name)
            continue
        size = max(norm(one for (one,) in pieces(first[name])), 1e-12)
        if norm(x.sub_(y).nan_to_num_() for x, y in pieces(first[name], second[name])) > 1e-5 * size:
            found.append(name)
    return found


def _clocks(bench: Bench, base: World, first: Observation, second: Observation) -> list[str]:
    """Texts that differ, and single numbers that grow from run to run, if only by little: the time of day."""
    both = [name for name in first.released if name in second and first[name].shape == second[name].shape]
    found = [name for name in both if name.endswith(text.MARK) and not _same(first[name], second[name])]
    later = [name for name in both if name not in found and _grows(first[name], second[name])]
    last = second
    for _ in range(_GROWS if later else 0):
        shown = bench.silent(base)
        later = [name for name in later if name in shown and _grows(last[name], shown[name])]
        last = shown
    return [*found, *later]


def _grows(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.numel() == after.numel() == 1 and float(after) > float(before)


def read(bench: Bench, base: World) -> Reading:
    """Find the noise and the carriers."""
    silent = bench.check(bench.silent(base), "its own batch without noise")
    plain = bench.scaled(base, 1.0)
    noisy = _responding(silent, plain)
    for_each_row = False
    if not noisy and (below := _below_spacing(bench, base, silent)):
        return below
    if not noisy:
        found = _row_noise(bench)
        if found:
            bench.tape.noise = found
            silent, plain = bench.silent(base), bench.scaled(base, 1.0)
            noisy = _responding(silent, plain)
            for_each_row = bool(noisy)
    if not noisy:
        bench.tape.noise = _other_noise(bench)
    bench.renewed(base)  # generators start where the recording did: the first run has its noise again
    renewed = bench.renewed(base)
    outside = bent = False
    if not noisy:
        other = bench.renewed(base)
        noisy = _responding(renewed, other)
        outside = bench.loud = bool(noisy)
        plain, renewed = (renewed, other) if outside else (plain, renewed)
        silent = bench.quiet(base) if outside else silent
    linear = [name for name in noisy if not name.endswith(text.MARK)]
    if not outside:
        linear = in_proportion(bench, base, silent, plain, linear)
    if noisy and not linear and not outside:
        narrowed = _linear_sites(bench, base)
        if narrowed is not None:
            bench.tape.noise = narrowed
            silent, plain = bench.silent(base), bench.scaled(base, 1.0)
            noisy = _responding(silent, plain)
            linear = in_proportion(bench, base, silent, plain, list(noisy))
    if noisy and not outside and _added_by_a_curve(bench, base, silent, plain, noisy - frozenset(linear)):
        outside = bent = bench.loud = True
        silent, _, plain, renewed = bench.quiet(base), *(bench.renewed(base) for _ in range(3))
        noisy = _responding(plain, renewed)
        linear = [name for name in noisy if not name.endswith(text.MARK)]
    curved = [name for name in (silent.gradients or bench.release.names.values()) if name in noisy - {*linear}]
    if linear and curved and not outside and with_own_noise(bench, base, plain, curved, linear):
        linear = []  # what the others show is not all of the private sum
    if linear and not outside:
        linear = _stable_first(bench, _ordered(bench, linear), silent, plain)
    touched = _touched(silent, plain, _touched(silent, renewed))
    for factor in _FAR if noisy and not outside else ():
        far = bench.scaled(base, factor)
        noisy = noisy | _responding(silent, far)
        touched = _touched(silent, far, touched)
        del far  # room for the next run
    carriers, shared = _carriers(bench, silent, plain, renewed, linear)
    expected = [name for name in (*silent.gradients, *bench.release.names.values()) if name in noisy]
    return Reading(
        base=base,
        silent=silent,
        plain=plain,
        carriers=carriers,
        noisy=noisy,
        touched=touched,
        nonlinear=tuple(expected) if noisy and not linear else (),
        for_each_row=for_each_row,
        outside=outside,
        bent=bent,
        shared=shared,
        coarse=_coarse(bench, carriers, silent, plain, noisy),
        extras=_extras(carriers, silent, plain, renewed, linear) if carriers and carriers[0].door else [],
    )


def _below_spacing(bench: Bench, base: World, silent: Observation) -> Reading | None:
    """The reading of a step whose updates are smaller than the spacing of its parameters; None where they are not.

    Only much larger noise shows. If the rows' own update shows too, then the noise is small, not the learning rate.
    """
    if silent.gradients:
        return None
    far = bench.scaled(base, _FAR[-1])
    hidden = {}
    for name in _responding(silent, far):
        value = silent.released[name]
        if name not in bench.start or not value.is_floating_point() or bench.start[name].shape != value.shape:
            continue
        small = resolution.coarse(bench.start[name], value, _promised(bench))
        if not small.all():
            return None
        hidden[name] = torch.from_numpy(small)
    if not hidden:
        return None
    carriers = [Carrier(name, _moved_by(bench), False, silent[name], silent[name]) for name in hidden]
    return Reading(
        base=base,
        silent=silent,
        plain=silent,
        carriers=carriers,
        noisy=frozenset(hidden),
        touched={name: torch.ones(value.numel(), dtype=torch.bool) for name, value in silent.released.items()},
        coarse=hidden,
    )


def _moved_by(bench: Bench) -> float | None:
    """What a unit of the sum becomes in a parameter that is moved by hand."""
    divisor, rate = bench.subject.divisor, bench.subject.learning_rate
    return None if divisor is None or rate is None else rate / divisor


def _promised(bench: Bench) -> float:
    """The noise that is promised in such a parameter; 0 where that is not known."""
    return bench.subject.noise * (_moved_by(bench) or 0.0)


def _coarse(
    bench: Bench, carriers: list[Carrier], silent: Observation, plain: Observation, noisy: frozenset[str]
) -> dict[str, torch.Tensor]:
    """Where the noise of a carrier is no larger than the spacing of its numbers.

    Beside carriers that are parameters, also other parameters that only much larger noise moves.
    """
    found = {}
    names = [one.name for one in carriers if one.name in noisy]
    if not any(one.door for one in carriers):
        others = [name for name in bench.release.names.values() if name in noisy and name in silent.released]
        names += [name for name in others if name not in names]
    for name in names:
        wanted = _promised(bench) if name in silent.released else 0.0
        where = resolution.coarse(silent[name], plain[name], wanted)
        if where.any():
            found[name] = torch.from_numpy(where)
    return found


def _added_by_a_curve(
    bench: Bench, base: World, silent: Observation, plain: Observation, curved: frozenset[str]
) -> bool:
    """Whether noise that is no multiple of its draws (truncated, or drawn again) is still added to what rows do.

    Then it can be renewed, and its law tested, but neither silenced nor scaled.
    """
    expected = [name for name in silent.gradients or bench.release.names.values() if name in curved]
    if not expected:
        return False
    world = bench.world(keep=[0]) if bench.grows else bench.replaced({0: rows.take(bench.base, [1])})
    other_silent, other = bench.silent(world), bench.scaled(world, 1.0)
    for name in (*silent.gradients, *bench.release.names.values()):
        if name not in silent or name not in plain:
            continue
        if name not in other or name not in other_silent or other[name].shape != plain[name].shape:
            return False
        apart = residual(other[name], other_silent[name], plain[name], silent[name], 1.0)
        floor = 8.0 * (rounding(plain[name]) + rounding(other[name]))
        if apart > TOLERANCE * distance(plain[name], silent[name]) + floor:
            return False
    return True


def _touched(
    silent: Observation, other: Observation, known: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Which coordinates of each released tensor noise moves: those that are known already, and those of one run."""
    found = {}
    for name, value in silent.released.items():
        moved = torch.zeros(value.numel(), dtype=torch.bool) if known is None else known[name]
        if name in other and other[name].shape == value.shape:
            moved = moved | torch.cat([x.sub_(y) != 0 for x, y in pieces(other[name], value)])
        found[name] = moved
    return found


def _responding(silent: Observation, plain: Observation) -> frozenset[str]:
    return frozenset(
        name
        for name in (*silent.gradients, *silent.released)
        if name in plain and silent[name].shape == plain[name].shape and not _same(silent[name], plain[name])
    )


def _row_noise(bench: Bench) -> frozenset[Site] | None:
    """Normal draws that follow the rows but have the shape of parameters: noise for each row, or part of a batch."""
    names = [name for name in bench.release.names.values() if name in bench.start]
    parameters = [bench.start[name] for name in names] or [one for one in bench.start.values() if one.ndim]
    shapes = {tuple(one.shape) for one in parameters}
    sizes = {*(one.numel() for one in parameters), sum(one.numel() for one in parameters)}
    found = []
    for site, layout in bench.tape.normal_sites().items():
        drawn = [tuple(one.shape) for one in bench.tape.values(site)]
        by_row = drawn[0] in shapes or drawn[0][1:] in shapes
        by_part = all(math.prod(shape) in sizes for shape in drawn)
        if (layout in (Layout.AXIS, Layout.STREAM) and by_row) or (layout in (Layout.STREAM, Layout.FREE) and by_part):
            found.append(site)
    return frozenset(found) or None


def _other_noise(bench: Bench) -> frozenset[Site] | None:
    """Draws of another law that have the size of parameters, or that many times over: noise that cannot be silenced."""
    shapes = {tuple(bench.start[name].shape) for name in bench.release.names.values() if name in bench.start}
    sizes = {math.prod(shape) for shape in shapes}
    sizes |= {sum(sizes)}
    found = []
    for site in bench.tape.fixed_sites():
        draw = bench.tape.draw((site, 0))
        shape = tuple(draw.value.shape)
        several = len(shape) > 1 and (shape[1:] in shapes or shape[:-1] in shapes)
        if draw.normal is None and (draw.value.numel() in sizes or several):
            found.append(site)
    return frozenset(found) or None


def _ordered(bench: Bench, names: list[str]) -> list[str]:
    """Parameters first, in their own order, then everything else."""
    parameters = [name for name in bench.release.names.values() if name in names]
    return [*parameters, *sorted(name for name in names if name not in parameters)]


def _stable_first(bench: Bench, linear: list[str], silent: Observation, plain: Observation) -> list[str]:
    """Tensors whose noise does not depend on the rows come first: others show it through something that does."""
    if not bench.grows:
        return linear
    world = bench.world(keep=[0])
    other_silent, other = bench.silent(world), bench.scaled(world, 1.0)
    if other.error or other_silent.error:
        return linear
    stable = []
    for name in linear:
        if name in other and name in other_silent and other[name].shape == plain[name].shape:
            apart = residual(other[name], other_silent[name], plain[name], silent[name], 1.0)
            if apart <= TOLERANCE * distance(plain[name], silent[name]) + 8.0 * rounding(plain[name]):
                stable.append(name)
    return [*stable, *(name for name in linear if name not in stable)]


def _linear_sites(bench: Bench, base: World) -> frozenset[Site] | None:
    """Of several places that draw from a normal law, those whose draws enter in proportion; others are the model's."""
    sites = [site for site, layout in bench.tape.normal_sites().items() if layout is Layout.FIXED]
    if len(sites) < 2:
        return None
    found = []
    for site in sites:
        bench.tape.noise = frozenset({site})
        silent, plain = bench.silent(base), bench.scaled(base, 1.0)
        if in_proportion(bench, base, silent, plain, list(_responding(silent, plain))):
            found.append(site)
    bench.tape.noise = None
    return frozenset(found) if 0 < len(found) < len(sites) else None


def _carriers(
    bench: Bench, silent: Observation, plain: Observation, renewed: Observation, linear: list[str]
) -> tuple[list[Carrier], tuple[tuple[str, str], ...]]:
    """One tensor for each parameter; where there is no noise at all, the place where it should be."""
    promise = bench.subject
    at_door = None if promise.divisor is None else 1.0 / promise.divisor
    moved = _moved_by(bench)
    names = [name for name in silent.gradients if name in linear]
    door = bool(names)
    if not names:
        names = [name for name in linear if name in silent.released]
    if not linear:
        names = list(silent.gradients) or [name for name in bench.release.names.values() if name in silent.released]
        door = bool(silent.gradients)
        if not names:
            names = [
                name
                for name in _moved(plain, bench.start)
                if plain[name].is_floating_point() and not name.endswith(text.MARK)
            ]
    elif door:  # with those that no noise reaches; noise that comes by way of other parameters does not count
        quiet = {name for name in silent.gradients if _same(silent[name], plain[name])}
        names = [name for name in silent.gradients if name in linear or name in quiet]
    found: list[Carrier] = []
    shared: list[tuple[str, str]] = []
    for name in names:
        twin = _twin(name, found, silent, plain, renewed)
        if twin is not None and door and linear:
            shared.append((twin, name))
        if twin is None or door or not linear:
            found.append(Carrier(name, at_door if door else moved, door, plain[name], silent[name]))
    return found, tuple(shared)


def _extras(
    carriers: list[Carrier],
    silent: Observation,
    plain: Observation,
    renewed: Observation,
    linear: list[str],
) -> list[Carrier]:
    """Released tensors that are linear in noise, but not in that of any carrier."""
    found: list[Carrier] = []
    for name in silent.released:
        if name not in linear:
            continue
        if rounding(plain[name]) > _GRAINS * distance(plain[name], silent[name]):
            continue  # mostly rounding, which is nobody's noise; what rows do to it is seen by hiding them
        if _twin(name, [*carriers, *found], silent, plain, renewed) is None:
            found.append(Carrier(name, None, False, plain[name], silent[name]))
    return found


def _twin(name: str, found: list[Carrier], silent: Observation, plain: Observation, renewed: Observation) -> str | None:
    """A carrier with the same noise, up to a factor for each coordinate that both realizations share, and rounding."""
    if distance(plain[name], silent[name]) == 0.0:
        return None
    mine = plain[name], renewed[name], silent[name]
    for carrier in found:
        its = plain[carrier.name], renewed[carrier.name], silent[carrier.name]
        if its[0].numel() == mine[0].numel() and distance(its[1], its[2]) > 0.0:
            seeded = torch.equal(mine[0], mine[1])  # from the state: only one realization, so one factor for all
            if _one_factor(mine, its) if seeded else _factors(mine, its):
                return carrier.name
    return None


_Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A tensor with one noise, with another, and with none."""


def _factors(mine: _Three, its: _Three) -> bool:
    """Whether two realizations of the noise in two tensors have the same ratio in each coordinate."""
    lengths = []
    for parts in slices(*mine, *its):
        first, second = delta(parts[0], parts[2]), delta(parts[1], parts[2])
        response, other = delta(parts[3], parts[5]), delta(parts[4], parts[5])
        a, b = first * other, second * response
        rounded = _error(parts[0]) * (other.abs() + response.abs()) + _error(parts[3]) * (first.abs() + second.abs())
        lengths.append([float(one.norm()) for one in (a - b, a, b, rounded)])
    apart, size, its_size, error = np.linalg.norm(lengths, axis=0)
    return bool(apart <= TOLERANCE * (size + its_size) + error)


def _one_factor(mine: _Three, its: _Three) -> bool:
    """Whether the noise of two tensors is the same up to one factor."""
    size, its_size = distance(mine[0], mine[2]), distance(its[1], its[2])
    sign = 1.0 if inner(mine[0], mine[2], its[1], its[2]) > 0.0 else -1.0
    lengths = []
    for parts in slices(*mine, *its):
        a = delta(parts[0], parts[2]) * its_size
        b = delta(parts[4], parts[5]) * sign * size
        rounded = _error(parts[0]) * its_size + _error(parts[3]) * size
        lengths.append([float(one.norm()) for one in (a - b, a, b, rounded)])
    apart, one, other, error = np.linalg.norm(lengths, axis=0)
    return bool(apart <= TOLERANCE * (one + other) + error)


def _error(value: torch.Tensor) -> torch.Tensor:
    """How far rounding may move each number of a difference."""
    return torch.from_numpy(2.0 * resolution.spacing(value))


def check_replayable(bench: Bench, base: World) -> None:
    """An error where the same tape twice gives two results."""
    differ = unseen_randomness(bench, base)
    if differ:
        raise cannot_replay(differ[0])


def cannot_replay(name: str) -> UnsupportedError:
    """What is said of a value that differs between two runs with the same rows and the same draws."""
    name = name.removesuffix(text.MARK)
    if name.startswith("gradient of "):
        cause = (
            "It draws from a generator that the tape cannot hear (another library's, or the operating system's), or it "
            "remembers something that was not given as state"
        )
    else:
        cause = (
            "It follows a clock, or a generator that the tape cannot hear (another library's, or the operating "
            "system's), or something that the step remembers and that was not given as state. A time that nobody "
            f'outside sees, or that says nothing of a row, is left out by kept=("{name}",)'
        )
    return UnsupportedError(
        f"step cannot be replayed: with the same rows and the same draws, {name} differs between two runs. {cause}"
    )
