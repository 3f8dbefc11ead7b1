"""Positive controls: the probe breaks the step itself and must see it. Where it does not, it was blind."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from coalmine.probing.bench import Bench
from coalmine.probing.carriers import TOLERANCE, Reading
from coalmine.probing.findings import Measurement
from coalmine.probing.noise import SHARES, Sample, replays, sample, steps
from coalmine.probing.search import Influence, attempt

_RUNS, _NUMBERS = 24, 80
"""Runs with half the noise, and numbers from them in every tensor: half the noise is then hardly ever missed."""


def measure(
    bench: Bench, reading: Reading, influence: Influence, samples: Sequence[Sample], *, level: float
) -> Measurement | None:
    """Halve the noise, drop it, and take the clipping away where it can be: each must be found."""
    if not reading.noise or reading.nonlinear or not samples:
        return None
    seen: list[str] = []
    blind: list[str] = []
    if reading.outside:
        why = (
            "what is added is no multiple of the noise that was drawn (it is truncated, or changed afterwards)"
            if reading.bent
            else "noise is drawn in a way that the tape cannot silence (made from uniform draws, for instance)"
        )
        do = (
            "leave out what comes after the draw"
            if reading.bent
            else "draw it from a normal law, as torch.randn, torch.normal or a generator of NumPy does"
        )
        blind.append(f"{why}, so it was not halved or dropped to see whether that would be found; while probing, {do}")
    else:
        missed = _halved(bench, reading, samples, level)
        (blind if missed else seen).append(f"half the noise in {', '.join(missed)}" if missed else "half the noise")
        seen_without = bench.silent(reading.base), bench.silent(reading.base)
        same = all(bool((seen_without[0][c.name] == seen_without[1][c.name]).all()) for c in reading.carriers)
        (seen if same else blind).append("no noise")
    if bench.subject.unclipped is not None and influence.tried and reading.absolute:
        bench.put_back()
        with bench.subject.unclipped(), bench.here():
            totals = [attempt(bench, reading, one.row, one.size).total for one in influence.witnesses(0)]
            larger = [one for one in influence.tried if one.size >= 10.0][:4]
            totals += [attempt(bench, reading, one.row, one.size).total for one in larger]
        bench.put_back()
        found = max(totals) > bench.subject.allowed * (1.0 + TOLERANCE)
        (seen if found else blind).append("no clipping")
    sentence = f"Broken on purpose and found: {', '.join(seen)}." if seen else "Nothing that was broken was found."
    return Measurement(
        name="controls",
        sentence=sentence,
        blind=f"broken on purpose and not found: {'; '.join(blind)}" if blind else "",
        details={"found": seen, "missed": blind},
    )


def _halved(bench: Bench, reading: Reading, samples: Sequence[Sample], level: float) -> list[str]:
    """Tensors in which half the noise would go unnoticed."""
    seeded = not bench.runs_differ(reading.base, [one.name for one in samples])
    fewest = min(one.size for one in samples)
    count = max(_RUNS, min(-(-_NUMBERS // fewest), samples[0].runs))
    runs = steps(bench, reading, count, factor=0.5) if seeded else replays(bench, reading, count, factor=0.5)
    half = sample(reading, runs, sizes_only=True)
    missed = []
    for one, whole in zip(half, samples, strict=True):
        p = float(stats.chi2.cdf(one.total / whole.std**2, one.numbers))
        if p >= level * SHARES["size"] / len(samples):
            missed.append(one.name)
    return missed
