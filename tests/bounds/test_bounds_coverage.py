"""A short form of the coverage table: every method and rule on every mechanism, with few trials."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from coalmine.bounds import coverage, known

sys.path.append(str(Path(__file__).parents[1] / "accounting"))
import composition_oracle


@pytest.fixture(scope="module")
def cells():
    return coverage.measure([50], repetitions=lambda size: 60, many=400)


def test_no_bound_within_its_assumptions_misses_too_often(cells):
    within = [cell for cell in cells if cell.standing == coverage.WITHIN]
    assert len(within) > 70
    for cell in within:
        # At the level itself, so many misses or more have probability under 1e-9; over all cells under 1e-6.
        assert stats.binom.sf(cell.misses - 1, cell.repetitions, coverage.LEVEL) > 1e-9, cell


def test_the_default_rule_of_dpsgd_is_in_the_table(cells):
    methods = {cell.method for cell in cells}
    assert {"dpsgd (standard), ranks", "dpsgd (last iterate), ranks", "dpsgd (standard, rows added), ranks"} <= methods


def test_the_check_can_fail(cells):
    # What is no bound, or is used outside its assumption, is caught by the same check.
    optimistic = [cell for cell in cells if cell.method == "clopper_pearson, optimistic"]
    assert any(cell.misses > 0 for cell in optimistic)
    shown = {
        (audits, misses): coverage.Cell(
            mechanism="",
            method="",
            standing="within",
            trials=1,
            truth=1.0,
            repetitions=audits,
            misses=misses,
            mean_bound=1.0,
        ).holds
        for audits, misses in ((100, 20), (1000, 65), (20_000, 1300), (20_000, 1200), (20_000, 1050))
    }
    # A thousand audits cannot tell 6.5 % from 5 %; twenty thousand tell 6 % from it.
    assert shown == {
        (100, 20): False,
        (1000, 65): True,
        (20_000, 1300): False,
        (20_000, 1200): False,
        (20_000, 1050): True,
    }


def test_the_claims_of_the_yardsticks_that_no_accountant_gave():
    # ε where the contour integral gives δ: the truth of the cells with a small δ.
    for mechanism, delta, epsilon in (known.SMALL_DELTA, known.MANY_STEPS):
        q, sigma, steps = mechanism.sample_rate, mechanism.noise_multiplier, mechanism.steps
        assert composition_oracle.delta(q, sigma, steps, epsilon * (1 - 1e-6)) > delta
        assert composition_oracle.delta(q, sigma, steps, epsilon * (1 + 1e-6)) < delta


@pytest.mark.parametrize("mechanism", [known.SUBSAMPLED, known.RARE])
def test_the_yardsticks_scores_are_log_likelihood_ratios(mechanism):
    # E[e^L] without and E[e^−L] with the canary are 1; within six standard errors.
    rng = np.random.default_rng(0)
    without, drawn = (known.every_step(mechanism)(rng, world, 40_000) for world in (0, 1))
    for ratios in (np.exp(without), np.exp(-drawn)):
        assert abs(ratios.mean() - 1.0) < 6.0 * ratios.std() / 200.0


def test_every_mechanism_and_rule_is_there(cells):
    mechanisms = {cell.mechanism for cell in cells}
    assert len(mechanisms) == 19
    methods = {cell.method for cell in cells}
    for name in ("sup", "given", "holdout", "bonferroni", "dkw", "optimistic"):
        assert f"clopper_pearson, {name}" in methods
        assert f"gdp, {name}" in methods
        assert f"dpsgd (standard), {name}" in methods
        assert f"dpsgd (last iterate), {name}" in methods
    for name in ("sup", "holdout"):
        assert f"dpsgd (standard, own curves), {name}" in methods
        assert f"dpsgd (last iterate, own curves), {name}" in methods
    assert {"anytime, given", "bayesian, given", "claim of ε, refuted", "claim of the mechanism, refuted"} <= methods
    assert any(cell.standing == coverage.OUTSIDE for cell in cells)


def test_the_table_is_written(tmp_path: Path, monkeypatch, cells):
    monkeypatch.setattr(coverage, "measure", lambda *_, **__: cells)
    target = tmp_path / "coverage.md"
    assert coverage.main(["--output", str(target), "--sizes", "50", "--repetitions", "60"]) in (0, 1)
    text = target.read_text(encoding="utf-8")
    assert "## Gaussian, μ = 1" in text
    assert "outside its assumption" in text
