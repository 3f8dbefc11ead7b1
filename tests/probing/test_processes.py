"""Two ranks: right ones pass; short noise, equal seeds and overlapping samplers are named; no process stays."""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import pytest

from coalmine.errors import InvalidInputError
from coalmine.probing.processes import probe_processes
from coalmine.records import Outcome

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="gloo over a file needs a POSIX system")


@pytest.fixture(autouse=True)
def _trainers_are_found_and_nothing_stays(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    yield
    assert not multiprocessing.active_children()


def probed(step, loader=None, **options):
    rate = 0.05 if loader else None
    loader = f"rank_trainers:{loader}" if loader else None
    return probe_processes(f"rank_trainers:{step}", make_loader=loader, sample_rate=rate, time_limit=240.0, **options)


def faults(report):
    return [one.fault for one in report.findings]


def test_right_ranks_pass():
    report = probed("right", "loader")
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_right_opacus_ranks_pass():
    report = probed("opacus_ddp")
    assert report.verdict.outcome is Outcome.CONSISTENT, report.in_words()


def test_short_noise_and_overlapping_samplers_are_named():
    # 39·7 squares: noise of 1/√2 is missed with a chance far under 1e-6 at the level 0.01/2 shared by three tests.
    report = probed("short", "overlapping_loader")
    assert faults(report) == ["noise too small on several ranks", "ranks overlap"]
    assert report.findings[0].number == pytest.approx(0.707, abs=0.1)


def test_equal_seeds_are_named_for_noise_and_samplers():
    report = probed("equal_seeds", "loader_with_equal_seeds")
    assert faults(report) == ["ranks add the same noise", "ranks draw with equal seeds"]


def test_sharded_noise_from_one_seed_is_named():
    assert faults(probed("sharded_by_hand")) == ["ranks add the same noise"]


def test_ranks_that_wait_for_each_other_are_stopped():
    with pytest.raises(InvalidInputError, match="time_limit = 12 seconds"):
        probe_processes("rank_trainers:hanging", time_limit=12.0)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        ("rank_trainers", {}, "module:function"),
        (lambda: None, {}, "at the top of a module"),
        ("rank_trainers:right", {"processes": 1}, "processes = 1"),
        ("rank_trainers:right", {"replays": 1}, "replays = 1"),
    ],
)
def test_bad_input_is_refused_before_a_process_starts(step, options, message):
    with pytest.raises(InvalidInputError, match=message):
        probe_processes(step, **options)
