"""The tables of docs/elsewhere.md: the numbers are those that the benchmark gives."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from coalmine.theory.rates import two_sided

compare = pytest.importorskip("benchmarks.compare_tools")
PAGE = (Path(__file__).parents[2] / "docs" / "elsewhere.md").read_text(encoding="utf-8")


def test_the_same_scores_give_the_numbers_of_the_page():
    for line in compare.same_scores():
        assert line in PAGE


@pytest.mark.parametrize(
    ("truths", "truth", "ask", "audits"),
    [
        ("TRUTHS", "Laplace, ε = 1", "theirs", 100),
        ("TRUTHS", "nothing, ε = 0", "theirs", 100),
        ("TRUTHS", "Laplace, ε = 1", "ours", 12),
        ("RUNS", "randomized response, ε = 1", "one_run", 60),
        ("RUNS", "nothing, ε = 0", "order_statistics", 20),
    ],
)
def test_miss_rates_are_those_of_the_page(truths, truth, ask, audits):
    """Other audits than the page's: their misses fit the page's interval, but for a chance of one in a million each."""
    draw, epsilon = getattr(compare, truths)[truth]
    size = 500 if truths == "TRUTHS" else 1000
    column = list(getattr(compare, truths)).index(truth)

    def other(rng, number):
        return draw(np.random.default_rng([7, int(rng.integers(2**31))]), number)

    for method, (_, count, times) in compare.misses(
        other, epsilon, getattr(compare, ask), size=size, audits=audits
    ).items():
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {method} |") and "(" in line.split("|")[2])
        low, high = re.search(r"\(([0-9.]+) to ([0-9.]+)\)", row.split("|")[2 + column]).groups()
        seen = two_sided(count, count, times, confidence=1.0 - 1e-6)
        assert seen[0] <= float(high) / 100.0 + 5e-4
        assert seen[1] >= float(low) / 100.0 - 5e-4
