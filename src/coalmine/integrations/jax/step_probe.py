"""The probe of one private step in JAX: what :func:`coalmine.probe` measures, for a pure function of its key.

With one key a step is the same step, so two batches are compared under the same noise for nothing. Where the noise
comes from functions of ``jax.random``, the step's jaxpr is also run without it; where it comes from elsewhere, the
difference of two runs with other keys takes its place, divided by √2: it has the same law.
"""

from __future__ import annotations

import dataclasses
import platform
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

import coalmine
from coalmine import _validate
from coalmine.integrations.jax import keys_used, other_keys
from coalmine.integrations.jax.bench import Bench, Keys
from coalmine.probing import faults, rows
from coalmine.probing.crafter import Crafter
from coalmine.probing.findings import Finding, Measurement, ProbeReport
from coalmine.probing.noise import SHARES, TOLERANCE, Sample, collect, findings_of
from coalmine.probing.private_step import PrivateStep
from coalmine.records import Relation, Sampling

_REACHED = 0.9
_ROUNDS, _WIDTH = 3, 40
"""Rounds of the search, and rows that are tried in one call."""


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
    level: float = 0.01,
    replays: int = 200,
    seed: int = 0,
) -> ProbeReport:
    """Run one private step a few hundred times with chosen keys, rows and noise, and name its faults.

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
    bench = Bench(subject, keys=keys, seed=_validate.integer("seed", seed, at_least=0))
    measured = _Probe(bench, level=level, replays=replays, seed=seed, empty=empty).measure()
    return ProbeReport(
        subject=subject.title,
        measurements=tuple(measured),
        level=level,
        seconds=time.perf_counter() - began,
        versions={
            "coalmine": coalmine.__version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        details={
            "runs": bench.runs,
            "draws": [str(one) for one in bench.draws],
            "promise": {
                "clip_norm": subject.clip_norm,
                "noise_multiplier": subject.noise_multiplier,
                "divisor": subject.divisor,
                "sensitivity": subject.allowed,
                "relation": subject.relation.value,
                "sampling": subject.sampling.value,
            },
        },
    )


@dataclasses.dataclass
class _Tried:
    """A row, and how far it moved everything that is released."""

    row: Any
    values: list[Any]
    size: float
    moved: dict[str, NDArray[np.float64]]
    finite: bool

    def moves(self, names: list[str]) -> NDArray[np.float64]:
        return np.array([float(np.linalg.norm(self.moved[name])) for name in names])


class _Probe:
    """Every measure of one step."""

    def __init__(self, bench: Bench, *, level: float, replays: int, seed: int, empty: Any) -> None:
        self.bench, self.level, self.replays = bench, level, replays
        self.empty = rows.take(bench.base, []) if empty is None else jax.tree.map(np.asarray, empty)
        self.crafter = Crafter(bench.base, bounds=bench.subject.bounds, seed=seed)
        self.base = bench.batch()
        four = bench.run([self.base] * 5, [0, 0, 0, 1, 1], [0.0, 1.0, 2.0, 1.0, 0.0])
        self.silent, self.plain, self.double, self.renewed, other = (
            {k: v[i] for k, v in four.items()} for i in range(5)
        )
        names = bench.names
        self.outside = any(_apart(self.silent[name], other[name]) for name in names)
        self.noisy = [name for name in names if _apart(self.plain[name], self.renewed[name])]
        self.constant = [
            name for name in names if name not in self.noisy and _apart(self.plain[name], self.silent[name])
        ]
        linear = [name for name in self.noisy if self.outside or self._linear(name)]
        subject = bench.subject
        self.absolute = subject.divisor is not None and subject.learning_rate is not None
        self.scale = (subject.learning_rate or 1.0) / (subject.divisor or 1.0) if self.absolute else 1.0
        self.quiet = 1.0 if self.outside else 0.0
        self.tried = self._search(linear)
        self.finite = [one for one in self.tried if one.finite]
        self.carriers = self._distinct(linear)

    def measure(self) -> list[Measurement]:
        """All measures, in the order of the report."""
        steps = self.bench.walk(3)
        used = keys_used.measure(self.bench, steps)
        if not self.noisy and not self.constant:
            return [self._no_noise(), used] if used.findings else [self._no_noise()]
        samples = self._samples(1.0) if self.noisy else []
        adding = self._additivity()
        noised = self._noise(samples)
        # Numbers that share their noise are too few for a test of chance.
        shared = any(one.fault == faults.SHARED_NOISE.name for one in noised.findings)
        found = [
            self._sensitivity(samples, adding.findings),
            adding,
            noised,
            self._coverage(samples),
            used,
            None
            if self.outside
            else keys_used.fresh(
                steps, self.carriers or self.constant, 0.0 if shared else self.level * SHARES["steps"]
            ),
            self._empty_batch(),
            self._failing_rows(),
            self._control(samples),
            self._other_keys(),
        ]
        return [one for one in found if one is not None]

    # ---- what carries the noise ---------------------------------------------------------------------------------

    def _linear(self, name: str) -> bool:
        once, twice = self.plain[name] - self.silent[name], self.double[name] - self.silent[name]
        floor = 8.0 * _rounding(self.double[name])
        return float(np.linalg.norm(twice - 2.0 * once)) <= TOLERANCE * float(np.linalg.norm(once)) + floor

    def _distinct(self, linear: list[str]) -> list[str]:
        """Without those that repeat another one: the same noise and the same rows, times a constant."""
        found: list[str] = []
        best = max(self.finite, key=lambda one: float(one.moves(linear).sum()), default=None)
        for name in linear:
            noise = self.renewed[name] - self.plain[name]
            for other in found:
                before = self.renewed[other] - self.plain[other]
                factor = _multiple(noise, before)
                if factor is None:
                    continue
                if best is None or _is_multiple(best.moved[name], best.moved[other], factor):
                    break
            else:
                found.append(name)
        return found

    def _search(self, names: list[str]) -> list[_Tried]:
        """Rows from small to huge, then changes of the best in total and for each tensor."""
        tried = self._attempt(self.crafter.first())
        for turn in range(_ROUNDS):
            finite = [one for one in tried if one.finite]
            if not finite or not names:
                break
            moves = np.array([one.moves(names) for one in finite])
            goals = [int(np.argmax(np.linalg.norm(moves, axis=1))), *map(int, np.argmax(moves, axis=0))]
            starts = [finite[goals[(turn + number) % len(goals)]] for number in range(_WIDTH)]
            tried += self._attempt([self.crafter.changed(one.values, one.size) for one in starts])
        return tried

    def _attempt(self, candidates: list[tuple[list[Any], float]]) -> list[_Tried]:
        """The batch with each of these rows, under the same key."""
        made = [self.crafter.row(values) for values, _ in candidates]
        found = []
        reference = self._without()
        count = len(made)
        shown = self.bench.run([self.bench.batch(row) for row in made], [0] * count, [self.quiet] * count)
        for number, (row, (values, size)) in enumerate(zip(made, candidates, strict=True)):
            moved = {name: shown[name][number] - reference[name] for name in self.bench.names}
            finite = all(bool(np.isfinite(one).all()) for one in moved.values())
            found.append(_Tried(row, values, size, moved, finite))
        return found

    def _without(self) -> dict[str, NDArray[np.float64]]:
        """What is released for the batch alone."""
        return self.plain if self.outside else self.silent

    # ---- noise ----------------------------------------------------------------------------------------------------

    def _samples(self, factor: float) -> list[Sample]:
        """The noise of every carrier in many runs, as the tests want it."""
        numbers = list(range(2, 2 + self.replays))
        shown = self.bench.run([self.base] * self.replays, numbers, [factor] * self.replays)
        if self.outside:
            even = self.replays // 2 * 2
            noise = {name: (one[0:even:2] - one[1:even:2]) / np.sqrt(2.0) for name, one in shown.items()}
        else:
            noise = {name: one - self.silent[name] for name, one in shown.items()}
        runs = zip(*(noise[name] for name in self.carriers), strict=True)
        return collect([(name, self.bench.shapes[name]) for name in self.carriers], runs)

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
            blind = "" if self.constant else "no tensor shows the noise in proportion; hand over gradients or momentum"
            return Measurement(name="noise", sentence="The size of the noise was not measured.", blind=blind)
        wanted = self._wanted()
        found, details = findings_of(samples, wanted, level=self.level, runs=self.replays)
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
        subject = self.bench.subject
        if not self.absolute:
            return {}
        return dict.fromkeys(self.carriers, subject.noise * self.scale)

    def _control(self, samples: list[Sample]) -> Measurement | None:
        """With half its noise the step must be refuted, or the probe is blind."""
        if self.outside or not samples:
            return None
        halved = self._samples(0.5)
        found, _ = findings_of(halved, self._wanted(), level=self.level, runs=self.replays)
        caught = any(one.fault == faults.NOISE_TOO_SMALL.name for one in found)
        real = self._effective(halved)
        caught = caught or (real is not None and real < self.bench.subject.noise_multiplier * (1.0 - TOLERANCE))
        sentence = "With half its noise the step would have been refuted."
        if caught:
            return Measurement(name="control", sentence=sentence)
        share = self._effective(samples)
        if share is not None and share > 2.0 * self.bench.subject.noise_multiplier:
            return Measurement(name="control", sentence="Even half of its noise would keep the promise.")
        blind = "half of the noise would not have been found; hand over divisor and learning rate, or larger gradients"
        return Measurement(name="control", sentence="The positive control stayed green.", blind=blind)

    def _other_keys(self) -> Measurement | None:
        """None where other draws change the batch's own sum: then a row cannot be told from them."""
        best = self._best()
        if self.outside or best is None or not self.carriers:
            return None
        largest = float(np.linalg.norm(best.moves(self.carriers))) / self.scale
        return other_keys.measure(
            self.bench, self.base, row=best.row, largest=largest, carriers=self.carriers, scale=self.scale
        )

    # ---- rows -----------------------------------------------------------------------------------------------------

    def _best(self) -> _Tried | None:
        """The row that moves the carriers most."""
        return max(self.finite, key=lambda one: float(np.linalg.norm(one.moves(self.carriers))), default=None)

    def _effective(self, samples: list[Sample]) -> float | None:
        """The noise multiplier 1/W of the worst row, W² = Σ ‖Δ‖²/s², with an upper limit for the noise."""
        if not samples or not self.finite:
            return None
        share = self.level * SHARES["size"] / len(samples)
        stds = np.array([one.upper_std(share) for one in samples])
        worst = max(float(np.linalg.norm(one.moves(self.carriers) / stds)) for one in self.finite)
        return 1.0 / worst if worst > 0.0 else None

    def _sensitivity(self, samples: list[Sample], known: tuple[Finding, ...]) -> Measurement:
        subject, name = self.bench.subject, "sensitivity"
        best = self._best()
        if best is None or not self.carriers or not best.moves(self.carriers).any():
            blind = "no row that was tried moves the release; hand over a batch whose rows do"
            return Measurement(name=name, sentence="No row moved the release.", blind=blind)
        real = self._effective(samples)
        largest = float(np.linalg.norm(best.moves(self.carriers))) / self.scale
        details: dict[str, Any] = {"rows_tried": len(self.tried), "effective_noise_multiplier": real}
        allowed = subject.allowed * (
            2.0 if subject.relation is Relation.REPLACE and subject.sensitivity is None else 1.0
        )
        if not self.bench.grows:
            allowed = max(allowed, 2.0 * subject.unit)
        if self.absolute:
            details |= {"largest": largest, "allowed": allowed, "unit": "of the sum of clipped gradients"}
            floor = 4.0 * max(_rounding(self.plain[one]) for one in self.carriers) / self.scale
            if largest > allowed * (1.0 + TOLERANCE) + floor:
                said = f"One row moves the sum by {largest:.4g}, where {allowed:.4g} is allowed"
                found = self._named(best, said, largest, allowed, known, bound=subject.clip_norm * self.scale)
                return Measurement(name=name, sentence=found.sentence, findings=(found,), details=details)
            clip = min(subject.clip_norm, allowed)
            reach = largest / (clip if largest <= clip * (1.0 + TOLERANCE) or not self.bench.grows else allowed)
        else:
            if real is None:
                return Measurement(
                    name=name, sentence="There is no noise to compare a row with.", blind="hand over the divisor",
                    details=details,
                )  # fmt: skip
            if real < subject.noise_multiplier * (1.0 - TOLERANCE):
                ratio = subject.noise_multiplier / real
                said = f"Beside its noise, one row moves the release {ratio:.3g} times as far as allowed"
                bound = min(one.std for one in samples) / subject.noise_multiplier
                found = self._named(best, said, ratio, 1.0, known, bound=bound)
                found = dataclasses.replace(found, level=self.level * SHARES["size"])
                return Measurement(name=name, sentence=found.sentence, findings=(found,), details=details)
            reach = subject.noise_multiplier / real
        blind = ""
        if reach < _REACHED and not (not self.absolute and real is not None):
            blind = f"no row came closer to the clip norm than {reach:.2g} of it, so clipping was never needed"
        elif reach < _REACHED:
            blind = f"rows reach {reach:.2g} of what the noise would hide: hand over divisor and learning rate"
        sentence = f"The step really has a noise multiplier of at most {real:.3g}." if real is not None else ""
        if self.absolute:
            sentence = f"The largest influence of one row is {largest:.4g}, where {allowed:.4g} is allowed. {sentence}"
        return Measurement(name=name, sentence=sentence.strip(), blind=blind, details=details)

    def _named(
        self, best: _Tried, said: str, number: float, limit: float, known: tuple[Finding, ...], *, bound: float
    ) -> Finding:
        """The fault behind an influence that is too large."""
        witness = rows.describe(best.row)
        causes = [one for one in known if one.fault in (faults.INTERACT.name, faults.DIVISOR.name)]
        if causes and number < 2.5 * limit:
            cause = faults.by_name(causes[0].fault) or faults.TOO_SENSITIVE
            return faults.finding(cause, f"{said}.", number=number, allowed=limit, witness=witness)
        grown = self._growth(best)
        if grown is not None:
            text = f"A row ten times as large moves the release {grown:.3g} times as far: nothing bounds it."
            return faults.finding(faults.NO_CLIPPING, text, number=number, allowed=limit, witness=witness)
        layers = self._clipped_layers(bound)
        if layers > 1:
            text = f"{said}: {layers} layers are each clipped to it by themselves."
            return faults.finding(faults.PER_LAYER, text, number=number, allowed=limit, witness=witness)
        totals = np.array([np.linalg.norm(one.moves(self.carriers)) for one in self.finite])
        plateau = bool(np.mean(totals > 0.99 * totals.max()) >= 0.1)
        if number > 2.5 * limit and not plateau:
            text = f"{said}, and no two rows reach the same bound."
            return faults.finding(faults.NO_CLIPPING, text, number=number, allowed=limit, witness=witness)
        if not self.absolute and plateau:
            return faults.finding(faults.NOISE_TOO_SMALL, f"{said}.", number=1.0 / number, allowed=1.0, witness=witness)
        return faults.finding(faults.TOO_SENSITIVE, f"{said}.", number=number, allowed=limit, witness=witness)

    def _growth(self, best: _Tried) -> float | None:
        """How much more a row moves when its features are ten times as large; None where it is bounded."""
        if self.bench.subject.bounds is not None:
            return None
        larger = [one * 10.0 if one.dtype.kind == "f" and one.size > 1 else one for one in best.values]
        [tried] = self._attempt([(larger, best.size * 10.0)])
        before, after = best.moves(self.carriers), tried.moves(self.carriers)
        ratio = float(np.linalg.norm(after) / np.linalg.norm(before)) if tried.finite else float("inf")
        return ratio if ratio > 3.0 else None

    def _clipped_layers(self, bound: float) -> int:
        """How many tensors one row brings to the bound at once, while no row brings any beyond it."""
        moves = np.array([one.moves(self.carriers) for one in self.finite])
        slack = 0.03 * bound
        at_once = int(np.sum(np.abs(moves - bound) <= slack, axis=1).max())
        return at_once if moves.max() <= bound + slack else 1

    def _additivity(self) -> Measurement:
        """Whether rows change what other rows add, and whether they change the noise."""
        name = "additivity"
        if len(self.finite) < 2 or not self.carriers or not self.bench.grows:
            return Measurement(name=name, sentence="Not measured: a batch cannot grow, or no row moves anything.")
        ordered = sorted(self.finite, key=lambda one: -float(np.linalg.norm(one.moves(self.carriers))))
        first, second = ordered[0], ordered[len(ordered) // 2]
        largest = float(np.linalg.norm(first.moves(self.carriers)))
        floor = 8.0 * max(_rounding(self.plain[one]) for one in self.carriers)
        # All of one size: both rows, each of them, and none, in the place of the first two of the batch.
        slots = [{0: first.row, 1: second.row}, {0: first.row}, {1: second.row}]
        shown = self.bench.run([self.bench.replaced(one) for one in slots], [0] * 3, [self.quiet] * 3)
        base, left = self._without(), []
        for carrier in self.carriers:
            both, one, other = shown[carrier]
            left.append(both - one - other + base[carrier])
        number = float(np.linalg.norm(np.concatenate(left))) / max(largest, 1e-30)
        noise, count = self._noise_ratio(first), self.bench.count
        size = self._divided(first, second)
        witness = rows.describe(first.row)
        found: Finding | None = None
        shrinks = count / (count + 1)
        if any(one is not None and abs(one - shrinks) < 0.1 * (1.0 - shrinks) for one in (size, noise)):
            text = f"One row more rescales the release by {count}/{count + 1}: it is divided by the size of the batch."
            found = faults.finding(faults.DIVISOR, text, number=shrinks, allowed=1.0, witness=witness)
        elif noise is not None and abs(noise - 1.0) > 0.01:
            text = f"With one row more, the same key gives {noise:.4g} times the noise."
            found = faults.finding(faults.NOISE_DEPENDS, text, number=noise, allowed=1.0, witness=witness)
        elif number > 0.01 + floor / max(largest, 1e-30):
            text = (
                f"Rows do not add up: what one adds changes by {number:.3g} of a row's largest influence with another."
            )
            found = faults.finding(faults.INTERACT, text, number=number, allowed=0.0, witness=witness)
        sentence = found.sentence if found else "What rows add does not depend on other rows, and nor does the noise."
        return Measurement(name=name, sentence=sentence, findings=() if found is None else (found,))

    def _divided(self, first: _Tried, second: _Tried) -> float | None:
        """How far one row in the place of another moves a batch with a row more, beside the batch itself."""
        last = self.bench.count - 1
        small = self.bench.run(
            [self.bench.replaced({last: first.row}), self.bench.replaced({last: second.row})], [0] * 2, [self.quiet] * 2
        )
        large = self.bench.run([self.bench.batch(one.row) for one in (first, second)], [0] * 2, [self.quiet] * 2)
        before, after = (
            float(np.linalg.norm(np.concatenate([shown[name][0] - shown[name][1] for name in self.carriers])))
            for shown in (small, large)
        )
        return after / before if before > 0.0 else None

    def _noise_ratio(self, one: _Tried) -> float | None:
        """How large the noise is with one row more, under the same key."""
        if self.outside:
            return None
        shown = self.bench.run([self.bench.batch(one.row)] * 2, [0, 0], [0.0, 1.0])
        after = np.linalg.norm([np.linalg.norm(shown[name][1] - shown[name][0]) for name in self.carriers])
        before = np.linalg.norm([np.linalg.norm(self.plain[name] - self.silent[name]) for name in self.carriers])
        return float(after / before)

    def _coverage(self, samples: list[Sample]) -> Measurement:
        """Everything that a row reaches must carry noise, in each of its numbers."""
        by_name = {one.name: one for one in samples}
        found: list[Finding] = []
        for name in self.bench.names:
            reached = np.zeros(self.silent[name].size, dtype=bool)
            witness = None
            for one in self.finite:
                now = np.abs(one.moved[name]) > 16.0 * _rounding(self.plain[name])
                witness = one.row if witness is None and now.any() else witness
                reached |= now
            if not reached.any():
                continue
            text = ""
            if name not in self.noisy and name not in self.constant:
                text = "carries no noise"
            elif name in by_name and bool((reached & (by_name[name].squares == 0.0)).any()):
                bare = int((reached & (by_name[name].squares == 0.0)).sum())
                text = f"carries no noise in {bare} of its {reached.size} numbers"
            if text:
                fault = faults.RETURNED if name.startswith("returned") else faults.UNNOISED
                what = "returns" if name.startswith("returned") else "changes"
                found.append(
                    faults.finding(
                        fault,
                        f"The step {what} {name}, which depends on the rows and {text}.",
                        allowed=0.0,
                        witness=f"{name}, with one row more: {rows.describe(witness)}",
                    )
                )
        sentence = found[0].sentence if found else "Everything that a row reaches carries noise."
        return Measurement(name="coverage", sentence=sentence, findings=tuple(found[:3]))

    # ---- steps, and rows at the edge --------------------------------------------------------------------------------

    def _empty_batch(self) -> Measurement | None:
        if self.bench.subject.sampling is not Sampling.POISSON or not self.bench.grows:
            return None
        name, batch = "empty batch", self.empty
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
        broken = [one for one in self.tried if not one.finite and all(np.isfinite(v).all() for v in one.values)]
        if not broken:
            sentence = f"None of {len(self.tried)} finite rows breaks the step."
            return Measurement(name="failing rows", sentence=sentence)
        text = "One row makes the release not finite."
        found = faults.finding(faults.NOT_FINITE, text, witness=f"one row more: {rows.describe(broken[0].row)}")
        return Measurement(name="failing rows", sentence=text, findings=(found,))


def _rounding(value: NDArray[np.float64]) -> float:
    """How far single precision may be off, in the norm."""
    return float(np.finfo(np.float32).eps) * float(np.linalg.norm(value))


def _apart(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether two runs differ by more than rounding."""
    return bool(np.linalg.norm(a - b) > 4.0 * _rounding(a)) or bool(np.isnan(a).any() != np.isnan(b).any())


def _multiple(a: NDArray[np.float64], b: NDArray[np.float64]) -> float | None:
    """The constant c with a = c·b, if there is one."""
    if a.shape != b.shape or not np.any(b):
        return None
    factor = float(a @ b / (b @ b))
    return factor if _is_multiple(a, b, factor) else None


def _is_multiple(a: NDArray[np.float64], b: NDArray[np.float64], factor: float) -> bool:
    return float(np.linalg.norm(a - factor * b)) <= 0.01 * float(np.linalg.norm(a)) + 1e-12
