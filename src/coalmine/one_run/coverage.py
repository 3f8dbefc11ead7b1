"""How often the bounds of one run are too high, on mechanisms with known ε: ``python -m coalmine.one_run.coverage``.

Every audit has coins and scores of its own, guesses that were chosen for a claim beforehand, and the methods that can
read them. A bound at confidence 95 % may exceed the true ε in at most 5 % of audits. Pooled audits are four runs of a
quarter of the canaries each: what one coin decides for all canaries, it then decides for each run on its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from coalmine.bounds.coverage import LEVEL, ONE_RUN_METHODS, one_run_bound
from coalmine.bounds.known import KnownRun, one_runs
from coalmine.one_run import guesses
from coalmine.records import DpSgd, MechanismClaim, OneRunScores
from coalmine.theory.rates import two_sided

DELTA = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One method on one mechanism: how often it was too high, and how much of ε it proved on average."""

    mechanism: str
    method: str
    guesses: tuple[int, int]
    runs: int
    audits: int
    misses: int
    truth: float
    mean: float

    @property
    def interval(self) -> tuple[float, float]:
        """99 % Clopper–Pearson interval of the miss rate."""
        return two_sided(self.misses, self.misses, self.audits, confidence=0.99)

    @property
    def holds(self) -> bool:
        """Whether the miss rate may be at or under the level."""
        return self.interval[0] <= LEVEL


def audit(known: KnownRun, rng: np.random.Generator, *, canaries: int, runs: int) -> OneRunScores:
    """Scores of one audit: as many independent runs as are pooled, with the canaries shared out among them."""
    parts = [known.scores(rng, canaries // runs) for _ in range(runs)]
    return OneRunScores(np.concatenate([p.included for p in parts]), np.concatenate([p.score for p in parts]))


def numbers(canaries: int) -> tuple[tuple[int, int], ...]:
    """The guesses to try: those for the claim μ = 1 (on both sides), as many on one side, and all canaries."""
    claim = MechanismClaim(mechanism=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), delta=DELTA)
    chosen = guesses.choose(claim, canaries=canaries, confidence=1.0 - LEVEL)
    flagged = max(1, round(0.03 * canaries))
    return (chosen.guess_in, chosen.guess_out), (flagged, 0), (canaries // 2, canaries // 2)


def measure(*, canaries: int = 1000, audits: int = 2000, runs: Sequence[int] = (1, 4), workers: int = 1) -> list[Cell]:
    """Every cell: mechanisms, numbers of guesses, methods, and how many runs are pooled.

    >>> cells = measure(canaries=40, audits=5, runs=(1,))
    >>> len(cells), all(cell.holds for cell in cells)
    (54, True)
    """
    tasks = [(pooled, place, canaries, audits) for pooled in runs for place in range(len(one_runs(DELTA)))]
    if workers == 1:
        return [cell for task in tasks for cell in _measured(task)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [cell for cells in pool.map(_measured, tasks) for cell in cells]


def _measured(task: tuple[int, int, int, int]) -> list[Cell]:
    """The cells of one mechanism."""
    pooled, place, canaries, audits = task
    known = one_runs(DELTA)[place]
    rng = np.random.default_rng([0x0E1, canaries, pooled])
    seen = [audit(known, rng, canaries=canaries, runs=pooled) for _ in range(audits)]
    cells = []
    for pair in numbers(canaries):
        for method in ONE_RUN_METHODS:
            truth = known.gaussian_epsilon if method.endswith("(gdp)") else known.epsilon
            found = np.array([one_run_bound(method, [pair])(scores) for scores in seen])
            cells.append(
                Cell(
                    mechanism=known.name,
                    method=method,
                    guesses=pair,
                    runs=pooled,
                    audits=audits,
                    misses=int(np.sum(found > truth)),
                    truth=truth,
                    mean=float(found.mean()),
                )
            )
    return cells


def table(cells: Sequence[Cell]) -> str:
    """The cells as Markdown, one row for each mechanism, method and number of guesses."""
    pools = sorted({cell.runs for cell in cells})
    heads = ["one run" if runs == 1 else f"{runs} runs pooled" for runs in pools]
    lines = [
        f"| mechanism | method | guesses IN / OUT | true ε | {' | '.join(heads)} |",
        "|---|---|---|---|" + "---|" * len(pools),
    ]
    rows: dict[tuple[str, str, tuple[int, int]], list[Cell]] = {}
    for cell in cells:
        rows.setdefault((cell.mechanism, cell.method, cell.guesses), []).append(cell)
    for (mechanism, method, pair), mine in rows.items():
        head = f"{mechanism} | {method.replace('_', ' ')} | {pair[0]} / {pair[1]} | {mine[0].truth:.3f}"
        lines.append(f"| {head} | {' | '.join(map(_shown, mine))} |")
    return "\n".join(lines) + "\n"


def _shown(cell: Cell) -> str:
    low, high = cell.interval
    text = f"{cell.misses / cell.audits:.4f} [{low:.4f}, {high:.4f}]; mean {cell.mean:.2f}"
    return text if cell.holds else f"**{text} ABOVE THE LEVEL**"


_HEAD = """## One run as a game

Made by `python -m coalmine.one_run.coverage`: {audits} audits a cell of {canaries} canaries, guesses fixed beforehand,
in one run and in four runs that are pooled. A cell reads: miss rate [its 99 % interval]; mean bound.

"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and say whether every bound holds."""
    parser = argparse.ArgumentParser(prog="python -m coalmine.one_run.coverage", description=__doc__)
    parser.add_argument(
        "--append", type=Path, default=None, help="Markdown file to add to; standard output if left out"
    )
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--audits", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    options = parser.parse_args(arguments)
    cells = measure(canaries=options.canaries, audits=options.audits, workers=options.workers)
    text = _HEAD.format(audits=options.audits, canaries=options.canaries) + table(cells)
    if options.append is None:
        sys.stdout.write(text)
    else:
        with options.append.open("a", encoding="utf-8") as file:
            file.write("\n" + text)
    return 0 if all(cell.holds for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
