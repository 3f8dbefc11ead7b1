"""How far one row moves the sum: the largest ‖release(D + row) − release(D)‖ over searched rows, on the same tape.

Where the divisor is known this is compared with C. Otherwise only the ratio of influence and noise counts: with noise
of standard deviation s_t in tensor t, a row that moves it by Δ_t is hidden as well as noise multiplier 1/W hides a
clipped row, W² = Σ_t ‖Δ_t‖²/s_t². The promise is 1/W ≥ σ; 1/W is the noise multiplier that the step really has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.probing import faults, half_precision, order, rows
from coalmine.probing.additivity import carrier_error
from coalmine.probing.bench import Bench
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import SHARES, Sample
from coalmine.probing.resolution import with_rounding
from coalmine.probing.search import Influence, Tried, attempt, climb, with_row
from coalmine.probing.vectors import distance
from coalmine.records import Relation

_REACHED = 0.9
"""Rows that come this close to the clip norm show that clipping works; if none does, clipping was not tested."""
_SHOWN = 1.2
"""Where rounding could hide an influence of more than this, times what is allowed, it was not measured."""
_AT_BOUND = 5e-3
"""Relative: how close to its bound a clipped layer is."""
_FAR, _MORE_TRIES = 2.5, 120
"""A row that moves so many times too far was never clipped; so many more rows are tried to find one."""
_COMPARED = 24
"""Rows of which the two farthest apart are sought, where a row may be replaced."""
_MANY = 0.1
"""The share of all rows that must end at a bound for it to be one."""
_CAUSES = (faults.INTERACT.name, faults.MICROBATCH.name, faults.DIVISOR.name)


def measure(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    samples: Sequence[Sample],
    *,
    level: float,
    known: Sequence[Finding] = (),
) -> Measurement:
    """The largest influence of a row, and the noise multiplier that is left.

    Args:
        bench: the step.
        reading: its carriers.
        influence: the rows that were tried.
        samples: the noise in each carrier.
        level: of the whole probe.
        known: what rows do to each other, which may be the cause.
    """
    influence = influence.everywhere
    if not influence.tried or influence.best.total == 0.0:
        return Measurement(
            name="sensitivity",
            sentence="No row moved the release.",
            blind="no row that was tried moves the release; hand over a batch whose rows do",
        )
    if reading.nonlinear and reading.noise:
        return order.measure(bench, reading, influence)
    effective = _effective(reading, influence, samples, level)
    details: dict[str, Any] = {"rows_tried": len(influence.tried), "effective_noise_multiplier": effective}
    if not reading.absolute:
        return _relative(bench, reading, influence, samples, effective, details, known, level)
    number, allowed = influence.best.total, bench.allowed
    numbers = sum(one.numbers for one in reading.carriers)
    most = with_rounding(allowed * (1.0 + TOLERANCE), carrier_error(reading.silent, reading), numbers)
    details |= {"largest": number, "allowed": allowed, "unit": "of the sum of clipped gradients"}
    details["influences"] = sorted(round(one.total, 9) for one in influence.tried)
    if bench.subject.relation is Relation.REPLACE and bench.grows:
        return _replaced(bench, reading, influence, details)
    if number > most:
        found = _named(bench, reading, influence, allowed, known)
        return Measurement(name="sensitivity", sentence=found.sentence, findings=(found,), details=details)
    if effective is not None and reading.extras and effective < bench.subject.noise_multiplier * (1.0 - TOLERANCE):
        found = _together(reading, influence, effective, bench.subject.noise_multiplier)
        found = dataclasses.replace(found, level=level * SHARES["size"])
        return Measurement(name="sensitivity", sentence=found.sentence, findings=(found,), details=details)
    blind = _hidden(most, allowed)
    # Rows that end at C are clipped to it. Where they go beyond, as a larger sensitivity allows, that must be reached.
    clip = min(bench.subject.clip_norm, allowed)
    bound = clip if number <= clip * (1.0 + TOLERANCE) or not bench.grows else allowed
    reach = number / bound
    if reach < _REACHED and not blind:
        what = "the clip norm" if bound == bench.subject.clip_norm else f"what is allowed ({bound:.4g})"
        blind = (
            f"no row came closer to {what} than {reach:.2g} of it: clipping was never needed, or each layer is clipped "
            "to a part of it, which no row fills in all; hand over a batch with larger gradients"
            + (", or wider bounds" if bench.subject.bounds is not None else "")
        )
    sentence = f"The largest influence of one row is {number:.4g}, where {allowed:.4g} is allowed"
    sentence += f" ({len(influence.tried)} rows tried)."
    if effective is not None:
        sentence += f" The step really has a noise multiplier of at most {effective:.3g}."
    return Measurement(name="sensitivity", sentence=sentence, blind=blind, details=details)


def _hidden(most: float, allowed: float) -> str:
    """Why a row that moves the sum too far may go unseen, where rounding could hide it."""
    if most <= _SHOWN * allowed:
        return ""
    return (
        f"a row's influence is too small to measure at this learning rate: one of {most / allowed:.3g} times the "
        "allowed could be rounding; probe the same step with a larger learning rate, or hand over the optimizer"
    )


def _together(reading: Reading, influence: Influence, effective: float, promised: float) -> Finding:
    """The private sum keeps its promise, but more is released beside it."""
    worst = max(influence.tried, key=lambda one: one.reach)
    names = ", ".join(one.name for one in reading.extras)
    return faults.finding(
        faults.TOO_SENSITIVE,
        f"With {names} released beside the private sum, the noise multiplier is at most {effective:.3g}, where "
        f"{promised:.3g} is promised.",
        number=effective,
        allowed=promised,
        witness=worst.describe(),
    )


def _effective(
    reading: Reading, influence: Influence, samples: Sequence[Sample], level: float | None = None
) -> float | None:
    """The noise multiplier 1/W of the worst row; None if some carrier has no noise.

    With ``level`` it is an upper limit: each noise is taken as large as it may be, at its share of the level.
    """
    by_name = {one.name: one for one in samples}
    every = [*reading.carriers, *reading.extras]
    if not samples or any(one.name not in by_name for one in every):
        return None
    share = None if level is None else level * SHARES["size"] / len(samples)
    sizes = {name: one.std if share is None else one.upper_std(share) for name, one in by_name.items()}
    stds = np.array([sizes[one.name] / (one.scale or 1.0) for one in every])
    worst = max(float(np.linalg.norm(np.append(one.moves, one.beside) / stds)) for one in influence.tried)
    return 1.0 / worst if worst > 0.0 else None


def _relative(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    samples: Sequence[Sample],
    effective: float | None,
    details: dict[str, Any],
    known: Sequence[Finding],
    level: float,
) -> Measurement:
    """Influence against noise, where the unit of the sum is not known."""
    sigma = bench.subject.noise_multiplier
    if reading.coarse:
        return Measurement(name="sensitivity", sentence="A row's influence was not measured.", blind=reading.too_small)
    if effective is None:
        grown = growth(bench, reading, influence.best)
        found = () if grown is None else (_no_clipping(influence.best, None, grown),)
        return Measurement(
            name="sensitivity",
            sentence=found[0].sentence
            if found
            else "Without noise there is nothing to compare a row's influence with.",
            findings=found,
            blind="" if found else "hand over the divisor (and the learning rate, without a torch optimizer)",
            details=details,
        )
    if effective < sigma * (1.0 - TOLERANCE):
        # If the noise is right, it tells the bound that a layer or a row is clipped to.
        bound = min(one.std for one in samples) / sigma
        found_one = dataclasses.replace(
            _named(bench, reading, influence, None, known, ratio=effective / sigma, bound=bound),
            level=level * SHARES["size"],
        )
        return Measurement(name="sensitivity", sentence=found_one.sentence, findings=(found_one,), details=details)
    blind = ""
    measured = _effective(reading, influence, samples) or effective
    if measured > sigma / _REACHED:
        blind = (
            f"rows reach {sigma / measured:.2g} of what the noise would hide, so clipping was perhaps never needed; "
            "hand over the divisor, or a batch with larger gradients"
        )
    sentence = f"The step really has a noise multiplier of at most {effective:.3g}, where {sigma:.3g} is promised."
    return Measurement(name="sensitivity", sentence=sentence, blind=blind, details=details)


def growth(bench: Bench, reading: Reading, best: Tried) -> float | None:
    """How much more a row moves when its features are ten times as large; None where its influence is bounded."""
    if bench.subject.bounds is not None:
        return None
    larger = attempt(bench, reading, order.times(best.row, 10.0), best.size * 10.0, place=best.place)
    ratio = larger.total / best.total
    return ratio if ratio > 3.0 else None


def _no_clipping(best: Tried, allowed: float | None, grown: float) -> Finding:
    return faults.finding(
        faults.NO_CLIPPING,
        f"A row ten times as large moves the release {grown:.3g} times as far: nothing bounds it.",
        number=best.total,
        allowed=allowed,
        witness=best.describe(),
    )


def _named(
    bench: Bench,
    reading: Reading,
    influence: Influence,
    allowed: float | None,
    known: Sequence[Finding],
    *,
    ratio: float | None = None,
    bound: float | None = None,
) -> Finding:
    """The fault behind an influence that is too large."""
    best = influence.best
    witness = best.describe()
    if allowed is not None:
        said = f"One row moves the sum by {best.total:.4g}, where {allowed:.4g} is allowed"
        number, limit = best.total, allowed
    else:
        assert ratio is not None
        said = f"Beside its noise, one row moves the release {1.0 / ratio:.3g} times as far as allowed"
        number, limit = 1.0 / ratio, 1.0
    at_end = max((one.total for one in influence.tried if one.place is None), default=0.0)
    if best.place is not None and number * at_end <= limit * best.total * (1.0 + 10.0 * TOLERANCE):
        where = "in front of the batch" if best.place == 0 else "amid the batch"
        return faults.finding(
            faults.TOO_SENSITIVE,
            f"{said}, when it stands {where}: what rows add depends on their order.",
            number=number,
            allowed=limit,
            witness=witness,
        )
    causes = [
        one for one in known if one.fault in _CAUSES and (one.fault != faults.DIVISOR.name or number < _FAR * limit)
    ]
    if causes:
        cause = faults.by_name(causes[0].fault) or faults.TOO_SENSITIVE
        rounded = half_precision.word(bench, reading.base, number / limit - 1.0) if cause is faults.INTERACT else ""
        first = half_precision.LOOK_AT if rounded else ""
        return faults.finding(cause, f"{said}.{rounded}", number=number, allowed=limit, witness=witness, first=first)
    grown = growth(bench, reading, best)
    if grown is not None:
        return _no_clipping(best, allowed, grown)
    layers = clipped_layers(reading, influence, allowed or bound or 1.0, slack=_AT_BOUND if allowed else 6 * _AT_BOUND)
    if layers > 1:
        return faults.finding(
            faults.PER_LAYER,
            f"{said}: {layers} layers are each clipped to it by themselves.",
            number=number,
            allowed=limit,
            witness=witness,
        )
    # A row may have been tried twice; adding zero makes −0 and 0 the same.
    distinct = {
        tuple((part + 0).tobytes() for part in rows.numbers(one.row)): one.total
        for one in influence.tried
        if not one.halved
    }
    totals = np.array(list(distinct.values()))
    plateau = np.mean(totals > 0.99 * best.total) >= _MANY
    if allowed is not None and np.mean(np.abs(totals - allowed) <= TOLERANCE * allowed) >= _MANY:
        said += ", though many others end there: gradients of some norms are let through"
        return faults.finding(faults.TOO_SENSITIVE, f"{said}.", number=number, allowed=limit, witness=witness)
    if allowed is None and plateau:
        return faults.finding(faults.NOISE_TOO_SMALL, f"{said}.", number=ratio, allowed=1.0, witness=witness)
    if not plateau:
        # Where nothing is clipped, rows can still be found that move more; where only the norm is wrong, they end soon.
        far = best.total * _FAR * limit / number
        best = climb(bench, reading, best, until=far, tries=_MORE_TRIES)
        if best.total > far:
            return faults.finding(
                faults.NO_CLIPPING,
                f"{said}, and no two rows reach the same bound: there is one that moves it "
                f"{number / limit * best.total / influence.best.total:.3g} times as far as allowed.",
                number=number * best.total / influence.best.total,
                allowed=limit,
                witness=best.describe(),
            )
    return faults.finding(faults.TOO_SENSITIVE, f"{said}.", number=number, allowed=limit, witness=witness)


def clipped_layers(reading: Reading, influence: Influence, bound: float, *, slack: float) -> int:
    """How many tensors, or modules, one row brings to the bound at once, while no row brings any beyond it."""
    moves = np.array([one.moves for one in influence.tried])
    names = [one.name.removeprefix("gradient of ") for one in reading.carriers]
    for labels in (names, [name.rpartition(".")[0] for name in names]):
        grouped = _grouped(moves, np.array(labels))
        at_once = int(np.sum(np.abs(grouped - bound) <= slack * bound, axis=0).max())
        if grouped.max() <= bound * (1.0 + slack) and at_once > 1:
            return at_once
    return 1


def _grouped(moves: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """For each group of carriers, how far each row moved it."""
    return np.array([np.linalg.norm(moves[:, labels == one], axis=1) for one in np.unique(labels)])


def _replaced(bench: Bench, reading: Reading, influence: Influence, details: dict[str, Any]) -> Measurement:
    """The largest distance between two rows in the same place.

    Rows that are clipped all move the sum by C, and those that move it most may be all alike. So rows from the whole
    ranking are looked through for the one farthest from the first, and once more for the one farthest from that.
    """
    allowed = bench.subject.allowed
    ranked = sorted(influence.tried, key=lambda one: -one.total)
    usual = [one for one in ranked if one.size <= 100.0 and one.total >= 0.5 * ranked[0].total]
    several = [ranked[0], *usual[:: -(-len(usual) // _COMPARED)]] if usual else ranked[:_COMPARED]
    apart, pair = _farthest(bench, reading, several[0], several)
    again, other = _farthest(bench, reading, pair[1], several)
    number, pair = max((apart, pair), (again, other), key=lambda one: one[0])
    for place in (0, bench.count // 2):
        number = max(number, _farthest(bench, reading, pair[0], [pair[1]], place=place)[0])
    details |= {"largest": number, "allowed": allowed}
    error = 2.0 * carrier_error(reading.silent, reading)
    numbers = sum(one.numbers for one in reading.carriers)
    most = with_rounding(allowed * (1.0 + TOLERANCE), error, numbers)
    witness = f"{rows.describe(pair[0].row)} | {rows.describe(pair[1].row)}"
    said = f"Replacing one row by another moves the sum by {number:.4g}, where {allowed:.4g} is accounted for"
    if number > most:
        fault = faults.REPLACED if number <= 2.0 * bench.subject.clip_norm * 1.01 else faults.TOO_SENSITIVE
        found = faults.finding(fault, f"{said}.", number=number, allowed=allowed, witness=witness)
        return Measurement(name="sensitivity", sentence=found.sentence, findings=(found,), details=details)
    return Measurement(name="sensitivity", sentence=f"{said}.", blind=_hidden(most, allowed), details=details)


def _farthest(
    bench: Bench, reading: Reading, one: Tried, others: Sequence[Tried], *, place: int | None = None
) -> tuple[float, tuple[Tried, Tried]]:
    """The row whose sum is farthest from that with the first; a row that fails is another measure's finding."""
    best, pair = 0.0, (one, one)
    here = bench.quiet(with_row(bench, one.row, place=place))
    if not here.whole(reading.silent):
        return best, pair
    for other in others:
        shown = bench.quiet(with_row(bench, other.row, place=place))
        if shown.whole(reading.silent):
            apart = float(
                np.linalg.norm([distance(here[c.name], shown[c.name]) / (c.scale or 1.0) for c in reading.carriers])
            )
            if apart > best:
                best, pair = apart, (one, other)
    return best, pair
