"""The example of docs/jax.md runs where torch is not installed: a step is probed, a training audited."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="needs the extra jax")
pytest.importorskip("optax")

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "opacus", "sklearn", "numba"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
import jax_optax_training as example
print(example.probed().verdict)
result = example.audit(example.train, example.score, worlds=example.worlds, claim_dpsgd=example.claim, trials=160)
print(sum(result.strongest.bound.trials), "torch" in sys.modules)
"""


def test_probe_and_audit_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(EXAMPLES)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.split() == ["consistent", "160", "False"], done.stderr
