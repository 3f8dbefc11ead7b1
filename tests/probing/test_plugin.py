"""The pytest plugin: checks fail with their words, the JUnit file has them, and imports stay light."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

pytest_plugins = ["pytester"]

TESTS = """
import numpy as np
import pytest

from coalmine.records import DpSgd, EpsilonClaim

RAN = DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=4)


def private_step(noise, *, rows=3):
    import torch

    weight = torch.zeros(3)

    def step(batch):
        clipped = batch / batch.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + noise * torch.randn(3)) / 8)

    return {
        "step": step,
        "state": {"weight": weight},
        "batch": 0.1 * torch.eye(3) if rows == "small" else torch.eye(3),
        "bounds": (-0.1, 0.1) if rows == "small" else None,
        "clip_norm": 1.0,
        "divisor": 8,
        "learning_rate": 1.0,
        "replays": 40,
        "tries": 20,
    }


NOISE = DpSgd(sample_rate=0.5, noise_multiplier=2.0, steps=4)


@pytest.mark.coalmine(claim=NOISE, time_limit=100)
def test_probe_right(coalmine):
    report = coalmine.probe(**private_step(2.0))
    assert report.level == 1e-4
    assert report.details["promise"]["noise_multiplier"] == 2.0


@pytest.mark.coalmine(claim=NOISE)
def test_probe_wrong(coalmine):
    coalmine.probe(**private_step(1.0))


def test_probe_blind(coalmine):
    coalmine.probe(**private_step(2.0, rows="small"), noise_multiplier=2.0)


def test_probe_blind_allowed(coalmine):
    coalmine.probe(**private_step(2.0, rows="small"), noise_multiplier=2.0, allow_inconclusive=True)


class Poisson:
    def __init__(self, rate, rows=500):
        self.rng, self.rate, self.rows = np.random.default_rng(0), rate, rows

    def __iter__(self):
        return (np.flatnonzero(self.rng.random(self.rows) < self.rate) for _ in range(20))


@pytest.mark.coalmine(claim=DpSgd(sample_rate=0.05, noise_multiplier=1.0, steps=4), time_limit=60)
def test_sampler_right(coalmine):
    assert coalmine.probe_sampler(Poisson(0.05), rows=500).level == 0.01


@pytest.mark.coalmine(claim=DpSgd(sample_rate=0.05, noise_multiplier=1.0, steps=4))
def test_sampler_wrong(coalmine):
    coalmine.probe_sampler(Poisson(0.07), rows=500)


def test_inconclusive(coalmine):
    coalmine.probe_sampler(Poisson(0.05), rows=500, sample_rate=0.05, steps=1)


@pytest.mark.coalmine(allow_inconclusive=True)
def test_inconclusive_allowed(coalmine):
    coalmine.probe_sampler(Poisson(0.05), rows=500, sample_rate=0.05, steps=1)


@pytest.mark.coalmine(claim=RAN)
def test_accountant_right(coalmine):
    coalmine.check_accountant(6.68)


@pytest.mark.coalmine(claim=EpsilonClaim(epsilon=6.0, delta=1e-5))
def test_accountant_over_target(coalmine):
    coalmine.check_accountant(6.68, ran=RAN)


def train(dataset, seed):
    return dataset.sum() + 0.5 * np.random.default_rng(seed).normal()


def score(model):
    return model


@pytest.mark.coalmine(claim=DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1))
def test_audit_wrong(coalmine):
    import coalmine as root

    coalmine.audit(train, score, worlds=root.neighbours(np.zeros(5), 1.0), trials=200)


@pytest.mark.coalmine(claim=RAN)
def test_audit_right(coalmine):
    import coalmine as root

    coalmine.audit(train, score, worlds=root.neighbours(np.zeros(5), 0.1), trials=200, allow_inconclusive=True)


@pytest.mark.coalmine(time_limit=0.5)
def test_too_slow(coalmine):
    def slow(delta):
        import time

        time.sleep(30)

    coalmine.check_accountant(slow, ran=RAN)


def test_nothing_is_checked(coalmine):
    pass


@pytest.mark.coalmine(claim=RAN)
def test_nothing_is_asked_for():
    pass


def test_skipped(coalmine):
    pytest.skip("no data")


@pytest.mark.coalmine(patience=3)
def test_unknown_option(coalmine):
    raise AssertionError("not reached")
"""


def plugin_options():
    """Nothing where the installed package brings the plugin itself."""
    found = importlib.metadata.entry_points(group="pytest11")
    name = "coalmine.integrations.pytest_plugin"
    return [] if any(one.value == name for one in found) else ["-p", name]


def test_checks_pass_and_fail_as_they_should(pytester):
    pytester.makepyfile(TESTS)
    done = pytester.runpytest_subprocess(
        *plugin_options(), "--strict-markers", "--junitxml=report.xml", "-p", "no:xdist"
    )
    outcomes = {case.get("name"): case for case in ElementTree.parse(pytester.path / "report.xml").iter("testcase")}
    failed = {
        name for name, case in outcomes.items() if case.find("failure") is not None or case.find("error") is not None
    }
    assert failed == {
        "test_probe_wrong",
        "test_probe_blind",
        "test_sampler_wrong",
        "test_inconclusive",
        "test_accountant_over_target",
        "test_audit_wrong",
        "test_too_slow",
        "test_unknown_option",
        "test_nothing_is_checked",
        "test_nothing_is_asked_for",
    }
    assert len(outcomes) == 17
    words = {one.get("name"): one.get("value") for one in outcomes["test_sampler_wrong"].iter("property")}
    assert words["coalmine.probe_sampler.verdict"] == "refuted"
    assert "wrong sample rate" in words["coalmine.probe_sampler"]
    words = {one.get("name"): one.get("value") for one in outcomes["test_probe_wrong"].iter("property")}
    assert words["coalmine.probe.verdict"] == "refuted"
    assert "noise too small: The noise in weight is 0.5" in words["coalmine.probe"]
    assert words["coalmine.probe"] in outcomes["test_probe_wrong"].find("failure").text
    words = {one.get("name"): one.get("value") for one in outcomes["test_probe_blind_allowed"].iter("property")}
    assert words["coalmine.probe.verdict"] == "inconclusive"
    assert "clipping was never needed" in words["coalmine.probe"]
    done.stdout.fnmatch_lines(["*wrong sample rate: Rows are drawn at rate 0.07*"])
    done.stdout.fnmatch_lines(["*allow it with allow_inconclusive=True*"])
    done.stdout.fnmatch_lines(["*took longer than time_limit = 0.5 seconds*"])
    done.stdout.fnmatch_lines(["*does not know patience*"])


def test_the_plugin_is_declared_and_light():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module = project["project"]["entry-points"]["pytest11"]["coalmine"]
    code = (
        "import sys; heavy = ['torch', 'numpy', 'scipy', 'pydantic']; sys.modules.update(dict.fromkeys(heavy)); "
        f"import {module}; print([name for name in heavy if sys.modules[name] is not None])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_wrong_input_is_one_line_and_no_traceback(pytester):
    pytester.makepyfile(
        """
        def test_input(coalmine):
            coalmine.probe(lambda batch: None, clip_norm=-1.0)
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["coalmine.probe: batch = None is not allowed*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*private_step.py*")
