"""The sup-test's order statistic for several copies: the search over ε against solving for ε in every entry."""

import numpy as np
import pytest

from coalmine.bounds.families import EpsilonDelta


@pytest.mark.parametrize("copies", [2, 3, 8])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_search_finds_the_order_statistic_of_the_row_minima(copies, delta):
    rng = np.random.default_rng(1)
    alpha = np.sort(rng.random((2000, 30)) ** 2, axis=1)
    beta = np.sort(rng.random((2000, 30)) ** 2, axis=1)[:, ::-1]
    family = EpsilonDelta(delta=delta, copies=copies)
    exact = np.sort(family.critical(alpha, beta).min(axis=1))
    for rank in (0, 10, 500, 1999):
        found = family.rank_of_row_minima(alpha, beta, rank)
        assert found <= exact[rank] + 1e-12
        assert found == pytest.approx(exact[rank], abs=1e-9)
