"""How often each bound is too high, on mechanisms whose ε is known: ``python -m coalmine.bounds.coverage``.

A bound at confidence 95 % may exceed the true ε in at most 5 % of audits, and a true claim may be refuted in as many.
Every method and threshold rule is run on simulated audits; the table gives the share of misses with its 99 %
Clopper–Pearson interval, and the mean of bound/ε. The program ends with code 1 if, within a method's assumptions, such
an interval lies above the level. What people rely on (the default rule, and the tests of claims) is run on so many
audits that a true 6 % is told from a true 5 %. Whether such an audit misses depends on one number, which is compared
with one limit: it costs little more than drawing the scores.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import dataclasses
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coalmine.bounds import ranks, sup
from coalmine.bounds._rates import errors_by_position, lattice
from coalmine.bounds.anytime import anytime_limit
from coalmine.bounds.bayesian import posterior_mass
from coalmine.bounds.claims import refutations
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import EpsilonDelta, Family, Gdp
from coalmine.bounds.known import Known, KnownRun, independent_trials, one_runs
from coalmine.bounds.one_run import one_run
from coalmine.bounds.one_run_fdp import one_run_fdp
from coalmine.bounds.thresholds import DKW, Bonferroni, Given, HoldOut, Rule, Sup
from coalmine.bounds.trials import refuted_theta
from coalmine.records import Claim, Counts, EpsilonClaim, MechanismClaim, OneRunScores, Scores
from coalmine.theory.curves import largest_true
from coalmine.theory.rates import two_sided

Array = NDArray[np.float64]

LEVEL = 0.05
SIZES = (50, 200, 1000, 10_000)
REPETITIONS = {50: 1000, 200: 1000, 1000: 1000, 10_000: 300}
MANY = 20_000
"""Audits for what people rely on: at a share of 5.4 % or more the 99 % interval lies above the level."""
_MOST_DRAWS = 1_200_000_000
"""Random numbers drawn for one mechanism and number of trials: what takes more gets fewer audits."""
ONE_RUN_METHODS = ("one_run", "one_run_fdp (gdp)", "one_run_fdp (epsilon_delta)")
WITHIN, OUTSIDE, ESTIMATE = "within", "outside its assumption", "an estimate, not a bound"

Statistic = Callable[[Family, NDArray[np.int64], int, int], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One method and rule on one mechanism at one number of trials."""

    mechanism: str
    method: str
    standing: str
    trials: int
    truth: float
    repetitions: int
    misses: int
    mean_bound: float | None

    @property
    def interval(self) -> tuple[float, float]:
        """99 % Clopper–Pearson interval of the miss rate."""
        return two_sided(self.misses, self.misses, self.repetitions, confidence=0.99)

    @property
    def holds(self) -> bool:
        """Whether the miss rate may be at or under the level."""
        return self.interval[0] <= LEVEL

    @property
    def tightness(self) -> float | None:
        """Mean of bound/ε, where ε is not 0."""
        return self.mean_bound / self.truth if self.truth > 0.0 and self.mean_bound is not None else None


def _families(known: Known) -> Iterator[tuple[str, Family, str]]:
    """The families to try on a mechanism, and whether it satisfies their assumption."""
    yield "clopper_pearson", EpsilonDelta(delta=known.delta, copies=known.copies), WITHIN
    if known.gaussian or known.name == "Laplace":
        yield "gdp", Gdp(delta=known.delta), WITHIN if known.gaussian else OUTSIDE
    if known.mechanism is not None and known.analysis is not None:
        family = DpSgdNoise(
            mechanism=known.mechanism, delta=known.delta, copies=known.copies, analysis=known.analysis, octave=64
        )
        words = known.analysis.replace("_", " ")
        yield f"dpsgd ({words})", family, WITHIN
        yield f"dpsgd ({words}, own curves)", dataclasses.replace(family, weigh="curves"), WITHIN
        if known.analysis == "standard":  # world 1 has the row, world 0 has not: all of these mechanisms say so
            yield f"dpsgd ({words}, rows added)", dataclasses.replace(family, added=True), WITHIN


def _good_threshold(known: Known, family: Family, trials: int) -> float:
    """A threshold fixed beforehand: the best one of a pilot four times as large, with its own seed."""
    pilot = known.scores(np.random.default_rng(0xF117), 4 * trials)
    _, best, errors = sup.observed(family, pilot, inner_level=0.001)
    return float(errors.thresholds[best])


def _epsilons(family: Family, thetas: Array) -> Array:
    """ε of each θ; a family with costly ε is tabulated at every quarter of an octave, and ln ε is a line between."""
    unique, where = np.unique(thetas, return_inverse=True)
    if isinstance(family, DpSgdNoise):
        step = family.octave // 4
        places = unique / step
        nodes = np.unique(np.concatenate([np.floor(places), np.ceil(places)])) * step
        logs = np.log([max(family.epsilon(float(node)), 1e-9) for node in nodes])
        values = np.where(unique > 0.0, np.exp(np.interp(unique, nodes, logs)), 0.0)
    else:
        values = np.array([family.epsilon(float(theta)) for theta in unique])
    return np.asarray(values[where])


@functools.lru_cache(maxsize=64)
def _largest_right(family: Family, truth: float) -> float:
    """The largest θ whose ε does not exceed the truth: a bound misses when it is above it."""
    if isinstance(family, DpSgdNoise):
        return family.search(lambda theta: family.epsilon(theta) <= truth)
    return largest_true(lambda theta: theta == 0.0 or family.epsilon(theta) <= truth, 0.0, 100.0)


def _simulated_rules(family: Family) -> Iterator[tuple[str, Statistic, Callable[[float, int], float]]]:
    """The rules that simulate their statistic: name, statistic of many audits, and θ of a value of it."""
    yield "sup", sup.statistics, lambda value, n: sup.invert(family, n, n, value, level=LEVEL, rule=Sup())
    if isinstance(family, DpSgdNoise) and family.weigh == "gaussian":
        yield "ranks", ranks.statistic, lambda value, n: ranks.invert(family, n, n, value, level=LEVEL)


def _thetas(theta_of: Callable[[float, int], float], statistics: Array, trials: int) -> Array:
    """θ for some audits: exact at 21 of the sorted statistics (of few audits fewer), between them by a line."""
    unique = np.unique(statistics)
    number = min(21, max(5, statistics.size // 12))
    nodes = unique[np.unique(np.linspace(0, unique.size - 1, number).round().astype(int))]
    return np.interp(statistics, nodes, [theta_of(float(node), trials) for node in nodes])


def _misses(theta_of: Callable[[float, int], float], statistics: Array, trials: int, largest: float) -> int:
    """How many audits miss: θ grows with the statistic, so those above one value of it, which is found exactly."""
    unique = np.unique(statistics)
    first = bisect.bisect_left(unique, True, key=lambda value: theta_of(float(value), trials) > largest)
    return int(np.sum(statistics >= unique[first])) if first < unique.size else 0


def _claims(known: Known) -> Iterator[tuple[str, Claim, bool]]:
    """What is true of a mechanism: its ε at δ, and that it releases no more than itself; and whether rows are added."""
    if known.epsilon > 0.0:
        yield "claim of ε", EpsilonClaim(epsilon=known.epsilon, delta=known.delta), False
    if known.mechanism is not None:
        claim = MechanismClaim(mechanism=known.mechanism, delta=known.delta)
        yield "claim of the mechanism", claim, False
        if known.analysis == "standard":
            yield "claim of the mechanism (rows added)", claim, True


def _audits(known: Known, trials: int, kept: int, many: int) -> tuple[list[Scores], NDArray[np.int64]]:
    """The scores of the first ``kept`` audits, and of ``many`` the false negatives at every position of world 0."""
    rng = np.random.default_rng([0xC0DE, trials])
    audits, places = [], np.empty((many, lattice(trials).size), dtype=np.int64)
    for number in range(many):
        scores = known.scores(rng, trials)
        places[number] = errors_by_position(scores).places
        if number < kept:
            audits.append(scores)
    return audits, places


def _trial_cells(known: Known, trials: int, repetitions: int, many: int, ranks_only: bool) -> Iterator[Cell]:
    """All methods and rules for independent trials, and the tests of what is true; or the rule ``ranks`` alone."""
    many = max(1, min(many, _MOST_DRAWS // (2 * trials * (known.draws + 20))))
    audits, places = _audits(known, trials, min(repetitions, many), many)
    for method, family, standing in _families(known):

        def cell(name: str, thetas: Array, standing: str, family: Family = family, method: str = method) -> Cell:
            missed, mean = thetas > _largest_right(family, known.epsilon), float(np.mean(_epsilons(family, thetas)))
            return _cell(known, f"{method}, {name}", trials, missed, standing=standing, mean_bound=mean)

        for name, statistic, theta_of in _simulated_rules(family):
            if ranks_only and name != "ranks":
                continue
            statistics = statistic(family, places, trials, trials)
            yield dataclasses.replace(
                cell(name, _thetas(theta_of, statistics[: len(audits)], trials), standing),
                repetitions=many,
                misses=_misses(theta_of, statistics, trials, _largest_right(family, known.epsilon)),
            )
        if ranks_only or (isinstance(family, DpSgdNoise) and family.added):  # the default rules are enough there
            continue
        fixed = _good_threshold(known, family, trials)
        rules: tuple[Rule, ...] = (Given(fixed), HoldOut(), Bonferroni(), DKW())
        if isinstance(family, DpSgdNoise) and family.weigh == "curves":  # other rules do not weigh thresholds
            rules = (HoldOut(),)
        for rule in rules:
            thetas = np.array([refuted_theta(scores, rule, LEVEL, family)[0] for scores in audits])
            yield cell(rule.name, thetas, standing)
        if len(rules) == 1:
            continue
        optimistic = np.array([refuted_theta(scores, None, LEVEL, family)[0] for scores in audits])
        yield cell("optimistic", optimistic, ESTIMATE)
        if isinstance(family, EpsilonDelta) and known.copies == 1:
            yield _anytime_cell(known, family, audits, fixed)
            yield _bayesian_cell(known, audits, fixed)
    for name, claim, added in () if ranks_only else _claims(known):
        refuted = refutations(claim, places, trials, trials, level=LEVEL, copies=known.copies, added=added)
        yield _cell(known, f"{name}, refuted", trials, refuted)


def _cell(
    known: Known,
    method: str,
    trials: int,
    missed: NDArray[np.bool_],
    *,
    standing: str = WITHIN,
    mean_bound: float | None = None,
) -> Cell:
    """The cell of audits of which some missed."""
    return Cell(
        mechanism=known.name,
        method=method,
        standing=standing,
        trials=trials,
        truth=known.epsilon,
        repetitions=missed.size,
        misses=int(np.sum(missed)),
        mean_bound=mean_bound,
    )


def _anytime_cell(known: Known, family: Family, audits: Sequence[Scores], threshold: float) -> Cell:
    """The watched bound: a miss at any of 40 looks counts; the mean is of the last look."""
    trials = audits[0].world0.size
    looks = np.unique(np.ceil(np.geomspace(5, trials, 40))).astype(int)
    wrong0 = np.array([np.cumsum(scores.world0 > threshold)[looks - 1] for scores in audits])
    wrong1 = np.array([np.cumsum(scores.world1 <= threshold)[looks - 1] for scores in audits])

    def limits(wrong: NDArray[np.int64]) -> Array:
        values = np.array(
            [
                [anytime_limit(int(k), int(n), level=LEVEL / 2.0) for k, n in zip(row, looks, strict=True)]
                for row in wrong
            ]
        )
        return np.asarray(np.minimum.accumulate(values, axis=1))

    thetas = family.critical(limits(wrong0), limits(wrong1))
    missed, mean = thetas.max(axis=1) > known.epsilon, float(np.mean(thetas[:, -1]))
    return _cell(known, "anytime, given", trials, missed, mean_bound=mean)


def _bayesian_cell(known: Known, audits: Sequence[Scores], threshold: float) -> Cell:
    """The lower end of the 90 % credible interval at a fixed threshold: too high when the truth has mass under 5 %."""
    n = audits[0].world0.size
    pairs = [(int(np.sum(s.world0 > threshold)), int(np.sum(s.world1 <= threshold))) for s in audits[:300]]
    mass = {
        pair: posterior_mass(
            Counts(false_positives=pair[0], negatives=n, false_negatives=pair[1], positives=n),
            epsilon=known.epsilon,
            delta=known.delta,
        )
        for pair in set(pairs)
    }
    missed = np.array([mass[pair] < LEVEL for pair in pairs])
    return _cell(known, "bayesian, given", n, missed, standing=ESTIMATE)


def _one_run_cells(known: KnownRun, canaries: int, repetitions: int) -> Iterator[Cell]:
    """Both one-run methods, with the default numbers of guesses and with three pairs, corrected for selection."""
    rng = np.random.default_rng([0x10E, canaries])
    runs = [known.scores(rng, canaries) for _ in range(repetitions)]
    pairs = [(canaries // share, canaries // share) for share in (2, 5, 20)]
    choices: tuple[tuple[str, list[tuple[int, int]] | None], ...] = (("1.5·√m each", None), ("3 pairs", pairs))
    for words, numbers in choices:
        for method in ONE_RUN_METHODS:
            bound = one_run_bound(method, numbers)
            found = np.array([bound(run) for run in runs])
            truth = known.gaussian_epsilon if method.endswith("(gdp)") else known.epsilon
            yield Cell(
                mechanism=f"one run, {known.name}",
                method=f"{method}, {words}",
                standing=WITHIN,
                trials=canaries,
                truth=truth,
                repetitions=repetitions,
                misses=int(np.sum(found > truth)),
                mean_bound=float(np.mean(found)),
            )


def one_run_bound(method: str, numbers: list[tuple[int, int]] | None) -> Callable[[OneRunScores], float]:
    """ε of one run, by a method of ``ONE_RUN_METHODS``."""
    confidence = 1.0 - LEVEL
    if method == "one_run":
        return lambda run: one_run(run, delta=1e-5, confidence=confidence, guess_numbers=numbers).epsilon
    family = "gdp" if method.endswith("(gdp)") else "epsilon_delta"
    return lambda run: one_run_fdp(run, delta=1e-5, confidence=confidence, guess_numbers=numbers, family=family).epsilon


def measure(
    sizes: Sequence[int] = SIZES,
    *,
    repetitions: Callable[[int], int] = REPETITIONS.__getitem__,
    many: int = MANY,
    workers: int = 1,
    ranks_only: bool = False,
    report: Callable[[str], object] = lambda line: None,
) -> list[Cell]:
    """Every cell of the coverage table for the given numbers of trials per world (canaries, for one run).

    ``ranks_only``: those of the rule ``ranks`` alone. Each mechanism and size has its own seed, so the cells do not
    depend on the number of worker processes.
    """
    tasks = [
        (which, place, size, repetitions(size), many, ranks_only)
        for size in sizes
        for which, mechanisms in enumerate(_mechanisms()[:1] if ranks_only else _mechanisms())
        for place, known in enumerate(mechanisms)
        if not (ranks_only and isinstance(known, Known) and known.analysis is None)
    ]
    cells: dict[int, list[Cell]] = {}
    with contextlib.ExitStack() as stack:
        if workers > 1:
            pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=get_context("spawn")))
            # The largest go first: they take longest, and a long one at the end would leave the others waiting.
            running = {pool.submit(_measured, task): number for number, task in reversed(list(enumerate(tasks)))}
            done: Iterator[tuple[int, tuple[str, list[Cell]]]] = (
                (running[one], one.result()) for one in as_completed(running)
            )
        else:
            done = ((number, _measured(task)) for number, task in enumerate(tasks))
        for number, (line, found) in done:
            cells[number] = found
            report(line)
    return [cell for number in sorted(cells) for cell in cells[number]]


def _mechanisms() -> tuple[Sequence[Known], Sequence[KnownRun]]:
    return independent_trials(), one_runs()


def _measured(task: tuple[int, int, int, int, int, bool]) -> tuple[str, list[Cell]]:
    """The cells of one mechanism at one size, and a line that says how long it took."""
    which, place, size, repetitions, many, ranks_only = task
    start = time.process_time()
    known = _mechanisms()[which][place]
    if isinstance(known, KnownRun):
        what, cells = f"one run, {known.name}, {size} canaries", _one_run_cells(known, size, max(1, repetitions // 2))
    else:
        what, cells = f"{known.name}, {size} trials", _trial_cells(known, size, repetitions, many, ranks_only)
    found = list(cells)
    return f"{what}: {time.process_time() - start:.1f} s", found


def table(cells: Sequence[Cell]) -> str:
    """The cells as Markdown: one table for each mechanism, one row for each method and rule."""
    sizes = sorted({cell.trials for cell in cells})
    lines = []
    for mechanism in dict.fromkeys(cell.mechanism for cell in cells):
        mine = [cell for cell in cells if cell.mechanism == mechanism]
        unit = "canaries" if mechanism.startswith("one run") else "trials per world"
        truths = sorted({round(cell.truth, 4) for cell in mine})
        lines += [
            f"## {mechanism[0].upper()}{mechanism[1:]}",
            "",
            f"True ε: {' or '.join(f'{truth:g}' for truth in truths)}"
            + (" (the larger for the smallest Gaussian curve that holds)." if len(truths) > 1 else "."),
            "",
            "| method, rule | " + " | ".join(f"{size} {unit}" for size in sizes) + " |",
            "|---|" + "---|" * len(sizes),
        ]
        for method in dict.fromkeys(cell.method for cell in mine):
            row = [cell for cell in mine if cell.method == method]
            standing = row[0].standing
            name = method.replace("_", " ") + ("" if standing == WITHIN else f" (**{standing}**)")
            shown = {cell.trials: _shown(cell) for cell in row}
            lines.append(f"| {name} | " + " | ".join(shown.get(size, "–") for size in sizes) + " |")
        lines.append("")
    return "\n".join(lines)


def _shown(cell: Cell) -> str:
    """Miss rate with its interval, and how tight the bound is."""
    low, high = cell.interval
    text = f"{cell.misses / cell.repetitions:.3f} [{low:.3f}, {high:.3f}]"
    if cell.standing == WITHIN and not cell.holds:
        text = f"**{text} ABOVE THE LEVEL**"
    if cell.tightness is not None:
        return f"{text}; {cell.tightness:.2f}"
    return text if cell.mean_bound is None else f"{text}; mean {cell.mean_bound:.3f}"


_HEAD = """# Coverage: how often each bound is too high

Made by `make coverage` (`python -m coalmine.bounds.coverage`); the numbers are measured, not computed from theory.
Level {level:g}: a bound may exceed the true ε in at most {percent:g} % of audits. A cell reads

> miss rate [its 99 % Clopper–Pearson interval]; mean of bound/ε

(where the truth is ε = 0: the mean bound; for a claim: none). δ = 1e-5 unless the name of a mechanism says otherwise;
the extremal pair has δ = 0.01. Audits simulated a cell: {repetitions};
half as many for one run, at most 300 for the Bayesian estimate. What people rely on, the rules `sup` and `ranks` and
the tests of claims, is run on {many} audits, or on as many as fit into 1.2·10⁹ random numbers; only its mean is that
of fewer.
Scores are those that distinguish the two worlds best. "claim of ε" and "claim of the mechanism" test what is true of
the mechanism, and count how often it is refuted. Where δ is small, the true ε comes from a contour integral, not from
an accountant.
"given" is a threshold fixed beforehand on a pilot of its own, four times as large. The anytime bound is looked at 40
times, and a miss at any look counts. The noise grid of `dpsgd` has 64 steps to an octave here (512 in the tool);
"own curves" is its `weigh="curves"`, which changes only how `sup` and `holdout` compare thresholds; "rows added" its
`added=True`, the curve of this order of the worlds alone.
With a canary that is rarely drawn, the few audits that miss are far off: a mean of bound/ε near 1 is then no sign of
many misses.

A method marked *outside its assumption* is run where its assumption is false, to show what happens; *an estimate* is
not a bound, and its miss rate shows why.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the table, and say whether every bound holds."""
    parser = argparse.ArgumentParser(prog="python -m coalmine.bounds.coverage", description=__doc__)
    parser.add_argument("--output", type=Path, default=None, help="Markdown file to write; standard output if left out")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="trials per world")
    parser.add_argument("--repetitions", type=int, default=None, help="audits simulated a cell")
    parser.add_argument(
        "--many", type=int, default=MANY, help="audits for the rules sup and ranks and the tests of claims"
    )
    parser.add_argument("--ranks-only", action="store_true", help="the rows of the rule ranks alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args(arguments)

    def repetitions(size: int) -> int:
        return int(options.repetitions or REPETITIONS.get(size, 300))

    start = time.perf_counter()
    cells = measure(
        options.sizes,
        repetitions=repetitions,
        many=options.many,
        workers=options.workers,
        ranks_only=options.ranks_only,
        report=lambda line: sys.stderr.write(line + "\n"),
    )
    bad = [cell for cell in cells if cell.standing == WITHIN and not cell.holds]
    words = ", ".join(f"{repetitions(size)} at {size} trials" for size in options.sizes)
    verdict = (
        f"All {sum(cell.standing == WITHIN for cell in cells)} cells within a method's assumptions hold: no interval "
        "lies above the level.\n"
        if not bad
        else "".join(f"ABOVE THE LEVEL: {cell.mechanism}, {cell.method}, {cell.trials} trials\n" for cell in bad)
    )
    text = (
        _HEAD.format(level=LEVEL, percent=100 * LEVEL, repetitions=words, many=options.many)
        + verdict
        + "\n"
        + table(cells)
    )
    if options.output is None:
        sys.stdout.write(text)
    else:
        options.output.write_text(text, encoding="utf-8")
    sys.stderr.write(f"{len(cells)} cells in {time.perf_counter() - start:.0f} s\n{verdict}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
