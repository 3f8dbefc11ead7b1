"""Where torch, Opacus, numba and scikit-learn are not installed: mathematics, stores and own trainings work.

The packages are on this machine, so a process of its own refuses to import them (and says who asked).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REFUSED = ("torch", "opacus", "numba", "sklearn", "triton")
HOOK = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {REFUSED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Refuse())
"""
TRAINING = """
import numpy as np
import coalmine

def train(dataset, seed):
    return np.clip(dataset, -1.0, 1.0).sum() + np.random.default_rng(seed).normal()

def half(dataset, seed):
    return np.clip(dataset, -1.0, 1.0).sum() + 0.5 * np.random.default_rng(seed).normal()

def score(model):
    return model

worlds = coalmine.neighbours(np.zeros(20), 1.0)
"""


@pytest.fixture
def run(tmp_path):
    """Python code, or a command line of Coalmine, in a process without these packages."""
    (tmp_path / "training.py").write_text(TRAINING)

    def call(code="", *, command=(), expected=0):
        text = f"import sys; from coalmine.cli import main; sys.exit(main({list(command)!r}))" if command else code
        (tmp_path / "script.py").write_text(f"{HOOK}\n{text}\nassert not set({REFUSED!r}) & set(sys.modules)\n")
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == expected, done.stderr
        return done.stdout or done.stderr

    return call


def test_the_hook_refuses(run):
    run("try:\n    import torch\nexcept ImportError:\n    pass\nelse:\n    raise AssertionError")


def test_the_rooms_without_training_load(run):
    run(
        "import coalmine, coalmine.accounting, coalmine.bounds, coalmine.identifiability, coalmine.store\n"
        "import coalmine.theory, coalmine.integrations, coalmine.auditing.stored, coalmine.report, coalmine.cli\n"
        "import coalmine.game, coalmine.game.engines, coalmine.view.server, coalmine.view.bundle, coalmine.evidence\n"
        "assert coalmine.audit_function and coalmine.neighbours and coalmine.Worlds"
    )


def test_the_mathematics_gives_its_numbers(run):
    out = run(
        "from coalmine import bounds\n"
        "from coalmine.accounting import standard\n"
        "from coalmine.records import Counts, DpSgd\n"
        "mechanism = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)\n"
        "print(round(standard.epsilon(mechanism, delta=1e-5).epsilon, 2))\n"
        "counts = Counts(false_positives=0, negatives=500, false_negatives=0, positives=500)\n"
        "print(round(bounds.clopper_pearson(counts, delta=1e-9, confidence=0.99).epsilon, 2))"
    )
    assert out.split() == ["4.38", "4.54"]


def test_the_examples_of_the_readme_run(run):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    without = [text for text in examples if "import torch" not in text]
    assert len(without) == 2  # many trainings, and one run
    for example in without:
        assert run(example).strip() == "consistent"


def test_an_audit_of_a_function_in_two_processes_and_its_result_from_the_store(run, tmp_path):
    out = run(
        "import coalmine, training\n"
        "from coalmine.auditing.stored import stored_result\n"
        "from coalmine.records import DpSgd\n"
        "from coalmine.store import Store\n"
        "if __name__ == '__main__':\n"
        "    result = coalmine.audit_function(training.train, training.score, worlds=training.worlds, trials=320,\n"
        "        claim_dpsgd=DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1), workers=2, store='a.db')\n"
        "    print(result.verdict)\n"
        "    print(result.in_words(), result.table())\n"
        "    with Store.open('a.db') as store:\n"
        "        print(stored_result(store, result.strongest.run).to_json() == result.to_json())"
    )
    assert out.split()[0] in ("consistent", "inconclusive", "refuted")
    assert out.split()[-1] == "True"
    assert (tmp_path / "a.db").exists()


def test_the_commands_that_train_nothing_of_ours_work(run, tmp_path):
    own = ["--train", "training:half", "--score", "training:score", "--workers", "1", "--trials", "320"]
    run(command=["audit", *own, "--claim-dpsgd", "1,1,1"], expected=1)
    listed = run(command=["runs", "list"])
    assert "training:half" in listed
    name = re.search(r"\b[0-9a-f]{12}\b", listed)[0]
    run(command=["runs", "show", name])
    run(command=["report", name, "-o", "page.html"])
    assert "training:half" in (tmp_path / "page.html").read_text(encoding="utf-8")
    run(command=["account", "--sample-rate", "0.01", "--noise-multiplier", "1", "--steps", "10", "--delta", "1e-5"])


def test_what_needs_them_says_so_in_one_line(run):
    """An audit of ours trains with torch; the message is no traceback. The adversaries can be listed all the same."""
    said = run(command=["audit", "--trials", "16"], expected=2)
    assert said.strip() == "coalmine audit: this needs torch: install it with pip install 'coalmine[train]'"
    assert "clipbkd" in run(command=["adversaries"])


def test_one_run_from_the_seal_to_the_verdict(run):
    """Canaries under seal, one training in NumPy that releases the sum of their gradients, scores, judge.

    A fifth of the noise that was claimed: scores are 5 standard deviations apart in the place of 1, so 99 % of 500
    guesses are right, and fewer than 90 % never (chance below 1e-30, whatever the coins are).
    """
    claim = ["--noise-multiplier", "2", "--sample-rate", "1", "--steps", "4", "--delta", "1e-5"]
    kind = ["--kind", "dirac", "--parameters", "500", "--canaries", "500"]
    run(command=["one-run", "prepare", *kind, *claim, "--out", "sealed"])
    run(
        "import csv\n"
        "import numpy as np\n"
        "extra, ask = np.load('sealed/train/run-1.npz'), np.load('sealed/score/run-1.npz')\n"
        "rng, released = np.random.default_rng(0), np.zeros(500)\n"
        "for _ in range(4):\n"
        "    np.add.at(released, extra['indices'].ravel(), extra['values'].ravel())\n"
        "    released += 0.4 * rng.normal(size=500)\n"
        "scores = (released[ask['indices']] * ask['values']).reshape(500, -1).sum(axis=1)\n"
        "with open('scores.csv', 'w', newline='') as file:\n"
        "    csv.writer(file).writerows([('id', 'score'), *zip(ask['id'], scores)])"
    )
    said = run(command=["one-run", "judge", "--run", "sealed", "--scores", "scores.csv"], expected=1)
    assert "refuted" in said.lower()


def test_one_run_in_python(run):
    out = run(
        "import numpy as np\n"
        "import coalmine\n"
        "mechanism = coalmine.DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=4)\n"
        "game = coalmine.one_run.begin(coalmine.one_run.canaries.dirac(parameters=500, canaries=500),\n"
        "    claim=coalmine.MechanismClaim(mechanism=mechanism, delta=1e-5), seed=0)\n"
        "released = np.random.default_rng(0).normal(size=500)\n"
        "for one in game.included.indices.ravel():\n"
        "    released[one] += 5.0\n"
        "result = game.judge(released[game.canaries.indices].ravel())\n"
        "print(result.verdict.outcome, round(result.epsilon, 1))"
    )
    assert out.split()[0] == "refuted"
