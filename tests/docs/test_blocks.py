"""Every code block of README and book runs, or says why it does not.

The blocks of a page run in their order, in one empty folder and one namespace:

- ``python`` runs. What a comment behind a ``print`` says is what is printed (up to …). A block whose first line is
  ``# name.py`` is that file; it is run too, unless a later command of the page does it.
- ``sh`` and ``console``: every line runs (``coalmine …``, ``python file.py …``, ``pytest …``) and ends with exit code
  0, or one of those in ``<!-- exit code: 0 1 3 -->`` above the block.
- ``toml`` is a config that is read and checked; ``# name.toml`` in its first line makes it a file.
- ``text`` is no code. A block without a language is a mistake.
- The cells of a notebook run when the book is built (``make docs``, a part of CI), and an error stops the build.

``<!-- not run: the reason -->`` above a block leaves it out; its options of ``coalmine`` must exist all the same.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import io
import linecache
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from coalmine.auditing import config
from coalmine.cli import app, main

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?P<note>(?:^<!--[^\n]*-->\n)*)^(?P<indent> *)(?P<ticks>```+)(?P<language>[^\n`]*)\n(?P<code>.*?)^ *(?P=ticks)$",
    flags=re.DOTALL | re.MULTILINE,
)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", flags=re.MULTILINE)
OPTIONAL = ("torch", "opacus", "jax", "transformers", "peft", "lightning")
"""Packages that not everybody has: a page is skipped from the first block on that needs one."""


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block, and what the comments above it say."""

    page: str
    line: int
    language: str
    code: str
    notes: dict[str, str]

    @property
    def file(self) -> str | None:
        """The name of the file that it is, if it is one."""
        found = re.match(r"# ([\w-]+\.(py|toml))\n", self.code)
        return found[1] if found else None

    @property
    def runs(self) -> bool:
        return "not run" not in self.notes and self.language not in ("text", "cell")

    @property
    def commands(self) -> list[list[str]]:
        """The lines of a shell block as lists of words."""
        lines = self.code.replace("\\\n", " ").splitlines()
        words = [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]
        return [line for line in words if line]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are code or text, in their order; directives of the book are neither."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language = match["language"].strip()
        if language.startswith("{") and not language.startswith("{code-cell}"):
            continue
        notes = dict(re.findall(r"<!-- ([a-z ]+): (.*?) -->", match["note"]))
        found.append(
            Block(
                page=str(page.relative_to(ROOT)),
                line=text[: match.start("ticks")].count("\n") + 1,
                language="cell" if language.startswith("{code-cell}") else language,
                code=re.sub(rf"^({match['indent']}|:\w+:.*\n)", "", match["code"], flags=re.MULTILINE),
                notes=notes,
            )
        )
    return found


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL = {str(page.relative_to(ROOT)): blocks(page) for page in PAGES}


@pytest.mark.parametrize("page", [name for name, found in ALL.items() if any(block.runs for block in found)])
@pytest.mark.filterwarnings("default")  # packages of others may warn
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    session = Session(tmp_path)
    monkeypatch.setitem(sys.modules, "__main__", session.module)
    _seed()
    try:
        for number, block in enumerate(ALL[page]):
            if block.runs:
                for package in OPTIONAL:
                    if re.search(rf"^(import|from) {package}\b", block.code, flags=re.MULTILINE):
                        pytest.importorskip(package)
                later = [after for after in ALL[page][number + 1 :] if after.language == "sh"]
                named = any(block.file in words for after in later for words in after.commands)
                session.run(block, named_later=named)
    finally:
        for name in set(sys.modules) - before:  # modules that were files of this page
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what a page draws from the global generators is the same in every run
    if "torch" in sys.modules or importlib.util.find_spec("torch"):
        importlib.import_module("torch").manual_seed(0)


class Session:
    """The folder and the namespace that the blocks of a page share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = types.ModuleType("__main__")  # as in a notebook: a main module without a file

    def run(self, block: Block, *, named_later: bool) -> None:
        where = f"{block.page}:{block.line}"
        if block.file:
            (self.folder / block.file).write_text(block.code, encoding="utf-8")
        match block.language:
            case "python" if named_later:
                compile(block.code, where, "exec")
            case "python":
                printed = self._python(block)
                said_all = PRINTED.findall(block.code)
                for said, line in zip(said_all, printed[len(printed) - len(said_all) :], strict=True):
                    assert line.startswith(said.rstrip("….")), f"{where} prints {line!r}, and says {said!r}"
            case "sh" | "console":
                allowed = [int(code) for code in block.notes.get("exit code", "0").split()]
                for words in block.commands:
                    assert _command(words) in allowed, f"{where}: {shlex.join(words)}"
            case "toml":
                path = self.folder / (block.file or f"line-{block.line}.toml")
                path.write_text(block.code, encoding="utf-8")
                config.load(path)
            case other:
                pytest.fail(f"{where}: nobody knows how to run {other!r}; say '<!-- not run: the reason -->' above it")

    def _python(self, block: Block) -> list[str]:
        """Run it; the lines that it printed."""
        # As a notebook does it: functions are known by their source, which Python looks up under this name.
        name = f"<{block.page}, line {block.line}>"
        linecache.cache[name] = (len(block.code), None, block.code.splitlines(keepends=True), name)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block.code, name, "exec"), vars(self.module))
        return out.getvalue().splitlines()


def _command(words: list[str]) -> int:
    """Run one command in this process; its exit code."""
    program, *arguments = words
    with contextlib.redirect_stdout(io.StringIO()):
        match program:
            case "coalmine":
                return main(arguments)
            case "pytest":
                return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False, timeout=300).returncode
            case "python":
                before, sys.argv = sys.argv, arguments
                try:
                    runpy.run_path(arguments[0], run_name="__main__")
                finally:
                    sys.argv = before
                return 0
    return pytest.fail(f"nobody knows how to run {program!r}")


@pytest.mark.parametrize("page", [name for name, found in ALL.items() if found])
def test_every_block_has_a_language_and_every_reason_is_a_reason(page):
    for block in ALL[page]:
        assert block.language, f"{page}:{block.line} has no language"
        reason = block.notes.get("not run")
        assert reason is None or len(reason.split()) >= 3, f"{page}:{block.line}: {reason!r} is no reason"
        if block.language in ("python", "cell"):
            ast.parse(block.code)
        if block.language == "toml":
            tomllib.loads(block.code)


COMMANDS = [
    (f"{block.page}:{block.line}", words)
    for found in ALL.values()
    for block in found
    if block.language in ("sh", "console")
    for words in block.commands
    if words[0] == "coalmine"
]


@pytest.mark.parametrize(("where", "words"), COMMANDS)
def test_every_command_and_option_is_there(where, words):
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help", "-h"}
    known |= {"open"} if getattr(command, "commands", {}) else set()
    used = [word.partition("=")[0] for word in rest if re.match("-{1,2}[a-z]", word)]
    if not getattr(command, "commands", {}):  # 'coalmine view STORE' is short for 'coalmine view open STORE'
        assert set(used) <= known, f"{where}: {shlex.join(words)}"
