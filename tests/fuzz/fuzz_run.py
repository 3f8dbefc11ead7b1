"""Run bad inputs, each in a process of its own with little memory and time, and sort what happens.

    python tests/fuzz/fuzz_run.py --inputs 10000            # the whole campaign (make fuzz)
    python tests/fuzz/fuzz_run.py --only 123                # one case again, with all that it printed

A case is refused (exit 2 with one line, or an error of Coalmine's) or accepted (exit 0, or it reached the training,
which is not started here). Everything else is a finding.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MEMORY = 2**30
"""Bytes that a case may use beyond what is loaded already."""
SECONDS = 30
"""CPU seconds that a case may take: no computation here takes half as long on a core of its own."""
WAIT = 120
"""Seconds on the clock after which a case that does not use the CPU is ended."""
_MOST_OUTPUT = 100_000

FINE = ("refused", "accepted", "stopped")
_REACHED, _RAISED, _NONSENSE = 90, 91, 92


@dataclasses.dataclass(frozen=True)
class Finding:
    """What became of a case."""

    number: int
    outcome: str
    what: str
    words: str
    seconds: float
    memory: int


def _prepare() -> None:
    """Load all that cases need once, before any is forked, and put a stop where the training begins."""
    import multiprocessing.process

    import fuzz_cases
    import fuzz_files
    import pooch
    import torch
    from dp_accounting.pld import privacy_loss_distribution  # noqa: F401
    from dp_accounting.rdp import RdpAccountant  # noqa: F401

    import coalmine.auditing.run
    import coalmine.integrations
    import coalmine.report.html
    import coalmine.studies.figure
    from coalmine import data
    from coalmine.cli import app  # noqa: F401 - all commands: a command line loads the called one alone
    from coalmine.game.built_in import BuiltInTask
    from coalmine.training.stack import Stack

    torch.set_num_threads(1)
    fuzz_cases.leaves()
    fuzz_files._good_store()
    data.load("digits")
    data.load("synthetic")

    def stop(*_: Any, **__: Any) -> Any:
        sys.stdout.flush()
        os._exit(_REACHED)  # the input passed all checks: from here on there is training

    def offline(*_: Any, **__: Any) -> Any:
        raise OSError("Max retries exceeded")

    multiprocessing.process.BaseProcess.start = stop  # type: ignore[method-assign]
    BuiltInTask.play = stop  # type: ignore[method-assign]
    Stack.train = stop  # type: ignore[method-assign]
    coalmine.studies.run_cells = coalmine.studies.train_cell = stop
    pooch.retrieve = offline


def _child(number: int, seed: int, folder: Path) -> int:
    """One case, in the forked process; its exit code."""
    os.chdir(folder)
    os.environ.update({"HOME": str(folder), "XDG_CACHE_HOME": str(folder), "COLUMNS": "80", "COALMINE_DEBUG": "1"})
    os.environ.pop("COALMINE_DATA", None)
    sys.path.insert(0, "")

    import fuzz_cases

    from coalmine.cli import main
    from coalmine.errors import CoalmineError

    one = fuzz_cases.case(seed, number)
    fuzz_cases.write_files(one, folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    if one.call is None:
        return main(list(one.arguments))
    try:
        result = one.call()
    except CoalmineError as error:
        print(error, file=sys.stderr)
        return 2
    return _NONSENSE if _is_nan(result) else 0


def _is_nan(value: Any) -> bool:
    """Whether a result says "not a number"."""
    if isinstance(value, float):
        return math.isnan(value)
    if dataclasses.is_dataclass(value) and hasattr(value, "epsilon"):
        return isinstance(value.epsilon, float) and math.isnan(value.epsilon)
    return False


def _forked(number: int, seed: int, folder: Path) -> int:
    """Start one case; its process id."""
    out, err = folder.parent / f"{folder.name}.out", folder.parent / f"{folder.name}.err"
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = _RAISED
    try:
        for path, target in ((out, 1), (err, 2)):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(descriptor, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = _child(number, seed, folder)
    except BaseException:  # noqa: BLE001 - this is what is looked for
        with contextlib.suppress(BaseException):
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) and 0 <= code < 256 else _RAISED)
    return 0


def _judge(number: int, seed: int, folder: Path, status: int, seconds: float, usage: Any) -> Finding:
    """Sort what became of a case."""
    import fuzz_cases

    one = fuzz_cases.case(seed, number)
    out = (folder.parent / f"{folder.name}.out").read_bytes()[:_MOST_OUTPUT].decode("utf-8", "replace")
    err = (folder.parent / f"{folder.name}.err").read_bytes()[:_MOST_OUTPUT].decode("utf-8", "replace")
    outcome, what = _sorted(one, status, out, err)
    return Finding(number, outcome, what, f"[{one.kind}] {one}", seconds, usage.ru_maxrss * 1024)


def _sorted(one: Any, status: int, out: str, err: str) -> tuple[str, str]:
    lines = [line for line in err.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "hang", ""
        return "crash", signal.Signals(number).name
    code = os.WEXITSTATUS(status)
    if "not enough memory" in err or "MemoryError" in last:
        return "memory", last
    if code == _RAISED or ("Traceback" in err and code != 4):
        return "traceback", f"{last} @ {_place(lines)}"
    if code == 4:
        return "exit 4", f"{last} @ {_place(lines)}"
    if code == 130:
        return "stopped", last
    if code == 2:
        if one.call is None and (len(lines) != 1 or len(err) > 2000):
            return "untidy", f"{len(lines)} lines, {len(err)} characters: {last}"
        return "refused", last
    if code == _NONSENSE:
        return "nonsense", "the result is not a number"
    if code not in (0, _REACHED):
        return f"exit {code}", last
    if one.nonsense and code == 0:
        return "nonsense", f"accepted {one.nonsense}"
    words = out.replace("(", " ").replace(",", " ").split()
    if "nan" in words or "NaN" in words:
        return "nonsense", "prints nan"
    if "Warning" in err:
        return "untidy", last
    return "accepted", "reached the training" if code == _REACHED else ""


def _place(lines: list[str]) -> str:
    """The last line of our own code in a traceback."""
    ours = [line.strip() for line in lines if "/coalmine/" in line and line.strip().startswith("File")]
    if not ours:
        return ""
    path, _, rest = ours[-1].removeprefix('File "').partition('", line ')
    return f"{path.partition('/coalmine/')[2]}:{rest.partition(',')[0]}"


def campaign(numbers: Iterable[int], *, seed: int, workers: int = 1, keep: Path | None = None) -> Iterator[Finding]:
    """Run the cases, ``workers`` at a time; what became of each, in the order in which they end."""
    _prepare()
    with tempfile.TemporaryDirectory() as top:
        running: dict[int, tuple[int, Path, float]] = {}
        waiting = iter(numbers)
        more = True
        while more or running:
            while more and len(running) < workers:
                number = next(waiting, None)
                if number is None:
                    more = False
                    break
                folder = Path(top) / str(number)
                folder.mkdir()
                running[_forked(number, seed, folder)] = (number, folder, time.monotonic())
            for pid, (number, folder, began) in list(running.items()):
                done, status, usage = os.wait4(pid, os.WNOHANG)
                if not done:
                    if time.monotonic() - began > WAIT:
                        os.kill(pid, signal.SIGKILL)
                    continue
                del running[pid]
                seconds = usage.ru_utime + usage.ru_stime
                yield _judge(number, seed, folder, status, seconds, usage)
                if keep is None:
                    shutil.rmtree(folder)
                    for ending in ("out", "err"):
                        folder.with_suffix(f".{ending}").unlink()
                else:
                    shutil.copytree(top, keep, dirs_exist_ok=True)
            time.sleep(0.002)


def _ready(path: Path) -> Path:
    """The path, its folder made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main() -> int:
    """Run a campaign and print what it found; exit code 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000, help="how many cases")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time")
    parser.add_argument("--quick", action="store_true", help="leave the slow kind out: values at the edge")
    parser.add_argument("--only", type=int, help="run this case alone and show what it printed")
    parser.add_argument("--output", type=Path, help="write every finding there, a line of JSON each")
    given = parser.parse_args()

    import fuzz_cases

    if given.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            (found,) = campaign(range(given.only, given.only + 1), seed=given.seed, keep=Path(folder))
            print(found)
            for ending in ("out", "err"):
                print((Path(folder) / f"{given.only}.{ending}").read_text(errors="replace")[-6000:])
        return 0
    counts: collections.Counter[str] = collections.Counter()
    kinds: collections.Counter[tuple[str, str]] = collections.Counter()
    examples: dict[tuple[str, str], Finding] = {}
    slowest = largest = None
    output = None if given.output is None else _ready(given.output).open("w", encoding="utf-8", buffering=1)
    numbers: Iterable[int] = range(given.first, given.first + given.inputs)
    if given.quick:
        numbers = [number for number in numbers if fuzz_cases.case(given.seed, number).kind != "edge"]
    for found in campaign(numbers, seed=given.seed, workers=given.workers):
        counts[found.outcome] += 1
        slowest = found if slowest is None or found.seconds > slowest.seconds else slowest
        largest = found if largest is None or found.memory > largest.memory else largest
        if output is not None:
            output.write(json.dumps(dataclasses.asdict(found)) + "\n")
        if found.outcome not in FINE:
            kind = (found.outcome, found.what if found.outcome != "hang" else found.words[:40])
            kinds[kind] += 1
            examples.setdefault(kind, found)
    if output is not None:
        output.close()
    for kind, count in kinds.most_common():
        example = examples[kind]
        print(f"{count:5d}  {kind[0]:10s} {example.what[:200]}\n       case {example.number}: {example.words[:300]}")
    print(", ".join(f"{name} {count}" for name, count in counts.most_common()))
    if slowest is not None and largest is not None:
        print(
            f"slowest: case {slowest.number}, {slowest.seconds:.1f} s; largest: case {largest.number}, "
            f"{largest.memory / 2**20:.0f} MiB with what is loaded"
        )
    return 0 if set(counts) <= set(FINE) else 1


if __name__ == "__main__":
    sys.exit(main())
