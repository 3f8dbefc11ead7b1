"""The numbers behind the figures, held against direct counting and against distributions that are known."""

import numpy as np
import pytest
import report_sample as sample
from scipy import special, stats

from coalmine import bounds
from coalmine.errors import InvalidInputError
from coalmine.records import Relation, Scores
from coalmine.report import series
from coalmine.theory.curves import EpsilonDeltaCurve


def test_histogram_counts_every_trial_once():
    rng = np.random.default_rng(1)
    scores = Scores(rng.normal(size=301), rng.normal(2.0, 1.0, size=97))
    rows = series.histogram(scores)
    for world in ("world 0", "world 1"):
        assert sum(row["percent"] for row in rows if row["world"] == world) == pytest.approx(100.0)
    edges = [row["from"] for row in rows if row["world"] == "world 0"]
    assert edges[0] == min(scores.world0.min(), scores.world1.min())


@pytest.mark.parametrize("values", [(1.0, 1.0), (1e300, -1e300), (1.0, 1.0 + 1e-16), (1.0, np.nextafter(1.0, 2.0))])
def test_histogram_of_strange_scores(values):
    rows = series.histogram(Scores([values[0]] * 3, [values[1]] * 2))
    assert all(row["to"] > row["from"] for row in rows)
    assert sum(row["percent"] for row in rows) == pytest.approx(200.0)


def test_error_rates_by_direct_counting():
    rng = np.random.default_rng(2)
    scores = Scores(rng.integers(0, 6, 20), rng.integers(2, 9, 15))  # many ties
    alarm, miss = series.error_rates(scores)
    wanted = {(np.mean(scores.world0 > t), np.mean(scores.world1 <= t)) for t in [-np.inf, *range(-1, 10)]}
    found = set(zip(alarm.tolist(), miss.tolist(), strict=True))
    assert {(round(a, 12), round(b, 12)) for a, b in found} == {(round(a, 12), round(b, 12)) for a, b in wanted}
    assert (np.diff(alarm) >= 0).all()
    assert (np.diff(miss) <= 0).all()


def test_trade_off_line_is_the_smallest_miss_rate_within_each_alarm_rate():
    rng = np.random.default_rng(3)
    scores = Scores(rng.normal(size=50), rng.normal(1.0, 1.0, size=60))
    alarm, miss = series.error_rates(scores)
    for row in series.trade_off(scores, confidence=0.95)[::17]:
        assert row["miss"] == pytest.approx(miss[alarm <= row["alarm"] + 1e-12].min())


def test_the_band_holds_the_whole_true_curve():
    # The true curve leaves the band with probability at most 5 % a repetition. That more than 60 of 400 do has a
    # probability below 1e-13 (binomial), and this seed is fixed.
    rng = np.random.default_rng(4)
    outside = 0
    for _ in range(400):
        rows = series.trade_off(Scores(rng.normal(size=40), rng.normal(1.0, 1.0, size=30)), confidence=0.95)
        grid = np.array([row["alarm"] for row in rows])
        low, high = (np.array([row[key] for row in rows]) for key in ("low", "high"))
        truth = special.ndtr(-special.ndtri(grid) - 1.0)
        # ``low`` is drawn from each grid value to the next one, so it must stay below the truth at the next one.
        after = np.append(truth[1:], truth[-1])
        outside += bool((low > after + 1e-12).any() or (high < truth - 1e-12).any())
    assert outside <= 60


@pytest.mark.parametrize("trials", [8, 100, 5000])
@pytest.mark.parametrize("level", [0.05, 0.005, 1e-4])
def test_the_width_covers_the_exact_law_of_kolmogorov_and_smirnov(trials, level):
    exact = stats.kstwo.ppf(1.0 - level, trials)
    assert exact <= series.band_width(trials, level=level) <= 1.25 * exact


def test_the_band_is_the_line_shifted_by_both_widths():
    scores = Scores(np.arange(1000.0), np.arange(1000.0) + 500.0)
    wide = series.band_width(1000, level=0.005)
    row = series.trade_off(scores, confidence=0.99)[60]  # true line: miss = 1/2 − alarm up to alarm = 1/2
    assert row["miss"] == pytest.approx(0.2, abs=2e-3)
    assert row["high"] == pytest.approx(0.2 + 2 * wide, abs=2e-3)
    assert row["low"] == pytest.approx(0.2 - 2 * wide - 1 / 200, abs=2e-3)


def test_the_band_is_no_wider_than_it_must_be():
    rng = np.random.default_rng(5)
    n = 20_000
    rows = series.trade_off(Scores(rng.normal(size=n), rng.normal(1.0, 1.0, size=n)), confidence=0.99)
    middle = rows[100]
    width = np.sqrt(np.log(2 / 0.005) / (2 * n))
    assert middle["high"] - middle["low"] < 6 * width + 2 / 200


def test_the_guarantee_is_drawn_for_as_many_rows_as_the_worlds_differ_in():
    result = sample.standard_result()
    one, four = result.adversaries
    alphas = np.linspace(0.01, 0.99, 50)
    ((kind, single),) = series.promised_curves(result, one)
    ((_, group),) = series.promised_curves(result, four)
    assert kind == "guarantee"
    assert (group(alphas) < single(alphas)).all()
    # Never above what (ε, δ) alone would let through: the curve of the mechanism is the stronger promise.
    alone = EpsilonDeltaCurve(epsilon=result.guarantee.epsilon, delta=1e-5)
    assert (single(alphas) >= alone(alphas) - 1e-9).all()


def test_a_claim_gets_a_curve_of_its_own():
    result = sample.result(sample.adversary(), claim=1.0)
    curves = dict(series.promised_curves(result, result.adversaries[0]))
    assert set(curves) == {"guarantee", "claim"}
    assert curves["claim"]([0.1])[0] == pytest.approx(1 - 1e-5 - np.e * 0.1)


def test_growth_ends_with_the_bound_of_the_audit():
    one = sample.adversary(mu=3.0, trials=200)
    rows = series.growth(one)
    assert [row["trials"] for row in rows] == [24, 50, 100, 200]
    assert rows[-1] == {"trials": 200, "epsilon": one.bound.epsilon, "ceiling": one.bound.ceiling}
    assert all(row["epsilon"] <= row["ceiling"] for row in rows)
    part = Scores(one.scores.world0[:50], one.scores.world1[:50])
    direct = bounds.clopper_pearson(part, delta=1e-5, confidence=0.995)
    assert rows[2]["epsilon"] == pytest.approx(direct.epsilon, abs=0.15)  # fewer simulations, a little more spread


def test_growth_of_a_tiny_run_is_one_point():
    assert len(series.growth(sample.adversary(trials=12))) == 1


def test_replaced_rows_count_twice():
    one = sample.adversary(mu=2.0, relation=Relation.REPLACE)
    assert one.bound.copies == 2
    assert series.growth(one)[-1]["epsilon"] == one.bound.epsilon


def test_a_result_without_scores_says_so():
    import dataclasses

    with pytest.raises(InvalidInputError, match="scores of clipbkd are missing"):
        series.scores_of(dataclasses.replace(sample.adversary(trials=12), scores=None))
