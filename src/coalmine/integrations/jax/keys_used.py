"""Which keys a step draws from: one that is used twice gives the same noise twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.bench import Bench, Step
from coalmine.probing import faults
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.independence import correlation_p


def measure(bench: Bench, steps: Sequence[Step]) -> Measurement:
    """Keys of consecutive steps: none may be used twice, by two leaves, by noise and sampling, or by two steps."""
    leaves = _leaves(bench, steps[0].silent)
    used = [[(draw, row.tobytes()) for draw, rows in one.keys for row in rows] for one in steps]
    found: list[Finding] = []
    for pair in _twice(used[0]):
        who = [_who(bench, leaves, one) for one in pair]
        text = f"{who[0]} and {who[1][0].lower()}{who[1][1:]} come from one key."
        found.append(faults.finding(faults.SHARED_NOISE, text, number=1.0, allowed=0.0, witness=" | ".join(who)))
    old = {key for _, key in used[0]}
    again = [_who(bench, leaves, draw) for draw, key in used[1] if key in old and draw is not None]
    if again:
        names = list(dict.fromkeys(again))
        more = f" So does that of {len(names) - 1} more." if len(names) > 1 else ""
        text = f"{names[0]} comes from the same key in two consecutive steps.{more}"
        found.append(faults.finding(faults.SAME_NOISE, text, number=1.0, allowed=0.0, witness=", ".join(names)))
    count = len(used[0])
    return Measurement(
        name="keys",
        sentence=found[0].sentence if found else f"A step draws from {count} keys, all different, and new in the next.",
        findings=tuple(found[:4]),
        details={"draws": [str(one) for one in bench.draws], "leaves": leaves},
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


def fresh(walked: Sequence[Step], names: Sequence[str], level: float) -> Measurement:
    """The noise of consecutive steps: the same in both, or (with a level) correlated more than chance allows."""
    findings = []
    steps = [{name: one.plain[name] - one.silent[name] for name in names} for one in walked]
    for name in names:
        pairs = [(a[name], b[name]) for a, b in itertools.pairwise(steps)]
        first, second = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])
        r, p = correlation_p(first, second)
        same = bool(np.any(first)) and np.allclose(first, second, rtol=1e-3, atol=1e-3 * float(np.abs(first).max()))
        if same or p < level / len(names):
            text = f"The noise in {name} is the same in {len(steps)} consecutive steps."
            if not same:
                text = f"The noise in {name} is correlated between consecutive steps ({r:+.3g})."
            findings.append(
                faults.finding(
                    faults.SAME_NOISE, text, number=r, allowed=0.0, witness=name, level=0.0 if same else level
                )
            )
            break
    sentence = findings[0].sentence if findings else "Noise is new in each step."
    return Measurement(name="freshness", sentence=sentence, findings=tuple(findings))
