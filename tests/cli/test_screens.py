"""What all commands have in common on a screen: whole summaries, colors, spinners, plain letters, completion."""

import io
import json
import os
import re
import subprocess
import sys
import time

import pytest
import typer
from cli_runner import run

from coalmine import cli
from coalmine.cli import _output


def groups(command=None, path="coalmine"):
    """Every group of commands, with the words that call it."""
    command = command or typer.main.get_command(cli.app)
    found = [(path, command)]
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            found += groups(one, f"{path} {name}")
    return found


@pytest.mark.parametrize("path", [path for path, _ in groups()])
def test_summaries_are_whole_at_80_columns(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, " ".join([*path.split()[1:], "--help"])).out
    assert "..." not in shown.partition("Commands:")[2]
    assert max(len(line) for line in shown.splitlines()) <= 80


def options():
    """Every option of every command."""
    for path, group in groups():
        for name, one in group.commands.items():
            for option in getattr(one, "params", ()):
                yield f"{path} {name}", option


def test_names_have_hyphens_everywhere():
    for path, option in options():
        for text in (*option.opts, *option.secondary_opts, str(option.metavar or "")):
            assert "_" not in text, (path, text)
        assert "add_remove" not in str(getattr(option, "help", "")), path
        assert option.default != "add_remove", path


@pytest.mark.parametrize(
    ("words", "typed", "expected"),
    [
        ("coalmine account --relation", "", ["add-remove", "replace"]),
        ("coalmine audit --engine", "l", ["local"]),
        ("coalmine audit --preset", "d", ["default"]),
        ("coalmine audit --adversary", "malic", ["malicious-dataset"]),
        ("coalmine bound --method", "one", ["one-run", "one-run-fdp", "one-run-dpsgd"]),
        ("coalmine one-run play --kind", "di", ["dirac"]),
        ("coalmine study show", "keinan", ["keinan-2025/several-to-a-coordinate"]),
    ],
)
def test_the_shell_completes_values(words, typed, expected):
    environment = {
        **os.environ,
        "_COALMINE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"{words} {typed}",
        "COMP_CWORD": str(len(words.split())),
    }
    code = "import sys; from coalmine.cli import main; sys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == expected, done.stderr


def test_a_verdict_has_its_color_on_a_terminal_and_nowhere_else(capsys, monkeypatch):
    _output.print_verdict("Refuted at 99% confidence: the claim is false")
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _output.print_verdict("Refuted at 99% confidence: the claim is false")
    assert re.search(r"\x1b\[1;31m(?=Refuted)", capsys.readouterr().out)
    _output.print_table("Runs", ["verdict"], [["consistent"], ["inconsistent"]])
    shown = capsys.readouterr().out
    assert re.search(r"\x1b\[1;32m *consistent", shown)
    assert not re.search(r"m *inconsistent", shown)


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


def test_a_spinner_turns_until_something_is_said(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(_output, "_WAIT_SECONDS", 0.01)
    with _output.working("adding up"):
        for _ in range(300):
            if "adding up" in screen.getvalue():
                break
            time.sleep(0.01)
        assert "adding up" in screen.getvalue()
        _output.console()
        there = len(screen.getvalue())
        time.sleep(0.3)
        assert len(screen.getvalue()) == there
    assert _output._turning == []


def test_no_spinner_where_nobody_watches(capsys, monkeypatch):
    monkeypatch.setattr(_output, "_WAIT_SECONDS", 0.0)
    with _output.working("adding up"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "cp437", "cp1252", "utf-8"])
def test_a_legacy_code_page_prints_plain_letters(encoding):
    line = "account --sample-rate 0.1 --noise-multiplier 1 --steps 10 --delta 1e-5"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
    command = [sys.executable, "-m", "coalmine", *line.split()]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding)
    assert ("λ" in text, "lambda" in text) == (encoding == "utf-8", encoding != "utf-8")
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_help_too_is_in_plain_letters(encoding):
    """Typer would write UTF-8 where the terminal says ASCII."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-m", "coalmine", "bound", "--help"], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode(encoding).split("\n\n")[1].startswith("  The epsilon that trials prove")


@pytest.mark.parametrize("line", ["adversaries", "study list", "data list", "runs list --store x.db"])
def test_json_is_one_object(line, capsys, tmp_path, monkeypatch):
    from coalmine.store import Store

    monkeypatch.chdir(tmp_path)
    Store.open("x.db").close()
    assert isinstance(json.loads(run(capsys, f"{line} --json").out), dict)
