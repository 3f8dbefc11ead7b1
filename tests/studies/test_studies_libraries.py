"""Released libraries under audit: pinned environments, results that are all there, and a page that says what they say.

The audits themselves need an environment for each library: ``make libraries``.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "studies" / "libraries"


@pytest.fixture(scope="module")
def runner():
    spec = importlib.util.spec_from_file_location("libraries_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_environment_is_pinned_and_has_audits_and_results(runner):
    found = runner.environments()
    assert {"opacus", "jax_privacy", "diffprivlib", "opendp", "pydp", "accountants"} <= set(found)
    for library, environment in found.items():
        pins = [*environment["requirements"], *([environment["torch"]] if "torch" in environment else [])]
        assert all(re.fullmatch(r"[a-z-]+==[0-9.]+", pin) for pin in pins)
        tree = ast.parse((HERE / "audits" / f"{library}_audits.py").read_text(encoding="utf-8"))
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        assert "CASES" in [target.id for target in targets if isinstance(target, ast.Name)]
        results = json.loads((HERE / "results" / f"{library}.json").read_text(encoding="utf-8"))
        assert results
        assert {one["verdict"] for one in results} <= {"consistent", "refuted", "inconclusive"}


def test_the_page_says_what_came_out(runner):
    assert runner.table() in runner.PAGE.read_text(encoding="utf-8")


def test_what_is_proved_is_above_the_claim_just_where_it_is_refuted():
    for path in (HERE / "results").glob("*.json"):
        for one in json.loads(path.read_text(encoding="utf-8")):
            if "proved" in one and one["proved"] > one["claimed"]:
                assert one["verdict"] == "refuted"


def test_uses_that_the_library_warns_of_are_quoted(runner):
    page = runner.PAGE.read_text(encoding="utf-8")
    results = json.loads((HERE / "results" / "diffprivlib.json").read_text(encoding="utf-8"))
    warned = [one for one in results if one["warning"]]
    assert len(warned) == 3
    assert all(one["verdict"] == "refuted" and one["warning"][0] in page for one in warned)
