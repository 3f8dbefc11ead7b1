"""``coalmine audit --train``: exit codes, words, and the same trials as from Python."""

import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import coalmine
from coalmine.cli import main
from coalmine.store import Store

HERE = Path(__file__).parent


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments, workers="1"):
        fixed = ["--store", str(tmp_path / "trials.db")] + (["--workers", workers] if workers else [])
        if workers and "--timeout" not in arguments and "resume" not in arguments:
            fixed += ["--engine", "inline"]  # starting a process takes a second
        code = main([*arguments, *fixed])
        shown = capsys.readouterr()
        return code, shown.out, " ".join(shown.err.split())

    return call


OWN = ("audit", "--train", "own_functions:train", "--score", "own_functions:score", "--trials", "64")
RIGHT = (
    "audit", "--train", "own_functions:right", "--score", "own_functions:score", "--claim-dpsgd", "1,1,1", "--trials",
    "320",
)  # fmt: skip


def test_a_refuted_claim_ends_with_one(run):
    code, out, _ = run(*OWN, "--claim-epsilon", "1")
    assert code == 1
    assert "Your own training own_functions:train, scored by own_functions:score." in out
    assert "Refuted at 99% confidence: the claim ε = 1 is false" in " ".join(out.split())


def test_a_claim_that_stands_ends_with_zero_and_json_is_whole(run, fixed_seeds):
    code, out, _ = run(*RIGHT, "--control-train", "own_functions:half_noise", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["verdict"]["outcome"] == "consistent"
    assert found["verdict"]["power"]["probability"] >= 0.8
    assert found["claim"]["kind"] == "mechanism"
    assert found["config"]["worlds"] == "own_functions:worlds"


def test_a_claim_that_nothing_could_refute_ends_with_three(run):
    code, out, _ = run(*OWN, "--claim-epsilon", "100", "--json")
    found = json.loads(out)
    assert code == 3
    assert (found["verdict"]["outcome"], found["claim"]["epsilon"]) == ("inconclusive", 100.0)
    assert found["guarantee"] is None


def test_a_claimed_dpsgd(run):
    code, out, _ = run(*OWN, "--claim-dpsgd", "1,1,1")
    assert code == 1
    assert "the claim of DP-SGD with sampling rate 1, noise multiplier 1 and 1 step" in " ".join(out.split())


def test_a_control_from_the_command_line(run, fixed_seeds):
    code, out, _ = run(*RIGHT, "--control-train", "own_functions:half_noise", "--json")
    found = json.loads(out)
    assert (code, found["verdict"]["outcome"]) == (0, "consistent")
    assert found["adversaries"][0]["judgement"]["control"] is True
    code, out, _ = run(*RIGHT, "--control-train", "own_functions:right", "--json")
    found = json.loads(out)
    assert (code, found["verdict"]["outcome"]) == (3, "inconclusive")
    assert found["adversaries"][0]["judgement"]["control"] is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import sys\nsys.exit(0)\n", "cannot be imported (SystemExit: 0)"),
        ("raise RuntimeError('no')\n", "cannot be imported (RuntimeError: no)"),
        ("import sys\ndef worlds():\n    sys.exit(0)\n", "worlds raised SystemExit: 0"),
        ("import sys\ndef train(dataset, seed):\n    sys.exit(0)\n", "train raised SystemExit: 0"),
    ],
)
def test_code_that_ends_python_is_not_taken_for_a_verdict(run, tmp_path, monkeypatch, text, words):
    """Exit code 0 would mean consistent, and 1 refuted."""
    name = tmp_path.name
    (tmp_path / f"{name}.py").write_text(f"from own_functions import *\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = run(
        "audit", "--train", f"{name}:train", "--score", f"{name}:score", "--claim-epsilon", "1", "--trials", "16"
    )
    assert (code, out) == (2, "")
    assert words in err


def test_when_every_training_of_one_world_fails_that_is_the_leak(run):
    code, out, _ = run(
        "audit", "--train", "own_functions:train_refuses_the_canary", "--score", "own_functions:score", "--trials",
        "64", "--claim-epsilon", "1",
    )  # fmt: skip
    assert code == 1
    assert "0 of 32 trainings failed in world 0 and 32 of 32 in world 1" in " ".join(out.split())


def test_an_engine_that_is_not_installed_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(HERE)
    monkeypatch.setitem(sys.modules, "ray", None)
    code = main([*OWN, "--claim-epsilon", "1", "--engine", "ray", "--store", str(tmp_path / "trials.db")])
    assert code == 2
    assert "pip install 'coalmine[ray]'" in capsys.readouterr().err


def test_runs_and_report_know_own_trainings(run, tmp_path):
    run(*OWN, "--claim-epsilon", "1")
    _, out, _ = run("runs", "list", "--json", workers="")
    [found] = json.loads(out)["runs"]
    code, _, err = run("runs", "resume", found["run"][:8])
    assert code == 2
    assert "training of your own (own_functions:train)" in err
    if not all(find_spec(name) for name in ("altair", "vl_convert", "jinja2")):
        pytest.skip("the packages of the report are not installed")
    page = tmp_path / "page.html"
    assert run("report", found["run"][:8], "-o", str(page), workers="")[0] == 0
    assert "own_functions:train" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--train", "own_functions:train"), "--score is missing: expected module:function"),
        (("--score", "own_functions:score"), "--train is missing: expected module:function"),
        (("--train", "own_functions.train", "--score", "own_functions:score"), "expected module:function, such as"),
        (("--train", "no_such:train", "--score", "own_functions:score"), "cannot be imported (ModuleNotFoundError"),
        (("--train", "own_functions:nope", "--score", "own_functions:score"), "module own_functions has no nope"),
        (("--train", "own_functions:Opaque", "--score", "own_functions:score"), "expected a function"),
        (("--train", "own_functions:train", "--score", "own_functions:score"), "--claim-epsilon is missing"),
        ((*OWN[1:], "--claim-epsilon", "1", "--worlds", "own_functions:wrong_worlds"), "worlds gave 3 parts"),
        ((*OWN[1:], "--claim-epsilon", "1", "--timeout", "0"), "--timeout = 0.0 is not allowed"),
        ((*OWN[1:], "--claim-dpsgd", "1,1"), "--claim-dpsgd = '1,1' is not allowed"),
        ((*OWN[1:], "--claim-dpsgd", "1,-1,1"), "noise_multiplier = -1.0 is not allowed"),
        ((*OWN[1:], "--claim-epsilon", "1", "--set", "training.clip=2"), "is not allowed with train"),
        ((*OWN[1:], "--claim-epsilon", "1", "--preset", "default"), "not allowed beside a config file or a preset"),
        (("--timeout", "3"), "--timeout is not allowed without train"),
        (("--control-train", "own_functions:half_noise"), "--control-train is not allowed without train"),
        ((*OWN[1:], "--claim-epsilon", "1", "--control"), "--control is not allowed with train"),
        (
            ("--train", "own_functions:train_raises", "--score", "own_functions:score", "--claim-epsilon", "1"),
            "train raised ValueError: boom (own_functions.py, line",
        ),
        ((*OWN[1:3], "--score", "own_functions:score_nan", "--claim-epsilon", "1"), "score gave nan"),
        ((*OWN[1:3], "--score", "own_functions:score_two", "--claim-epsilon", "1"), "gave 2 numbers"),
    ],
)
def test_bad_input_ends_with_two_and_one_line(run, arguments, words):
    code, out, err = run("audit", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


def test_trainings_of_many_seeds_threads_and_what_they_depend_on(run, tmp_path):
    settings = tmp_path / "settings.json"
    settings.write_text("{}")
    many = ("audit", "--train", "own_functions:train_many", "--score", "own_functions:score", "--trials", "64")
    options = ("--claim-epsilon", "1", "--batched", "16", "--threads", "1", "--json")
    named = ("--depends-on", f"settings={settings}", "--depends-on", "release=text:2026.1")
    code, out, _ = run(*many, *options, *named)
    assert code == 1
    before = json.loads(out)
    settings.write_text("[]")
    after = json.loads(run(*many, *options, *named)[1])
    again = json.loads(run(*many, *options, *named)[1])
    runs = [found["adversaries"][0]["run"] for found in (before, after, again)]
    assert runs[0] != runs[1] == runs[2]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--batched", "0"), "batched = 0"),
        (("--threads", "0"), "threads = 0"),
        (("--depends-on", "settings"), "expected name=path or name=text:value"),
        (("--depends-on", "settings=nowhere.json"), "no such file or folder"),
        (("--device", "tpu"), "device = 'tpu'"),
        (("--device", "cuda:1"), "'cpu' or 'cuda' with --engine = 'inline'"),
    ],
)
def test_wrong_options_of_own_trainings_are_named(run, options, words):
    code, _, err = run(*OWN, "--claim-epsilon", "1", *options)
    assert code == 2
    assert words in err


def test_options_of_own_trainings_need_one(run):
    code, _, err = run("audit", "--batched", "8")
    assert code == 2
    assert "batched is not allowed without train" in err


def test_each_of_several_gpus_has_a_process_that_sees_it_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,9")
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    own = importlib.import_module("own_functions")
    with Store.opened(tmp_path / "trials.db") as store:
        result = coalmine.audit_function(
            own.gpu,
            own.score,
            worlds=own.worlds,
            claim_epsilon=1.0,
            trials=64,
            store=store,
            execution=coalmine.Execution(device="cuda:1,cuda:2"),
            depends_on={"environment": "the GPUs"},
        )
        scores = store.scores(result.strongest.run).score
    assert set(np.unique(scores)) == {3.0, 9.0}
