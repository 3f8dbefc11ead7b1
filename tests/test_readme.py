"""The README and the book: links lead somewhere, CI runs the make targets. tests/docs runs their code."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


TARGETS = [line.split()[1] for block in _blocks("sh") for line in block.splitlines() if line.startswith("make ")]


def test_there_are_two_targets_and_ci_runs_both():
    assert TARGETS == ["audit", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for target in TARGETS:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)
        assert re.search(rf"^make {target}$", ci, flags=re.MULTILINE)


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not link.startswith(("http://", "https://")):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page} points to {link}, which is not there"


def test_ci_runs_and_builds_the_book():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").endswith("make docs\n")
