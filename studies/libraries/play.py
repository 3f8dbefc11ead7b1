"""Play the audits of one library, inside its own environment: ``python play.py diffprivlib results.json``."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main(library: str, output: Path) -> None:
    """Play every case of a library, and write what came out."""
    sys.path.insert(0, str(HERE / "audits"))
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    module = importlib.import_module(f"{library}_audits")
    results = []
    for case in module.CASES:
        began = time.process_time()
        found = case.play(output.with_suffix(".db"))
        seconds = round(time.process_time() - began, 1)
        results.append({"name": case.name, "note": case.note, "seconds": seconds, **found})
        shown = f"ε ≥ {found['proved']:.3f}" if "proved" in found else ", ".join(found.get("found", []))
        print(f"{library}: {case.name}: {found['verdict']} {shown} ({seconds:g} s)", flush=True)
    output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
