"""A short form of the coverage table: every method and rule on every mechanism, with few trials."""

from pathlib import Path

import pytest
from scipy import stats

from coalmine.bounds import coverage


@pytest.fixture(scope="module")
def cells():
    return coverage.measure([50], repetitions=lambda size: 120)


def test_no_bound_within_its_assumptions_misses_too_often(cells):
    within = [cell for cell in cells if cell.standing == coverage.WITHIN]
    assert len(within) > 70
    for cell in within:
        # At the level itself, so many misses or more have probability under 1e-9; over all cells under 1e-6.
        assert stats.binom.sf(cell.misses - 1, cell.repetitions, coverage.LEVEL) > 1e-9, cell


def test_the_check_can_fail(cells):
    # What is no bound, or is used outside its assumption, is caught by the same check.
    optimistic = [cell for cell in cells if cell.method == "clopper_pearson, optimistic"]
    assert any(cell.misses > 0 for cell in optimistic)
    assert not coverage.Cell(
        mechanism="", method="", standing="within", trials=1, truth=1.0, repetitions=100, misses=20, mean_bound=1.0
    ).holds


def test_every_mechanism_and_rule_is_there(cells):
    mechanisms = {cell.mechanism for cell in cells}
    assert len(mechanisms) == 14
    methods = {cell.method for cell in cells}
    for name in ("sup", "given", "holdout", "bonferroni", "dkw", "optimistic"):
        assert f"clopper_pearson, {name}" in methods
        assert f"gdp, {name}" in methods
        assert f"dpsgd (standard), {name}" in methods
        assert f"dpsgd (last iterate), {name}" in methods
    for name in ("sup", "holdout"):
        assert f"dpsgd (standard, own curves), {name}" in methods
        assert f"dpsgd (last iterate, own curves), {name}" in methods
    assert {"anytime, given", "bayesian, given"} <= methods
    assert any(cell.standing == coverage.OUTSIDE for cell in cells)


def test_the_table_is_written(tmp_path: Path, monkeypatch, cells):
    monkeypatch.setattr(coverage, "measure", lambda *_, **__: cells)
    target = tmp_path / "coverage.md"
    assert coverage.main(["--output", str(target), "--sizes", "50", "--repetitions", "120"]) in (0, 1)
    text = target.read_text(encoding="utf-8")
    assert "## Gaussian, μ = 1" in text
    assert "outside its assumption" in text
