"""The probe of one private step in JAX: what :func:`coalmine.probe` measures, for a pure function of its key.

With one key a step is the same step, so two batches are compared under the same noise for nothing. What it shows at
first is in :mod:`coalmine.integrations.jax.reading`; each measure has a module of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine import _validate
from coalmine.integrations.jax import (
    additivity,
    carried,
    influence,
    keys_used,
    later_steps,
    order,
    other_keys,
    other_values,
    places,
    released,
    resolution,
    small_batches,
)
from coalmine.integrations.jax.bench import Bench, Keys
from coalmine.integrations.jax.reading import Reading
from coalmine.probing import faults, rows, units
from coalmine.probing.findings import Measurement, ProbeReport
from coalmine.probing.noise import SHARES, TOLERANCE, Sample, collect, findings_of
from coalmine.probing.private_step import PrivateStep
from coalmine.records import Relation, Sampling

_GRAINS = 16.0
"""Spacings of numbers that rounding may cost."""


def probe(
    step: Callable[..., Any],
    *,
    state: Any,
    batch: Any,
    clip_norm: float,
    noise_multiplier: float,
    keys: Keys = None,
    divisor: float | None = None,
    learning_rate: float | None = None,
    sensitivity: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    sampling: Sampling | str = Sampling.POISSON,
    bounds: tuple[float, float] | None = None,
    empty: Any = None,
    kept: tuple[str, ...] = (),
    name: str = "",
    level: float = 1e-4,
    replays: int = 200,
    seed: int = 0,
) -> ProbeReport:
    """Run one private step a few hundred times with chosen keys, rows and noise, and name its faults.

    >>> import jax
    >>> from jax import numpy as jnp
    >>> def step(weight, batch, key):
    ...     clipped = batch / jnp.maximum(jnp.linalg.norm(batch, axis=1, keepdims=True), 1.0)
    ...     return weight - 0.5 * (clipped.sum(axis=0) + 2.0 * jax.random.normal(key, (3,))) / 8
    >>> report = probe(step, state=jnp.zeros(3), batch=jnp.eye(3), clip_norm=1.0, noise_multiplier=2.0,
    ...                divisor=8, learning_rate=0.5)
    >>> report.verdict.outcome.value
    'consistent'

    Args:
        step: ``step(state, batch, key)``, or ``step(state, batch)`` where keys live in the state (optax, jax_privacy).
            It gives the next state, or a tuple that begins with it, or anything else: all of it counts as released.
        state: parameters, optimizer state, keys: any tree of arrays.
        batch: rows to try it with, at least two: a tree of arrays whose first axis counts rows.
        clip_norm: C, the norm to which each row's gradient is clipped.
        noise_multiplier: σ; the noise on the sum has standard deviation σ·C, or σ times ``sensitivity``.
        keys: the keys that the training loop gives to its first steps, as a function of the step's number or a list.
            Without it every step is given a new one, and only what the step does with it is probed.
        divisor: what the sum of gradients is divided by; with ``learning_rate``, noise and clipping are measured in
            units of the sum. Without both they are only compared with each other.
        learning_rate: the factor with which a gradient moves the state; 1 for a step that gives gradients.
        sensitivity: how far one row may move the sum, as the accounting assumes; C unless given.
        relation: which data sets count as neighbors.
        sampling: how batches are drawn; Poisson sampling also draws empty ones.
        empty: what the step is given when no row was drawn, where that is not a batch without rows: all padding, say.
            With as many rows as ``batch``, that number is a constant: rows are added in the place of padding.
        bounds: the least and the greatest value of a feature, where rows are checked.
        kept: names (with * and ?) of what the step gives back but nobody outside ever sees.
        name: what the report calls the step.
        level: the chance that a right step is refuted, shared among all statistical tests.
        replays: runs with new noise.
        seed: for the rows that are tried and the keys of the runs.

    Returns:
        the report: refuted where a fault was found, inconclusive where a measure was blind, else consistent.
    """
    subject = PrivateStep(
        step=step, batch=batch, clip_norm=clip_norm, noise_multiplier=noise_multiplier, state=state, divisor=divisor,
        learning_rate=learning_rate, sensitivity=sensitivity, relation=Relation.parse(relation),
        sampling=Sampling.parse(sampling), bounds=bounds, kept=kept, name=name,
    )  # fmt: skip
    level = _validate.open_unit("level", level)
    replays = _validate.integer("replays", replays, at_least=20)
    began = time.perf_counter()
    bench = Bench(subject, keys=keys, seed=_validate.integer("seed", seed, at_least=0), empty=empty)
    measured = _Probe(bench, level=level, replays=replays, seed=seed).measure()
    return ProbeReport(
        subject=subject.title,
        measurements=tuple(measured),
        level=level,
        seconds=time.perf_counter() - began,
        details={
            "runs": bench.runs,
            "draws": [str(one) for one in bench.draws],
            "promise": subject.promise,
        },
    )


class _Probe:
    """Every measure of one step."""

    def __init__(self, bench: Bench, *, level: float, replays: int, seed: int) -> None:
        self.bench, self.level, self.replays = bench, level, replays
        self.reading = Reading(bench, seed=seed)

    def measure(self) -> list[Measurement]:
        """All measures, in the order of the report."""
        reading = self.reading
        steps = keys_used.walked(reading)
        used = keys_used.measure(reading, steps)
        if not reading.noisy and not reading.constant:
            return [self._no_noise(), used] if used.findings else [self._no_noise()]
        samples = self._samples(1.0)
        adding = additivity.measure(reading)
        noised = self._noise(samples)
        # Numbers that share their noise are too few for a test of chance.
        shared = any(one.fault == faults.SHARED_NOISE.name for one in noised.findings)
        chance = 0.0 if shared else self.level * SHARES["steps"]
        moving = influence.measure(reading, samples, adding.findings, level=self.level)
        found = [
            moving,
            None if moving.findings else other_values.measure(reading, samples, level=self.level),
            adding,
            noised,
            resolution.measure(reading),
            order.measure(reading),
            released.measure(reading, samples),
            used,
            keys_used.fresh(reading, steps, chance),
            later_steps.measure(reading, samples, steps, level=self.level),
            carried.measure(reading),
            places.measure(reading),
            small_batches.measure(reading),
            self._empty_batch(),
            self._failing_rows(),
            self._control(samples),
            other_keys.measure(reading),
        ]
        return units.measured(
            [one for one in found if one is not None],
            noise_multiplier=self.bench.subject.noise_multiplier,
            by_buffers=any(len(group) > 1 for group in reading.groups),
        )

    # ---- noise ----------------------------------------------------------------------------------------------------

    def _samples(self, factor: float) -> list[Sample]:
        """The noise of every carrier in many runs, as the tests want it; that of the first runs times a factor."""
        reading, carriers = self.reading, self.reading.carriers
        if not carriers:
            return []
        numbers = list(range(2, 2 + self.replays))
        many = [reading.base] * self.replays
        if reading.outside:
            shown, even = self.bench.run(many, numbers, [1.0] * self.replays), self.replays // 2 * 2
            noise = {one: factor * (shown[one][0:even:2] - shown[one][1:even:2]) / np.sqrt(2.0) for one in carriers}
        else:
            shown = self.bench.run(many, numbers, [factor] * self.replays)
            silent: Any = reading.silent
            if reading.by_draws:  # rows that are sampled, say: without its noise each run is another one
                silent = self.bench.run(many, numbers, [0.0] * self.replays)
            noise = {one: shown[one] - silent[one] for one in carriers}
        runs = zip(*(noise[one] for one in carriers), strict=True)
        grains = [_grain(reading.plain[one], self.bench.spacing[one]) for one in carriers]
        return collect([(one, self.bench.shapes[one]) for one in carriers], runs, grains=grains)

    def _no_noise(self) -> Measurement:
        subject = self.bench.subject
        found = faults.finding(
            faults.NO_NOISE,
            "Nothing that the step releases carries noise.",
            number=0.0,
            allowed=subject.noise,
            witness="the same release with every key",
        )
        return Measurement(name="noise", sentence=found.sentence, findings=(found,))

    def _noise(self, samples: list[Sample]) -> Measurement:
        if not samples:
            advice = "gradients or momentum" if self.reading.noisy else "one, as an argument or in the state"
            blind = f"{self.reading.no_carrier}; hand over {advice}"
            return Measurement(name="noise", sentence="The size of the noise was not measured.", blind=blind)
        wanted = self._wanted()
        found, details = findings_of(samples, wanted, level=self.level, runs=self.replays)
        if not any(one.fault == faults.NOT_NORMAL.name for one in found):
            found += keys_used.other_laws(self.reading)
        sentence = found[0].sentence if found else f"Noise in {len(samples)} tensors is normal and independent."
        if not found and wanted:
            ratios = [one.std / wanted[one.name] for one in samples]
            sentence = f"Noise in {len(samples)} tensors is normal, independent and as large as promised."
            if min(ratios) > 1.1:
                sentence = (
                    f"Noise is {min(ratios):.3g} times what is promised: more than the accounting asks for. Look at "
                    "whether it is meant for the sum and added to the mean."
                )
        return Measurement(name="noise", sentence=sentence, findings=tuple(found), details=details)

    def _wanted(self) -> dict[str, float]:
        if not self.reading.absolute:
            return {}
        return dict.fromkeys(self.reading.carriers, self.bench.subject.noise * self.reading.scale)

    def _control(self, samples: list[Sample]) -> Measurement:
        """With half its noise the step must be refuted, or the probe is blind."""
        name = "control"
        if not samples:
            return self.reading.unmeasured(name, "Half of the noise")
        halved = self._samples(0.5)
        found, _ = findings_of(halved, self._wanted(), level=self.level, runs=self.replays)
        caught = any(one.fault == faults.NOISE_TOO_SMALL.name for one in found)
        sigma = self.bench.subject.noise_multiplier
        real = influence.effective(self.reading, halved, self.level)
        caught = caught or (real is not None and real < sigma * (1.0 - TOLERANCE))
        limited = self._limited(samples, halved)
        if limited:
            blind = (
                f"in {limited} of {self.replays} runs half of the draws is not half of the noise: something limits it"
            )
            return Measurement(name=name, sentence=f"{blind[0].upper()}{blind[1:]}.", blind=blind)
        if caught:
            return Measurement(name=name, sentence="With half its noise the step would have been refuted.")
        share = influence.effective(self.reading, samples, self.level)
        if share is not None and share > 2.0 * sigma:
            return Measurement(name=name, sentence="Even half of its noise would keep the promise.")
        blind = "half of the noise would not have been found; hand over divisor and learning rate, or larger gradients"
        return Measurement(name=name, sentence="The positive control stayed green.", blind=blind)

    def _limited(self, samples: list[Sample], halved: list[Sample]) -> int:
        """In how many runs half of the draws is not half of the noise."""
        off = np.zeros(len(samples[0].values), dtype=bool)
        for one, half in zip(samples, halved, strict=True):
            error = (TOLERANCE + _GRAINS * self.bench.spacing[one.name]) * np.abs(one.values)
            far = np.abs(one.values - 2.0 * half.values) > error + (0.0 if one.grain is None else _GRAINS * one.grain)
            off |= (far & (np.abs(one.values) > one.std)).any(axis=1)
        return int(off.sum())

    # ---- rows at the edge -------------------------------------------------------------------------------------------

    def _empty_batch(self) -> Measurement | None:
        if self.bench.subject.sampling is not Sampling.POISSON or not self.bench.grows:
            return None
        name, batch = "empty batch", self.bench.empty
        failure = self.bench.failure(batch)
        text = f"The step fails on an empty batch: {failure.rstrip('.')}." if failure else ""
        if not failure:
            shown = self.bench.run([batch], [0], [1.0])
            if not all(bool(np.isfinite(one).all()) for one in shown.values()):
                text = "On an empty batch the step releases values that are not finite."
        if text:
            found = faults.finding(faults.EMPTY_BATCH, text, witness="no row")
            return Measurement(name=name, sentence=text, findings=(found,))
        return Measurement(name=name, sentence="The step runs on an empty batch.")

    def _failing_rows(self) -> Measurement:
        """Finite rows that make the release infinite or NaN."""
        broken = [one for one in self.reading.tried if not one.finite and all(np.isfinite(v).all() for v in one.values)]
        if not broken:
            sentence = f"None of {len(self.reading.tried)} finite rows breaks the step."
            return Measurement(name="failing rows", sentence=sentence)
        text = "One row makes the release not finite."
        found = faults.finding(faults.NOT_FINITE, text, witness=f"one row more: {rows.describe(broken[0].row)}")
        return Measurement(name="failing rows", sentence=text, findings=(found,))


def _grain(value: NDArray[np.float64], spacing: float) -> NDArray[np.float64]:
    """The spacing of the numbers that carry these values."""
    return np.asarray(spacing * np.exp2(np.floor(np.log2(np.maximum(np.abs(value), 1e-30)))))
