"""Over several steps: is noise fresh in each, and does a batch matter only through what was released?

The second question is put by hiding. In the first step, noise is shifted so that a row more is invisible in the private
sum. If all later steps follow from what was released, they are the same with and without that row. What they still
know was carried over: raw momentum, gradients that were not set to zero, two batches that share one noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from coalmine.probing import faults, known_seed, rows
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import Reading, rounding
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.hiding import bend, hide, noise_error
from coalmine.probing.independence import products_p
from coalmine.probing.noise import SHARES, walk
from coalmine.probing.search import Influence, Tried, with_row
from coalmine.probing.shifter import Shifter
from coalmine.probing.vectors import distance, pieces

STEPS = 4
_CARRIED = 0.02


def measure(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    shifter: Shifter,
    *,
    level: float,
    known: Sequence[Finding] = (),
) -> Measurement:
    """Noise over consecutive steps, and what is carried over.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        shifter: moves noise.
        level: of the whole probe.
        known: what noise does not cover within one step; the next one then knows it too, and it is not counted again.
            Numbers that share their noise are too few for a test of chance.
    """
    findings: list[Finding] = []
    blind = ""
    details: dict[str, object] = {}
    if reading.noise and not reading.nonlinear:
        shared = any(one.fault == faults.SHARED_NOISE.name for one in known)
        same = _same_noise(bench, reading, 0.0 if shared else level * SHARES["steps"])
        if same is not None:
            findings.append(same)
        elif not reading.outside:
            seed, blind = known_seed.found(bench, reading)
            findings += [seed] if seed is not None else []
    covered = all(one.fault in (faults.RETURNED.name, faults.SHARED_NOISE.name) for one in known)
    carried = None
    if covered and influence.tried and ((shifter.complete and reading.noise) or bench.behind):
        # What counts rows that are clipped, or rows that are not, sees one of the two.
        least = min(influence.tried, key=lambda one: one.total)
        carried = _carried(bench, reading, influence, shifter, influence.best)
        carried = carried or _carried(bench, reading, influence, shifter, least)
    if carried is not None:
        findings.append(carried)
    if findings:
        sentence = findings[0].sentence
    elif not reading.noise:
        sentence = "Without noise there is none to be fresh."
    else:
        sentence = "Noise is new in each step, and a step knows earlier batches only through what was released."
        if not shifter.complete and not bench.behind:
            sentence = "Noise is new in each step."
        if error := _second(bench, reading):
            sentence = "Noise of one step was not compared with that of the next."
            blind = blind or f"the step runs only once: the second time it fails with {error}"
    return Measurement(name="freshness", sentence=sentence, findings=tuple(findings), blind=blind, details=details)


def _second(bench: Bench, reading: Reading) -> str:
    """The error of a second step right after the first; empty where it runs."""
    bench.put_back()
    base, error = reading.base, ""
    for _ in range(2 + bench.behind):
        play = bench.tape.replay(slots=base.slots, force=bench.force)
        error = error or bench.run(base.batch, play, fresh=False).error
    bench.put_back()
    return error


def _same_noise(bench: Bench, reading: Reading, level: float) -> Finding | None:
    """Noise of consecutive steps against each other."""
    pairs = {one.name: Pairs() for one in reading.noised}
    last: dict[str, torch.Tensor] = {}
    for before, shown in walk(bench, reading, STEPS):
        if all(name in shown and name in before for name in pairs):
            for name in last:
                pairs[name].add(last[name], shown[name], before[name])
            last = {name: _apart(shown[name], before[name]) for name in pairs}
        del before, shown  # room for the next step
    return repeated(pairs, level)


def _apart(shown: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """The noise as a vector in single precision."""
    return torch.cat([x.sub_(y).float() for x, y in pieces(shown, before)])


class Pairs:
    """The noise of one tensor in pairs of consecutive steps: sums of products, and whether it was always the same."""

    def __init__(self) -> None:
        self.count = self.numbers = 0
        self.same = True
        self._products = np.zeros(3)

    def add(self, last: torch.Tensor, shown: torch.Tensor, before: torch.Tensor) -> None:
        """One more pair: the noise of a step, and the next one with noise and without."""
        self.count, self.numbers = self.count + 1, self.numbers + last.numel()
        largest = float(last.abs().max()) if last.numel() else 0.0
        self.same &= largest > 0.0
        for first, second, none in pieces(last, shown, before):
            second.sub_(none)
            self._products += float(first @ first), float(second @ second), float(first @ second)
            self.same &= torch.allclose(first, second, rtol=1e-3, atol=1e-3 * largest)

    def correlation(self) -> tuple[float, float]:
        """The correlation, and the exact chance of one as far from zero if the steps are independent."""
        return products_p(*self._products.tolist(), count=self.numbers)


def repeated(pairs: Mapping[str, Pairs], level: float) -> Finding | None:
    """Noise in consecutive steps: the same, or correlated more than chance allows, in one of the tensors."""
    for name, one in pairs.items():
        if not one.count:
            continue
        short = name.removeprefix("gradient of ")
        if one.same:
            return faults.finding(
                faults.SAME_NOISE,
                f"The noise in {short} is the same in {one.count + 1} consecutive steps.",
                number=1.0,
                allowed=0.0,
                witness=short,
            )
        r, p = one.correlation()
        if p < level / len(pairs):
            return faults.finding(
                faults.SAME_NOISE,
                f"The noise in {short} is correlated between consecutive steps ({r:+.3g}).",
                number=r,
                allowed=0.0,
                witness=short,
                level=level / len(pairs),
            )
    return None


def _carried(bench: Bench, reading: Reading, influence: Influence, shifter: Shifter, tried: Tried) -> Finding | None:
    """Does a row of an earlier batch show in a later step, although noise hid it?"""
    row = tried.row
    world = with_row(bench, row)
    base = reading.base
    if bench.behind:  # calls that release nothing come first: the row is in the first of them
        hiding: dict[Any, Any] = {}
    else:
        hidden = hide(bench, reading, shifter, world)
        if not hidden.plain.whole(reading.plain):
            return None
        for name in shifter.curved:
            before = reading.plain[name]
            bend(bench, shifter, hidden, name, before, within=20.0 * rounding(before))
        hiding = hidden.shift
    shown = []
    for changed in (False, True):
        bench.rewind()
        first, shift = (world, hiding) if changed else (base, {})
        bench.run(first.batch, bench.tape.replay(slots=first.slots, shift=shift, force=bench.force), fresh=False)
        for _ in range(bench.behind - 1):
            bench.run(base.batch, bench.tape.replay(slots=base.slots, force=bench.force), fresh=False)
        shown.append(bench.run(base.batch, bench.tape.replay(slots=base.slots, force=bench.force), fresh=False))
    bench.put_back()
    without, with_it = shown
    if not without.whole(reading.plain) or not with_it.whole(reading.plain):
        return None
    left, floor = [], []
    for one in reading.carriers:
        if one.name not in without or one.name not in with_it:
            return None
        left.append(distance(with_it[one.name], without[one.name]) / (one.scale or 1.0))
        error = 20.0 * rounding(without[one.name]) + noise_error(bench, reading, one.name)
        floor.append(error / (one.scale or 1.0))
    number = float(np.linalg.norm(left))
    if number <= _CARRIED * influence.best.total + float(np.linalg.norm(floor)):
        return None
    share = number / influence.best.total
    return faults.finding(
        faults.CARRIED_OVER,
        f"A row of one batch still moves the release of the next step, {share:.3g} times as far as it moves its own, "
        "although noise hid it there."
        if not bench.behind
        else f"{bench.behind + 1} batches share one noise: a row of the first moves the release after the last.",
        number=share,
        allowed=0.0,
        witness=rows.describe(row),
    )
