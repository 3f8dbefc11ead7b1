"""Which keys a step draws from: one that is used twice gives the same noise twice."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coalmine.integrations.jax.bench import Bench
from coalmine.integrations.jax.replay import Drawn
from coalmine.probing import faults
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.noise import correlation_p


def measure(bench: Bench, silent: Mapping[str, NDArray[np.float64]]) -> Measurement:
    """Keys of two consecutive steps: none may be used twice, by two leaves, by noise and sampling, or by two steps."""
    first, second = bench.two_steps()
    leaves = _leaves(bench, silent)
    found: list[Finding] = []
    for a, b in _twice(first):
        who = [_who(bench, leaves, one) for one in (a, b)]
        text = f"{who[0]} and {who[1]} are drawn from one key."
        found.append(faults.finding(faults.SHARED_NOISE, text, number=1.0, allowed=0.0, witness=" | ".join(who)))
    old = {one.key: one for one in first}
    again = [one for one in second if one.key in old and one.draw is not None]
    if again:
        who = [_who(bench, leaves, one) for one in again]
        text = f"{who[0]} is drawn from the same key in two consecutive steps."
        if len(set(who)) > 1:
            text = f"{text[:-1]}, and so is that of {len(set(who)) - 1} more."
        found.append(
            faults.finding(faults.SAME_NOISE, text, number=1.0, allowed=0.0, witness=", ".join(dict.fromkeys(who)))
        )
    count = len(first)
    return Measurement(
        name="keys",
        sentence=found[0].sentence if found else f"{count} draws of a step take {count} different keys, new in the next.",
        findings=tuple(found[:4]),
        details={"draws": [str(one) for one in bench.draws], "leaves": leaves},
    )


def _twice(drawn: Sequence[Drawn]) -> list[tuple[Drawn, Drawn]]:
    """Pairs of draws from one key, at least one of them noise."""
    by_key: dict[bytes, Drawn] = {}
    found: dict[tuple[Any, Any], tuple[Drawn, Drawn]] = {}
    for one in drawn:
        other = by_key.setdefault(one.key, one)
        if other is not one and (one.draw is not None or other.draw is not None):
            found.setdefault((other.draw, one.draw), (other, one))
    return list(found.values())


def _leaves(bench: Bench, silent: Mapping[str, NDArray[np.float64]]) -> list[list[str]]:
    """For each draw, the released tensors that its noise reaches."""
    return [
        [name for name in bench.names if not np.array_equal(shown[name][0], silent[name])]
        for shown in bench.run_each_draw()
    ]


def _who(bench: Bench, leaves: Sequence[Sequence[str]], one: Drawn) -> str:
    """A draw for people: which tensors its noise is in, and where it is drawn."""
    if one.draw is None:
        return "what is sampled in the step"
    where = ", ".join(leaves[one.draw]) or "nothing that is released"
    return f"The noise of {where} ({bench.draws[one.draw]})"


def repeated(steps: Sequence[Mapping[str, NDArray[np.float64]]], level: float) -> Measurement:
    """The noise of consecutive steps: the same in both, or correlated more than chance allows."""
    findings = []
    for name in steps[0]:
        pairs = [(a[name], b[name]) for a, b in itertools.pairwise(steps)]
        first, second = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs])
        r, p = correlation_p(first, second)
        same = bool(np.any(first)) and np.allclose(first, second, rtol=1e-3, atol=1e-3 * float(np.abs(first).max()))
        if same or p < level / len(steps[0]):
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
