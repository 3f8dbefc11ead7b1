"""Anytime bounds (validity computed exactly), the Bayesian estimate, the DP-SGD family, and plans."""

import math
import time

import numpy as np
import pytest
from scipy import integrate, stats

from coalmine import bounds
from coalmine.accounting import standard
from coalmine.bounds.anytime import _log_betainc, _log_bets, anytime_limit
from coalmine.bounds.bayesian import posterior_mass
from coalmine.bounds.dpsgd import DpSgdNoise, GroupCurve
from coalmine.errors import UnsupportedError
from coalmine.records import Counts, DpSgd, Estimate, LowerBound, OneRunScores, Scores
from coalmine.theory.curves import GaussianCurve, gaussian_mu
from coalmine.theory.rates import upper_limit


def counts(fp, n0, fn, n1):
    return Counts(false_positives=fp, negatives=n0, false_negatives=fn, positives=n1)


def dpsgd(q, steps, **more):
    """A mechanism whose noise is not used."""
    return DpSgd(sample_rate=q, noise_multiplier=1.0, steps=steps, **more)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.37, 0.5, 0.9])
def test_confidence_sequence_ever_misses_with_probability_at_most_the_level(rate):
    # Exactly, by dynamic programming over (trials, errors): the chance that the limit was below the rate at any time.
    level, horizon = 0.1, 80
    alive = np.zeros(horizon + 2)
    alive[0] = 1.0
    missed = 0.0
    for n in range(1, horizon + 1):
        alive[1:] = alive[1:] * (1 - rate) + alive[:-1] * rate
        alive[0] *= 1 - rate
        for k in range(n + 1):
            if alive[k] > 0.0 and anytime_limit(k, n, level=level) < rate:
                missed += alive[k]
                alive[k] = 0.0
    assert missed <= level
    assert alive.sum() + missed == pytest.approx(1.0)


def test_bets_are_the_integral_they_claim_to_be():
    for wrong, total, p in ((0, 10, 0.3), (3, 10, 0.5), (40, 100, 0.55)):
        prior = stats.beta(0.5, 0.5)
        # Substituting q = sin² takes the singular end out of the integral.
        value, _ = integrate.quad(
            lambda x, k=wrong, n=total, p=p: (math.sin(x) ** 2 / p) ** k * (math.cos(x) ** 2 / (1 - p)) ** (n - k),
            0.0,
            math.asin(math.sqrt(p)),
            epsabs=1e-14,
        )
        value *= 2.0 / math.pi / prior.cdf(p)
        assert float(_log_bets(np.array([p]), wrong, total)[0]) == pytest.approx(math.log(value), abs=1e-9)
    series = _log_betainc(30.5, 1000.5, np.array([0.001]))[0]
    assert series == pytest.approx(stats.beta(30.5, 1000.5).logcdf(0.001), abs=1e-6)


@pytest.mark.parametrize(("wrong", "total"), [(0, 1), (0, 1000), (7, 100), (99, 100), (250_000, 10**6)])
def test_anytime_limit_pays_something_and_not_too_much(wrong, total):
    fixed = float(upper_limit(wrong, total, 0.025))
    watched = anytime_limit(wrong, total, level=0.025)
    assert fixed <= watched <= 1.0
    assert anytime_limit(total, total, level=0.025) == 1.0
    if total >= 100 and wrong < total - 1:
        assert watched - wrong / total < 2.5 * (fixed - wrong / total)


def test_anytime_audit_keeps_the_smallest_limit_and_agrees_with_the_function():
    audit = bounds.AnytimeAudit(delta=1e-5, confidence=0.95)
    audit.add(world=0, trials=200, wrong=0)
    audit.add(world=1, trials=200, wrong=50)
    first = audit.bound()
    assert first.epsilon == bounds.anytime(counts(0, 200, 50, 200), delta=1e-5, confidence=0.95).epsilon
    assert isinstance(first, LowerBound)
    audit.add(world=0, trials=50, wrong=50)  # a bad stretch does not take back what was proved
    assert audit.bound().epsilon == first.epsilon
    assert audit.bound().counts == counts(50, 250, 50, 200)
    watched = bounds.anytime(counts(5, 500, 200, 500), delta=1e-5, confidence=0.95, method="gdp")
    fixed = bounds.gdp(counts(5, 500, 200, 500), delta=1e-5, confidence=0.95)
    assert 0.7 * fixed.epsilon < watched.epsilon < fixed.epsilon


@pytest.mark.parametrize("evidence", [counts(100, 1000, 500, 1000), counts(0, 50, 0, 60), counts(3, 20, 9, 30)])
@pytest.mark.parametrize("delta", [0.0, 1e-2])
def test_bayesian_mass_is_that_of_simulated_rates(evidence, delta):
    rng = np.random.default_rng(1)
    n = 400_000
    alpha = rng.beta(evidence.false_positives + 0.5, evidence.negatives - evidence.false_positives + 0.5, n)
    beta = rng.beta(evidence.false_negatives + 0.5, evidence.positives - evidence.false_negatives + 0.5, n)
    for epsilon in (0.3, 1.5, 4.0):
        e = math.exp(epsilon)
        inside = (1 - beta <= e * alpha + delta) & (1 - alpha <= e * beta + delta)
        inside &= (alpha <= e * (1 - beta) + delta) & (beta <= e * (1 - alpha) + delta)
        found = posterior_mass(evidence, epsilon=epsilon, delta=delta)
        assert found == pytest.approx(inside.mean(), abs=5e-3)  # six standard errors of the simulation


def test_bayesian_is_an_estimate_between_its_ends():
    found = bounds.bayesian(counts(100, 1000, 500, 1000), delta=0.0)
    assert isinstance(found, Estimate)
    low, high = found.interval
    assert low < found.epsilon < high
    assert posterior_mass(counts(100, 1000, 500, 1000), epsilon=low, delta=0.0) == pytest.approx(0.025, abs=1e-6)
    assert math.isfinite(bounds.bayesian(counts(0, 1000, 0, 1000), delta=0.0).interval[1])


@pytest.mark.parametrize("family", ["standard", "last_iterate"])
def test_dpsgd_without_sampling_is_the_gaussian_method(family):
    # T full-batch steps are one Gaussian mechanism with μ = √T/σ: both methods must find the same, to one grid step.
    rng = np.random.default_rng(2)
    scores = Scores(rng.normal(size=300), rng.normal(size=300) + 1.5)
    for rule in (bounds.Sup(simulations=1999), bounds.Given(0.7), bounds.DKW()):
        common = {"delta": 1e-5, "confidence": 0.95, "threshold": rule}
        gaussian = bounds.gdp(scores, **common)
        found = bounds.dpsgd(scores, **common, mechanism=dpsgd(1.0, 4), family=family)
        assert found.epsilon <= gaussian.epsilon
        assert found.epsilon >= gaussian.epsilon * 0.985
        assert 2.0 / found.details["noise_multiplier"] == pytest.approx(gaussian.details["mu"], rel=0.01)


def test_dpsgd_bound_is_at_the_edge_of_what_the_profile_refutes():
    from coalmine.accounting import last_iterate, standard

    evidence = counts(20, 1000, 400, 1000)
    alpha, beta = upper_limit(20, 1000, 0.025), upper_limit(400, 1000, 0.025)
    for name, analysis in (("standard", standard), ("last_iterate", last_iterate)):
        found = bounds.dpsgd(evidence, delta=1e-5, confidence=0.95, mechanism=dpsgd(0.2, 10), family=name)
        sigma = found.details["noise_multiplier"]
        at = DpSgd(sample_rate=0.2, noise_multiplier=sigma, steps=10)
        assert beta < analysis.profile(at).curve()(alpha)
        assert not beta < analysis.profile(at.with_noise(sigma * 0.99)).curve()(alpha)
        theory = analysis.epsilon(at, delta=1e-5).epsilon
        assert 0.99 * theory < found.epsilon <= theory
        assert found.ceiling > found.epsilon


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.1, 1.0, 20), (0.01, 1.1, 500), (0.01, 20.0, 1000), (0.5, 2.0, 5)])
def test_epsilon_is_rounded_down_where_the_accountant_rounds_up(q, sigma, steps):
    # The ε that is reported lies below an ε from losses discretised four times as finely, and hardly below it.
    from dp_accounting.pld import privacy_loss_distribution

    from coalmine.accounting import _losses
    from coalmine.bounds.dpsgd import _epsilon

    mechanism = DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps)
    fine = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=_losses._interval(mechanism) / 4
    ).self_compose(steps)
    finer = fine.get_epsilon_for_delta(1e-5)
    assert 0.999 * finer < _epsilon(mechanism, "standard", 1e-5) < finer


def test_trade_off_is_valid_and_close():
    from coalmine.accounting import standard

    mechanism = DpSgd(sample_rate=0.05, noise_multiplier=0.9, steps=200)
    alpha = np.geomspace(1e-4, 0.5, 30)
    quick, slow = standard.trade_off(mechanism)(alpha), standard.profile(mechanism).curve()(alpha)
    assert np.all(quick <= slow * (1 + 1e-3))  # two grids of ε: each may be the lower one between its points
    assert np.all(quick >= slow * (1 - 3e-3))


def test_group_curve_of_gaussians_is_the_gaussian_of_k_mu():
    alpha = np.geomspace(1e-6, 0.9, 50)
    found = GroupCurve(GaussianCurve(mu=0.4), 3)(alpha)
    assert found == pytest.approx(GaussianCurve(mu=1.2)(alpha), abs=1e-9)
    step_by_step = alpha
    for _ in range(40):
        step_by_step = 1.0 - GaussianCurve(mu=0.05)(step_by_step)
    assert GroupCurve(GaussianCurve(mu=0.05), 40)(alpha) == pytest.approx(1.0 - step_by_step, abs=1e-9)
    family = DpSgdNoise(mechanism=dpsgd(1.0, 1), delta=1e-5, copies=3)
    single = DpSgdNoise(mechanism=dpsgd(1.0, 1), delta=1e-5)
    a, b = np.array([0.01]), np.array([0.3])
    assert family.sigma(family.most_refuted(a, b)) == pytest.approx(
        3 * single.sigma(single.most_refuted(a, b)), rel=0.01
    )


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("sigma", "copies"), [(8.0, 17), (30.0, 40), (50.0, 100), (400.0, 1000), (4000.0, 10_000)])
def test_the_curve_of_many_copies_is_never_too_high_and_close(sigma, copies, added):
    """Against the same curve taken one copy after the other, between the points at which it has tangents."""
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=sigma, steps=100)
    single = standard.trade_off(mechanism, added=added)
    alpha = np.concatenate([[0.0], np.geomspace(1e-9, 0.5, 701), 1.0 - np.geomspace(1e-9, 0.5, 701), [1.0]])
    power = alpha
    for _ in range(copies):
        power = 1.0 - single(power)
    found = GroupCurve(single, copies)(alpha)
    assert np.all(found <= 1.0 - power)
    assert np.all(found >= (1.0 - power) * (1.0 - 1e-3) - 1e-11 * copies)
    assert 0.0 < found.max() <= 1.0


def test_dpsgd_refuses_shuffling_and_nonsense():
    with pytest.raises(UnsupportedError, match="shuffle"):
        bounds.dpsgd(counts(0, 9, 0, 9), delta=1e-5, confidence=0.9, mechanism=dpsgd(0.1, 5, sampling="shuffle"))
    with pytest.raises(ValueError, match="sample_rate"):
        bounds.dpsgd(counts(0, 9, 0, 9), delta=1e-5, confidence=0.9, mechanism=dpsgd(0.0, 5))
    with pytest.raises(ValueError, match="mechanism is missing"):
        bounds.lower_bound(counts(0, 9, 0, 9), delta=1e-5, confidence=0.9, method="dpsgd")
    with pytest.raises(ValueError, match="copies"):
        bounds.dpsgd(counts(0, 9, 0, 9), delta=1e-5, confidence=0.9, mechanism=dpsgd(0.1, 5), copies=10**9)


def test_dpsgd_counts_that_refute_nothing():
    found = bounds.dpsgd(counts(50, 100, 50, 100), delta=1e-5, confidence=0.95, mechanism=dpsgd(0.5, 3))
    assert found.epsilon == 0.0
    assert found.details["noise_multiplier"] == math.inf


def test_plan_for_a_perfect_attack_is_the_least_number():
    for method in ("clopper_pearson", "gdp"):
        found = bounds.plan(3.0, delta=1e-5, confidence=0.95, method=method)
        common = {"delta": 1e-5, "confidence": 0.95, "method": method}
        assert bounds.ceiling(found.trials, positives=found.trials, **common) > 3.0
        assert found.trials == 1 or bounds.ceiling(found.trials - 1, positives=found.trials - 1, **common) <= 3.0
    found = bounds.plan(4.0, delta=1e-5, confidence=0.95, method="one_run")
    n = found.trials
    for m, enough in ((n, True), (n - 1, False)):
        guesses = bounds.Guesses(canaries=m, guesses=m, correct=m)
        assert (bounds.one_run(guesses, delta=1e-5, confidence=0.95).epsilon > 4.0) == enough


@pytest.mark.parametrize(
    ("claim", "confidence", "method"),
    [(4.0, 0.95, "clopper_pearson"), (1.0, 0.95, "clopper_pearson"), (4.0, 0.9, "clopper_pearson"), (3.0, 0.99, "gdp")],
)
def test_a_perfect_attack_refutes_with_the_planned_trials_whatever_the_seed(claim, confidence, method):
    """By the sup-test, whose simulated copies make the bound scatter; with one and an eighth fewer no seed refutes."""
    found = bounds.plan(claim, delta=1e-5, confidence=confidence, method=method, threshold=bounds.Sup())

    def proved(n, seed):
        perfect = Scores(np.arange(n), n + np.arange(n))
        common = {"delta": 1e-5, "confidence": confidence, "method": method}
        return bounds.lower_bound(perfect, threshold=bounds.Sup(seed=seed), **common).epsilon

    assert min(proved(found.trials, seed) for seed in range(8)) >= found.ceiling > claim
    assert max(proved(math.floor(found.trials * 7 / 8) - 1, seed) for seed in range(8)) <= claim


def test_a_plan_of_few_trials_has_its_power():
    """Of so few trials the statistic has few values: the rough law of the claim promised 80 % where it was 70 %."""
    found = bounds.plan(
        2.0, delta=1e-5, confidence=0.95, method="gdp", threshold=bounds.Sup(), attack_epsilon=4.0, copies=3
    )
    n, mu, rng = found.trials, 3 * gaussian_mu(4.0, delta=1e-5), np.random.default_rng(8)
    common = {"delta": 1e-5, "confidence": 0.95, "copies": 3, "threshold": bounds.Sup()}
    refuted = [
        bounds.gdp(Scores(rng.normal(size=n), rng.normal(size=n) + mu), **common).epsilon > 2.0 for _ in range(1500)
    ]
    assert n < 30
    assert 0.75 < np.mean(refuted) < 0.95  # five standard errors are 0.052


def test_plan_for_a_gaussian_attack_has_the_power_it_says():
    # 300 audits with the planned number of trials: the claim falls in 80 % of them, give or take 5 standard errors.
    found = bounds.plan(2.0, delta=1e-5, confidence=0.95, method="gdp", threshold=bounds.Sup(), attack_epsilon=5.0)
    mu = gaussian_mu(5.0, delta=1e-5)
    rng = np.random.default_rng(6)
    n = found.trials
    refuted = [
        bounds.gdp(
            Scores(rng.normal(size=n), rng.normal(size=n) + mu),
            delta=1e-5,
            confidence=0.95,
            threshold=bounds.Sup(simulations=1999),
        ).epsilon
        > 2.0
        for _ in range(300)
    ]
    assert 0.68 < np.mean(refuted) < 0.92


def test_a_plan_against_an_attack_that_is_hardly_worth_more_ends_at_once():
    start = time.process_time()
    for method in ("clopper_pearson", "gdp"):
        for rule in (None, bounds.Sup()):
            found = bounds.plan(
                1.0, delta=1e-5, confidence=0.95, method=method, threshold=rule, attack_epsilon=1.0 + 1e-10
            )
            assert found.trials is None
    assert time.process_time() - start < 5.0  # some milliseconds when nothing else runs


def test_plan_refuses_what_cannot_be_planned():
    with pytest.raises(ValueError, match="attack_epsilon"):
        bounds.plan(4.0, delta=1e-5, confidence=0.95, attack_epsilon=3.0)
    with pytest.raises(UnsupportedError, match="dkw"):
        bounds.plan(4.0, delta=1e-5, confidence=0.95, threshold=bounds.DKW())
    hopeless = bounds.plan(9.0, delta=1e-4, confidence=0.95, method="one_run")
    assert hopeless.trials is None
    assert hopeless.to_dict()["kind"] == "plan"


def test_one_run_scores_are_never_independent_trials():
    with pytest.raises(UnsupportedError):
        bounds.lower_bound(OneRunScores([0, 1], [0.0, 1.0]), delta=1e-5, confidence=0.95)
