"""Is the noise independent from number to number? Between tensors, within each, for every pair, and in sums.

For N pairs of independent normal numbers with mean zero, r·√((N − 1)/(1 − r²)) follows Student's t with N − 1 degrees.
A tensor's sum over its n numbers, squared and over n, has a share of all squares that follows Beta(R/2, R(n − 1)/2)
over R runs. The smallest singular value σ of R × n standard normal numbers falls below √R − √n − t with a chance of at
most exp(−t²/2) (Davidson and Szarek 2001, Theorem II.13), so a linear dependence of any kind, σ = 0, is seen for n well
below R. What was found by one test is not searched for by the next.

Noise of r < n dimensions shows in how far a run lies within the span of the runs before it. By Bartlett's decomposition
the squared length of the j-th of b runs within that span is χ² with j − 1 degrees of freedom, independent of the rest:
over B blocks of b runs the sum has a share of all squares that follows Beta(d/2, (Bbn − d)/2), d = B·b(b − 1)/2. In r
dimensions that share is n/r times as large.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coalmine.probing import faults
from coalmine.probing.findings import Finding

if TYPE_CHECKING:
    from coalmine.probing.noise import Sample

Array = NDArray[np.float64]

SHARES = {"groups": 0.4, "pairs": 0.2, "sums": 0.2, "rank": 0.1, "span": 0.1}
"""How the level is shared among the kinds of tests."""
PAIRED = 2048
"""Numbers of all tensors together of which every pair is compared."""
_SAME = 0.999
"""A correlation beyond which noise is the same, or opposite, up to rounding."""
_AT_ONCE = 256
"""Numbers that are compared with all others at a time."""


def short(name: str) -> str:
    """A tensor's name, where it does not matter that its gradient was read."""
    return name.removeprefix("gradient of ")


def labels(names: Sequence[str]) -> list[str]:
    """Names for people: a gradient is called by its parameter, unless the parameter is there beside it.

    >>> labels(["gradient of w", "w", "gradient of b"])
    ['the gradient of w', 'w', 'b']
    """
    plain = [short(one) for one in names]
    return [
        f"the {name}" if name != brief and plain.count(brief) > 1 else brief
        for name, brief in zip(names, plain, strict=True)
    ]


def correlation_p(a: Array, b: Array) -> tuple[float, float]:
    """The correlation of two series with mean zero, and the exact chance of one as far from zero if independent."""
    return products_p(float(np.sum(a * a)), float(np.sum(b * b)), float(np.sum(a * b)), count=a.size)


def products_p(aa: float, bb: float, ab: float, *, count: int) -> tuple[float, float]:
    """The same from the sums of a², b² and a·b over ``count`` numbers."""
    spread = math.sqrt(aa * bb)
    if count < 3 or spread == 0.0:
        return 0.0, 1.0
    r = min(max(ab / spread, -1.0), 1.0)
    return r, _student_p(r, count)


def _student_p(r: float, count: int) -> float:
    if abs(r) >= 1.0 - 1e-12:
        return 0.0
    return float(2.0 * stats.t.sf(abs(r) * math.sqrt((count - 1) / (1.0 - r * r)), count - 1))


def findings(samples: Sequence[Sample], level: float) -> list[Finding]:
    """Numbers that share their noise; at most three findings."""
    if not samples:
        return []
    return (
        _groups(samples, level * SHARES["groups"])
        or _pairs(samples, level * SHARES["pairs"])
        or _repeats(samples)
        or _sums(samples, level * SHARES["sums"])
        or _rank(samples, level * SHARES["rank"])
        or _span(samples, level * SHARES["span"])
    )


def _finding(text: str, r: float, witness: str, level: float) -> Finding:
    return faults.finding(faults.SHARED_NOISE, text, number=r, allowed=0.0, witness=witness, level=level)


def _groups(samples: Sequence[Sample], level: float) -> list[Finding]:
    """Many numbers against many others: two tensors, neighbors, rows of a matrix."""
    names = labels([one.name for one in samples])
    tests: list[tuple[str, float, float]] = []
    for (first, a), (second, b) in itertools.combinations(zip(names, samples, strict=True), 2):
        width = min(a.values.shape[1], b.values.shape[1])
        tests.append((f"{first} and {second}", *correlation_p(a.values[:, :width], b.values[:, :width])))
    for name, one in zip(names, samples, strict=True):
        width = 2 * (one.values.shape[1] // 2)
        if width:
            r_and_p = correlation_p(one.values[:, 0:width:2], one.values[:, 1:width:2])
            tests.append((f"neighboring numbers of {name}", *r_and_p))
        if one.rows is not None and one.shape[0] > 1:
            *products, count = one.rows
            tests.append((f"rows of {name}", *products_p(*products, count=count)))
    found = []
    for where, r, p in tests:
        if p < level / len(tests):
            text = f"The noise of {where} is correlated ({r:+.3g})."
            found.append(_finding(text, r, where, level / len(tests)))
    return found[:3]


def _pairs(samples: Sequence[Sample], level: float) -> list[Finding]:
    """Every number against every other, of all tensors together."""
    each = max(PAIRED // len(samples), 1)
    columns, places = [], []
    for name, one in zip(labels([one.name for one in samples]), samples, strict=True):
        part = one.values[:, :each]
        columns.append(part)
        places += [(name, number) for number in range(part.shape[1])]
    values = np.concatenate(columns, axis=1)
    runs, count = values.shape
    if count < 2 or runs < 3:
        return []
    sizes = np.linalg.norm(values, axis=0)
    unit = values / np.where(sizes > 0.0, sizes, 1.0)
    a, b, r = 0, 1, 0.0
    for start in range(0, count, _AT_ONCE):
        together = unit.T[start : start + _AT_ONCE] @ unit
        np.fill_diagonal(together[:, start:], 0.0)
        for extreme in (int(together.argmax()), int(together.argmin())):
            row, column = divmod(extreme, count)
            if abs(together[row, column]) > abs(r):
                a, b, r = *sorted((start + row, column)), float(np.clip(together[row, column], -1.0, 1.0))
    if _student_p(r, runs) * count * (count - 1) / 2.0 >= level:
        return []
    return [_finding(*_words(places[a], places[b], r), level=level)]


def _words(first: tuple[str, int], second: tuple[str, int], r: float) -> tuple[str, float, str]:
    """Two numbers that share their noise: the sentence, the correlation and the witness."""
    one = f"number {first[1]} of {first[0]}"
    other = f"number {second[1]} of {second[0]}"
    how = f"correlated ({r:+.3g})"
    if abs(r) >= _SAME:
        how = "the same" if r > 0.0 else "the same with the opposite sign"
    return f"The noise of {one} and of {other} is {how}.", r, f"{one} and {other}"


def _repeats(samples: Sequence[Sample]) -> list[Finding]:
    """The same noise, up to its sign, anywhere in tensors that are too large to compare every pair."""
    twice = samples[0].twice
    if twice is None:
        return []
    names = labels([one.name for one in samples])
    (first, a), (second, b), sign = twice
    return [_finding(*_words((names[first], a), (names[second], b), float(sign)), level=0.0)]


def _sums(samples: Sequence[Sample], level: float) -> list[Finding]:
    """The sum of a tensor's noise: too small where its mean was taken away, too large where something is shared."""
    for name, one in zip(labels([one.name for one in samples]), samples, strict=True):
        numbers, squares = one.size, one.total
        if numbers < 2 or squares == 0.0:
            continue
        share = float(np.sum(one.sums**2)) / numbers / squares
        law = stats.beta(one.runs / 2.0, one.runs * (numbers - 1) / 2.0)
        p = 2.0 * min(float(law.cdf(share)), float(law.sf(share)))
        if p < level / len(samples):
            ratio = share * numbers
            text = f"The sum of the noise in {name} has {ratio:.3g} times the variance that independent noise gives it."
            return [_finding(text, ratio, f"{name}, {numbers} numbers", level / len(samples))]
    return []


def _rank(samples: Sequence[Sample], level: float) -> list[Finding]:
    """Noise of fewer dimensions than numbers, in tensors with many fewer numbers than there are runs."""
    for name, one in zip(labels([one.name for one in samples]), samples, strict=True):
        runs, numbers = one.values.shape
        sizes = np.linalg.norm(one.values, axis=0) / math.sqrt(max(runs, 1))
        if numbers < 2 or 4 * numbers > runs or not np.all(sizes > 0.0):
            continue
        # Sizes are measured: taken as half as large as they may be, which no chi distribution with 8 degrees exceeds.
        least = 2.0 * float(np.linalg.svd(one.values / sizes, compute_uv=False)[-1])
        away = max(math.sqrt(runs) - math.sqrt(numbers) - least, 0.0)
        if math.exp(-away * away / 2.0) < level / len(samples):
            text = f"The {numbers} numbers of {name} have linearly dependent noise: a sum of them, weighted, has none."
            return [_finding(text, 0.0, f"{name}, {numbers} numbers over {runs} runs", level / len(samples))]
    return []


def span_p(values: Array) -> tuple[float, float]:
    """The chance of runs (runs × numbers) as much within each other's span, and how many dimensions they seem to have.

    Numbers without any noise are left out, the others brought to one size by the sizes that they have in these runs. So
    the share of independent noise is smaller, by R/(R + 2) on average, and the chance is not too small.

    >>> rng = np.random.default_rng(0)
    >>> span_p(rng.normal(size=(100, 60)))[0] > 0.01
    True
    >>> p, dimensions = span_p(rng.normal(size=(100, 30)) @ np.linalg.qr(rng.normal(size=(60, 30)))[0].T)
    >>> p < 1e-9, round(dimensions)
    (True, 30)
    """
    sizes = np.sqrt(np.mean(values * values, axis=0))
    scaled = values[:, sizes > 0.0] / sizes[sizes > 0.0]
    runs, numbers = scaled.shape
    block = min(runs, numbers // 2)
    if block < 2:
        return 1.0, float(numbers)
    blocks = runs // block
    scaled = scaled[: blocks * block].reshape(blocks, block, numbers)
    total = float(np.sum(scaled * scaled))
    triangles = np.linalg.qr(np.swapaxes(scaled, 1, 2), mode="r")
    diagonals = np.diagonal(triangles, axis1=1, axis2=2)
    share = 1.0 - float(np.sum(diagonals * diagonals)) / total
    degrees = blocks * block * (block - 1) / 2.0
    p = float(stats.beta.sf(share, degrees / 2.0, (blocks * block * numbers - degrees) / 2.0))
    # Of r dimensions, r of the b runs are new to the span: with r ≥ b the share is (b − 1)/2r, else 1 − (r + 1)/2b.
    return p, (block - 1) / 2.0 / share if share < 0.5 else 2.0 * block * (1.0 - share) - 1.0


def _span(samples: Sequence[Sample], level: float) -> list[Finding]:
    """Noise of fewer dimensions than numbers, in each tensor and in all together."""
    names = labels([one.name for one in samples])
    tests = [(name, *span_p(one.values), one.size) for name, one in zip(names, samples, strict=True)]
    for name, one in zip(names, samples, strict=True):  # of a large tensor only some numbers are known in every run
        if one.span is not None:
            tests.append((name, *one.span, one.size))
    if len(samples) > 1:
        each = max(PAIRED // len(samples), 1)
        every = np.concatenate([one.values[:, :each] for one in samples], axis=1)
        tests.append(("all tensors together", *span_p(every), every.shape[1]))
    name, p, dimensions, numbers = min(tests, key=lambda one: one[1])
    if p >= level / len(tests):
        return []
    text = f"The noise of {name} has about {max(dimensions, 1.0):.0f} dimensions, where {numbers} numbers need as many."
    return [_finding(text, dimensions, f"{name}, {numbers} numbers", level / len(tests))]
