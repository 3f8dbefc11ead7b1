"""The probe of one private step: every measure, in one report."""

from __future__ import annotations

import dataclasses
import inspect
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from coalmine import _validate
from coalmine.probing import (
    additivity,
    after_noise,
    batch_sizes,
    carriers,
    controls,
    coverage,
    data_set,
    edges,
    faults,
    freshness,
    generator_states,
    later_steps,
    noise,
    other_draws,
    other_values,
    overwritten,
    sensitivity,
    uniform_sums,
    units,
    unreached,
    unread,
    whole_batch,
)
from coalmine.probing.bench import Bench, on_bench
from coalmine.probing.findings import Measurement, ProbeReport
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.search import Influence, search
from coalmine.probing.shifter import Shifter
from coalmine.store import Store, results

_IN_PROPORTION = (
    faults.INTERACT.name,
    faults.NOISE_DEPENDS.name,
    faults.PARTLY_NOISED.name,
    faults.CARRIED_OVER.name,
    faults.NOISE_TOO_SMALL.name,
)
"""Faults that are seen in carriers, and that a threshold or a second clipping after the noise seems to show too."""


def probe(
    step: PrivateStep | Callable[[Any], Any],
    *,
    state: Any = None,
    batch: Any = None,
    clip_norm: float | None = None,
    noise_multiplier: float | None = None,
    level: float = 1e-4,
    replays: int = 200,
    tries: int = 120,
    seed: int = 0,
    store: Store | str | os.PathLike[str] | None = None,
    tags: Sequence[str] = (),
    **promise: Any,
) -> ProbeReport:
    """Run one private step a few hundred times, with its randomness recorded and replayed, and name its faults.

    Nothing is changed: state, optimizer and generators are afterwards what they were before, bit for bit.

    Args:
        step: a function of a batch, or a :class:`PrivateStep` that holds all of the following.
        state: what the step changes and releases; see :class:`PrivateStep`.
        batch: rows to try it with, at least two.
        clip_norm: C, the norm to which each row's gradient is clipped.
        noise_multiplier: σ; the noise on the sum has standard deviation σ·C, or σ times ``sensitivity``.
        level: the chance that a right step is refuted, shared among all statistical tests. Exact measures have none.
        replays: runs with new noise.
        tries: rows that are tried to move the step as far as possible.
        seed: for the rows that are tried and for the shared generators; the same seed gives the same report.
        store: keep the report there too, for ``coalmine runs`` and ``coalmine view``; see :meth:`ProbeReport.keep`.
        tags: words to find it by in the store; ``name`` is what the report calls the step.
        promise: more of what is promised (``divisor``, ``relation``, …); see :class:`PrivateStep`.

    Returns:
        the report: refuted where a fault was found, inconclusive where a measure was blind, else consistent.

    >>> import torch
    >>> weight = torch.zeros(3)
    >>> def step(rows):
    ...     clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
    ...     weight.sub_((clipped.sum(dim=0) + 2.0 * torch.randn(3)) / 8)
    >>> report = probe(step, state={"weight": weight}, batch=torch.eye(3), clip_norm=1.0, noise_multiplier=2.0,
    ...                divisor=8, learning_rate=1.0)
    >>> report.verdict.outcome.value, weight.tolist()
    ('consistent', [0.0, 0.0, 0.0])
    """
    subject = _subject(step, state, batch, clip_norm, noise_multiplier, promise)
    level = _validate.open_unit("level", level)
    replays = _validate.integer("replays", replays, at_least=20)
    tries = _validate.integer("tries", tries, at_least=10)
    seed = _validate.integer("seed", seed, at_least=0, at_most=2**32 - 1)
    if store is not None:
        results.check(store)
    began = time.perf_counter()
    with on_bench(subject, seed=seed) as bench:
        measured = _measure(bench, level=level, replays=replays, tries=tries, seed=seed)
        runs = bench.runs
    if subject.build is not None:
        measured.append(data_set.measure(subject, seed=seed))
    report = ProbeReport(
        subject=subject.title,
        measurements=tuple(measured),
        level=level,
        seconds=time.perf_counter() - began,
        details={
            "runs": runs,
            "promise": subject.promise,
        },
    )
    if store is not None:
        report.keep(store, name=subject.name or None, tags=tags)
    return report


def _subject(
    step: PrivateStep | Callable[[Any], Any],
    state: Any,
    batch: Any,
    clip_norm: float | None,
    noise_multiplier: float | None,
    promise: dict[str, Any],
) -> PrivateStep:
    """The step with its promise; what is given beside a :class:`PrivateStep` replaces that part of it."""
    given = {"state": state, "batch": batch, "clip_norm": clip_norm, "noise_multiplier": noise_multiplier, **promise}
    known = {field.name for field in dataclasses.fields(PrivateStep)}
    for name in promise:
        if name not in known:
            raise _validate.reject("promise", name, "one of " + ", ".join(sorted(known - {"step"})))
    given = {name: value for name, value in given.items() if value is not None}
    if isinstance(step, PrivateStep):
        return dataclasses.replace(step, **given)
    if _takes_nothing(step):
        name = getattr(step, "__name__", type(step).__name__)
        raise _validate.reject(
            "step", step, f"a function of a batch: this one takes none. If it gives a PrivateStep, call it: {name}()"
        )
    for name in ("batch", "clip_norm", "noise_multiplier"):
        if name not in given:
            raise _validate.reject(name, None, "a value: it is part of what is probed")
    return PrivateStep(step=step, **given)


def _takes_nothing(step: Any) -> bool:
    """Whether a function can only be called without arguments, as one that makes a step."""
    try:
        return callable(step) and not inspect.signature(step).parameters
    except (TypeError, ValueError):  # some functions of libraries tell no signature
        return False


def _measure(bench: Bench, *, level: float, replays: int, tries: int, seed: int) -> list[Measurement]:
    """Everything that is measured on the bench, in the order of the report."""
    base = carriers.record(bench)
    carriers.check_replayable(bench, base)
    reading = carriers.read(bench, base)
    noised, samples = noise.measure(bench, reading, runs=replays, level=level)
    noised = _with_sums(bench, reading, noised, samples)
    noise.set_units(bench, reading, samples)
    influence = _searched(bench, reading, tries=tries, seed=seed)
    if not influence.tried:
        return [noised, edges.failing_rows(bench, reading, influence)]
    noised, samples = unreached.left_out(bench, reading, influence, noised, samples, level=level)
    for one in samples:
        one.reduce()
    shifter = Shifter(bench, reading)
    adding = additivity.measure(bench, reading, influence)
    moving = sensitivity.measure(bench, reading, influence, samples, level=level, known=adding.findings)
    covering = coverage.measure(bench, reading, influence, shifter, samples, level=level, known=adding.findings)
    shared = [one for one in noised.findings if one.fault == faults.SHARED_NOISE.name]
    noised = other_draws.without_noise(bench, reading, noised, seed=seed)
    refuted = bool(moving.findings or noised.findings)  # then neither other draws nor later rows say anything new
    found = [
        moving,
        None if moving.findings else other_values.measure(bench, reading, influence, samples, level=level),
        adding,
        noised,
        covering,
        unread.measure(bench.release),
        overwritten.measure(bench, reading, influence),
        freshness.measure(bench, reading, influence, shifter, level=level, known=(*covering.findings, *shared)),
        generator_states.measure(bench, reading),
        later_steps.measure(bench, reading, influence, samples, level=level),
        None if refuted or adding.findings else batch_sizes.measure(bench, reading, influence),
        edges.empty_batch(bench, reading, known=adding.findings),
        edges.failing_rows(bench, reading, influence),
        controls.measure(bench, reading, influence, samples, level=level),
        None if refuted else other_draws.measure(bench, reading, influence, samples, level=level, seed=seed),
        None
        if refuted
        else whole_batch.measure(bench, reading, influence, samples, level=level, known=adding.findings),
    ]
    return units.measured(
        _confirmed(bench, reading, [one for one in found if one is not None]),
        noise_multiplier=bench.subject.noise_multiplier,
        by_buffers=_by_buffers(bench, reading),
    )


def _confirmed(bench: Bench, reading: carriers.Reading, found: list[Measurement]) -> list[Measurement]:
    """The same; what rests on carriers that follow the noise in proportion only where they really do."""
    names = [one.name for one in reading.carriers]
    shown = [one for one in found if any(each.fault in _IN_PROPORTION for each in one.findings)]
    if not shown or not reading.noise or (reading.outside and not reading.bent):
        return found
    name = after_noise.bent(bench, reading.base, reading.plain, names)
    if not name:
        return found
    why = noise.NOT_THE_SUM.format(name=name.removeprefix("gradient of "))
    changed = []
    for one in found:
        if reading.for_each_row and one.name == "sensitivity":
            changed.append(one)  # its draws were counted: that rests on no carrier
            continue
        left = tuple(each for each in one.findings if each.fault not in _IN_PROPORTION)
        if left != one.findings:
            said = left[0].sentence if left else "What is released does not follow the noise in proportion."
            one = dataclasses.replace(one, findings=left, blind=why, sentence=said)
        changed.append(one)
    return changed


def _with_sums(
    bench: Bench, reading: carriers.Reading, noised: Measurement, samples: list[noise.Sample]
) -> Measurement:
    """The noise, with what its tests are too weak to see where it cannot be silenced."""
    if not reading.outside or any(one.fault == faults.NOT_NORMAL.name for one in noised.findings):
        return noised
    found = uniform_sums.finding(bench, reading, samples)
    if found is None:
        return noised
    return dataclasses.replace(noised, findings=(*noised.findings, found), sentence=found.sentence)


def _by_buffers(bench: Bench, reading: carriers.Reading) -> bool:
    """Whether noise also reaches tensors of the state that are as large as a carrier, as momentum by hand does."""
    known = {one.name: one.numbers for one in reading.carriers}
    if any(one.door for one in reading.carriers):
        return False
    others = [name for name in bench.start if name in reading.noisy and name not in known]
    return any(bench.start[name].numel() in known.values() for name in others)


def _searched(bench: Bench, reading: carriers.Reading, *, tries: int, seed: int) -> Influence:
    """Rows that move the step; if none does, their sampling inside the step is forced."""
    found = search(bench, reading, tries=tries, seed=seed)
    for value in (0.0, 1.0 - 1e-6):
        if found.tried and found.best.total > 0.0:
            break
        bench.force = {bench.count: value, bench.count + 1: value}
        found = search(bench, reading, tries=tries, seed=seed)
    return found
