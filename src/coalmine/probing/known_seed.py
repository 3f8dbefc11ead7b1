"""Noise that follows from a seed which the step sets itself: the number of the step, for instance.

Such noise is another one in each step and passes every test of chance, but whoever knows the program can compute it.
Run from the same state, it is the same every time, whatever state the generators are in. A seed that was drawn from a
generator, or that the system gave, is another one in each run.
"""

from __future__ import annotations

import dataclasses

import torch

from coalmine.probing import faults
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading
from coalmine.probing.findings import Finding
from coalmine.probing.tape_draws import Seeded

_RUNS = 3
"""The first one may be seeded by what came before it."""
_CLOSE = 10**6
"""Seeds of two runs that are closer than this were counted, and not drawn."""


@dataclasses.dataclass
class _Step:
    """One step in runs from the same state."""

    same: str
    """A tensor whose noise does not change as generators go on; empty where there is none."""
    seeded: list[Seeded]
    """Places that drew from a generator that had just been seeded."""
    counted: str
    """Such a place whose seeds are close together though all generators start from the same state each time."""


def found(bench: Bench, reading: Reading) -> tuple[Finding | None, str]:
    """A finding, or why it is not known what the noise follows from.

    The first step may be seeded from before the training, by a state that the step keeps somewhere; the second is not.
    """
    first = _step(bench, reading)
    bench.put_back()
    second: _Step | None = None
    play = bench.tape.renew(slots=reading.base.slots, force=bench.force)
    if first is not None and bench.run(reading.base.batch, play, fresh=False, generators=False).whole(reading.plain):
        with bench.here():
            second = _step(bench, reading)
    bench.put_back()
    if first is None:
        return None, ""
    if not first.same and (smaller := _in_smaller(bench, reading)) is not None:
        return smaller, ""
    name = (first.same or (second.same if second else "")).removeprefix("gradient of ")
    if name and second is not None and second.same and second.seeded:
        where, seed = second.seeded[0]
        return faults.finding(
            faults.KNOWN_SEED,
            f"The noise in {name} is the same in every run from one state, whatever the state of the generators: the "
            f"step seeds it (with {seed} in its second call).",
            number=1.0,
            allowed=0.0,
            witness=f"{name}; {where}",
        ), ""
    if name:
        return None, (
            f"the noise in {name} is the same in every run from one state: it follows from what the step holds, and "
            "whoever knows that knows the noise; draw it from a generator that is made before the training"
        )
    counted = second.counted if second is not None else ""
    if counted:
        return None, (
            f"the step seeds its noise itself ({counted}), with seeds that are close together and that no generator "
            "gives; whoever knows them knows the noise; make the generator once, before the training, or draw each "
            "seed from the system (secrets, os.urandom)"
        )
    return None, ""


def _step(bench: Bench, reading: Reading) -> _Step | None:
    """Runs from the same state: with generators that go on and, where they are seeded, with those that do not."""
    heard: list[list[Seeded]] = [[] for _ in range(_RUNS)]
    names = [one.name for one in reading.noised]
    last: dict[str, torch.Tensor] = {}
    for run in range(_RUNS):
        shown = bench.renewed(reading.base, seeded=heard[run])
        if shown.error or any(name not in shown for name in names):
            return None
        if run > 1:
            names = [name for name in names if torch.equal(shown[name], last[name])]
        last = {name: shown[name] for name in names}
    return _Step(names[0] if names else "", heard[-1], _counted(bench, reading) if heard[-1] and not names else "")


def _in_smaller(bench: Bench, reading: Reading) -> Finding | None:
    """A smaller batch whose noise is the same in every run, where that of the batch itself is not."""
    sizes = {0, 1, 2, bench.count // 2, bench.count - 1} if bench.grows else set()
    for count in sorted(size for size in sizes if size < bench.count):
        world = bench.world(keep=range(count))
        silent = bench.quiet(world)
        _, one, two = (bench.renewed(world) for _ in range(_RUNS))
        bench.put_back()
        for name in (noised.name for noised in reading.noised):
            if silent.error or one.error or two.error or any(name not in shown for shown in (silent, one, two)):
                continue
            if torch.equal(one[name], two[name]) and not torch.equal(one[name], silent[name]):
                where = name.removeprefix("gradient of ")
                batch = f"a batch of {count} row{'' if count == 1 else 's'}" if count else "an empty batch"
                return faults.finding(
                    faults.KNOWN_SEED,
                    f"For {batch}, the noise in {where} is the same in every run from one state, whatever the state of "
                    "the generators: the step seeds it or holds it.",
                    number=1.0,
                    allowed=0.0,
                    witness=f"{where}; {batch}",
                )
    return None


def _counted(bench: Bench, reading: Reading) -> str:
    """A place that is seeded with numbers that differ by little, though no generator gives another one."""
    runs: list[list[Seeded]] = [[], []]
    for heard in runs:
        bench.put_back()
        bench.renewed(reading.base, seeded=heard)
    return next((where for (where, a), (_, b) in zip(*runs, strict=False) if 0 < abs(a - b) < _CLOSE), "")
