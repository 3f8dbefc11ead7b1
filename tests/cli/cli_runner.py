"""Run a command in this process and keep what it printed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from coalmine.cli import main


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(capsys: pytest.CaptureFixture[str], line: str) -> Outcome:
    """One command line, split at blanks."""
    code = main(line.split())
    out, err = capsys.readouterr()
    return Outcome(code, out, err)


def assert_refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, one line on stderr with these words, nothing on stdout."""
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err
