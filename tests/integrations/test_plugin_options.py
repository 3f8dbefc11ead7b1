"""The pytest plugin: every option of the marker is checked, and a claim that a check cannot test fails it.

Seeds are fixed, and nothing here that passes depends on chance but the probe, which fails with chance 1e-8.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from xml.etree import ElementTree

import pytest

STEP = """
import numpy as np
import pytest

from coalmine import DpSgd, EpsilonClaim, MechanismClaim

RAN = DpSgd(sample_rate=0.5, noise_multiplier=2.0, steps=4)


def private_step():
    import torch

    weight = torch.zeros(3)

    def step(batch):
        clipped = batch / batch.norm(dim=1, keepdim=True).clamp(min=1.0)
        weight.sub_((clipped.sum(dim=0) + 2.0 * torch.randn(3)) / 8)

    promise = {"clip_norm": 1.0, "divisor": 8, "learning_rate": 1.0}
    effort = {"replays": 40, "tries": 20, "level": 1e-8}
    return {"step": step, "state": {"weight": weight}, "batch": torch.eye(3), **promise, **effort}


def slow(dataset, seed):
    import time

    time.sleep(9)


def batches():
    rng = np.random.default_rng(0)
    return [np.flatnonzero(rng.random(500) < 0.05) for _ in range(60)]
"""
CASES = {
    # What the marker says, the body of the test, how it ends, and words of its message.
    "negative": ("claim=-1.0", "", "error", "claim = -1.0 is not allowed: expected a finite number above 0"),
    "yes": ("claim=True", "", "error", "claim = True is not allowed: expected an ε, an EpsilonClaim, a DpSgd"),
    "dict": ("claim={'steps': 3}", "", "error", "claim = {'steps': 3} is not allowed: expected an ε"),
    "word": ("claim='four'", "", "error", "claim = 'four' is not allowed: expected sampling rate, noise multiplier"),
    "part": ("claim='0.5,-2,4'", "", "error", "noise_multiplier = -2.0 is not allowed: expected a finite number"),
    "past": ("time_limit=-1", "", "error", "time_limit = -1 is not allowed: expected a finite number above 0"),
    "no_time": ("time_limit=0", "", "error", "time_limit = 0 is not allowed: expected a finite number above 0"),
    "time_text": ("time_limit='60'", "", "error", "time_limit = '60' is not allowed: expected a finite number"),
    "years": ("time_limit=1e9", "", "error", "expected a number of seconds from 0.001 to 1e+07"),
    "no": ("allow_inconclusive='no'", "", "error", "allow_inconclusive = 'no' is not allowed: expected True or False"),
    "position": ("RAN", "", "error", "expected claim, time_limit, allow_inconclusive, by name"),
    "no_in_call": (
        "claim='0.05,1,4'",
        "coalmine.probe_sampler(batches(), rows=500, allow_inconclusive='no')",
        "failure",
        "coalmine.probe_sampler: allow_inconclusive = 'no' is not allowed: expected True or False",
    ),
    "epsilon_of_a_step": (
        "claim=2.0",
        "coalmine.probe(**private_step())",
        "failure",
        "coalmine.probe cannot test claim = 2.0: one step has a noise multiplier and no ε",
    ),
    "claim_of_a_step": (
        "claim=EpsilonClaim(epsilon=2.0, delta=1e-5)",
        "coalmine.probe(**private_step())",
        "failure",
        "coalmine.probe cannot test claim = EpsilonClaim(",
    ),
    "epsilon_of_a_sampler": (
        "claim=2.0",
        "coalmine.probe_sampler(batches(), rows=500)",
        "failure",
        "coalmine.probe_sampler cannot test claim = 2.0: a sampler has a sampling rate and no ε",
    ),
    "call_comes_first": ("claim=2.0", "coalmine.probe(**private_step(), noise_multiplier=2.0)", "", ""),
    "text": ("claim='0.5, 2.0, 4'", "coalmine.probe(**private_step())", "", ""),
    "text_of_more_noise": ("claim='0.5, 8.0, 4'", "coalmine.probe(**private_step())", "failure", "noise too small"),
    "mechanism": ("claim=MechanismClaim(mechanism=RAN, delta=1e-5)", "coalmine.probe(**private_step())", "", ""),
    "audit": ("claim=2.0", "coalmine.audit(None, None, worlds=None)", "failure", "coalmine.audit: "),
    "slow_audit": (
        "claim=2.0, time_limit=0.3",
        "coalmine.audit(slow, slow, worlds=(np.zeros(2), np.zeros(3)), trials=200, workers=1)",
        "failure",
        "audit took longer than time_limit = 0.3 seconds",
    ),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """How each case ended, with its message: one run of pytest in a process of its own."""
    folder = tmp_path_factory.mktemp("options")
    never = "raise AssertionError('not reached')"
    tests = [
        f"@pytest.mark.coalmine({marker})\ndef test_{name}(coalmine):\n    {body or never}\n"
        for name, (marker, body, *_) in CASES.items()
    ]
    (folder / "test_cases.py").write_text("\n\n".join([STEP, *tests]))
    found = importlib.metadata.entry_points(group="pytest11")
    plugin = "coalmine.integrations.pytest_plugin"
    options = [] if any(one.value == plugin for one in found) else ["-p", plugin]
    options += ["--tb=short", "--junitxml=report.xml", "-p", "no:xdist", "-p", "no:cacheprovider"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options], cwd=folder, capture_output=True, check=False, timeout=300
    )
    ended = {}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        kinds = [(kind, case.find(kind)) for kind in ("failure", "error")]
        ended[case.get("name")] = next(((kind, one.text) for kind, one in kinds if one is not None), ("", ""))
    return ended


@pytest.mark.parametrize("name", CASES)
def test_an_option_is_checked_and_a_claim_is_tested(ran, name):
    *_, kind, words = CASES[name]
    ended, text = ran[f"test_{name}"]
    assert ended == kind, text
    assert words in text
    assert "During handling" not in text
    assert "audit_function" not in text
