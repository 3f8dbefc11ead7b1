"""One run: published values, naive forms, worst cases computed exactly, and ties."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special, stats

from coalmine import bounds
from coalmine.bounds.known import one_runs
from coalmine.bounds.one_run import count_guesses, default_guess_numbers, p_value
from coalmine.errors import UnsupportedError
from coalmine.records import OneRunScores
from coalmine.theory.curves import EpsilonDeltaCurve, GaussianCurve, ProfileCurve


def guesses(m, r, v):
    return bounds.Guesses(canaries=m, guesses=r, correct=v)


@pytest.mark.parametrize(("m", "r", "v", "epsilon"), [(1000, 1000, 600, 0.297227), (1000, 300, 250, 1.347004)])
def test_steinke_values(m, r, v, epsilon):
    found = bounds.one_run(guesses(m, r, v), delta=1e-5, confidence=0.95)
    assert found.epsilon == pytest.approx(epsilon, abs=1e-6)
    assert found.method == "one_run"


@pytest.mark.parametrize(("m", "ceiling"), [(100, 3.49), (1000, 5.78), (5000, 7.28), (10_000, 7.83), (100_000, 8.13)])
def test_steinke_ceilings(m, ceiling):
    assert bounds.one_run(guesses(m, m, m), delta=1e-5, confidence=0.95).ceiling == pytest.approx(ceiling, abs=0.006)


def naive_p_value(m, r, v, epsilon, delta):
    pmf = stats.binom(r, 1 / (1 + math.exp(-epsilon))).pmf(np.arange(r + 1))
    worst = max((pmf[v - i : v].sum() / i for i in range(1, v + 1)), default=0.0)
    return min(1.0, pmf[v:].sum() + 2 * m * delta * worst)


@pytest.mark.parametrize(("m", "r", "v"), [(10, 10, 9), (50, 20, 15), (300, 300, 180), (40, 1, 1), (40, 5, 0)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_p_value_is_the_naive_one_and_grows_with_epsilon(m, r, v, delta):
    grid = np.linspace(0.0, 6.0, 121)
    values = np.array([p_value(guesses(m, r, v), epsilon=e, delta=delta) for e in grid])
    naive = np.array([naive_p_value(m, r, v, e, delta) for e in grid])
    assert values == pytest.approx(naive, rel=1e-9, abs=1e-300)
    # Monotone wherever it matters, so bisection finds the only crossing.
    below = values < 0.5
    assert np.all(np.diff(values)[below[1:] & below[:-1]] >= -1e-12)


def test_bound_is_where_the_p_value_crosses_the_level():
    for m, r, v in ((1000, 300, 250), (50, 50, 45), (10_000, 10_000, 6000)):
        found = bounds.one_run(guesses(m, r, v), delta=1e-6, confidence=0.9).epsilon
        assert p_value(guesses(m, r, v), epsilon=found, delta=1e-6) <= 0.1 + 1e-12
        assert p_value(guesses(m, r, v), epsilon=found + 1e-6, delta=1e-6) > 0.1


def test_steinke_is_exact_for_randomised_response():
    # Independent randomised response on every bit is the worst case at δ = 0: the miss rate, computed over all
    # counts, is at most the level and near it.
    m, epsilon, level = 60, 1.2, 0.05
    law = stats.binom(m, special.expit(epsilon))
    missing = [
        v for v in range(m + 1) if bounds.one_run(guesses(m, m, v), delta=0.0, confidence=0.95).epsilon > epsilon
    ]
    miss = law.pmf(missing).sum()
    assert miss <= level
    assert miss >= level / 2.5


def naive_refutes(m, r, v, level, curve):
    right, wrong = [0.0] * (v + 1), [0.0] * (v + 1)
    right[v], wrong[v] = level * v / m, level * (r - v) / m
    for i in range(v - 1, -1, -1):
        wrong[i] = max(wrong[i + 1], float(curve(1.0 - min(1.0, right[i + 1]))))
        right[i] = right[i + 1] + i / (r - i) * (wrong[i] - wrong[i + 1])
    return right[0] + wrong[0] > r / m


@pytest.mark.parametrize("family", ["gdp", "epsilon_delta"])
@pytest.mark.parametrize(("m", "r", "v"), [(1000, 100, 90), (500, 500, 400), (50, 50, 50), (100, 10, 5)])
def test_fdp_bound_is_where_the_naive_recursion_changes(family, m, r, v):
    found = bounds.one_run_fdp(guesses(m, r, v), delta=1e-5, confidence=0.95, family=family)
    theta = found.details["mu"] if family == "gdp" else found.epsilon

    def curve(value):
        return GaussianCurve(mu=value) if family == "gdp" else EpsilonDeltaCurve(epsilon=value, delta=1e-5)

    assert not naive_refutes(m, r, v, 0.05, curve(theta + 1e-4))
    if theta > 0.0:
        assert naive_refutes(m, r, v, 0.05, curve(theta * 0.9999))
        assert bounds.refutes(guesses(m, r, v), curve(theta * 0.9999), level=0.05)


def test_fdp_takes_any_curve():
    grid = np.linspace(0.0, 6.0, 200)
    mu = 0.8
    profile = [float(special.ndtr(mu / 2 - e / mu) - math.exp(e) * special.ndtr(-mu / 2 - e / mu)) for e in grid]
    curve = ProfileCurve(grid, profile)
    for v in (60, 75, 90):
        one = bounds.refutes(guesses(1000, 100, v), curve, level=0.05)
        two = bounds.refutes(guesses(1000, 100, v), GaussianCurve(mu=mu), level=0.05)
        assert one == two


def test_fdp_reaches_the_published_size_for_the_idealised_gaussian():
    # Mahloujifar et al. 2024 report 3.61 of 4.37 for μ = 1 with up to a million canaries; the best guess number there
    # is near 1500. Steinke's bound reaches 2.61 at 100 000 canaries and 1000 guesses.
    m, r = 1_000_000, 1500
    t = 4.0
    for _ in range(60):
        tail = 0.5 * (stats.norm.sf(t) + stats.norm.sf(t - 1))
        t += (tail - r / 2 / m) / (0.5 * (stats.norm.pdf(t) + stats.norm.pdf(t - 1)))
    accuracy = stats.norm.sf(t - 1) / (stats.norm.sf(t) + stats.norm.sf(t - 1))
    found = bounds.one_run_fdp(guesses(m, r, round(r * accuracy)), delta=1e-5, confidence=0.95).epsilon
    assert found == pytest.approx(3.61, abs=0.1)


@pytest.mark.parametrize("method", ["one_run", "one_run_fdp"])
def test_valid_on_the_mixture_that_breaks_independence(method):
    # One coin decides for all canaries. 200 runs; more than 28 misses have probability under 1e-6 at 5 %.
    mixture = one_runs()[3]
    rng = np.random.default_rng(3)
    bound = getattr(bounds, method)
    truth = mixture.epsilon if method == "one_run" else mixture.gaussian_epsilon
    runs = [mixture.scores(rng, 1000) for _ in range(200)]
    found = np.array([bound(run, delta=1e-5, confidence=0.95, guess_numbers=[(500, 500)]).epsilon for run in runs])
    assert np.sum(found > truth) <= 28
    assert np.max(found) > 0.5  # in half the runs there is something to find


def test_guesses_are_counted_as_said():
    run = OneRunScores([1, 1, 0, 0, 1, 0], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert count_guesses(run, guess_in=2, guess_out=1) == guesses(6, 3, 3)
    assert count_guesses(run, guess_in=3, guess_out=3) == guesses(6, 6, 4)
    assert count_guesses(run, guess_in=0, guess_out=2) == dataclasses.replace(guesses(6, 2, 1), sides=1)


def test_ties_are_broken_without_looking_at_the_coins():
    rng = np.random.default_rng(4)
    score = rng.integers(0, 3, 400).astype(float)
    included = rng.random(400) < 0.5
    one = count_guesses(OneRunScores(included, score), guess_in=50, guess_out=30)
    two = count_guesses(OneRunScores(~included, score), guess_in=50, guess_out=30)
    assert one.correct + two.correct == 80  # the same canaries were guessed, whatever the coins
    # With constant scores the guesses are a coin toss even when the file is sorted by the coins:
    # Binomial-like with mean 100 and deviation under 7; 60 to 140 fails with probability under 1e-8.
    sorted_file = OneRunScores(np.sort(included)[::-1], np.zeros(400))
    assert 60 <= count_guesses(sorted_file, guess_in=100, guess_out=100).correct <= 140


def test_several_guess_numbers_are_paid_for():
    rng = np.random.default_rng(5)
    included = rng.random(2000) < 0.5
    run = OneRunScores(included, rng.normal(size=2000) + 2 * included)
    pairs = [(1000, 1000), (200, 200), (50, 50)]
    together = bounds.one_run(run, delta=1e-5, confidence=0.95, guess_numbers=pairs)
    shares = [bounds.one_run(run, delta=1e-5, confidence=1 - 0.05 / 3, guess_numbers=[pair]).epsilon for pair in pairs]
    assert together.epsilon == pytest.approx(max(shares), abs=1e-9)
    assert "3 pairs" in together.threshold_rule
    default = bounds.one_run(run, delta=1e-5, confidence=0.95)
    assert default.details["guesses"] == sum(default_guess_numbers(2000))


def test_evidence_of_the_other_kind_is_refused():
    run = OneRunScores([1, 0], [1.0, 0.0])
    scores = bounds.methods.Scores([0.0], [1.0])
    for method in (bounds.clopper_pearson, bounds.gdp):
        with pytest.raises(UnsupportedError, match="one run"):
            method(run, delta=1e-5, confidence=0.95)
    for method in (bounds.one_run, bounds.one_run_fdp):
        with pytest.raises(UnsupportedError, match="independent trials"):
            method(scores, delta=1e-5, confidence=0.95)


def test_the_p_value_rises_wherever_it_is_small():
    # The proof in docs/bounds.md, held against numbers: any canaries, guesses and δ.
    rng = np.random.default_rng(0)
    for _ in range(300):
        m = int(10 ** rng.uniform(0, 4))
        r = int(rng.integers(1, m + 1))
        v, delta = int(rng.integers((r + 1) // 2, r + 1)), float(10 ** rng.uniform(-8, -0.5))
        values = np.array([p_value(guesses(m, r, v), epsilon=e, delta=delta) for e in np.linspace(0.0, 8.0, 60)])
        assert np.all(np.diff(values)[values[:-1] <= 0.25] >= -1e-12), (m, r, v, delta)


def test_as_many_right_guesses_as_the_mode_are_never_rare():
    # The third step of that proof: P[B ≥ v] ≥ 1/e when v ≤ (r + 1)s and s ≥ ½; it grows with s, so s is the smallest.
    for r in (*range(1, 200), 1000, 100_000):
        v = np.unique(np.linspace((r + 2) // 2, r, 500).astype(int))
        assert np.min(special.bdtrc(v - 1, r, np.maximum(v / (r + 1), 0.5))) >= math.exp(-1.0)


def test_a_level_above_a_quarter_counts_as_a_quarter():
    low, quarter = (bounds.one_run(guesses(100, 100, 70), delta=0.0, confidence=c).epsilon for c in (0.6, 0.75))
    assert low == quarter > 0.0
