"""coalmine adversaries: the catalogue with its threat models."""

import json
import subprocess
import sys

import pytest
from cli_runner import assert_refused, run

from coalmine.adversaries import catalogue
from coalmine.cli import adversaries
from coalmine.errors import InvalidInputError
from coalmine.records import plain


@pytest.mark.parametrize("columns", [80, 120])
def test_every_adversary_with_its_threat_model(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    done = run(capsys, "adversaries")
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    for name, listed in catalogue().items():
        threat = listed.kind.threat
        for words in (name, threat.summary, threat.access, threat.modification, threat.paper):
            assert words in text
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= columns


def test_json(capsys):
    entries = {one["name"]: one for one in run(capsys, "adversaries --json").json["adversaries"]}
    assert set(entries) == set(catalogue())
    assert entries["clipbkd"]["options"] == {"copies": 1, "norm": None, "world0": "clean"}
    assert {"view", "access", "modification", "dataset", "summary", "paper"} <= set(entries["clipbkd"])


def test_the_file_that_spares_loading_torch_is_what_the_classes_say():
    assert json.dumps(adversaries.own()) == json.dumps(plain(adversaries.listed()))
    assert adversaries._FILE.read_text(encoding="utf-8") == adversaries.as_file()


def test_the_list_comes_at_once_without_torch_numpy_or_another_command():
    code = (
        "import sys; from coalmine.cli import main; main(['adversaries']); print([name for name in ('torch', 'scipy', "
        "'numpy', 'coalmine.adversaries', 'coalmine.cli.audit') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert "malicious-dataset" in done.stdout


def test_it_takes_no_argument(capsys):
    assert_refused(run(capsys, "adversaries clipbkd"), "clipbkd")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("static-poison", "shadows", 10**9),
        ("hidden-state", "simulations", 10**9),
        ("last-iterate-gradient", "coordinate", 1.5),
        ("api", "copies", 2),
    ],
)
def test_options_that_would_fill_the_memory_or_do_not_exist_are_refused(name, option, value):
    from coalmine.adversaries import adversary

    with pytest.raises(InvalidInputError) as caught:
        adversary(name, **{option: value})
    assert option in str(caught.value)
    assert not str(caught.value).endswith("expected one of ")
