"""The bound that is shown while trials arrive: which trials choose the threshold, and which count."""

import time

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from coalmine.auditing import progress
from coalmine.auditing.progress import PILOT
from coalmine.bounds import AnytimeAudit
from coalmine.cli import _watch
from coalmine.cli._watch import Watch
from coalmine.game import blocks_for, trials_of, worlds_of
from coalmine.store import BlockResult, Trials


def block(index, *, score=None):
    trials = trials_of(index)
    worlds = worlds_of(trials)
    values = worlds * 2.0 - 1.0 if score is None else score(trials)
    return BlockResult(trial=trials, world=worlds, score=values, elapsed=0.1, device="cpu")


def stored(blocks):
    parts = [block(index) for index in blocks]
    return Trials(
        trial=np.concatenate([np.empty(0, np.int64), *(one.trial for one in parts)]),
        world=np.concatenate([np.empty(0, np.int8), *(one.world for one in parts)]),
        score=np.concatenate([np.empty(0), *(one.score for one in parts)]),
        columns={}, devices=(), elapsed=0.0,
    )  # fmt: skip


@pytest.fixture
def counted(monkeypatch):
    """What goes into the confidence sequence: (world, trials, wrong)."""
    calls = []

    class Spy(AnytimeAudit):
        def add(self, *, world, trials, wrong):
            calls.append((world, trials, wrong))
            super().add(world=world, trials=trials, wrong=wrong)

    monkeypatch.setattr(progress, "AnytimeAudit", Spy)
    monkeypatch.setattr(_watch, "_REFRESH_SECONDS", 0.0)
    return calls


def watch(*, trials=160, done=()):
    made = Watch(delta=1e-5, confidence=0.99, quiet=True)
    made.begin("someone", trials=trials, copies=1, done=iter([stored(done)] if done else []))
    return made


def test_the_pilot_never_counts(counted):
    bar = watch()
    for index in range(PILOT // 16):
        bar.block(block(index))
    assert counted == []
    bar.block(block(4))
    assert counted == [(0, 8, 0), (1, 8, 0)]


def test_the_pilot_is_fixed_by_the_number_of_the_trial_and_not_by_who_is_first(counted):
    """Blocks 4 and 5 come before the pilot is complete: they wait, then count; block 3 of the pilot does not."""
    bar = watch()
    for index in (0, 4, 1, 5, 2):
        bar.block(block(index))
    assert counted == []
    bar.block(block(3))
    assert counted == [(0, 16, 0), (1, 16, 0)]


def test_the_threshold_looks_at_the_pilot_alone(monkeypatch):
    seen = []
    monkeypatch.setattr(progress, "_best_threshold", lambda world, score: seen.append(score) or 0.0)
    bar = watch()
    for index in (5, 0, 1, 2, 3, 4):
        bar.block(block(index, score=lambda trials: trials.astype(float)))
    assert len(seen) == 1
    assert_array_equal(np.sort(seen[0]), np.arange(float(PILOT)))


def test_after_a_restart_the_stored_trials_go_on_counting(counted):
    bar = watch(done=range(6))
    assert counted == [(0, 16, 0), (1, 16, 0)]
    bar.block(block(6))
    assert counted[2:] == [(0, 8, 0), (1, 8, 0)]


def test_a_failed_training_is_taken_for_world_0(counted):
    bar = watch(done=range(4))
    trials = trials_of(4)
    failed = BlockResult(
        trial=trials, world=worlds_of(trials), score=np.full(16, np.nan), elapsed=0.1, device="cpu",
        failures={int(t): "not finite" for t in trials},
    )  # fmt: skip
    bar.block(failed)
    assert counted == [(0, 8, 0), (1, 8, 8)]


def test_the_shown_bound_is_the_anytime_bound(counted):
    bar = watch(trials=1600)
    for index in blocks_for(1600):
        bar.block(block(index))
    truth = AnytimeAudit(delta=1e-5, confidence=0.99)
    for _ in range(96):
        truth.add(world=0, trials=8, wrong=0)
        truth.add(world=1, trials=8, wrong=0)
    assert bar._words() == f"ε ≥ {truth.bound().epsilon:.2f} so far"
    assert truth.bound().epsilon > 3.0


def test_nothing_is_shown_before_there_is_something_to_show():
    bar = watch()
    assert bar._words() == ""
    bar.block(block(0, score=lambda trials: np.zeros(trials.size)))
    bar.end()
    assert bar._words() == ""


def test_a_pilot_without_a_single_score():
    bar = watch()
    for index in range(6):
        trials = trials_of(index)
        bar.block(
            BlockResult(trial=trials, world=worlds_of(trials), score=np.full(16, np.nan), elapsed=0.1, device="cpu",
                        failures={int(t): "not finite" for t in trials})
        )  # fmt: skip
    assert bar._words() == "ε ≥ 0.00 so far"


def test_blocks_that_come_fast_are_counted_together(counted, monkeypatch):
    monkeypatch.setattr(_watch, "_REFRESH_SECONDS", 1e9)
    bar = watch(done=range(4))
    for index in range(4, 10):
        bar.block(block(index))
    assert counted == []
    bar.end()
    assert counted == [(0, 48, 0), (1, 48, 0)]


def test_without_a_terminal_a_line_now_and_then(monkeypatch, capsys):
    """So that a log of hours is not silent."""
    monkeypatch.setattr(_watch, "_LINE_SECONDS", 0.02)

    def heard(line, *, seconds=20.0):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if line in capsys.readouterr().err.splitlines():
                return True
            time.sleep(0.02)
        return False

    with Watch(delta=1e-5, confidence=0.99) as watch:
        assert heard("coalmine: preparing")
        watch.begin("an attack", trials=64, copies=1, done=iter(()))
        watch.block(block(0))
        assert heard("coalmine: an attack: 16 of 64 trials")
        watch.end()
        assert heard("coalmine: judging")
    with Watch(delta=1e-5, confidence=0.99, quiet=True):
        capsys.readouterr()
        assert not heard("coalmine: preparing", seconds=0.2)
