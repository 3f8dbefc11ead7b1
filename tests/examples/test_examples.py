"""The examples run as they stand in the documentation, and give the verdict that they promise.

Seeds are fixed (see ``fixed_seeds``): every verdict here is the same on every run.
"""

import dataclasses
import runpy
import sys
from pathlib import Path

import pytest

from coalmine.cli import main
from coalmine.integrations import identity

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def fixed_seeds(monkeypatch, tmp_path):
    """A trial's seed depends on the text of the functions and on versions; here on the names alone."""
    real = identity.followed

    def by_name(name, function, **options):
        found = real(name, function, **options)
        return dataclasses.replace(found, identity={"function": identity.label(function)})

    monkeypatch.setattr(identity, "followed", by_name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    yield
    for name, module in list(sys.modules.items()):  # a page of the documentation has a module of the same name
        if str(getattr(module, "__file__", "")).startswith(str(EXAMPLES)):
            del sys.modules[name]


def test_the_ten_lines(monkeypatch):
    text = (EXAMPLES / "own_training.py").read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", '"""'))]
    assert len(code) == 13
    assert text.partition('"""\n\n')[2].strip() in (EXAMPLES.parent / "docs" / "own-training.md").read_text()
    space = runpy.run_path(str(EXAMPLES / "own_training.py"))
    result = space["coalmine"].audit_function(
        space["train"], space["score"], worlds=space["worlds"], claim_dpsgd=space["claim"],
        control=space["half_the_noise"], store="trials.db",
    )  # fmt: skip
    assert str(result.verdict) == "consistent", result.in_words()
    assert 0.1 < result.strongest.bound.epsilon < 2.0


def test_the_test_in_the_documentation_passes_and_can_fail(tmp_path, monkeypatch):
    blocks = (EXAMPLES.parent / "docs" / "own-training.md").read_text().split("```python\n")[1:]
    code = next(block for block in blocks if "def test_" in block).partition("```")[0]
    space = {}
    exec(compile(code, "documentation", "exec"), space)
    space["test_our_training_is_as_private_as_we_say"](tmp_path)
    space["train"] = lambda dataset, seed: dataset.sum()  # somebody forgot the noise
    with pytest.raises(AssertionError, match=r"Refuted at 99\.9% confidence: the claim of DP-SGD"):
        space["test_our_training_is_as_private_as_we_say"](tmp_path)


def test_the_ten_lines_from_the_command_line(capsys):
    arguments = ["--train", "own_training:train", "--score", "own_training:score", "--workers", "1"]
    arguments += ["--claim-dpsgd", "1,2,1", "--trials", "400", "--store", "trials.db"]
    assert main(["audit", *arguments, "--control-train", "own_training:half_the_noise"]) == 0
    assert "Consistent" in capsys.readouterr().out
    assert main(["audit", *arguments]) == 3  # the same without a control
    assert "no control was played" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("train", "code"), [("train", 0), ("train_with_half_the_noise", 1)])
def test_opacus_with_right_and_with_half_the_noise(capsys, train, code):
    pytest.importorskip("opacus")
    arguments = ["--train", f"opacus_training:{train}", "--score", "opacus_training:score", "--workers", "1"]
    arguments += ["--control-train", "opacus_training:train_with_half_the_noise"]
    found = main(["audit", *arguments, "--claim-dpsgd", "0.5,1.0,4", "--trials", "320", "--store", "trials.db"])
    shown = " ".join(capsys.readouterr().out.split())
    assert found == code, shown
    claim = "the claim of DP-SGD with sampling rate 0.5, noise multiplier 1 and 4 steps"
    assert shown.startswith("Refuted at 99% confidence: " if code else "Consistent: nothing here contradicts ")
    assert claim in shown


def test_the_opacus_example_says_which_dpsgd_it_was():
    pytest.importorskip("opacus")
    import opacus_training

    worlds = opacus_training.worlds()
    for dataset in (worlds.world0, worlds.world1):
        _, mechanism = opacus_training.fit(dataset, seed=1, noise_multiplier=1.0)
        assert (mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps) == (0.5, 1.0, 4)


def test_ready_parts_find_released_statistics_and_nothing_else():
    # Seeds are fixed. The statistics of both worlds are constants, so that score alone refutes in any audit.
    import ready_parts

    right = ready_parts.audit(ready_parts.train, ready_parts.make_model, trials=120)
    assert str(right.verdict) != "refuted", right.in_words()
    wrong = ready_parts.audit(ready_parts.train_normalized, ready_parts.make_normalized, trials=120)
    assert str(wrong.verdict) == "refuted"
    assert "score=buffers" in wrong.in_words()
