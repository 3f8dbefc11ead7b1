"""coalmine runs: list, show, resume, remove."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from cli_runner import assert_refused, run

TINY = """
[data]
name = "synthetic"
rows = 60
[model]
kind = "logistic"
[training]
steps = 4
sample_rate = 0.5
noise_multiplier = 1.0
[audit]
trials = 32
[[adversary]]
name = "membership"
[[adversary]]
name = "clipbkd"
copies = 4
"""


@pytest.fixture(autouse=True)
def audited(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "tiny.toml").write_text(TINY)
    return run(capsys, "audit tiny.toml --workers 1 --json").json


def test_list(capsys):
    done = run(capsys, "runs list")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for words in ("membership on", "clipbkd", "(copies=4)", " 32 ", "nothing", "inconclusive"):
        assert words in text
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_list_names_audits_and_stays_one_table(capsys, audited):
    long = "before-" + 100 * "x"
    run(capsys, f"audit tiny.toml --workers 1 --name {long} --tag nightly --tag {90 * 'y'}")
    done = run(capsys, "runs list")
    assert done.out.count("verdict") == 1  # one head: one table
    assert max(len(line) for line in done.out.splitlines()) <= 80
    text = " ".join(done.out.split())
    assert "before-xxxx" in text
    assert "[nightly]" in text
    (audit,) = {one["audit"] for one in run(capsys, "runs list --json").json["runs"]}
    assert audit[:12] in done.out  # what coalmine report and coalmine bundle are told
    listed = run(capsys, "runs list --json").json["runs"][0]
    assert (listed["name"], listed["tags"]) == (long, ["nightly", 90 * "y"])


def test_an_end_that_was_changed_by_hand_is_not_listed(capsys):
    database = sqlite3.connect("coalmine.db")
    with database:
        (text,) = database.execute("SELECT summary FROM conclusion").fetchone()
        database.execute("UPDATE conclusion SET summary = ?", (text.replace("inconclusive", "consistent"),))
    database.close()
    done = run(capsys, "runs list")
    assert "consistent" not in done.out
    assert "not judged yet" in done.out
    assert [one["verdict"] for one in run(capsys, "runs list --json").json["runs"]] == [None, None]


def test_an_end_of_fewer_trials_is_not_listed(capsys):
    before = run(capsys, "runs list --json").json["runs"]
    database = sqlite3.connect("coalmine.db")
    with database:
        database.execute("DELETE FROM block WHERE run = 1 AND block = 0")
    database.close()
    assert [one["verdict"] for one in before] == ["inconclusive", "inconclusive"]
    assert [one["verdict"] for one in run(capsys, "runs list --json").json["runs"]] == [None, None]


def test_list_json_names_the_runs_of_the_audit(capsys, audited):
    listed = run(capsys, "runs list --json").json["runs"]
    assert [one["run"] for one in listed] == [one["run"] for one in audited["adversaries"]]
    assert listed[1]["adversary"] == {"name": "clipbkd", "copies": 4}
    assert [one["trials"] for one in listed] == [32, 32]


def test_show_takes_the_name_of_an_audit(capsys, audited):
    run(capsys, "audit tiny.toml --workers 1 --name both")
    runs = [one["run"] for one in audited["adversaries"]]
    several = run(capsys, "runs show both")
    assert several.code == 2
    assert all(one[:12] in several.err for one in runs)
    Path("tiny.toml").write_text(TINY.split('[[adversary]]\nname = "clipbkd"')[0])
    run(capsys, "audit tiny.toml --workers 1 --name single")
    assert run(capsys, "runs show single --json").json["run"] == runs[0]


def test_show(capsys, audited):
    name = audited["adversaries"][1]["run"]
    shown = run(capsys, f"runs show {name[:10]}")
    assert shown.code == 0
    for words in (name, "clipbkd (copies=4)", "32 of 32, 0 failed", "noise_multiplier", "cpu float32"):
        assert words in shown.out
    details = run(capsys, f"runs show {name[:10]} --json").json
    assert details["identity"]["training"]["noise_multiplier"] == 1.0
    assert details["failures"] == []


def test_resume_goes_on_with_the_whole_audit(capsys, audited):
    """A run of which half the blocks are lost (as after a crash) is completed, with the scores it had."""
    import sqlite3

    name = audited["adversaries"][0]["run"]
    with sqlite3.connect("coalmine.db") as database:
        assert database.execute("DELETE FROM block WHERE block = 1").rowcount == 2
    assert [one["trials"] for one in run(capsys, "runs list --json").json["runs"]] == [16, 16]
    resumed = run(capsys, f"runs resume {name[:8]} --workers 1 --json")
    assert resumed.code == 3
    assert resumed.json == audited | {"adversaries": resumed.json["adversaries"]}
    for one, before in zip(resumed.json["adversaries"], audited["adversaries"], strict=True):
        assert one["run"] == before["run"]
        assert one["epsilon_lower"] == before["epsilon_lower"]
        assert one["trials"] == 32


def test_an_audit_whose_weights_changed_is_not_resumed(capsys, audited, tmp_path):
    """It would be another audit, begun without a word."""
    from coalmine.auditing import config, setting
    from coalmine.training import parameter_count

    text = TINY.replace("[audit]", 'initialization = { file = "start.npy" }\n[audit]')
    size = parameter_count(setting.prepare(config.load(tmp_path / "tiny.toml")).network)
    (tmp_path / "started.toml").write_text(text)
    np.save("start.npy", np.zeros(size))
    name = run(capsys, "audit started.toml --workers 1 --json").json["adversaries"][0]["run"]
    assert run(capsys, f"runs resume {name[:8]} --workers 1 --json").code == 3
    before = run(capsys, "runs list --json").json
    np.save("start.npy", np.ones(size))
    refused = run(capsys, f"runs resume {name[:8]} --workers 1 --json")
    assert_refused(refused, "cannot go on", "sha256 of the start was", "start anew")
    assert run(capsys, "runs list --json").json == before


def test_remove_takes_one_run_away(capsys, audited):
    name = audited["adversaries"][0]["run"]
    done = run(capsys, f"runs remove {name[:8]} --yes")
    assert done.code == 0
    assert f"Removed run {name[:12]} (32 trials)." in done.out
    assert [one["run"] for one in run(capsys, "runs list --json").json["runs"]] == [audited["adversaries"][1]["run"]]


def test_an_empty_store(capsys):
    from coalmine.store import Store

    Store.open("empty.db").close()
    assert "No runs in empty.db yet" in run(capsys, "runs list --store empty.db").out
    assert run(capsys, "runs list --store empty.db --json").json == {"runs": [], "results": []}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("runs list --store nowhere.db", ["nowhere.db"]),
        ("runs show zzzz", ["zzzz", "first characters of a run's fingerprint"]),
        ("runs show 00000000000000", ["00000000000000", "is no run of this store"]),
        ("runs resume 00000000000000", ["is no run of this store"]),
        ("runs remove 00000000000000 --yes", ["is no run of this store"]),
        ("runs list --store tiny.toml", ["tiny.toml"]),
        ("runs nonsense", ["nonsense"]),
        ("runs show", ["Missing argument 'run'"]),
    ],
)
def test_bad_input(line, words, capsys):
    assert_refused(run(capsys, line), *words)
