"""The short way through millions of simulated pairs gives what asking every pair gives, to the last bit."""

import numpy as np
import pytest

from coalmine.bounds import DpSgdNoise, EpsilonDelta, Gdp, _row_minima, sup
from coalmine.bounds._rates import lattice
from coalmine.records import DpSgd
from coalmine.theory.curves import EpsilonDeltaCurve, GaussianCurve, ProfileCurve

PROFILE = ProfileCurve(np.linspace(0.0, 6.0, 40), np.exp(-np.linspace(1.0, 14.0, 40)))


def tables(trials, simulations=1500, shift=1.0):
    """Order statistics as the sup-test draws them: positions of world 0, and ranks of world 1 that go down."""
    positions = lattice(trials)
    alpha = sup._world0(trials, simulations, 0)[:, :-1]
    ranks = 1 + np.floor((trials - 1) * GaussianCurve(mu=shift)((positions[:-1] + 0.5) / trials)).astype(int)
    return alpha, sup._world1(trials, simulations, 0, tuple(ranks.tolist()))


def middle(trials, **given):
    """The middle columns alone: at the ends nearly every row has a pair that shows nothing, and its minimum is 0."""
    return [table[:, table.shape[1] // 4 : 3 * table.shape[1] // 4] for table in tables(trials, **given)]


@pytest.mark.parametrize("trials", [40, 500, 100_000])
@pytest.mark.parametrize(
    "curve",
    [GaussianCurve(mu=0.7), GaussianCurve(mu=6.0), EpsilonDeltaCurve(epsilon=1.5, delta=1e-5), PROFILE,
     EpsilonDeltaCurve(epsilon=0.0, delta=0.0), EpsilonDeltaCurve(epsilon=30.0, delta=0.1)],
    ids=["gauss", "steep gauss", "lines", "profile", "nothing", "steep lines"],
)  # fmt: skip
def test_tangents_leave_the_answer_of_the_curve(trials, curve, monkeypatch):
    monkeypatch.setattr(_row_minima, "_WORTH_IT", 0)
    alpha, beta = tables(trials)
    np.testing.assert_array_equal(_row_minima.reached(curve, alpha, beta), beta >= curve(alpha))
    # Pairs on the curve itself, a rounding error beside it, and at the ends.
    edge = np.clip(curve(alpha), 0.0, 1.0)
    for near in (edge, np.nextafter(edge, 0.0), np.nextafter(edge, 1.0)):
        np.testing.assert_array_equal(_row_minima.reached(curve, alpha, near), near >= curve(alpha))
    ends = np.tile([0.0, 1e-300, 1e-9, 0.5, 1.0 - 1e-12, 1.0], (50, 1))
    np.testing.assert_array_equal(_row_minima.reached(curve, ends, ends[:, ::-1]), ends[:, ::-1] >= curve(ends))


@pytest.mark.parametrize("trials", [40, 500, 100_000])
def test_hardly_any_pair_is_left_to_the_curve(trials):
    asked = []

    class Counting(GaussianCurve):
        def __call__(self, alpha, /):
            asked.append(np.size(alpha))
            return super().__call__(alpha)

    alpha, beta = tables(trials, simulations=4000)
    assert not _row_minima.reached(Counting(mu=0.5), alpha, beta).all()
    assert sum(asked) < 0.2 * alpha.size


@pytest.mark.parametrize("trials", [40, 500, 100_000])
@pytest.mark.parametrize("shift", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "family",
    [Gdp(delta=1e-5), EpsilonDelta(delta=1e-5), EpsilonDelta(delta=0.0), EpsilonDelta(delta=0.0, copies=3)],
    ids=["gdp", "epsilon", "pure", "copies"],
)
def test_order_statistic_of_the_row_minima_is_exact(trials, shift, family, monkeypatch):
    monkeypatch.setattr(_row_minima, "_WORTH_IT", 0)
    for alpha, beta in (tables(trials, shift=shift), middle(trials, shift=shift)):
        exact = np.sort(family.critical(alpha, beta).min(axis=1))
        for rank in (0, 4, 74, 750, 1499):
            assert family.rank_of_row_minima(alpha, beta, rank) == exact[rank]
    assert shift == 0.0 or exact[74] > 0.0


@pytest.mark.parametrize("copies", [1, 2])
def test_dpsgd_finds_the_same_grid_value_as_asking_for_every_one(copies):
    """Straight from the definition: the largest grid value that fewer than rank + 1 rows fail to refute."""
    family = DpSgdNoise(
        mechanism=DpSgd(sample_rate=0.3, noise_multiplier=1.0, steps=20),
        delta=1e-5,
        copies=copies,
        analysis="last_iterate",
        octave=4,
    )
    alpha, beta = (table[:, :60] for table in tables(200, simulations=1000))
    lost = [int((beta >= family.curve(theta)(alpha)).any(axis=1).sum()) for theta in range(family.size + 1)]
    for rank in (5, 49, 500):
        expected = max((theta for theta, count in enumerate(lost) if count <= rank), default=0)
        assert family.rank_of_row_minima(alpha, beta, rank) == expected > 0


def test_drawing_a_few_rows_at_a_time_draws_the_same_numbers(monkeypatch):
    ranks, columns = np.array([1, 5, 6, 90]), np.array([3, 1, 1, 0, 4])

    def drawn():
        return sup._order_statistics(np.random.default_rng(3), 500, 100, ranks, columns)

    pieces = drawn()
    monkeypatch.setattr(sup, "_CHUNK", 1 << 40)
    np.testing.assert_array_equal(drawn(), pieces)
    gaps = np.diff([0, *ranks, 101]).astype(float)
    sums = np.cumsum(np.random.default_rng(3).standard_gamma(gaps, size=(500, 5)), axis=1)
    np.testing.assert_array_equal(pieces, (sums / sums[:, -1:])[:, columns])


@pytest.mark.parametrize("off", [0.5, 0.98, 0.999])
def test_rows_lost_by_a_curve_that_is_off_are_missed_and_asked_again(off):
    """A curve of too small a parameter lies too high and loses rows that count; the answer must not grow by that."""
    family = Gdp(delta=1e-5)
    alpha, beta = middle(500)
    exact = np.sort(family.critical(alpha, beta).min(axis=1))
    assert exact[0] > 0.4
    for rank in (0, 4, 74, 750):
        found = _row_minima.rank_of_row_minima(
            family.critical, lambda mu: GaussianCurve(mu=off * mu), alpha, beta, rank
        )
        assert found == exact[rank]
