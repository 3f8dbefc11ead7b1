"""kill -9 at any moment, two processes at once: the scores are those of one unbroken run, bit for bit.

COALMINE_KILLS sets how often the real command with two workers is killed (1 by default: each start loads torch anew).
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coalmine.auditing import config
from coalmine.auditing.config import Execution
from coalmine.auditing.run import audit
from coalmine.store import Store

CONFIG = """
[data]
name = "synthetic"
rows = 60
[model]
kind = "logistic"
[training]
steps = {steps}
sample_rate = 0.5
noise_multiplier = 1.0
[audit]
trials = {trials}
[[adversary]]
name = "membership"
"""
OUTCOME = 3
"""What these audits end with: 250 steps with this noise promise next to nothing, so nothing could be refuted."""
KILLS = int(os.environ.get("COALMINE_KILLS", "1"))


@pytest.fixture
def written(tmp_path):
    def write(*, steps, trials):
        path = tmp_path / "audit.toml"
        path.write_text(CONFIG.format(steps=steps, trials=trials))
        return path

    return write


def stored(path):
    """Everything that the store holds, by run."""
    with Store.open(path, create=False) as store:
        assert store.verify() == ()
        return {run.fingerprint: store.scores(run.fingerprint) for run in store.runs()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, trials in first.items():
        np.testing.assert_array_equal(trials.trial, np.arange(len(trials)))
        for part in ("trial", "world", "score"):
            np.testing.assert_array_equal(getattr(trials, part), getattr(second[name], part))
        for column in trials.columns:
            np.testing.assert_array_equal(trials.columns[column], second[name].columns[column])


def command(config_path, store, *, workers):
    return [
        sys.executable, "-m", "coalmine", "audit", str(config_path), "--store", str(store), "--workers", str(workers),
        "--json",
    ]  # fmt: skip


def test_twenty_kills_then_resume_gives_the_scores_of_an_unbroken_run(written, tmp_path):
    path = written(steps=250, trials=320)
    driver = Path(__file__).with_name("audit_kills.py")
    broken = subprocess.run(
        [sys.executable, str(driver), str(path), str(tmp_path / "broken.db"), "20", "7"],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert broken.returncode == OUTCOME, broken.stderr
    assert int(broken.stdout) >= 3  # on a very fast machine the later ones meet an audit that is complete
    audit(config.load(path), store=tmp_path / "whole.db", execution=Execution(workers=1))
    assert_same(stored(tmp_path / "broken.db"), stored(tmp_path / "whole.db"))


def children(session):
    """Living processes of a session: workers have process groups of their own within it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to look for orphans")
def test_killing_the_parent_alone_leaves_no_orphans_and_loses_nothing(written, tmp_path):
    """Only the parent is killed: its two workers must end by themselves, and the next run goes on."""
    path = written(steps=1000, trials=160)
    rng = random.Random(3)
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(path, tmp_path / "broken.db", workers=2), start_new_session=True, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while len(children(process.pid)) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 2.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 30
        while children(process.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert children(process.pid) == []
    audit(config.load(path), store=tmp_path / "broken.db", execution=Execution(workers=1))
    audit(config.load(path), store=tmp_path / "whole.db", execution=Execution(workers=1))
    assert_same(stored(tmp_path / "broken.db"), stored(tmp_path / "whole.db"))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs process groups")
@pytest.mark.parametrize("after", [0.0, 1.0])
def test_ctrl_c_ends_all_processes_with_one_line(after, written, tmp_path):
    """A terminal sends the interrupt to the workers too, also while they still start: they show no traceback."""
    process = subprocess.Popen(
        command(written(steps=1000, trials=1600), tmp_path / "broken.db", workers=2), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(children(process.pid)) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert (
        err.strip()
        == "coalmine audit: stopped by the user; finished trials are stored: run the same command again to go on"
    )


def test_two_processes_on_one_store_share_the_work(written, tmp_path):
    path = written(steps=250, trials=160)
    both = [
        subprocess.Popen(
            command(path, tmp_path / "shared.db", workers=1), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    printed = []
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == OUTCOME, err
        printed.append(out)
    assert printed[0] == printed[1]
    audit(config.load(path), store=tmp_path / "whole.db", execution=Execution(workers=1))
    assert_same(stored(tmp_path / "shared.db"), stored(tmp_path / "whole.db"))
