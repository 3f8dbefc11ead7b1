"""Noise, from repeated steps: its size for each tensor, its law, and whether it is independent. Exact tests only.

With the same rows and everything but the noise replayed, a carrier minus its silent value *is* the noise. If it is
independent N(0, s²) with the promised s in every coordinate, then

- size: Σ noise²/s² over R runs and m coordinates follows χ² with R·m degrees of freedom, for a tensor and, with R
  degrees, for one coordinate of it;
- law: the angle of a pair of equally large independent normal numbers is uniform (and only theirs, by Maxwell's
  theorem), whatever their size, so tests of folded angles need no size: Kolmogorov and Smirnov's, and one of the tails;
- independence: see :mod:`coalmine.probing.independence`.

The level is shared among all tests by Bonferroni's rule.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from coalmine.probing import faults, independence
from coalmine.probing.findings import Finding, Measurement
from coalmine.probing.independence import PAIRED, short
from coalmine.probing.repeats import Array, Dimensions, Noise, Repeats, Twice

if TYPE_CHECKING:  # the tests are for every step; only those of torch need torch
    from coalmine.probing.bench import Bench
    from coalmine.probing.carriers import Reading
    from coalmine.probing.release import Observation

TOLERANCE = 1e-3
"""Relative: what exact measures let pass as rounding."""
_KEPT = 1024
"""Coordinates of a tensor whose every value is kept for the tests of law and independence."""
_AT_ONCE = 1 << 16
"""Coordinates that are worked on at a time."""
_PAIRS = 20_000
"""Pairs for a test of the law: enough for any shape that matters, and quick."""
POWER = 0.9
NOT_THE_SUM = (
    "what is released is not the noised sum itself but a function of it: {name} does not follow the noise in "
    "proportion; so neither whether rows add up nor the size of the noise was tested; leave out what comes after the "
    "noise (a second clipping, a threshold, rounding, a sign) while probing"
)
SHARES = {"size": 0.4, "coordinate": 0.1, "law": 0.2, "independence": 0.2, "steps": 0.1}
"""How the level is shared among the kinds of tests."""


@dataclasses.dataclass
class Sample:
    """The noise of one carrier in many runs."""

    name: str
    shape: tuple[int, ...]
    squares: NDArray[np.float64]
    """Σ noise² over runs, for each coordinate."""
    values: NDArray[np.float64]
    """Noise in each run, for the first coordinates."""
    rows: tuple[float, float, float, int] | None
    """Σ a², Σ b², Σ a·b and how many, for coordinates a and those b one index of the first axis further on."""
    runs: int
    """Degrees of freedom of each coordinate."""
    sums: NDArray[np.float64]
    """The sum of all coordinates in each run."""
    span: tuple[float, float] | None = None
    """Of a large tensor: the chance of runs as much along each other, and how many dimensions they seem to have."""
    twice: Twice | None = None
    """The same noise at two places of large tensors."""
    grain: NDArray[np.float64] | None = None
    """The spacing of the numbers that carry the first coordinates."""

    @property
    def spread(self) -> NDArray[np.float64]:
        """Values, each moved at random within its own spacing: on a grid, equal angles would come too often."""
        if self.grain is None:
            return self.values
        return np.asarray(self.values + self.grain * np.random.default_rng(0).uniform(-0.5, 0.5, self.values.shape))

    def __post_init__(self) -> None:
        self.size, self.total = self.squares.size, float(self.squares.sum())

    def reduce(self) -> None:
        """Keep its size alone: the rest is for the tests of the noise, and takes as much room as the tensor itself."""
        self.squares, self.values = self.squares[:0].copy(), self.values[:, :0].copy()

    @property
    def numbers(self) -> int:
        """How many noise values there are in all."""
        return self.runs * self.size

    @property
    def std(self) -> float:
        """The standard deviation, over all coordinates."""
        return math.sqrt(self.total / self.numbers)

    def upper_std(self, level: float) -> float:
        """A standard deviation that the true one exceeds with probability at most ``level``."""
        return math.sqrt(self.total / stats.chi2.ppf(level, self.numbers))


Pairs = Iterable[tuple["Observation", "Observation"]]
"""Runs with new noise, each with what it would have been without."""
Runs = Iterable[Sequence[Noise]]
"""For each run the noise of every carrier."""


class _Difference:
    """What two tensors differ by, in double precision, computed where it is asked for."""

    def __init__(self, shown: Any, before: Any) -> None:
        self._shown, self._before = shown.reshape(-1), before.reshape(-1)
        self.size: int = self._shown.numel()

    def __getitem__(self, where: Any, /) -> Array:
        from coalmine.probing.carriers import delta

        return np.asarray(delta(self._shown[where], self._before[where]).numpy())


def _difference(reading: Reading, before: Observation, shown: Observation) -> list[_Difference]:
    return [_Difference(shown[one.name], before[one.name]) for one in reading.noised]


def replays(bench: Bench, reading: Reading, runs: int, *, factor: float = 1.0) -> Runs:
    """The noise of runs from the same state, scaled by ``factor``.

    Where noise cannot be silenced, Helmert's contrasts xₖ − (x₀ + … + xₖ₋₁)/k, times √(k/(k + 1)), take its place: what
    all runs share drops out, and they are independent with the law of the noise if that is normal.
    """
    if not reading.outside:
        for _ in range(runs):
            yield _difference(reading, reading.silent, bench.renewed(reading.base, factor=factor))
        return
    before = bench.renewed(reading.base, factor=factor)
    past = [np.zeros(one.numbers) for one in reading.noised]
    for k in range(1, runs + 1):
        found = [one[:] for one in _difference(reading, before, bench.renewed(reading.base, factor=factor))]
        yield [math.sqrt(k / (k + 1)) * (one - total / k) for one, total in zip(found, past, strict=True)]
        past = [total + one for one, total in zip(found, past, strict=True)]


def steps(bench: Bench, reading: Reading, runs: int, *, factor: float = 1.0) -> Runs:
    """The noise of consecutive steps; where it cannot be silenced, the difference of two runs of a step, over √2."""
    unit = math.sqrt(2.0) if reading.outside else 1.0
    for before, shown in walk(bench, reading, runs, factor=factor):
        yield [one[:] / unit for one in _difference(reading, before, shown)]


def walk(bench: Bench, reading: Reading, runs: int, *, factor: float = 1.0) -> Pairs:
    """Consecutive steps, each beside what it would have been without noise."""
    bench.put_back()
    base = reading.base
    for _ in range(runs):
        with bench.here():
            before = bench.renewed(base) if reading.outside else bench.silent(base)
            bench.put_back(generators=not reading.outside)
            play = bench.tape.renew(slots=base.slots, factor=factor, force=bench.force)
            shown = bench.run(base.batch, play, fresh=False)
            if not shown.whole(reading.plain) or not before.whole(reading.plain):
                break
            yield before, shown
            del before, shown  # room for the next step
    bench.put_back()


def sample(reading: Reading, runs: Runs, *, sizes_only: bool = False) -> list[Sample]:
    """What the tests need of the noise of every carrier in these runs; numbers that rounding hides are left out."""
    tensors, grains, places = [], [], []
    for place, one in enumerate(reading.noised):
        value = reading.plain[one.name]
        shape: tuple[int, ...] = tuple(value.shape)
        where: Any = slice(None)
        if one.name in reading.coarse:
            where = np.flatnonzero(~reading.coarse[one.name].numpy())
            shape = (where.size,)
        if math.prod(shape):
            tensors.append((one.name, shape))
            grains.append(reading.grain(one.name, slice(_KEPT) if isinstance(where, slice) else where[:_KEPT]))
            places.append((place, where))

    def fine(run: Sequence[Noise]) -> list[Noise]:
        return [run[place] if isinstance(where, slice) else run[place][where] for place, where in places]

    # A loop would hold each run while the next one is made; map does not.
    return collect(tensors, map(fine, runs), grains=grains, sizes_only=sizes_only)


def collect(
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    runs: Iterable[Sequence[Noise]],
    *,
    grains: Sequence[Array] | None = None,
    sizes_only: bool = False,
) -> list[Sample]:
    """What the tests need of the noise of some tensors, given by name and shape, in these runs.

    Args:
        tensors: name and shape of each.
        runs: for each run the noise of every tensor.
        grains: for each tensor the spacing of its first numbers, where that is known.
        sizes_only: leave out what tells whether large tensors have the same noise twice, or in few dimensions.

    >>> draws = np.random.default_rng(0).normal(size=(50, 1, 6))
    >>> [one] = collect([("weight", (2, 3))], draws)
    >>> one.numbers, round(one.std, 2)
    (300, 1.02)
    """
    kinds = [_Tensor(name, shape, sizes_only=sizes_only) for name, shape in tensors]
    sizes = [one.squares.size for one in kinds]
    twice = Repeats(sizes) if sum(sizes) > PAIRED and not sizes_only else None
    for run in runs:
        _add(run, kinds, twice)
        del run
        if twice is not None:
            twice.choose([one.squares for one in kinds])
    found = None if twice is None else twice.found()
    return [
        one.sample(twice=found, grain=None if grains is None else grains[number][:_KEPT])
        for number, one in enumerate(kinds)
    ]


def _add(run: Sequence[Noise], kinds: list[_Tensor], twice: Repeats | None) -> None:
    for kind, noise in zip(kinds, run, strict=True):
        kind.add(noise)
    if twice is not None:
        twice.add(run)


class _Tensor:
    """The noise of one tensor, as runs go by."""

    def __init__(self, name: str, shape: tuple[int, ...], *, sizes_only: bool) -> None:
        self._name, self._shape = name, shape
        self.squares = np.zeros(math.prod(shape))
        self._values: list[Array] = []
        self._sums: list[float] = []
        stride = self.squares.size // max(shape[0], 1) if len(shape) > 1 else 0
        self._stride, self._width = stride, min(stride, _KEPT, self.squares.size - stride)
        self._rows = np.zeros(3)
        self._dimensions = Dimensions() if self.squares.size > _KEPT and not sizes_only else None

    def add(self, noise: Noise) -> None:
        """The noise of one more run."""
        total = 0.0
        for start in range(0, noise.size, _AT_ONCE):
            part = noise[start : start + _AT_ONCE]
            self.squares[start : start + _AT_ONCE] += np.square(part)
            total += float(part.sum())
        self._values.append(np.array(noise[:_KEPT]))
        self._sums.append(total)
        if self._width > 0:
            a, b = noise[: self._width], noise[self._stride : self._stride + self._width]
            self._rows += a @ a, b @ b, a @ b
        if self._dimensions is not None:
            self._dimensions.add(noise)

    def sample(self, *, twice: Twice | None, grain: Array | None) -> Sample:
        """What the tests need of it."""
        runs = len(self._values)
        values, self._values = np.array(self._values), []
        aa, bb, ab = self._rows.tolist()
        rows = (aa, bb, ab, runs * self._width) if self._width > 0 else None
        sums = np.array(self._sums)
        span = None
        if self._dimensions is not None:
            span = self._dimensions.p(), self._dimensions.estimate(int(np.count_nonzero(self.squares)))
        return Sample(self._name, self._shape, self.squares, values, rows, runs, sums, span, twice, grain)


def promised(bench: Bench, reading: Reading) -> dict[str, float]:
    """The standard deviation of noise that is promised in each carrier, where the unit of the sum is known."""
    return {one.name: bench.subject.noise * one.scale for one in reading.carriers if one.scale is not None}


def set_units(bench: Bench, reading: Reading, samples: list[Sample]) -> None:
    """Measure what is released beside the private sum in units in which its noise is as promised there."""
    by_name = {one.name: one for one in samples}
    for one in reading.extras:
        if one.name in by_name:
            one.scale = by_name[one.name].std / bench.subject.noise


def smallest_ratio(numbers: int, level: float, *, power: float = POWER) -> float:
    """The largest ratio of real to promised noise that is found with probability ``power``.

    With ratio ρ, Σ noise²/s² = ρ²·χ²; it is found where this falls below the quantile q of χ² at ``level``. So
    ρ² = q(level)/q(power).

    >>> round(smallest_ratio(200_000, 0.001), 3)
    0.993
    """
    return math.sqrt(float(stats.chi2.ppf(level, numbers) / stats.chi2.ppf(power, numbers)))


def folded_angles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angles of pairs of runs (values: runs × coordinates), folded into [0, 1]: uniform if values are normal."""
    even = values[: 2 * (len(values) // 2)]
    first, second = even[0::2].ravel(), even[1::2].ravel()
    if first.size > _PAIRS:
        step = first.size // _PAIRS
        first, second = first[::step], second[::step]
    quarter = np.mod(np.arctan2(first, second), np.pi / 2) / (np.pi / 2)
    return np.asarray(np.abs(2.0 * quarter - 1.0))


def angle_p(angles: NDArray[np.float64]) -> float:
    """The chance of folded angles u at least as uneven, if they come from independent normal values.

    The smaller of two, doubled: Kolmogorov and Smirnov's for any unevenness, and for tails that are too heavy or too
    light 2·exp(−S²/n) with S = Σ cos(πu). The latter is a bound for every n: E[exp(t·cos πu)] = I₀(t) ≤ exp(t²/4).

    >>> rng = np.random.default_rng(0)
    >>> angle_p(folded_angles(rng.normal(size=(200, 10)))) > 0.01
    True
    >>> angle_p(folded_angles(rng.laplace(size=(200, 10)))) < 1e-6
    True
    """
    if angles.size < 5:
        return 1.0
    tails = 2.0 * math.exp(-(float(np.cos(np.pi * angles).sum()) ** 2) / angles.size)
    return min(1.0, 2.0 * min(tails, float(stats.kstest(angles, "uniform").pvalue)))


def findings_of(
    samples: list[Sample], wanted: dict[str, float], *, level: float, runs: int
) -> tuple[list[Finding], dict[str, Any]]:
    """Every test, with its share of the level."""
    found: list[Finding] = []
    tensors: list[dict[str, Any]] = []
    count = max(len(samples), 1)
    small: list[Finding] = []
    angles: list[NDArray[np.float64]] = []
    for name, one in zip(independence.labels([one.name for one in samples]), samples, strict=True):
        row: dict[str, Any] = {"tensor": name, "numbers": one.size, "std": one.std}
        size_level = level * SHARES["size"] / count
        if one.name in wanted:
            less = _size(one, wanted[one.name], size_level, level * SHARES["coordinate"] / count, row)
            row["short"] = bool(less)
            small += less
        row["smallest_ratio_found"] = smallest_ratio(one.numbers, size_level)
        angles.append(folded_angles(one.spread))
        row["law_p"] = angle_p(angles[-1])
        tensors.append(row)
    if small:
        worst = min(small, key=lambda one: one.number or 0.0)
        more = f" So it is in {len(small) - 1} more." if len(small) > 1 else ""
        found.insert(0, dataclasses.replace(worst, sentence=worst.sentence + more))
    found += _law(tensors, angles, level * SHARES["law"], runs)
    found += independence.findings(samples, level * SHARES["independence"])
    return found, {"tensors": tensors, "runs": runs}


def _law(tensors: list[dict[str, Any]], angles: list[NDArray[np.float64]], level: float, runs: int) -> list[Finding]:
    """Noise that is not normal: in all tensors together (angles have no size), or in one of them, at half each."""
    if not angles:
        return []
    tests = [("all tensors together", angle_p(np.concatenate(angles)), level / 2.0)]
    tests += [(row["tensor"], row["law_p"], level / 2.0 / len(tensors)) for row in tensors]
    where, p, share = min(tests, key=lambda one: one[1] / one[2])
    if p >= share:
        return []
    return [
        faults.finding(
            faults.NOT_NORMAL,
            f"The noise in {where} is not normal (p = {p:.1g} over {runs} runs).",
            number=p,
            allowed=share,
            witness=where,
            level=share,
        )
    ]


def _size(one: Sample, wanted: float, size_level: float, coordinate_level: float, row: dict[str, Any]) -> list[Finding]:
    """Too little noise in a tensor, or in single coordinates of it."""
    allowed = wanted * (1.0 - TOLERANCE)
    p = float(stats.chi2.cdf(one.total / allowed**2, one.numbers))
    row |= {"promised": wanted, "ratio": one.std / wanted, "size_p": p}
    if p < size_level:
        return [
            faults.finding(
                faults.NOISE_TOO_SMALL,
                f"The noise in {short(one.name)} is {one.std / wanted:.3g} of what is promised.",
                number=one.std / wanted,
                allowed=1.0,
                witness=f"{short(one.name)}, {one.size} numbers over {one.runs} runs",
                level=size_level,
            )
        ]
    worst = int(np.argmin(one.squares))
    if stats.chi2.cdf(one.squares[worst] / allowed**2, one.runs) * one.size < coordinate_level:
        ratio = math.sqrt(float(one.squares[worst]) / one.runs) / wanted
        return [
            faults.finding(
                faults.NOISE_TOO_SMALL,
                f"The noise in one number of {short(one.name)} is {ratio:.3g} of what is promised.",
                number=ratio,
                allowed=1.0,
                witness=f"{short(one.name)}, number {worst}, over {one.runs} runs",
                level=coordinate_level,
            )
        ]
    return []


def _constant(samples: Sequence[Sample]) -> bool:
    """Whether a tensor has the same noise in every run: a matter of freshness, not of size or law."""
    for one in samples:
        spread = float(np.abs(one.values[:3] - one.values[0]).max()) if len(one.values) > 1 else 0.0
        if spread <= TOLERANCE * float(np.abs(one.values[0]).max()):
            return True
    return False


def measure(bench: Bench, reading: Reading, *, runs: int, level: float) -> tuple[Measurement, list[Sample]]:
    """Size, law and independence of the noise."""
    if not reading.noise:
        found = faults.finding(
            faults.NO_NOISE,
            "Nothing that the step releases carries noise.",
            number=0.0,
            allowed=bench.subject.noise,
            witness="the same release in every run with the same rows",
        )
        return Measurement(name="noise", sentence=found.sentence, findings=(found,)), []
    if reading.coarse and all(bool(where.all()) for where in reading.coarse.values()):
        measured = {one.name for one in reading.noised} - set(reading.coarse)
        if not measured:
            return Measurement(name="noise", sentence="The noise was not measured.", blind=reading.too_small), []
    if not reading.carriers or (reading.nonlinear and not reading.outside):
        return (
            Measurement(
                name="noise",
                sentence="The size of the noise was not measured.",
                blind=not_in_proportion(reading),
            ),
            [],
        )
    few = 4
    renewed = replays
    if _constant(sample(reading, replays(bench, reading, few), sizes_only=True)):
        # Seeded from the state that every run starts from: only steps one after the other can show new noise.
        renewed = steps
    if renewed is steps and _constant(sample(reading, steps(bench, reading, few), sizes_only=True)):
        samples = []
    else:
        samples = sample(reading, renewed(bench, reading, runs))
    if not samples or _constant(samples):
        return Measurement(name="noise", sentence="The noise is the same in every run; its size says nothing."), []
    return judged(reading, samples, promised(bench, reading), runs=runs, level=level), samples


def not_in_proportion(reading: Reading) -> str:
    """Why the noised sum cannot be read."""
    if reading.silent.gradients and reading.nonlinear:  # the optimizer is there: this is what enters it
        return NOT_THE_SUM.format(name=reading.nonlinear[0].removeprefix("gradient of "))
    return "no tensor shows the noise in proportion; hand over the optimizer, or its momentum, as state"


def judged(
    reading: Reading, samples: list[Sample], wanted: dict[str, float], *, runs: int, level: float
) -> Measurement:
    """Size, law and independence of measured noise, in words."""
    found_all, details = findings_of(samples, wanted, level=level, runs=runs)
    for pair in reading.shared:
        names = " and ".join(short(one) for one in pair)
        if not any(one.fault == faults.SHARED_NOISE.name for one in found_all):
            found_all.append(
                faults.finding(
                    faults.SHARED_NOISE,
                    f"The noise of {names} is the same up to a constant.",
                    number=1.0,
                    allowed=0.0,
                    witness=names,
                )
            )
    ratios = [row["smallest_ratio_found"] for row in details["tensors"]]
    worst = int(np.argmin(ratios))
    details["smallest_ratio_found"] = ratios[worst]
    seen = f"Noise ×{ratios[worst]:.3g} or less would be found in every tensor with {runs} runs"
    if wanted:
        rows = [row for row in details["tensors"] if "ratio" in row]
        low = min(rows, key=lambda row: row["ratio"])
        sentence = f"The smallest noise is {low['ratio']:.3g} of what is promised, in {low['tensor']}. {seen}."
    else:
        sentence = f"Noise is there in {len(samples)} tensors; its size is compared with the rows' influence. {seen}."
    return Measurement(
        name="noise", sentence=sentence, findings=tuple(found_all), blind=reading.too_small, details=details
    )
