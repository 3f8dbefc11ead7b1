"""A soak: audits of trainings that fail, hang, fork, print and end, one after the other, some of them killed.

After each: are all trials there, once, with the scores that follow from their seeds? Is a process, a temporary folder,
a thread or a file descriptor left? Has the memory of this process grown? ``make soak`` runs it for an hour.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import soak_trainings as trainings

from coalmine import audit_function
from coalmine.errors import CoalmineError
from coalmine.game import worlds_of
from coalmine.integrations.task import seed_of
from coalmine.store import Store

GENTLE = ("right", "fails", "prints", "threads", "forks", "returns_twice", "opens_files")
ROUGH = ("hangs", "ends")
KILLS = ("kill main", "kill worker", "ask to end")
TRIALS = 64
GROWTH = 64 * 2**20
"""Bytes by which this process may grow after its first minute: allocators keep some, a leak takes more in an hour."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("build/soak.jsonl"))
    given = parser.parse_args()
    given.output.parent.mkdir(parents=True, exist_ok=True)
    rng = random.Random(given.seed)
    end = time.monotonic() + given.seconds
    rounds: dict[str, int] = {}
    settled: int | None = None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as name, given.output.open("w") as log:
        folder = Path(name)
        (folder / "temporary").mkdir()
        tempfile.tempdir = str(folder / "temporary")
        os.environ["TMPDIR"], os.environ["SOAK_FLAG"] = tempfile.tempdir, str(folder / "flag")
        while time.monotonic() < end:
            what = rng.choice([*GENTLE, *ROUGH, *KILLS])
            problems = play(what, folder, workers=rng.choice([1, 2]), rng=rng) + left_behind(folder)
            memory = psutil.Process().memory_info().rss
            if settled is None and time.monotonic() - began > min(60.0, given.seconds / 3):
                settled = memory
            if settled is not None and memory > settled + GROWTH:
                problems.append(f"memory grew from {settled} to {memory}")
            rounds[what] = rounds.get(what, 0) + 1
            json.dump({"what": what, "problems": problems, "memory": memory, "fds": psutil.Process().num_fds()}, log)
            log.write("\n")
            log.flush()
            if problems:
                print(f"{what}: {'; '.join(problems)}")
                return 1
    print(f"{sum(rounds.values())} rounds in {time.monotonic() - began:.0f} s, nothing lost, doubled or left: {rounds}")
    print(f"memory {0 if settled is None else settled / 2**20:.0f} -> {memory / 2**20:.0f} MB")
    return 0


def play(what: str, folder: Path, *, workers: int, rng: random.Random) -> list[str]:
    """One round; what is wrong with it."""
    store, flag = folder / f"{what.replace(' ', '-')}.db", folder / "flag"
    for path in folder.glob(f"{store.name}*"):
        path.unlink()
    if what in KILLS:
        return killed(what, store, workers=workers, rng=rng)
    train = getattr(trainings, what)
    if what in ROUGH:
        flag.touch()
        try:
            audit(train, store, workers=workers, timeout=1.0)
        except CoalmineError as error:
            if "took longer than" not in str(error) and "ended without a word" not in str(error):
                return [f"unexpected: {error}"]
        flag.unlink()
    audit(train, store, workers=workers, timeout=60.0)
    return wrong(store, failing=what == "fails")


def audit(train, store: Path, *, workers: int, timeout: float) -> None:
    with open(os.devnull, "w") as nowhere, silent(nowhere.fileno()):
        audit_function(
            train, trainings.score, worlds=trainings.worlds, claim_epsilon=1.0, trials=TRIALS, workers=workers,
            timeout=timeout, store=store,
        )  # fmt: skip


@contextlib.contextmanager
def silent(nowhere: int):
    """What trainings print goes nowhere."""
    kept = os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def killed(what: str, store: Path, *, workers: int, rng: random.Random) -> list[str]:
    """The real command, stopped at some moment up to three times, then run to its end."""
    command = [
        sys.executable, "-m", "coalmine", "audit", "--train", "soak_trainings:slow", "--score", "soak_trainings:score",
        "--worlds", "soak_trainings:worlds", "--claim-epsilon", "1", "--trials", str(8 * TRIALS), "--store", str(store),
        "--workers", str(workers), "--json",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    for _ in range(rng.randint(1, 3)):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(rng.uniform(0.0, 5.0))
        hit(what, process.pid, rng)
        process.wait(timeout=120)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode not in (0, 1, 3):
        return [f"exit code {done.returncode}: {done.stderr}"]
    return wrong(store, failing=False, trials=8 * TRIALS)


def hit(what: str, main_process: int, rng: random.Random) -> None:
    """Kill or ask."""
    try:
        parent = psutil.Process(main_process)
        if what == "kill main":
            parent.kill()
        elif what == "ask to end":
            parent.send_signal(signal.SIGTERM)
        else:
            workers = [one for one in parent.children(recursive=True) if "popen_loky" in " ".join(one.cmdline())]
            (rng.choice(workers) if workers else parent).kill()
    except psutil.Error:
        return


def wrong(store: Path, *, failing: bool, trials: int = TRIALS) -> list[str]:
    """What is wrong with the stored trials."""
    with Store.open(store, create=False) as opened:
        problems = list(opened.verify())
        [run] = opened.runs()
        found = opened.scores(run.fingerprint)
    if found.trial.tolist() != list(range(trials)):
        problems.append(f"{len(found)} trials instead of {trials}")
    for trial, world, value in zip(found.trial, worlds_of(found.trial), found.score, strict=True):
        seed = seed_of(run.fingerprint, int(trial))
        truth = np.nan if failing and seed % 7 == 0 else trainings.right(trainings.worlds()[world], seed)
        if not (value == truth or (np.isnan(value) and np.isnan(truth))):
            problems.append(f"trial {trial}: {value} instead of {truth}")
    return problems[:5]


def left_behind(folder: Path) -> list[str]:
    """Processes, folders, threads and descriptors that are still there after a while."""
    deadline = time.monotonic() + 30.0
    while True:
        problems = [f"folder {path.name}" for path in (folder / "temporary").glob("coalmine-*")]
        for one in psutil.process_iter(["cmdline", "status", "environ"]):
            ours = (one.info["environ"] or {}).get("TMPDIR") == tempfile.tempdir and one.pid != os.getpid()
            helper = "resource_tracker" in " ".join(one.info["cmdline"] or [])
            if ours and not helper and one.info["status"] != psutil.STATUS_ZOMBIE:
                problems.append(f"process {one.pid} {' '.join(one.info['cmdline'] or [])[:80]}")
        if psutil.Process().num_fds() > 40:
            problems.append(f"{psutil.Process().num_fds()} file descriptors")
        if psutil.Process().num_threads() > 20:
            problems.append(f"{psutil.Process().num_threads()} threads")
        if not problems or time.monotonic() > deadline:
            return problems
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
