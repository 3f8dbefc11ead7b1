"""The noise of single steps, and noise that parameters share: what a score that sums up all steps does not show."""

from __future__ import annotations

import numpy as np
import pytest

import coalmine
from coalmine.one_run.step_noise import StepNoise, with_doubt
from coalmine.records import DpSgd, MechanismClaim, Outcome


def doubt(noise):
    watch = StepNoise()
    for step in noise:
        watch.add(step)
    return watch.doubt()


@pytest.mark.parametrize("shape", [(1, 800), (10, 800), (100, 20), (100, 800)])
@pytest.mark.parametrize("size", [1.0, 1.5])
def test_noise_as_claimed_or_more_is_not_doubted(shape, size):
    rng = np.random.default_rng(0)
    # Two looks at 10⁻⁶ each, for each of 100 trainings; the seed is fixed.
    assert all(doubt(size * rng.normal(size=shape)) is None for _ in range(100))


@pytest.mark.parametrize("steps", [2, 10, 100])
@pytest.mark.parametrize("apart", [3.0, 100.0])
def test_more_noise_at_some_places_or_steps_is_not_taken_for_shared(steps, apart):
    """Layers with clipping norms of their own, and schedules."""
    rng, places = np.random.default_rng(5), np.geomspace(1.0, apart, 800)
    for _ in range(50):
        noise = rng.normal(size=(steps, 800))
        assert doubt(noise * places) is None
        assert doubt(noise * np.geomspace(1.0, apart, steps)[:, None]) is None


def test_a_step_without_noise_is_named():
    noise = np.random.default_rng(1).normal(size=(100, 800))
    noise[41] = 0.0
    assert doubt(noise).startswith("step 42 varies too little")


def test_places_without_noise_are_counted():
    noise = np.random.default_rng(2).normal(size=(100, 800))
    noise[:, 5:8] = 0.0
    assert doubt(noise).startswith("3 of 800 places")


@pytest.mark.parametrize("steps", [25, 100])
@pytest.mark.parametrize("outputs", [2, 4, 10])
def test_noise_that_rows_of_a_weight_share_is_noticed(outputs, steps):
    noise = np.tile(np.random.default_rng(3).normal(size=(steps, 800 // outputs)), outputs)
    assert "noise that parameters share" in doubt(noise)


def test_a_doubt_goes_with_the_scores_to_the_verdict():
    mechanism = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
    run = coalmine.one_run.begin(
        coalmine.one_run.canaries.dirac(parameters=2000, canaries=2000),
        claim=MechanismClaim(mechanism=mechanism, delta=1e-5),
        seed=1,
    )
    included = np.isin(run.canaries.indices[:, 0], run.included.indices[:, 0])
    scores = included - 0.5 + np.random.default_rng(4).normal(size=2000)
    found = run.judge(with_doubt(scores, "step 1 varies too little"))
    assert found.verdict.outcome is Outcome.INCONCLUSIVE
    assert found.verdict.reasons[-1] == "step 1 varies too little"
    assert run.judge(scores).verdict.outcome is Outcome.CONSISTENT
