"""Which keys a step draws from: one that is used twice gives the same noise twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.bench import Bench, Step
from coalmine.integrations.jax.reading import Reading, one_of
from coalmine.probing import faults
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.independence import correlation_p

_SAME = 1e-3
"""Relative: noise that is the same, but for rounding."""
_MANY, _ANEW = 8, (3, 4, 5, 6)
"""Numbers that agree by chance no more, and the numbers of the keys under which fewer of them are compared again."""


def measure(reading: Reading, steps: Sequence[Step]) -> Measurement:
    """Keys of the first steps: none may be used twice, by two leaves, by noise and sampling, or by two steps."""
    bench = reading.bench
    leaves = _leaves(bench, steps[0].silent)
    used = [[(draw, row.tobytes()) for draw, rows in one.keys for row in rows] for one in steps]
    found: list[Finding] = []
    for pair in _twice(used[0]):
        if _one_noise(bench, pair):
            continue
        who = [_who(bench, leaves, one) for one in pair]
        text = f"{who[0]} and {who[1][0].lower()}{who[1][1:]} come from one key."
        found.append(faults.finding(faults.SHARED_NOISE, text, number=1.0, allowed=0.0, witness=" | ".join(who)))
    found += _again(bench, leaves, used)
    looped, over = ("", None) if found else _loop(reading)
    if over is not None:
        found.append(over)
    count, blind = len(used[0]), _stuck(bench)
    sentence = f"A step draws from {count} keys, all different, and new in each of the first {len(steps)} steps."
    if not count:
        sentence = "The step draws from no key that could be compared."
    return Measurement(
        name="keys",
        sentence=found[0].sentence if found else f"{sentence}{looped}",
        findings=tuple(found[:4]),
        blind=blind,
        details={"draws": [str(one) for one in bench.draws], "leaves": leaves, "steps": len(steps)},
    )


def _again(
    bench: Bench, leaves: Sequence[Sequence[str]], used: Sequence[Sequence[tuple[int | None, bytes]]]
) -> list[Finding]:
    """A key that noise is drawn from in two of the steps, whichever they are."""
    for (a, first), (b, second) in itertools.combinations(enumerate(used, start=1), 2):
        old = {key for _, key in first}
        names = list(
            dict.fromkeys(_who(bench, leaves, draw) for draw, key in second if key in old and draw is not None)
        )
        if names:
            more = f" So does that of {len(names) - 1} more." if len(names) > 1 else ""
            which = "in two consecutive steps" if b == a + 1 else f"in steps {a} and {b}"
            text = f"{names[0]} comes from the same key {which}.{more}"
            witness = f"steps {a} and {b}: {', '.join(names)}"
            return [faults.finding(faults.SAME_NOISE, text, number=1.0, allowed=0.0, witness=witness)]
    return []


def _loop(reading: Reading) -> tuple[str, Finding | None]:
    """The keys that the loop gives, all pairs of them: in words, and the first that comes again."""
    bench = reading.bench
    if not bench.loop_keys:
        return "", None
    seen: dict[bytes, int] = {}
    for step, key in enumerate(bench.key_numbers, start=1):
        if key in seen and not _moves_by_itself(reading):
            text = f"The loop gives the same key to steps {seen[key]} and {step}, and so the same noise."
            witness = f"keys of steps {seen[key]} and {step}"
            return "", faults.finding(faults.SAME_NOISE, text, number=1.0, allowed=0.0, witness=witness)
        seen.setdefault(key, step)
    count = len(bench.loop_keys)
    if len(seen) < count:
        return " The loop's keys come again, but the step makes new ones of them.", None
    return f" The loop's keys are different in all of its first {count} steps.", None


def _moves_by_itself(reading: Reading) -> bool:
    """Whether the second step draws other noise than the first from one and the same key, by a counter for instance."""
    bench = reading.bench
    outputs = bench.outputs([reading.base], [0], [1.0])
    state = bench.next_state([one[0] for one in outputs])
    both = (reading.quiet, reading.loud)
    shown = bench.run([reading.base] * 2, [one for one, _ in both], [one for _, one in both], state=state)
    quiet, loud = one_of(shown, 0), one_of(shown, 1)
    names = reading.carriers or reading.constant or reading.noisy
    pairs = [(loud[name] - quiet[name], reading.noise[name]) for name in names]
    return any(
        float(np.linalg.norm(now - (now @ then) / (then @ then) * then)) > 0.01 * float(np.linalg.norm(now))
        for now, then in pairs
        if then.any() and now.any()
    )


def _stuck(bench: Bench) -> str:
    if not bench.loop_keys or bench.stuck is None:
        return ""
    return (
        f"keys gives one and the same key for every step from number {bench.stuck} on: if it takes them from an array "
        "that ends there, hand over the array"
    )


def _twice(used: Sequence[tuple[int | None, bytes]]) -> list[tuple[int | None, int | None]]:
    """Pairs of places that draw from one key, at least one of them for noise."""
    by_key: dict[bytes, int | None] = {}
    found: dict[tuple[int | None, int | None], None] = {}
    for draw, key in used:
        if key in by_key and (draw is not None or by_key[key] is not None):
            found[by_key[key], draw] = None
        by_key.setdefault(key, draw)
    return list(found)


def _one_noise(bench: Bench, pair: tuple[int | None, int | None]) -> bool:
    """Whether two draws of one key are one noise, in the same numbers of one tensor: no difference of them is shown."""
    if None in pair:
        return False
    each = bench.run_each_draw()
    silent = one_of(bench.run_scaled(_unscaled(bench)), 0)
    first, second = (
        {name: each[draw][name] - silent[name] for name in bench.names} for draw in pair if draw is not None
    )
    reached = [name for name in bench.names if first[name].any() or second[name].any()]
    if len(reached) != 1:
        return False
    a, b = first[reached[0]], second[reached[0]]
    if not (a.any() and b.any()):
        return False
    apart = float(np.linalg.norm(b - (a @ b) / (a @ a) * a))
    return apart <= _SAME * float(np.linalg.norm(b)) + 8.0 * bench.spacing[reached[0]] * float(
        np.linalg.norm(silent[reached[0]])
    )


def _unscaled(bench: Bench) -> NDArray[np.float32]:
    """No noise of any draw."""
    scales = np.zeros((1, len(bench.draws)), dtype=np.float32)
    scales[:, bench.no_noise] = 1.0
    return scales


def _leaves(bench: Bench, silent: Mapping[str, NDArray[np.float64]]) -> list[list[str]]:
    """For each draw, the released tensors that its noise reaches."""
    return [
        [name for name in bench.names if not np.array_equal(shown[name], silent[name])]
        for shown in bench.run_each_draw()
    ]


def _who(bench: Bench, leaves: Sequence[Sequence[str]], draw: int | None) -> str:
    """A draw for people: which tensors its noise is in, and where it is drawn."""
    if draw is None:
        return "What is sampled in the step"
    where = ", ".join(leaves[draw]) or "nothing that is released"
    return f"The noise of {where} ({bench.draws[draw]})"


_NORMAL = {"normal", "normal_real", "multivariate_normal"}


def other_laws(reading: Reading) -> list[Finding]:
    """Noise in a carrier that is drawn by a function of jax.random with another law than the normal one."""
    bench = reading.bench
    for draw, shown in zip(bench.draws, bench.run_each_draw(), strict=True):
        names = [name for name in reading.carriers if not np.array_equal(shown[name], reading.bare[name])]
        if names and draw.function not in _NORMAL:
            text = f"The noise of {', '.join(names)} is drawn by {draw.function}, which is not the normal law."
            return [faults.finding(faults.NOT_NORMAL, text, witness=str(draw))]
    return []


def fresh(reading: Reading, seen: Sequence[Step], level: float) -> Measurement:
    """The noise of the first steps: the same in any two, or (with a level) correlated more than chance allows.

    Correlations are tested between steps 1, 2, … apart, each at its share of the level.
    """
    name, count, names = "freshness", len(seen), reading.carriers or reading.constant
    steps = _noises(seen, names)
    if count < 2 or not names:
        why = "the loop has a key for one step only" if names else "no tensor shows it in proportion to its size"
        said = f"Whether noise is new in each step was not measured: {why}"
        return Measurement(name=name, sentence=f"{said}.", blind=why if names else "")
    found = _same(reading, steps, names) or (
        _correlated(steps, names, level / (count - 1) / len(names)) if level else None
    )
    sentence = found.sentence if found else f"Noise is new in each of {count} steps."
    return Measurement(name=name, sentence=sentence, findings=() if found is None else (found,))


_Noises = Sequence[Mapping[str, NDArray[np.float64]]]


def walked(reading: Reading, number: int = 0) -> list[Step]:
    """The first steps with keys of this number (0: those of the loop), beside the same without noise, or with other."""
    quiet = (number + 100 if number else 1, 1.0) if reading.outside else (number, 0.0) if number else reading.quiet
    return reading.bench.walk(quiet, number)


def _noises(seen: Sequence[Step], names: Sequence[str]) -> list[dict[str, NDArray[np.float64]]]:
    return [{one: step.plain[one] - step.silent[one] for one in names} for step in seen]


def _alike(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    return bool(first.any()) and np.allclose(first, second, rtol=_SAME, atol=_SAME * float(np.abs(first).max()))


def _same(reading: Reading, steps: _Noises, names: Sequence[str]) -> Finding | None:
    """The first tensor with the same noise in two steps.

    Two new numbers are within 0.1 % of each other in about one of 1000 pairs of steps, so where a tensor has few of
    them, the same two steps must agree under other keys, too: 2⋅10⁻² · (10⁻³)⁴ for a single number.
    """
    again: list[_Noises] = []
    for name in names:
        for (a, one), (b, other) in itertools.combinations(enumerate(steps, start=1), 2):
            if _alike(one[name], other[name]):
                if one[name].size < _MANY:
                    again = again or [_noises(walked(reading, n), names) for n in _ANEW]
                    if not all(_alike(each[a - 1][name], each[b - 1][name]) for each in again):
                        continue
                text = f"The noise in {name} is the same in steps {a} and {b}."
                return faults.finding(
                    faults.SAME_NOISE, text, number=1.0, allowed=0.0, witness=f"{name}, steps {a} and {b}"
                )
    return None


def _correlated(
    steps: Sequence[Mapping[str, NDArray[np.float64]]], names: Sequence[str], level: float
) -> Finding | None:
    """The first tensor whose noise goes together in steps that are a fixed number apart."""
    for name, apart in itertools.product(names, range(1, len(steps))):
        pairs = list(zip(steps, steps[apart:], strict=False))
        r, p = correlation_p(*(np.concatenate([pair[side][name] for pair in pairs]) for side in (0, 1)))
        if p < level:
            which = "consecutive steps" if apart == 1 else f"steps {apart} apart"
            text = f"The noise in {name} is correlated between {which} ({r:+.3g})."
            return faults.finding(faults.SAME_NOISE, text, number=r, allowed=0.0, witness=name, level=level)
    return None
