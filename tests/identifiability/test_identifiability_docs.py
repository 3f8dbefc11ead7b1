"""The Python in the page on identifiability runs and prints what it says."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "identifiability.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_code_prints_what_its_comments_say(code, capsys):
    exec(compile(code, "identifiability.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    promised = re.findall(r"# ([0-9.]+)", code)
    assert len(printed) == len(promised)
    for found, words in zip(printed, promised, strict=True):
        assert found.startswith(words.rstrip("."))
