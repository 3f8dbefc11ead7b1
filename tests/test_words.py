"""Ordinary English: phrases that readers stumbled over stay out of what they read, and of what we write."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
BETTER = {
    r"its choice paid for": "corrected for selection",
    r"threshold that carries the bound": "threshold used for the bound",
    r"each power of an attacker": "how much each extra capability helps an attacker",
    r"(as often as|than|like|beats) a coin\b": "random guessing",
    r"least that the guarantee allows": "lowest error rates the guarantee permits",
    r"alike in distribution": "identically distributed",
    r"sure does happen": "some outcomes let an attacker become at least … sure",
    r"how sure one may become": "attacker's certainty (prior 50 %)",
    r"predicted: may be wrong": "heuristic estimate, not a bound",
    r"proves ε ≥ 0\.00": "no attack proved any leakage",
    r"\d a world\b|trials a world\b": "per world",
    r"of the data only this many rows": "use only the first N rows",
    r"go on with the audit": "resume the audit",
}


def test_old_phrases_stay_out():
    files = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *(ROOT / "src").rglob("*")]
    files = [one for one in files if one.suffix in (".py", ".md", ".j2", ".toml", ".json")]
    assert len(files) > 300
    found = []
    for path in files:
        text = " ".join(path.read_text(encoding="utf-8").split())
        for old, better in BETTER.items():
            found += [
                f"{path.relative_to(ROOT)}: {text[hit.start() - 20 : hit.end() + 20]!r}; say: {better}"
                for hit in re.finditer(old, text, re.IGNORECASE)
            ]
    assert found == []
