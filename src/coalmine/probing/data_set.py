"""A step that is built from a data set, built from two neighboring ones: does anything but the sampled rows differ?

The same batch, the same start, the same draws: the two steps must do the same. Otherwise the builder has read something
off the private rows: how many there are (a divisor), their means, their classes, their words.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from coalmine import _validate
from coalmine.probing import faults, rows
from coalmine.probing.bench import on_bench
from coalmine.probing.carriers import TOLERANCE, delta, rounding
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.private_step import PrivateStep
from coalmine.probing.release import Observation
from coalmine.probing.tape import Tape


@dataclasses.dataclass
class _Built:
    """A step as built, and what it showed with one batch."""

    step: PrivateStep
    start: dict[str, torch.Tensor]
    silent: Observation
    plain: Observation


def measure(subject: PrivateStep, *, seed: int = 0) -> Measurement:
    """Build from neighboring data sets and compare."""
    neighbors = _neighbors(subject.dataset)
    batch = rows.take(subject.batch, range(min(rows.size(subject.batch), 8)))
    tape, making = Tape(), Tape()
    first = _built(subject, subject.dataset, batch, seed, making, tape, record=True)
    findings: list[Finding] = []
    for text, dataset in neighbors:
        found = _compared(first, _built(subject, dataset, batch, seed, making, tape, record=False), text)
        findings += [one for one in found if all(one.fault != other.fault for other in findings)]
    sentence = (
        findings[0].sentence
        if findings
        else f"Built from {len(neighbors)} neighboring data sets, the step does the same with the same batch."
    )
    return Measurement(name="data set", sentence=sentence, findings=tuple(findings))


def _built(
    subject: PrivateStep, dataset: Any, batch: Any, seed: int, making: Tape, tape: Tape, *, record: bool
) -> _Built:
    """Build with the draws of the first building, and run once without and once with noise."""
    assert subject.build is not None
    torch.manual_seed(seed)
    with making.record() if record else making.replay():
        step = subject.build(dataset)
    _validate.instance("build", step, PrivateStep)
    with on_bench(dataclasses.replace(step, batch=batch), seed=seed) as bench:
        bench.tape = tape
        world = bench.world()
        if record:
            bench.check(bench.run(world.batch, tape.record()), "its own batch")
        return _Built(
            step, dict(bench.start), bench.run(world.batch, tape.silence()), bench.run(world.batch, tape.replay())
        )


def _neighbors(dataset: Any) -> list[tuple[str, Any]]:
    """Data sets with one row more (a copy, and an extreme one) and with one row less."""
    if isinstance(dataset, TensorDataset):
        return [(text, TensorDataset(*parts)) for text, parts in _neighbors(tuple(dataset.tensors))]
    if isinstance(dataset, Dataset):
        count = len(dataset)  # type: ignore[arg-type]
        return [
            ("a copy of its first row added", ConcatDataset([dataset, Subset(dataset, [0])])),
            ("its last row removed", Subset(dataset, list(range(count - 1)))),
        ]
    count = rows.check(dataset)
    copy = rows.take(dataset, [0])
    values = [one * 100.0 + 1.0 if one.dtype.kind == "f" and one.size > 1 else one for one in rows.numbers(copy)]
    return [
        ("a copy of its first row added", rows.join([dataset, copy])),
        ("an extreme row added", rows.join([dataset, rows.changed(copy, values)])),
        ("its last row removed", rows.take(dataset, range(count - 1))),
    ]


def _compared(first: _Built, other: _Built, text: str) -> list[Finding]:
    """What differs between two steps that were built from neighbors."""
    if other.plain.error or other.silent.error:
        words = (
            f"With {text}, the step that is built fails on the same batch: {other.plain.error or other.silent.error}."
        )
        return [faults.finding(faults.SETUP, words, witness=text)]
    found: list[Finding] = []
    scale = _divisor(first, other)
    if scale is not None and abs(scale - 1.0) > TOLERANCE:
        said = ""
        if first.step.divisor is not None and other.step.divisor is not None:
            said = f" (divisor {first.step.divisor:g} and {other.step.divisor:g})"
        found.append(
            faults.finding(
                faults.DIVISOR,
                f"With {text}, the same batch and the same noise are released {scale:.4g} times as large{said}.",
                number=scale,
                allowed=1.0,
                witness=f"the data set with {text}",
            )
        )
    if scale is None or abs(scale - 1.0) <= TOLERANCE:
        name = _differing(first, other)
        if name:
            found.append(
                faults.finding(
                    faults.SETUP,
                    f"With {text}, {name} differs, with the same batch and the same draws.",
                    witness=f"the data set with {text}",
                )
            )
    rates = first.step.sample_rate, other.step.sample_rate
    if None not in rates and rates[0] != rates[1]:
        found.append(
            faults.finding(
                faults.SETUP,
                f"With {text}, the sampling rate is {rates[1]:.4g} and not {rates[0]:.4g}.",
                number=rates[1],
                allowed=rates[0],
                witness=f"the data set with {text}",
            )
        )
    return found


def _names(first: _Built, other: _Built) -> Sequence[str]:
    return list(first.plain.gradients) or [name for name in first.plain.released if name in other.plain]


def _divisor(first: _Built, other: _Built) -> float | None:
    """The common factor of noise between the two steps; None where there is none."""
    ratios = []
    for name in _names(first, other):
        if name not in other.plain or first.plain[name].shape != other.plain[name].shape:
            return None
        a = delta(first.plain[name], first.silent[name])
        b = delta(other.plain[name], other.silent[name])
        if float(a.norm()) > 10.0 * rounding(first.plain[name]):
            ratio = float(a @ b) / float(a @ a)
            if float((b - ratio * a).norm()) > 1e-2 * float(b.norm()) + 10.0 * rounding(other.plain[name]):
                return None
            ratios.append(ratio)
    if not ratios or max(ratios) - min(ratios) > 1e-2 * max(ratios):
        return None
    return float(np.median(ratios))


def _differing(first: _Built, other: _Built) -> str:
    """The first thing that differs: the start, or what the step shows."""
    for name, value in first.start.items():
        there = other.start.get(name)
        if there is None or there.shape != value.shape:
            return f"the shape of {name}"
        if float(delta(there, value).norm()) > 20.0 * rounding(value):
            return f"{name} at the start"
    for name in (*first.silent.gradients, *first.silent.released):
        if name not in other.silent:
            return name
        a, b = first.silent[name], other.silent[name]
        if a.shape != b.shape:
            return f"the shape of {name}"
        if float(delta(a, b).norm()) > 1e-4 * float(a.double().norm()) + 20.0 * rounding(a):
            return name
    return ""
