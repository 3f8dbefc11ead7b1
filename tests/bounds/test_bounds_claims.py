"""A claim tested as a whole: valid for every training that keeps it, and strong against less noise."""

import numpy as np
import pytest
from scipy import special, stats

from coalmine import bounds
from coalmine.errors import InvalidInputError, UnsupportedError
from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, Relation, Sampling, Scores
from coalmine.theory.curves import GaussianCurve

GAUSSIAN = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
SUBSAMPLED = DpSgd(sample_rate=0.2, noise_multiplier=1.0, steps=5)
RARE = DpSgd(sample_rate=0.01, noise_multiplier=0.6, steps=50)


def claim(mechanism=GAUSSIAN, delta=1e-5):
    return MechanismClaim(mechanism=mechanism, delta=delta)


def likelihood_ratios(rng, mechanism, n, *, noise=1.0):
    """Scores that reach the curve: the exact log-likelihood ratio of all steps, with a share of the noise."""
    q, sigma, steps = mechanism.sample_rate, noise * mechanism.noise_multiplier, mechanism.steps
    worlds = []
    for world in (0, 1):
        seen = sigma * rng.standard_normal((n, steps)) + world * (rng.random((n, steps)) < q)
        with np.errstate(divide="ignore"):
            ratio = np.logaddexp(np.log1p(-q), np.log(q) + (2.0 * seen - 1.0) / (2.0 * sigma**2))
        worlds.append(ratio.sum(axis=1))
    return Scores(*worlds)


def refuted(said, draw, *, repetitions, confidence=0.95, copies=1):
    tests = (bounds.claim_test(draw(), claim=said, confidence=confidence, copies=copies) for _ in range(repetitions))
    return sum(test.refuted for test in tests)


def most(repetitions, level=0.05):
    """So many refutations of a true claim happen with a probability below one in a million."""
    return int(stats.binom.isf(1e-6, repetitions, level))


@pytest.mark.parametrize("mechanism", [GAUSSIAN, SUBSAMPLED, RARE], ids=str)
@pytest.mark.parametrize("n", [20, 150])
def test_a_training_just_as_claimed_is_refuted_no_more_often_than_the_level(mechanism, n):
    rng = np.random.default_rng([1, n])
    count = refuted(claim(mechanism), lambda: likelihood_ratios(rng, mechanism, n), repetitions=1500)
    assert count <= most(1500)


def test_the_size_keeps_the_level_with_the_shipped_seed():
    """20,000 audits of N(0, 1) against N(1, 1): 5 % would give 1000 ± 31, and the careful p-value stays below that."""
    rng = np.random.default_rng(2)
    draw = lambda: Scores(rng.standard_normal(150), rng.standard_normal(150) + 1.0)  # noqa: E731
    count = refuted(claim(), draw, repetitions=20_000)
    assert 700 < count <= 1000 + 4.9 * np.sqrt(20_000 * 0.05 * 0.95)
    assert count / 20_000 <= 0.05


def test_ties_and_other_mechanisms_that_keep_the_claim_are_refuted_even_less():
    rng = np.random.default_rng(3)
    tied = lambda: Scores(*(np.round(w) for w in (rng.standard_normal(150), rng.standard_normal(150) + 1.0)))  # noqa: E731
    assert refuted(claim(), tied, repetitions=1000) <= most(1000)
    # Randomized response that is 1-GDP: its likelihood ratio is e with e/(1 + e) = Φ(1/2).
    right = special.ndtr(0.5)
    response = lambda: Scores(  # noqa: E731
        (rng.random(150) > right).astype(float), (rng.random(150) < right).astype(float)
    )
    assert refuted(claim(), response, repetitions=1000) <= most(1000)
    nothing = lambda: Scores(np.zeros(50), np.zeros(50))  # noqa: E731
    assert refuted(claim(), nothing, repetitions=3) == 0


def test_a_claimed_epsilon_is_valid_on_the_pair_that_reaches_it():
    rng = np.random.default_rng(4)
    honest = special.expit(1.0)
    draw = lambda: Scores(  # noqa: E731
        (rng.random(300) > honest).astype(float), (rng.random(300) < honest).astype(float)
    )
    said = EpsilonClaim(epsilon=1.0, delta=1e-5)
    assert refuted(said, draw, repetitions=2000) <= most(2000)
    clearly = Scores(np.zeros(300), np.ones(300))
    assert bounds.claim_test(clearly, claim=said, confidence=0.95).refuted


def test_copies_that_tie_with_the_scores_count_as_reaching_them():
    """Scores without any overlap, 200 + 200: an ε of 6 allows that in over a third of all audits, one of 8 in most."""
    apart = Scores(np.arange(200.0), np.arange(200.0) + 500.0)
    for epsilon, least in ((5.0, 0.05), (6.0, 0.3), (6.64, 0.5), (8.0, 0.8)):
        test = bounds.claim_test(apart, claim=EpsilonClaim(epsilon=epsilon, delta=1e-5), confidence=0.99)
        assert test.p_value > least, epsilon


@pytest.mark.parametrize(("share", "trials"), [(0.5, 80), (0.8, 1000)])
def test_eighty_percent_power_takes_no_more_trials_than_promised(share, trials):
    """Half the noise within 80 trials and 0.8 of it within 1000 at 99 % (the best possible are 42 and 642)."""
    said, half = claim(), trials // 2
    other = bounds.less_noise(said, share=share)
    found = bounds.power(said, alternative=other, negatives=half, positives=half, confidence=0.99)
    assert found >= 0.8
    rng = np.random.default_rng(5)
    draw = lambda: Scores(rng.standard_normal(half), rng.standard_normal(half) + 1.0 / share)  # noqa: E731
    seen = refuted(said, draw, repetitions=400, confidence=0.99) / 400
    assert abs(seen - found) < 5.0 * np.sqrt(found * (1.0 - found) * (1 / 400 + 1 / 2000))
    few = trials // 10
    assert bounds.power(said, alternative=other, negatives=few, positives=few, confidence=0.99) < 0.5


def test_power_on_rare_canaries_comes_from_the_likelihood():
    rng = np.random.default_rng(6)
    said = claim(RARE)
    count = refuted(said, lambda: likelihood_ratios(rng, RARE, 400, noise=0.5), repetitions=100, confidence=0.99)
    found = bounds.power(
        said, alternative=bounds.less_noise(said, share=0.5), negatives=400, positives=400, confidence=0.99
    )
    assert found > 0.5
    assert count / 100 > found - 5.0 * np.sqrt(found * (1.0 - found) / 100 + 1e-4)


def test_the_whole_curve_is_tested_and_not_epsilon_at_delta():
    """At δ = 0.39 noise 2 and noise 1.2 both have ε = 0: the curves differ all the same."""
    rng = np.random.default_rng(7)
    said = claim(GAUSSIAN.with_noise(2.0), delta=0.39)
    scores = Scores(rng.standard_normal(1000), rng.standard_normal(1000) + 1.0 / 1.2)
    assert bounds.claim_test(scores, claim=said, confidence=0.99).refuted


def test_copies_use_the_curve_of_a_group():
    rng = np.random.default_rng(8)
    draw = lambda: Scores(rng.standard_normal(150), rng.standard_normal(150) + 3.0)  # noqa: E731
    assert refuted(claim(), draw, repetitions=500, copies=3) <= most(500)
    assert refuted(claim(), draw, repetitions=20, copies=1) == 20


def test_many_trials_cost_little_more():
    rng = np.random.default_rng(9)
    scores = Scores(rng.standard_normal(200_000), rng.standard_normal(200_000) + 1.05)
    assert bounds.claim_test(scores, claim=claim(), confidence=0.99).refuted  # 0.95 of the noise


def test_trials_needed_agrees_with_power():
    said = claim()
    other = bounds.less_noise(said, share=0.5)
    needed = bounds.trials_needed(said, alternative=other, confidence=0.99)
    assert needed is not None
    assert 42 <= needed <= 100
    assert bounds.power(said, alternative=other, negatives=needed, positives=needed, confidence=0.99) > 0.8
    assert bounds.trials_needed(said, alternative=GaussianCurve(mu=1.0), confidence=0.99) is None


def test_less_noise_is_the_same_mechanism_with_a_share_of_its_noise():
    alpha = np.linspace(0.0, 1.0, 11)
    half = bounds.less_noise(claim(), share=0.5)(alpha)
    np.testing.assert_allclose(half, GaussianCurve(mu=2.0)(alpha), atol=2e-4)
    said = EpsilonClaim(epsilon=4.377178, delta=1e-5)
    np.testing.assert_allclose(bounds.less_noise(said, share=0.5)(alpha), GaussianCurve(mu=2.0)(alpha), atol=1e-5)


@pytest.mark.parametrize(
    ("said", "confidence", "words"),
    [
        (claim(DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=10, sampling=Sampling.SHUFFLE)), 0.99, "shuffle"),
        (claim(), 1.0 - 1e-9, "too high for the test of a claim"),
    ],
)
def test_what_cannot_be_tested_is_refused_beforehand(said, confidence, words):
    with pytest.raises(UnsupportedError, match=words):
        bounds.check_claim(said, confidence=confidence)


def test_a_claim_by_replacement_is_tested_where_it_has_a_curve():
    mechanism = DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=1, sampling=Sampling.FULL, relation=Relation.REPLACE)
    bounds.check_claim(claim(mechanism), confidence=0.99)
    with pytest.raises(InvalidInputError, match="confidence"):
        bounds.check_claim(claim(), confidence=1.0)


@pytest.mark.parametrize("added", [False, True])
def test_the_power_is_what_perfect_attacks_reach_where_batches_are_drawn(added):
    """200 audits of exact likelihood ratios; the chance of a false failure is below 1e-6 (five standard errors).

    By the curve that holds in both orders the power would be larger, and no attack reaches it.
    """
    rate, share, trials, audits = 0.05, 0.35, 400, 200
    said = MechanismClaim(mechanism=DpSgd(sample_rate=rate, noise_multiplier=1.0, steps=1), delta=1e-5)
    other = bounds.less_noise(said, share=share, added=True)
    power = bounds.power(said, alternative=other, negatives=trials, positives=trials, confidence=0.99, added=added)
    rng, refuted = np.random.default_rng(8), 0
    for _ in range(audits):
        seen = share * rng.normal(size=(2, trials))
        seen[1] += rng.random(trials) < rate
        ratios = np.log1p(rate * np.expm1((seen - 0.5) / share**2))
        refuted += bounds.claim_test(Scores(ratios[0], ratios[1]), claim=said, confidence=0.99, added=added).refuted
    assert refuted / audits == pytest.approx(power, abs=5.0 * (0.25 / audits) ** 0.5)
    both = bounds.less_noise(said, share=share)
    told = bounds.power(said, alternative=both, negatives=trials, positives=trials, confidence=0.99, added=added)
    assert told > power + 0.05
