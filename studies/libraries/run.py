"""Audit released libraries, each in its own pinned environment: ``make libraries``, or ``python run.py diffprivlib``.

Environments lie under build/libraries; results under studies/libraries/results, from which docs/studies/libraries.md is
written (``--table`` writes it from the results that are there).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "libraries"
RESULTS = HERE / "results"
PAGE = ROOT / "docs" / "studies" / "libraries.md"
BEGIN, END = "<!-- results: written by studies/libraries/run.py -->", "<!-- end of results -->"


def environments() -> dict[str, dict[str, Any]]:
    """The libraries and their pins."""
    return tomllib.loads((HERE / "environments.toml").read_text(encoding="utf-8"))


def prepare(library: str, environment: dict[str, Any]) -> Path:
    """The interpreter of an environment that has the pinned library and this Coalmine."""
    folder = BUILD / library
    python = folder / "bin" / "python"
    stamp = folder / "ready"
    wanted = json.dumps(environment)
    if not stamp.is_file() or stamp.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        if "torch" in environment:
            subprocess.run([*pip, environment["torch"]], check=True)
        pins = [*environment["requirements"], *([environment["torch"]] if "torch" in environment else [])]
        subprocess.run([*pip, *pins, "--editable", str(ROOT)], check=True)
        stamp.write_text(wanted)
    return python


def play(library: str, environment: dict[str, Any]) -> None:
    """All audits of one library, in its environment; what it prints besides goes to a file."""
    python = prepare(library, environment)
    (BUILD / f"{library}.db").unlink(missing_ok=True)
    output = BUILD / f"{library}.json"
    with (BUILD / f"{library}.log").open("w") as log:
        subprocess.run(
            [str(python), "-W", "ignore", str(HERE / "play.py"), library, str(output)],
            check=True,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")},
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / output.name).write_text(output.read_text(encoding="utf-8"), encoding="utf-8")


def table() -> str:
    """The results in words, one row for each audit."""
    lines = ["| library | what was audited | game | claimed | verdict | proved or found |", "|---|---|---|---|---|---|"]
    quotes: dict[str, list[str]] = {}
    for library, environment in environments().items():
        path = RESULTS / f"{library}.json"
        if not path.is_file():
            continue
        for one in json.loads(path.read_text(encoding="utf-8")):
            claimed = "-"
            if "claimed" in one:
                claimed = f"ε = {one['claimed']:.3g}" + (f" at δ = {one['delta']:g}" if one["delta"] > 1e-9 else "")
            result = "; ".join(one.get("found", [])) or "-"
            if "proved" in one:
                size = f"{one['trials']:,} trainings" if "trials" in one else f"{one['canaries']:,} canaries"
                result = f"ε ≥ {int(one['proved'] * 100) / 100:.2f} from {size}"
            where = f", {one['relation'].replace('_', '/')}" if "relation" in one else ""
            cells = (environment["title"], f"`{one['name']}`", one["game"] + where, claimed, one["verdict"], result)
            lines.append("| " + " | ".join(cells) + " |")
            for text in one.get("warning", []):
                quotes.setdefault(text, []).append(f"`{one['name']}`")
    if quotes:
        lines += ["", "What the libraries themselves say of these uses, as warnings:", ""]
        lines += [f"- {', '.join(uses)}: “{text}”" for text, uses in quotes.items()]
    return "\n".join(lines)


def write_page() -> None:
    """Put the table into its page."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Which libraries, and whether to write the table alone."""
    known = environments()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", nargs="*", choices=[*known, []], help="which libraries (default: all)")
    parser.add_argument("--table", action="store_true", help="write the page from the results that are there")
    chosen = parser.parse_args()
    if not chosen.table:
        BUILD.mkdir(parents=True, exist_ok=True)
        for library in chosen.library or known:
            play(library, known[library])
    write_page()


if __name__ == "__main__":
    sys.exit(main())
