"""``coalmine probe``: exit codes, one JSON object, and words for wrong input."""

import re

import pytest
from cli_runner import assert_refused, run

STEPS = """
import dataclasses
import torch
import coalmine


def make(noise):
    weight = torch.zeros(3)

    def step(rows):
        clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + noise * torch.randn(3)) / 8)

    return coalmine.PrivateStep(
        step=step, state={"weight": weight}, batch=torch.eye(3), clip_norm=1.0, noise_multiplier=2.0, divisor=8,
        learning_rate=1.0,
    )


def right():
    return make(2.0)


def half():
    return make(1.0)


def nothing():
    return 5


def quoting():
    made = make(2.0)

    def step(rows):
        if rows.shape[0] and float(rows.abs().max()) > 50:
            raise ValueError("the secret of a row")
        made.step(rows)

    return dataclasses.replace(made, step=step)
"""


@pytest.fixture(autouse=True)
def steps(tmp_path, monkeypatch):
    (tmp_path / "probed_steps.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_a_right_step_ends_with_zero_and_half_the_noise_with_one(capsys):
    assert run(capsys, "probe probed_steps:right").code == 0
    found = run(capsys, "probe probed_steps:half --json")
    assert found.code == 1
    faults = [one["fault"] for part in found.json["measurements"] for one in part["findings"]]
    assert faults == ["noise too small"]


def test_the_report_is_written(capsys, tmp_path):
    found = run(capsys, f"probe probed_steps:half --replays 60 --report {tmp_path / 'page.html'}")
    assert found.code == 1
    assert "Refuted: noise too small" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("probed_steps:nothing", "expected a coalmine.PrivateStep"),
        ("probed_steps:missing", "has no missing"),
        ("probed_steps:right --sample-rate 0.1", "--loader"),
        ("probed_steps:right --level 2", "--level"),
    ],
)
def test_wrong_input_ends_with_two(capsys, line, words):
    assert_refused(run(capsys, f"probe {line}"), words)


def test_a_probe_is_kept_only_if_asked_and_then_found_again(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run(capsys, "probe probed_steps:half --replays 60")
    assert not list(tmp_path.glob("*.db"))
    found = run(capsys, "probe probed_steps:half --replays 60 --store kept.db --name nightly --tag a --tag b")
    assert found.code == 1
    short = re.search(r"Stored: (\w{12}) in kept.db", found.out)[1]
    listed = run(capsys, "runs list --store kept.db")
    for words in (short, "probe:", "nightly", "measures", "noise too", "refuted"):
        assert words in listed.out
    assert max(len(line) for line in listed.out.splitlines()) <= 80
    [one] = run(capsys, "runs list --store kept.db --kind probe --json").json["results"]
    assert (one["name"], one["tags"], one["verdict"]) == ("nightly", ["a", "b"], "refuted")
    assert run(capsys, "runs list --store kept.db --kind one-run --json").json == {"runs": [], "results": []}
    shown = run(capsys, f"runs show {short[:8]} --store kept.db")
    assert "noise too small" in shown.out
    whole = run(capsys, f"runs show {short[:8]} --store kept.db --json").json
    assert whole["report"]["kind"] == "probe"
    assert run(capsys, f"report {short[:8]} --store kept.db -o page.html").code == 0
    assert "Refuted: noise too small" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert_refused(run(capsys, f"runs resume {short[:8]} --store kept.db"), "nothing to resume")
    assert run(capsys, f"runs remove {short[:8]} --yes --store kept.db").code == 0
    assert "No runs in kept.db yet" in run(capsys, "runs list --store kept.db").out


def test_what_may_quote_the_data_is_kept_only_if_asked(capsys, tmp_path):
    found = run(capsys, "probe probed_steps:quoting --replays 60 --store kept.db")
    assert found.code == 1
    assert "the secret of a row" in " ".join(found.out.split())
    stored = b"".join(one.read_bytes() for one in tmp_path.glob("kept.db*"))
    assert b"step fails on a row" in stored
    assert b"secret" not in stored
    assert b"values from" not in stored
    run(capsys, "probe probed_steps:quoting --replays 60 --store told.db --messages")
    assert any(b"the secret of a row" in one.read_bytes() for one in tmp_path.glob("told.db*"))


def test_a_store_that_cannot_be_written_is_refused_before_the_probe(capsys, tmp_path):
    assert_refused(run(capsys, f"probe probed_steps:half --store {tmp_path}"), "this is a folder")
    assert_refused(run(capsys, "probe probed_steps:half --name nightly"), "without --store")
    assert_refused(run(capsys, "probe probed_steps:half --store x.db --name " + 130 * "a"), "1 to 120 characters")


def test_in_python_a_probe_is_kept_too(tmp_path):
    import coalmine
    from coalmine.store import Store, results

    step = coalmine.PrivateStep(**{**vars(__import__("probed_steps").half()), "name": "mine"})
    report = coalmine.probe(step, replays=60, store=tmp_path / "kept.db", tags=["nightly"])
    with Store.open(tmp_path / "kept.db") as store:
        [entry] = results.every(store)
        kept = coalmine.ProbeReport.from_dict(results.read(store, entry.fingerprint).report)
    assert (entry.name, entry.tags) == ("mine", ("nightly",))
    assert kept.verdict == report.verdict
    assert kept.findings == report.findings
