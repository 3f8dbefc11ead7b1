"""What a user's training does to its process stays there: ends, prints, threads, children, words, signals."""

import functools
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import own_functions as own
import psutil
import pytest

from coalmine import audit_function
from coalmine.auditing.config import Execution
from coalmine.cli import main
from coalmine.store import Store

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="these trainings fork, and send signals")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """The command with one worker; what is below this process afterwards is an error."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = {one.pid for one in psutil.Process().children(recursive=True)}

    def call(train, *arguments, score="score", trials="32", workers="1"):
        code = main(
            [
                "audit", "--train", f"own_functions:{train}", "--score", f"own_functions:{score}", "--trials", trials,
                "--claim-epsilon", "1", "--store", str(tmp_path / "trials.db"), "--workers", workers, *arguments,
            ]
        )  # fmt: skip
        shown = capfd.readouterr()
        return code, shown.out, " ".join(shown.err.split())

    yield call
    assert [path.name for path in folder.iterdir() if path.name.startswith("coalmine-")] == []
    deadline = time.monotonic() + 10
    while _left(before) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert _left(before) == []


def _left(before):
    """Processes that a run has left behind, loky's own helper apart."""
    found = []
    for one in psutil.process_iter(["pid", "ppid", "cmdline", "status"]):
        words = " ".join(one.info["cmdline"] or [])
        if "loky" in words and "popen_loky" in words and one.info["status"] != psutil.STATUS_ZOMBIE:
            ours = one.info["ppid"] in (os.getpid(), 1)
            if ours and one.pid not in before:
                found.append((one.pid, words))
    return found


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ("train_ends_well", "a worker process ended without a word"),
        ("train_raises_beyond", "train raised StrangeError"),
        ("train_raises_an_interrupt", "train raised KeyboardInterrupt"),
        ("train_leaves_a_child_and_ends", "a worker process ended without a word"),
    ],
)
def test_no_end_of_a_training_is_taken_for_a_verdict(run, train, words):
    """One worker: 0 would mean consistent, 1 refuted, 130 that the user has stopped it."""
    code, out, err = run(train)
    assert (code, out) == (2, "")
    assert words in err


def test_what_a_training_prints_goes_to_stderr(run):
    code, out, err = run("train_prints", "--json")
    assert (code, json.loads(out)["verdict"]["outcome"]) == (1, "refuted")
    assert "loss: 0.1" in err
    assert "from below" in err


@pytest.mark.parametrize("train", ["train_leaves_a_thread", "train_leaves_a_child", "train_comes_back_twice"])
def test_what_a_training_leaves_behind_ends_with_it(run, train):
    code, out, _ = run(train, "--json", trials="16")
    assert code in (1, 3)
    assert json.loads(out)["adversaries"][0]["trials"] == 16


def stored_failures(tmp_path):
    with Store.open(tmp_path / "trials.db") as store:
        return [one for made in store.runs() for one in store.failures(made.fingerprint)]


def play(tmp_path, train, score=own.score, **options):
    options = {"trials": 64, "claim_epsilon": 1.0, "execution": Execution(engine="inline"), **options}
    return audit_function(train, score, worlds=own.worlds, store=tmp_path / "trials.db", **options)


def test_an_exception_without_words_fails_its_trial_alone(tmp_path):
    result = play(tmp_path, own.train_raises_mute_sometimes, messages=True)
    assert 0 < sum(result.strongest.failed) < 64
    assert "MuteError: <MuteError whose text raises RuntimeError>" in stored_failures(tmp_path)[0].reason


def test_a_score_without_words_is_told(run):
    code, _, err = run("train", score="score_mute")
    assert code == 2
    assert "gave <MuteModel whose text raises RuntimeError> for trial 0: expected one number" in err


def test_what_exceptions_say_and_bound_texts_are_kept_only_on_request(tmp_path):
    train = functools.partial(own.train_quotes_its_data, note=own.SECRET)
    result = play(tmp_path, train)
    assert sum(result.strongest.failed) > 0
    assert own.SECRET not in result.to_json()
    names = [tmp_path / "trials.db", tmp_path / "trials.db-wal"]
    assert not any(own.SECRET.encode() in path.read_bytes() for path in names if path.exists())
    assert result.subject.name == "own_functions:train_quotes_its_data(note=<str>)"
    asked = play(tmp_path, train, messages=True)
    assert asked.strongest.run == result.strongest.run  # it is no part of what is run
    assert own.SECRET in asked.subject.name
    asked = play(tmp_path, train, messages=True, seed=1)
    assert f"bad row: {own.SECRET}" in stored_failures(tmp_path)[-1].reason


def test_only_the_owner_may_read_a_store(tmp_path):
    before = os.umask(0)
    try:
        with Store.open(tmp_path / "a.db") as store:
            store.register("ab" * 16, {})
            modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted(tmp_path.iterdir())]
            assert modes == [0o600] * len(modes)
            assert len(modes) >= 2  # the log too
    finally:
        os.umask(before)


def test_torch_loaded_by_the_first_training_is_seeded_all_the_same(tmp_path):
    """Its global generator starts from a constant: the first trials of two processes would be one and the same."""
    (tmp_path / "own.egg-info").mkdir()  # as pip install --editable leaves it: torch looks for plugins there
    (tmp_path / "own.egg-info" / "entry_points.txt").write_text("")
    (tmp_path / "late_torch.py").write_text(
        "import numpy as np\n"
        "def train(dataset, seed):\n    import torch\n    return float(dataset.sum() + torch.randn(()))\n"
        "def score(model):\n    return model\n"
        "worlds = np.zeros(3), np.zeros(4)\n"
    )
    text = (
        "import sys, coalmine, late_torch as own\n"
        "from coalmine.auditing.config import Execution\n"
        "assert 'torch' not in sys.modules\n"
        "result = coalmine.audit_function(own.train, own.score, worlds=own.worlds, claim_epsilon=1.0, trials=16,\n"
        "                                 store=sys.argv[1], execution=Execution(engine='inline'))\n"
        "if len(sys.argv) > 2:\n"
        "    import torch\n"
        "    again = coalmine.audit_function(own.train, own.score, worlds=own.worlds, claim_epsilon=1.0, trials=16,\n"
        "                                    store=sys.argv[2], execution=Execution(engine='inline'))\n"
        "    assert (result.strongest.scores.world0 == again.strongest.scores.world0).all()\n"
        "print([*result.strongest.scores.world0.tolist(), *result.strongest.scores.world1.tolist()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, "first.db", "second.db"], cwd=tmp_path, capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(np.unique(json.loads(done.stdout))) == 16


# ---- signals ----------------------------------------------------------------------------------------------------


def started(tmp_path, *, ignore=None):
    """The command in a process of its own, at work."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    process = subprocess.Popen(
        [
            sys.executable, "-m", "coalmine", "audit", "--train", "own_functions:train_slowly", "--score",
            "own_functions:score", "--claim-epsilon", "1", "--trials", "100000", "--store",
            str(tmp_path / "trials.db"), "--workers", "1", "--json", "--timeout", "60",
        ],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: [
            signal.signal(one, signal.SIG_IGN if one is ignore else signal.SIG_DFL)
            for one in (signal.SIGINT, signal.SIGTERM)
        ],
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        if (tmp_path / "trials.db").exists():
            with Store.open(tmp_path / "trials.db") as store:
                if any(one.blocks for one in store.runs()):
                    return process
    raise AssertionError(process.communicate(timeout=5))


def folders(tmp_path):
    return [path.name for path in tmp_path.iterdir() if path.name.startswith("coalmine-")]


def assert_gone(tmp_path, workers):
    """Soon: helpers of loky end when they notice that nobody is left."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and (folders(tmp_path) or any(map(psutil.pid_exists, workers))):
        time.sleep(0.2)
    assert folders(tmp_path) == []
    assert not any(map(psutil.pid_exists, workers))


def test_a_request_to_end_is_like_ctrl_c(tmp_path):
    process = started(tmp_path)
    workers = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
    assert workers
    assert folders(tmp_path)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (143, "")
    assert "asked to end (SIGTERM); finished trials are stored" in err
    assert_gone(tmp_path, workers)


def test_an_interrupt_that_is_ignored_stays_ignored_and_a_kill_leaves_nothing(tmp_path):
    """A job in the background ignores Ctrl-C, its workers too. Then kill -9: workers and folder go all the same."""
    process = started(tmp_path, ignore=signal.SIGINT)
    for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        one.send_signal(signal.SIGINT)
    time.sleep(1.0)
    assert process.poll() is None
    workers = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
    assert len(workers) >= 1
    process.kill()
    process.communicate(timeout=60)
    assert_gone(tmp_path, workers)
