"""Everything in the how-to of docs/one-run.md runs, in its order, in one folder."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "one-run.md").read_text(encoding="utf-8")
HOW_TO = PAGE[PAGE.index("## How to") : PAGE.index("## On our own trainer")]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", HOW_TO, flags=re.DOTALL)


def executed(words, folder):
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    # A verdict is a result: the coins are fresh, so any of them may come.
    assert done.returncode in ((0, 1, 3) if "judge" in words else (0,)), done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What every script and command printed."""
    folder = tmp_path_factory.mktemp("how-to")
    found = {}
    for language, code in BLOCKS:
        if language == "python":
            name = code.splitlines()[0].removeprefix("# ")
            (folder / name).write_text(code, encoding="utf-8")
            missing = any(one in code and importlib.util.find_spec(one) is None for one in ("opacus", "jax"))
            if name not in ("dpsgd.py", "cluster.py") and not missing:
                found[name] = executed([name], folder)
        else:
            for line in code.splitlines():
                words = shlex.split(line)
                found[line] = executed(words[1:] if words[0] == "python" else ["-m", *words], folder)
    return found


def test_every_block_runs(shown):
    assert {language for language, _ in BLOCKS} == {"python", "sh"}
    assert len(shown) >= 9
    assert "expected ε" in next(text for line, text in shown.items() if "plan --one-run" in line)


def test_both_trainings_end_with_a_verdict_that_fits(shown):
    # A right training is refuted with probability 0.05 at most; nothing else about fresh coins is certain.
    (judged,) = (text for line, text in shown.items() if "one-run judge" in line)
    assert "Verdict: " in judged
    assert shown["audit.py"].splitlines()[0].split()[0] in ("Consistent", "Inconclusive", "Refuted")
    for name in {"hooked.py", "jaxed.py"} & shown.keys():
        assert shown[name].splitlines()[0].split()[0] in ("Consistent", "Inconclusive", "Refuted")


def test_the_digest_is_computed_as_the_page_says(shown):
    (prepared,) = (text for line, text in shown.items() if line.endswith("--out run"))
    assert shown["digest.py"].strip() in "".join(prepared.split())
