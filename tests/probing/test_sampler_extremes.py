"""The largest and the smallest batch of a sampler, and what is told apart once the sizes are known."""

import types

import numpy as np
import pytest
from scipy import stats

from coalmine.probing.batches import Draws
from coalmine.probing.sampler import probe_sampler
from coalmine.probing.sampler_counts import Counted
from coalmine.probing.sampler_extremes import largest, smallest

ROWS, RATE = 500, 0.02


def poisson(steps, seed, change=lambda batch: batch):
    rng = np.random.default_rng(seed)
    return [change(rng.permutation(np.flatnonzero(rng.random(ROWS) < RATE))) for _ in range(steps)]


def probed(batches):
    report = probe_sampler(batches, rows=ROWS, sample_rate=RATE)
    return [one.fault for one in report.findings], report.in_words()


@pytest.mark.parametrize(("cap", "steps"), [(16, 800), (16, 3200), (18, 3200)])
def test_batches_that_are_cut_are_named(cap, steps):
    for seed in range(3):
        found, said = probed(poisson(steps, seed, lambda batch: batch[:cap]))
        assert found == ["batches are cut"], said
        assert f"Batches are cut at {cap} rows" in said


def test_batches_that_are_filled_up_are_named():
    rng = np.random.default_rng(9)

    def filled(batch):
        others = np.setdiff1d(np.arange(ROWS), batch)
        return np.concatenate([batch, rng.choice(others, max(0, 4 - batch.size), replace=False)])

    found, said = probed(poisson(3200, 1, filled))
    assert found == ["batches are filled up"], said
    assert "Batches are filled up to 4 rows" in said


@pytest.mark.parametrize(("rows", "rate", "steps"), [(60, 0.1, 40), (500, 0.02, 800), (1000, 0.5, 50)])
@pytest.mark.parametrize("check", [largest, smallest])
def test_right_samplers_stay_under_the_level(check, rows, rate, steps):
    rng, level, trials = np.random.default_rng(5), 0.05, 1000
    refuted = 0
    for _ in range(trials):
        sizes = rng.binomial(rows, rate, steps)
        refuted += check(types.SimpleNamespace(sizes=sizes, steps=range(steps), rows=rows), rate).p <= level
    assert refuted <= stats.binom.isf(1e-6, trials, level)


def test_the_chance_is_that_of_all_sizes_together():
    batches = tuple(np.arange(size) for size in (3, 5, 2, 4))
    counted = Counted.of(Draws(rows=20, ranks=((batches,),)))
    law = stats.binom(20, 0.2)
    assert largest(counted, 0.2).p == pytest.approx(min(1.0, 2 * min(law.cdf(5) ** 4, 1 - law.cdf(4) ** 4)))
    assert smallest(counted, 0.2).p == pytest.approx(min(1.0, 2 * min(law.sf(1) ** 4, 1 - law.sf(2) ** 4)))


def test_a_new_order_in_each_pass_is_a_shuffle_whatever_the_sizes():
    rng = np.random.default_rng(0)
    passes = (np.split(rng.permutation(ROWS), np.sort(rng.integers(0, ROWS, 49))) for _ in range(16))
    found, said = probed([batch for one in passes for batch in one])
    assert found == ["shuffled batches accounted as Poisson"], said


def test_rows_that_keep_their_state_are_steps_that_depend_on_each_other():
    rng = np.random.default_rng(0)
    state, batches = rng.random(ROWS) < RATE, []
    for _ in range(800):
        state = np.where(rng.random(ROWS) < 0.3, state, rng.random(ROWS) < RATE)
        batches.append(np.flatnonzero(state))
    found, said = probed(batches)
    assert found == ["steps depend on each other"], said
