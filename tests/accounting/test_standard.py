"""Composition over all iterates: published values, the exact Gaussian, other analyses, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import composition_oracle
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from coalmine.accounting import full_batch, last_iterate, standard
from coalmine.bounds.known import every_step
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Guarantee, Heuristic
from coalmine.theory import curves


def mechanism(q: float, sigma: float, steps: int, **more: object) -> DpSgd:
    return DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps, **more)  # type: ignore[arg-type]


def one_step_delta(q: float, sigma: float, epsilon: float, relation: str = "add_remove") -> float:
    """δ of one Poisson-sampled step by plain numerical integration of the positive part, larger direction."""
    other = -1.0 if relation == "replace" else 0.0

    def included(x: float) -> float:
        return (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, 1, sigma)

    def without(x: float) -> float:
        return (1 - q) * stats.norm.pdf(x, 0, sigma) + q * stats.norm.pdf(x, other, sigma)

    top = math.exp(epsilon)
    grid = np.linspace(-1 - 9 * sigma, 1 + 9 * sigma, 200_001)
    forward = integrate.trapezoid(np.maximum(included(grid) - top * without(grid), 0), grid)
    return float(max(forward, integrate.trapezoid(np.maximum(without(grid) - top * included(grid), 0), grid)))


def test_published_value() -> None:
    found = standard.epsilon(mechanism(0.01, 1.1, 10_000), delta=1e-5)
    assert isinstance(found, Guarantee)
    assert found.epsilon == pytest.approx(5.1926, abs=0.005)


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize(("q", "sigma", "epsilon"), [(0.1, 1.0, 0.3), (0.5, 0.8, 1.0), (0.02, 0.6, 0.5)])
def test_one_step_against_integration(q: float, sigma: float, epsilon: float, relation: str) -> None:
    truth = one_step_delta(q, sigma, epsilon, relation)
    found = standard.delta(mechanism(q, sigma, 1, relation=relation), epsilon=epsilon).delta
    assert truth - 1e-9 <= found <= truth * 1.001 + 1e-9


@pytest.mark.parametrize("steps", [100, 10_000, 1_000_000])
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-12])
def test_never_below_the_truth_where_rounding_bites(steps: int, delta: float) -> None:
    """With q a hair under 1 the truth is the Gaussian mechanism. The library alone goes below it here: at a million
    steps and δ = 1e-10 by 1 %, for its convolution loses digits as steps grow."""
    q, mu = 1.0 - 1e-9, 1.0
    found = standard.epsilon(mechanism(q, math.sqrt(steps) / mu, steps), delta=delta).epsilon
    truth = curves.gaussian_epsilon(mu, delta=delta)
    assert found >= truth * (1.0 - 1e-6)
    assert found <= truth * 1.25


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta", "slack"),
    [
        (250 / 6000, 1.55, 576, 1e-5, 1e-3),
        (0.01, 1.1, 10_000, 1e-7, 1e-3),
        (0.001, 1.0, 1_000_000, 1e-5, 1e-2),
        (0.001, 2.0, 10_000_000, 1e-5, 0.1),
        (0.0001, 0.7, 10_000_000, 1e-3, 0.1),
    ],
)
def test_composition_against_a_contour_integral(q: float, sigma: float, steps: int, delta: float, slack: float) -> None:
    """Valid: at our ε the true δ is not above the wanted one. Close: nor is it far below."""
    found = standard.epsilon(mechanism(q, sigma, steps), delta=delta).epsilon
    truth = composition_oracle.delta(q, sigma, steps, found)
    assert delta * (1.0 - slack) <= truth <= delta


def test_the_contour_integral_itself() -> None:
    """On the Gaussian mechanism, whose δ is known, at a million steps."""
    truth = curves.gaussian_delta(0.3, epsilon=0.8)
    assert composition_oracle.delta(1.0 - 1e-13, 1000 / 0.3, 1_000_000, 0.8) == pytest.approx(truth, rel=1e-9)


@settings(max_examples=12, deadline=None)
@given(
    q=st.floats(0.001, 0.9),
    sigma=st.floats(0.6, 8.0),
    steps=st.integers(1, 400),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
)
def test_pld_stands_between_last_iterate_and_rdp(q: float, sigma: float, steps: int, delta: float) -> None:
    """All iterates reveal at least what the last one does for linear losses; RDP is a looser proof of the same."""
    one = mechanism(q, sigma, steps)
    found = standard.epsilon(one, delta=delta).epsilon
    assert last_iterate.epsilon(one, delta=delta).epsilon <= found + 1e-6
    # The discretisation may cost a little more than RDP where ε is tiny.
    assert found <= standard.epsilon(one, delta=delta, analysis="rdp").epsilon * 1.01 + 1e-3


@pytest.mark.parametrize(
    ("q", "sigma", "steps"),
    [
        (0.01, 0.05, 1000),
        (0.5, 0.1, 100_000),
        (0.001, 2.0, 10_000_000),
        (1e-5, 0.7, 1_000_000),
        (0.3, 1000.0, 10_000),
        (1e-9, 1.0, 1_000),
        (1e-6, 5.0, 9_999_999),
    ],
)
def test_far_corners_neither_fail_nor_hang(q: float, sigma: float, steps: int) -> None:
    """Coarser grids keep memory in bounds; whatever they cost, the ε stays above the last-iterate value."""
    one = mechanism(q, sigma, steps)
    found = standard.epsilon(one, delta=1e-5).epsilon
    assert last_iterate.epsilon(one, delta=1e-5).epsilon <= found * (1 + 1e-9) + 1e-9
    assert math.isfinite(found)


@pytest.mark.parametrize(("relation", "factor"), [("add_remove", 1.0), ("replace", 2.0)])
def test_full_batches_are_exactly_gaussian(relation: str, factor: float) -> None:
    one = mechanism(1.0, 8.0, 16, sampling="full", relation=relation)
    assert standard.epsilon(one, delta=1e-5).epsilon == curves.gaussian_epsilon(factor * 0.5, delta=1e-5)
    assert standard.delta(one, epsilon=1.0).delta == curves.gaussian_delta(factor * 0.5, epsilon=1.0)
    rdp = standard.epsilon(one, delta=1e-5, analysis="rdp").epsilon
    exact = standard.epsilon(one, delta=1e-5).epsilon
    assert exact <= rdp <= 1.2 * exact


def test_replace_costs_more_than_add_remove() -> None:
    less = standard.epsilon(mechanism(0.05, 1.5, 200), delta=1e-5).epsilon
    more = standard.epsilon(mechanism(0.05, 1.5, 200, relation="replace"), delta=1e-5).epsilon
    assert less < more <= curves.gaussian_epsilon(2 * math.sqrt(200) / 1.5, delta=1e-5)


def test_epsilon_and_delta_are_inverse() -> None:
    one = mechanism(0.02, 1.0, 500)
    found = standard.epsilon(one, delta=1e-5).epsilon
    assert standard.delta(one, epsilon=found).delta == pytest.approx(1e-5, rel=1e-6)


def test_nothing_sampled_leaks_nothing() -> None:
    none = mechanism(0.0, 0.5, 100)
    assert standard.epsilon(none, delta=1e-9).epsilon == 0.0
    assert standard.delta(none, epsilon=0.0).delta == 0.0
    assert standard.profile(none).deltas.tolist() == [0.0]


def test_tiny_delta_falls_back_to_rdp_and_says_so() -> None:
    found = standard.epsilon(mechanism(0.01, 1.0, 100_000), delta=1e-14)
    assert found.epsilon == standard.epsilon(mechanism(0.01, 1.0, 100_000), delta=1e-14, analysis="rdp").epsilon
    assert "RDP" in found.assumptions[-1]


def exact_gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a Gaussian mechanism with fifty digits (Balle and Wang 2018, Theorem 8)."""
    with mpmath.workdps(50):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        return float(mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m))


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "epsilon", "analysis", "close"),
    [
        (0.01, 1.0, 1000, 5.5, "rdp", 60.0),
        (0.01, 1.0, 1000, 14.0, "rdp", 60.0),
        (0.1, 2.0, 1000, 20.0, "rdp", 20.0),
        (0.9, 10.0, 100, 9.0, "rdp", 20.0),
        (0.99, 10.0, 100, 12.0, "no_amplification", 5.0),
    ],
)
def test_a_delta_under_the_rounding_of_the_pld_comes_from_a_coarser_analysis(
    q: float, sigma: float, steps: int, epsilon: float, analysis: str, close: float
) -> None:
    """Valid beside a contour integral, and within that factor where the PLD's floor was off by ten powers of ten."""
    one = mechanism(q, sigma, steps)
    truth, found = composition_oracle.delta(q, sigma, steps, epsilon), standard.delta(one, epsilon=epsilon)
    assert truth <= found.delta <= close * truth
    assert found.analysis == analysis
    assert "rounding error" in found.assumptions[-1]
    assert found.delta <= standard.delta(one, epsilon=epsilon, analysis="rdp").delta


@pytest.mark.parametrize("relation", ["add_remove", "replace"])
@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 1.0, 1000), (0.5, 0.7, 3), (0.9, 10.0, 100)])
def test_delta_falls_as_epsilon_grows(q: float, sigma: float, steps: int, relation: str) -> None:
    one = mechanism(q, sigma, steps, relation=relation)
    found = [standard.delta(one, epsilon=float(epsilon)).delta for epsilon in np.linspace(0.0, 30.0, 60)]
    assert np.all(np.diff(found) <= 0.0)


@pytest.mark.parametrize(("q", "truth_too"), [(1.0 - 1e-9, True), (0.5, False)])
def test_a_replaced_row_at_a_tiny_delta_has_the_bound_without_sampling(q: float, truth_too: bool) -> None:
    """Two sensitivities apart in every step, whether it is drawn or not; nearly exact where it nearly always is."""
    one, mu = mechanism(q, 2.0, 100_000, relation="replace"), 2.0 * math.sqrt(100_000) / 2.0
    found = standard.epsilon(one, delta=1e-14)
    assert found.analysis == "no_amplification"
    assert "without sampling" in found.assumptions[-1]
    assert exact_gaussian_delta(mu, found.epsilon) <= 1e-14 * (1.0 + 1e-9)
    assert exact_gaussian_delta(mu, found.epsilon * (1.0 - 1e-9)) > 1e-14
    if truth_too:  # more rows drawn leak more, and without sampling it is exact
        exact = standard.epsilon(mechanism(1.0, 2.0, 100_000, relation="replace"), delta=1e-14)
        assert found.epsilon == pytest.approx(exact.epsilon, rel=1e-9)
    tail = standard.delta(mechanism(0.9, 10.0, 100, relation="replace"), epsilon=30.0)
    assert tail.analysis == "no_amplification"
    assert tail.delta == pytest.approx(exact_gaussian_delta(2.0, 30.0), rel=1e-9)


def test_central_limit_is_labelled_and_can_be_too_small() -> None:
    one = mechanism(0.01, 0.6, 50)
    found = standard.gdp_clt(one, delta=1e-5)
    assert isinstance(found, Heuristic)
    assert "approximate" in found.assumptions[0]
    assert found.epsilon < last_iterate.epsilon(one.with_steps(1), delta=1e-5).epsilon
    assert standard.gdp_clt(mechanism(0.5, 0.01, 10), delta=1e-5).epsilon == math.inf
    back = standard.gdp_clt_delta(one, epsilon=found.epsilon)
    assert back.delta == pytest.approx(1e-5, rel=1e-9)


def test_profile_matches_delta_and_gives_a_curve() -> None:
    one = mechanism(0.05, 1.0, 100)
    profile = standard.profile(one, points=30)
    for epsilon, delta in list(zip(profile.epsilons, profile.deltas, strict=True))[::7]:
        assert delta == pytest.approx(standard.delta(one, epsilon=float(epsilon)).delta, rel=1e-6, abs=1e-14)
    quick = standard.profile(one, points=30, coarser=10.0)
    for epsilon, delta in list(zip(quick.epsilons, quick.deltas, strict=True))[::7]:
        fine = standard.delta(one, epsilon=float(epsilon)).delta
        assert fine * (1 - 1e-4) - 1e-12 <= delta <= fine * 1.05 + 1e-9
    curve = profile.curve()
    for epsilon in (0.5, 1.5):
        point = curves.EpsilonDeltaCurve(epsilon=epsilon, delta=standard.delta(one, epsilon=epsilon).delta)
        alphas = np.linspace(0, 1, 50)
        assert np.all(curve(alphas) >= point(alphas) - 5e-3)


@pytest.mark.parametrize("what", ["epsilon", "delta"])
def test_shuffling_gets_no_amplified_guarantee(what: str) -> None:
    shuffled = mechanism(0.01, 4.0, 1600, sampling="shuffle")
    ask = {
        "epsilon": lambda: standard.epsilon(shuffled, delta=1e-5),
        "delta": lambda: standard.delta(shuffled, epsilon=1),
    }
    with pytest.raises(UnsupportedError, match="no amplified guarantee") as refusal:
        ask[what]()
    # Sixteen passes, each a Gaussian mechanism with noise 4: μ = 1.
    held = curves.gaussian_epsilon(1.0, delta=1e-5) if what == "epsilon" else curves.gaussian_delta(1.0, epsilon=1.0)
    (stated,) = re.findall(r"is [εδ] = ([0-9.e-]+) at", str(refusal.value))
    assert float(stated) == pytest.approx(held, rel=1e-5)
    assert isinstance(standard.shuffle_epsilon(shuffled, delta=1e-5), Guarantee)


@pytest.mark.parametrize(
    ("q", "steps", "relation", "mu"),
    [
        (250 / 6000, 576, "add_remove", math.sqrt(24) / 4),  # 24 epochs of 24 steps: no rounding up to 25
        (250 / 6000, 577, "add_remove", math.sqrt(25) / 4),  # a started epoch counts
        (0.3, 9, "add_remove", math.sqrt(3) / 4),  # three whole batches an epoch
        (0.01, 1600, "replace", 2.0),
        (1.0, 16, "add_remove", 1.0),
    ],
)
def test_shuffle_counts_epochs(q: float, steps: int, relation: str, mu: float) -> None:
    shuffled = mechanism(q, 4.0, steps, sampling="shuffle", relation=relation)
    assert standard.shuffle_epsilon(shuffled, delta=1e-5).epsilon == pytest.approx(
        curves.gaussian_epsilon(mu, delta=1e-5), rel=1e-12
    )
    assert standard.shuffle_delta(shuffled, epsilon=0.5).delta == pytest.approx(curves.gaussian_delta(mu, epsilon=0.5))
    assert standard.profile(shuffled).deltas[0] == pytest.approx(curves.gaussian_delta(mu, epsilon=0.0))


def test_pairs_without_an_analysis_are_refused() -> None:
    replaced = mechanism(0.1, 1.0, 10, relation="replace")
    with pytest.raises(UnsupportedError, match=r"standard analysis \(PLD\)"):
        standard.epsilon(replaced, delta=1e-5, analysis="rdp")
    with pytest.raises(UnsupportedError, match="central-limit"):
        standard.gdp_clt(replaced, delta=1e-5)
    with pytest.raises(UnsupportedError, match="shuffle"):
        standard.gdp_mu(mechanism(0.1, 1.0, 10, sampling="shuffle"))
    with pytest.raises(UnsupportedError, match="shuffle"):
        full_batch.mu(mechanism(0.1, 1.0, 10, sampling="shuffle"))


def test_full_batch_baseline_is_the_gaussian_with_more_noise() -> None:
    one = mechanism(0.01, 1.1, 10_000)
    found = full_batch.epsilon(one, delta=1e-5)
    assert isinstance(found, Heuristic)
    assert found.epsilon == pytest.approx(
        standard.epsilon(mechanism(1.0, 110.0, 10_000), delta=1e-5).epsilon, rel=1e-12
    )
    assert full_batch.delta(one, epsilon=found.epsilon).delta == pytest.approx(1e-5, rel=1e-9)
    assert full_batch.mu(mechanism(1.0, 2.0, 4, relation="replace")) == 2.0


@pytest.mark.parametrize(("q", "sigma"), [(0.05, 0.4), (0.3, 1.0), (0.9, 2.0)])
def test_the_curve_of_one_order_of_the_worlds_is_that_of_one_step(q: float, sigma: float) -> None:
    """World 0 is N(0, σ²) and world 1 has the row with probability q: the tests "x > t" are the best ones."""
    t = np.linspace(-4.0 * sigma, 4.0 * sigma + 1.0, 81)
    alpha = stats.norm.sf(t / sigma)
    beta = (1.0 - q) * stats.norm.cdf(t / sigma) + q * stats.norm.cdf((t - 1.0) / sigma)
    found = standard.trade_off(mechanism(q, sigma, 1), added=True)(alpha)
    assert np.all(found <= beta + 1e-12)
    np.testing.assert_allclose(found, beta, atol=1e-2)  # one step of a coarse grid of losses
    both = standard.trade_off(mechanism(q, sigma, 1))(alpha)
    assert np.all(both <= found + 1e-12)
    assert np.max(found - both) > 1e-3  # and not for nothing


def test_the_curve_of_one_order_of_the_worlds_is_what_exact_ratios_reach() -> None:
    """200,000 exact likelihood ratios of 20 steps in each world: error rates within five standard deviations."""
    q, sigma, steps, n = 0.2, 1.5, 20, 200_000
    sample = every_step(mechanism(q, sigma, steps))
    rng = np.random.default_rng(0)
    zero, one = (np.sort(sample(rng, world, n)) for world in (0, 1))
    thresholds = np.quantile(zero, np.linspace(0.02, 0.98, 25))
    alpha = 1.0 - np.searchsorted(zero, thresholds, side="right") / n
    beta = np.searchsorted(one, thresholds, side="right") / n
    np.testing.assert_allclose(
        standard.trade_off(mechanism(q, sigma, steps), added=True)(alpha), beta, atol=5.0 * 0.7 / math.sqrt(n) + 1e-3
    )


def test_a_replaced_row_has_no_order() -> None:
    with pytest.raises(UnsupportedError, match="added = True"):
        standard.trade_off(mechanism(0.1, 1.0, 10, relation="replace"), added=True)


TABLE = re.compile(r"^\| (FMNIST|P100) \| ([0-9.]+) \| ([0-9.]+) \| ([0-9.]+) \|$", re.MULTILINE)


def test_the_table_in_the_docs_is_what_the_code_gives() -> None:
    """The ten finite σ of Tables 2 and 3 of jagielski-2020."""
    page = (Path(__file__).parents[2] / "docs" / "accounting.md").read_text(encoding="utf-8")
    rows = TABLE.findall(page)
    assert len(rows) == 10
    for data, theirs, sigma, ours in rows:
        q, steps = (250 / 6000, 576) if data == "FMNIST" else (250 / 10_000, 4000)
        found = standard.epsilon(mechanism(q, float(sigma), steps), delta=1e-5).epsilon
        assert found <= float(ours) <= found + 1.001e-3  # rounded up
        assert found < float(theirs)
