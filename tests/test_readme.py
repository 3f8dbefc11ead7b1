"""Everything in the README runs: its Python, its commands, its links and its two make targets."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in _blocks("sh") for line in block.splitlines() if line.startswith("coalmine ")]
TARGETS = [line.split()[1] for block in _blocks("sh") for line in block.splitlines() if line.startswith("make ")]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command, tmp_path):
    words = [sys.executable, "-m", *shlex.split(command)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("code", _blocks("python"))
def test_python_runs(code, tmp_path):
    (tmp_path / "readme_example.py").write_text(code, encoding="utf-8")
    words = [sys.executable, "readme_example.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "consistent"


def test_there_are_two_targets_and_ci_runs_both():
    assert TARGETS == ["audit", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for target in TARGETS:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
        assert re.search(rf"^make {target}$", ci, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not link.startswith(("http://", "https://")):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page} points to {link}, which is not there"


def test_commands_and_code_were_found():
    assert len(COMMANDS) >= 5
    assert len(_blocks("python")) == 2
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
