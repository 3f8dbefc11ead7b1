"""All bugs and all right twins over many seeds: ``python tests/probing/many_seeds.py 20``.

A seed is that of the weights, of the rows, of the noise and of the rows that are tried. The level is the one that users
have; there are fewer runs than a user's, which makes broken trainers harder to find. Prints every miss and every false
alarm as it comes, and at the end a table: bug, name, in how many seeds it was found.

    python tests/probing/many_seeds.py [SEEDS | FROM:TO] [steps|beside|ranks]
"""

import collections
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
warnings.simplefilter("ignore")

from trainers import beside  # noqa: E402
from trainers.cases import CASES, RIGHT, made  # noqa: E402

from coalmine.probing.faults import NOT_NORMAL  # noqa: E402
from coalmine.probing.probe import probe  # noqa: E402

BROKEN, RIGHT_ONES = {"replays": 60, "tries": 40}, {"replays": 60, "tries": 60}


def step_report(build, seed, **options):
    return probe(made(build, seed), seed=seed, **options)


def broken_checks(part):
    """(row, name, names of the faults that must be found, function of a seed); each function once."""
    if part == "steps":
        for case in CASES:
            options = {} if NOT_NORMAL in case.faults else BROKEN  # a shape takes more numbers than a size
            yield (
                case.row,
                case.broken.__name__,
                [one.name for one in case.faults],
                lambda seed, case=case, options=options: step_report(case.broken, seed, **options),
            )
    else:
        for row, check, name in beside.BROKEN if part == "beside" else beside.BROKEN_RANKS:
            yield row, check.__name__, [name], check


def right_checks(part):
    if part == "steps":
        for build in RIGHT:
            yield build.__name__, lambda seed, build=build: step_report(build, seed, **RIGHT_ONES)
    else:
        for check in beside.RIGHT if part == "beside" else beside.RIGHT_RANKS:
            yield check.__name__, check


def show(names, caught, done):
    print("\n| row | broken training | found as | seeds |\n|---|---|---|---|")
    for (row, name), faults in sorted(names.items()):
        print(f"| {row} | {name} | {', '.join(faults)} | {caught[row, name]} of {done[row, name]} |")


def main(seeds, parts):
    caught, done, wrong = collections.Counter(), collections.Counter(), collections.Counter()
    probes, alarms, began = 0, 0, time.process_time()
    names = {}
    for part in parts:
        for seed in seeds:
            reports = {}
            for row, name, faults, check in broken_checks(part):
                if name not in reports:
                    reports[name] = {one.fault for one in check(seed).findings}
                    probes += 1
                names[row, name] = faults
                done[row, name] += 1
                caught[row, name] += set(faults) <= reports[name]
                if not set(faults) <= reports[name]:
                    print(f"missed: seed {seed}, {row} {name}: {faults}; found {reports[name]}", flush=True)
            for name, check in right_checks(part):
                report = check(seed)
                probes, done[name] = probes + 1, done[name] + 1
                wrong[name, report.verdict.outcome.value] += 1
                if report.findings:
                    alarms += 1
                    print(f"false alarm: seed {seed}, {name}: {report.in_words()}", flush=True)
            spent = time.process_time() - began
            print(f"{part}, seed {seed}: {probes} probes, {alarms} false alarms, {spent:.0f} s of CPU", flush=True)
    show(names, caught, done)
    rows = {row for row, _ in names}
    whole = [row for row in rows if all(caught[key] == done[key] for key in names if key[0] == row)]
    right = collections.Counter()
    for (_, outcome), count in wrong.items():
        right[outcome] += count
    print(f"\n{len(whole)} of {len(rows)} rows in every seed. Right twins: {dict(right)}.")
    return alarms or len(whole) < len(rows)


if __name__ == "__main__":
    first, _, last = (sys.argv[1] if len(sys.argv) > 1 else "2").rpartition(":")
    parts = sys.argv[2:] or ["steps", "beside", "ranks"]
    sys.exit(1 if main(range(int(first or 0), int(last)), parts) else 0)
