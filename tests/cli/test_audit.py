"""coalmine audit: what it prints, its exit codes, and how it refuses bad input."""

import os
import re
import subprocess
import sys

import pytest
from cli_runner import assert_refused, run

from coalmine.cli import main
from coalmine.data import files

TINY = """
[data]
name = "synthetic"
rows = 60
[model]
kind = "logistic"
[training]
steps = 10
sampling = "full"
noise_multiplier = 0.1
learning_rate = 1.0
initialization = 0.0
[audit]
trials = 64
[[adversary]]
name = "membership"
[[adversary]]
name = "clipbkd"
copies = 1
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every command runs in a folder of its own, on a terminal of 80 columns, without data files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("COALMINE_DATA", raising=False)
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path


TINY_RUN = "audit tiny.toml --workers 1"


def test_json_has_the_promised_keys_and_nothing_else_is_printed(capsys):
    done = run(capsys, f"{TINY_RUN} --json")
    assert (done.code, done.err) == (3, "")
    result = done.json
    for key in ("guarantee", "heuristic", "adversaries", "belief", "advantage", "verdict", "claim", "accuracy"):
        assert key in result
    for one in result["adversaries"]:
        for key in ("name", "view", "epsilon_lower", "method", "confidence", "trials", "ceiling"):
            assert key in one
        assert one["view"] == "black_box"
        assert one["trials"] == 64
        assert 0.0 <= one["epsilon_lower"] <= one["ceiling"]
        assert one["confidence"] == pytest.approx(0.995)
    assert [one["name"] for one in result["adversaries"]] == ["membership", "clipbkd"]
    assert result["verdict"]["outcome"] == "inconclusive"  # with noise 0.1 nothing much is promised
    assert result["verdict"]["ceiling"] == max(one["ceiling"] for one in result["adversaries"])
    assert result["claim"]["epsilon"] == result["guarantee"]["epsilon"]
    assert 0.5 <= result["belief"]["evidence"] <= result["belief"]["guarantee"] <= 1.0
    assert 0.0 < result["advantage"]["guarantee"] <= 1.0
    assert result["guarantee"]["epsilon"] > result["adversaries"][1]["epsilon_lower"] > 0.0


def test_the_table_and_the_sentences(capsys, folder):
    done = run(capsys, TINY_RUN)
    assert (done.code, done.err) == (3, "")
    text = " ".join(done.out.split())
    for words in (
        "DP-SGD on synthetic (60 rows, 42 parameters): 10 steps", "Mean test accuracy", "membership", "black box",
        "proved", "heuristic", "guarantee", "clipbkd (copies=1)", "For one person:", "sure",
        "Inconclusive: this audit says nothing about the guarantee", "no real people",
    ):  # fmt: skip
        assert words in text
    assert max(len(line) for line in done.out.splitlines()) <= 80
    assert (folder / "coalmine.db").exists()


def test_the_second_time_it_only_reads(capsys, monkeypatch):
    from coalmine.game.built_in import BuiltInTask

    first = run(capsys, f"{TINY_RUN} --json")
    monkeypatch.setattr(BuiltInTask, "play", None)
    assert run(capsys, f"{TINY_RUN} --json").out == first.out


def test_a_claim_below_the_evidence_is_refuted_with_exit_code_1(capsys):
    done = run(capsys, f"{TINY_RUN} --claim-epsilon 0.05")
    assert done.code == 1
    assert "Refuted at 99% confidence: the claim ε = 0.05 is false" in " ".join(done.out.split())
    again = run(capsys, f"{TINY_RUN} --claim-epsilon 0.05 --json")
    assert (again.code, again.json["verdict"]["outcome"], again.json["claim"]["epsilon"]) == (1, "refuted", 0.05)


def test_a_claim_that_nothing_could_refute_ends_with_exit_code_3(capsys):
    held = run(capsys, f"{TINY_RUN} --claim-epsilon 50 --json")
    assert (held.code, held.json["verdict"]["outcome"]) == (3, "inconclusive")
    assert held.json["verdict"]["ceiling"] < 50


@pytest.fixture
def worst_case(folder):
    """One step with noise 1 and the best attack there is, whose scores cost no training."""
    text = TINY.replace("steps = 10", "steps = 1").replace("noise_multiplier = 0.1", "noise_multiplier = 1.0")
    head, _, _ = text.partition("[[adversary]]")
    (folder / "worst.toml").write_text(head + '[[adversary]]\nname = "malicious-dataset"\n')
    return "audit worst.toml --workers 1 --trials 1000"


def test_a_right_training_under_the_best_attack_ends_with_exit_code_0(capsys, worst_case):
    done = run(capsys, worst_case)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert text.startswith("Consistent: nothing here contradicts the guarantee ε ≤ 4.38")
    assert "would have been refuted with probability" in text


def test_the_control_on_request_and_not(capsys, worst_case):
    for option, expected in (("", True), ("--control", True), ("--no-control", None)):
        done = run(capsys, f"{worst_case} {option} --json")
        assert done.code == 0
        assert done.json["adversaries"][0]["judgement"]["control"] is expected
    listed = run(capsys, "runs list --json").json["runs"]
    assert [one["control"] for one in listed] == [False, True]


def test_few_trials_end_with_exit_code_3_and_say_how_many_would_do(capsys, worst_case):
    """The default audit: six adversaries share the level, and sixteen trials say nothing."""
    for line in (
        "audit --trials 16 --workers 1 --set training.epochs=1",
        f"{worst_case} --claim-epsilon 4 --trials 64",
    ):
        done = run(capsys, line)
        assert done.code == 3
        text = " ".join(done.out.split())
        assert text.startswith("Inconclusive: ")
        assert re.search(r"about [\d,]+ trials would do", text)


def test_values_are_replaced_from_the_command_line(capsys):
    done = run(
        capsys,
        f"{TINY_RUN} --json --trials 48 --set training.clip=2 --set training.noise_multiplier=3 --set audit.seed=5",
    )
    assert done.err == ""
    assert done.json["subject"]["details"]["clipping norm"] == 2.0
    assert done.json["claim"]["mechanism"]["noise_multiplier"] == 3.0
    assert done.json["config"]["audit"]["seed"] == 5
    assert [one["trials"] for one in done.json["adversaries"]] == [48, 48]


def test_without_an_argument_it_audits_digits(capsys):
    done = run(capsys, "audit --trials 16 --workers 1 --json --set training.epochs=1 --store here.db")
    assert done.code == 3
    assert done.json["config"]["data"]["name"] == "digits"
    assert [(one["name"], one["trials"]) for one in done.json["adversaries"]] == [
        (name, 16)
        for name in (
            "api",
            "crafted-row",
            "crafted-row-steps",
            "adaptive-row",
            "crafted-gradient",
            "malicious-dataset",
        )
    ]
    assert done.json["guarantee"]["epsilon"] == pytest.approx(4.0, abs=0.01)


def test_no_noise_at_all(capsys):
    done = run(capsys, f"{TINY_RUN} --set training.noise_multiplier=0")
    assert done.code == 3
    assert "∞" in done.out
    assert "without noise nothing is promised, so there is no claim to refute" in " ".join(done.out.split())


def test_diverging_trainings_are_told(capsys):
    line = f"{TINY_RUN} --set model.kind=mlp --set training.learning_rate=1e6 --set training.regularizer=1e6"
    assert_refused(run(capsys, line), "every training of membership failed", "not finite")
    shown = run(capsys, "runs list")
    assert "64 failed" in " ".join(shown.out.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("audit nowhere.toml", ["nowhere.toml", "cannot be read"]),
        ("audit .", ["cannot be read"]),
        ("audit training.steps=3", ["to replace a value of the config: --set 'training.steps=3'"]),
        ("audit --preset nothing", ["--preset = 'nothing' is not known", "default, jagielski-2020"]),
        ("audit tiny.toml --preset default", ["not allowed beside a file"]),
        ("audit tiny.toml --set training.stepz=4", ["did you mean 'steps'?"]),
        ("audit tiny.toml --set nonsense", ["set = 'nonsense'", "section.key=value"]),
        ("audit tiny.toml --set training.clip=nan", ["training.clip = nan"]),
        ("audit tiny.toml --set training.clip=-1", ["training.clip = -1"]),
        ("audit tiny.toml --set training.steps=many", ["training.steps = 'many'"]),
        ("audit tiny.toml --set data.name=digit", ["digit", "did you mean 'digits'?"]),
        ("audit tiny.toml --set data.rows=100000", ["100000", "at most"]),
        ("audit tiny.toml --set training.sampling=poisson --set training.batch_size=61", ["batch_size = 61", "60"]),
        ("audit tiny.toml --set nonsense", ["--set = 'nonsense'", "section.key=value"]),
        ("audit tiny.toml --trials 2", ["audit.trials = 2"]),
        ("audit tiny.toml --trials many", ["--trials = 'many'", "a whole number"]),
        ("audit tiny.toml --claim-epsilon nan", ["claim_epsilon = nan"]),
        ("audit tiny.toml --claim-epsilon -1", ["claim_epsilon = -1.0"]),
        ("audit tiny.toml --device tpu", ["--device = 'tpu'", "'cpu', 'cuda', one GPU"]),
        ("audit tiny.toml --workers -1", ["--workers = -1"]),
        ("audit tiny.toml --store .", ["."]),
        ("audit tiny.toml --store nowhere/at/all.db", ["nowhere/at"]),
        ("audit tiny.toml --nonsense", ["--nonsense"]),
        ("audit tiny.toml more.toml", ["more.toml"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line, words, capsys):
    assert_refused(run(capsys, line), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data", ["is not TOML"]),
        (TINY.replace('"clipbkd"', '"clipbdk"'), ["clipbdk", "did you mean 'clipbkd'?"]),
        (TINY.replace("copies = 1", "copis = 1"), ["copis", "did you mean 'copies'?"]),
        (TINY.replace("copies = 1", "copies = -1"), ["copies = -1"]),
        (TINY.replace('"clipbkd"', '"backdoor"'), ["backdoor marks pictures"]),
        (TINY.replace("steps = 10", "steps = 10\nepochs = 2"), ["one of steps and epochs", "both"]),
        (TINY.replace("[model]", "[modle]"), ["modle", "did you mean 'model'?"]),
        (TINY.replace('kind = "logistic"', 'kind = "cnn-nasr-2021"'), ["needs pictures"]),
        (TINY.replace('kind = "logistic"', "kind = 3"), ["model.kind = 3"]),
    ],
)
def test_bad_files(text, words, capsys, folder):
    (folder / "bad.toml").write_text(text)
    assert_refused(run(capsys, "audit bad.toml --workers 1"), *words)


def test_bad_adversaries_are_found_before_anything_is_trained(capsys, folder):
    (folder / "bad.toml").write_text(TINY.replace('"clipbkd"', '"clipbdk"'))
    assert_refused(run(capsys, "audit bad.toml --workers 1"), "clipbdk")
    assert run(capsys, "runs list --json").code == 2  # not even a store was made


def test_a_gpu_that_is_not_there(capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert_refused(run(capsys, "audit tiny.toml --device cuda"), "--device = 'cuda'", "no CUDA device")


def test_a_store_that_is_none(capsys, folder):
    (folder / "bad.db").write_bytes(b"this is not a data base at all" * 100)
    before = (folder / "bad.db").read_bytes()
    assert_refused(run(capsys, "audit tiny.toml --store bad.db"), "bad.db")
    assert (folder / "bad.db").read_bytes() == before


def test_a_store_of_a_newer_version(capsys, folder):
    import sqlite3

    assert run(capsys, f"{TINY_RUN} --json").code == 3
    with sqlite3.connect(folder / "coalmine.db") as database:
        database.execute("PRAGMA user_version = 999")
    assert_refused(run(capsys, TINY_RUN), "coalmine.db", "newer")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written(capsys, folder):
    (folder / "locked").mkdir(mode=0o500)
    assert_refused(run(capsys, "audit tiny.toml --store locked/a.db"), "locked/a.db")


def test_data_with_a_wrong_checksum(capsys, folder):
    data = folder / "data"
    data.mkdir()
    for name in files_of("fashion-mnist"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(b"not what it should be")
    outcome = run(capsys, "audit --preset jagielski-2020 --data-dir data")
    assert_refused(outcome, "data")
    assert re.search("checksum|SHA-256|sha256", outcome.err)


def files_of(name):
    from coalmine.data.registry import _entry

    return [f"{source.folder}/{one.name}".lstrip("/") for source in _entry(name).sources for one in source.files]


def test_the_config_is_data_and_never_executed(capsys, folder):
    (folder / "trap.py").write_text("raise SystemExit('executed')")
    (folder / "bad.toml").write_text(TINY.replace('"synthetic"', '"trap:load"'))
    assert_refused(run(capsys, "audit bad.toml"), "trap:load")


def test_progress_is_drawn_on_a_terminal_alone(folder):
    """On a terminal there is a bar with the bound so far; stdout has the result alone, and the process ends with 1."""
    import pty

    main_end, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "coalmine", "audit", "tiny.toml", "--trials=128", "--workers=1", "--claim-epsilon=0.05"],
        stdout=subprocess.PIPE, stderr=terminal, cwd=folder, env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )  # fmt: skip
    os.close(terminal)
    drawn = b""
    while True:
        try:
            part = os.read(main_end, 65536)
        except OSError:
            break
        if not part:
            break
        drawn += part
    os.close(main_end)
    out = process.communicate()[0].decode()
    assert process.returncode == 1
    text = drawn.decode()
    assert "128/128" in text
    assert "so far" in text
    assert "so far" not in out
    assert "Refuted" in out


def test_help_names_the_exit_codes(capsys):
    assert main(["audit", "--help"]) == 0
    out = capsys.readouterr().out
    for words in ("--claim-epsilon", "--store", "refuted", "inconclusive", "--control", "--set"):
        assert words in out


def test_a_name_or_a_tag_that_cannot_be_kept_is_refused_by_its_option(capsys):
    assert_refused(run(capsys, f"audit --name {130 * 'x'}"), "--name = ", "(130 characters)")
    assert_refused(run(capsys, f"audit --tag {200 * 'x'}"), "--tag = ", "(200 characters)")
