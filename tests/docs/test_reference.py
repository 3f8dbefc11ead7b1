"""The reference of the book leaves no public name out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import coalmine

PAGES = (Path(__file__).parents[2] / "docs" / "reference" / "api").glob("*.md")
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("name", [name for name in coalmine.__all__ if name not in ("__version__", "one_run")])
def test_every_public_name_has_its_place(name):
    home = getattr(coalmine, name).__module__
    places = (rf"auto(function|class):: coalmine\.{name}$", rf"automodule:: {re.escape(home.rpartition('.')[0])}$")
    assert any(re.search(place, TEXT, flags=re.MULTILINE) for place in (*places, rf"automodule:: {re.escape(home)}$"))
