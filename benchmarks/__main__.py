"""Run every benchmark of this folder, print its ratios, and write all numbers to build/bench.json.

``python -m benchmarks [NAME …]`` runs those whose module name contains one of the words. A benchmark is a module
``bench_*.py`` with a function ``run() -> dict``; benchmarks are never tests, because a time is not a truth.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}


def main(words: list[str]) -> None:
    """Run the chosen benchmarks; numbers of benchmarks that were not run this time are kept."""
    folder = Path(__file__).parent
    output = folder.parent / "build" / "bench.json"
    results: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    for path in sorted(folder.glob("bench_*.py")):
        if words and not any(word in path.stem for word in words):
            continue
        print(f"== {path.stem}", flush=True)
        results.update(importlib.import_module(f"benchmarks.{path.stem}").run())
    results["machine"] = machine()
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {output.relative_to(folder.parent)}")


if __name__ == "__main__":
    main(sys.argv[1:])
