"""The rank test: as sharp as a known law allows, valid at the truth, and free of θ where it must be."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from coalmine.bounds import Ranks, Sup, clopper_pearson, dpsgd, gdp, known, ranks
from coalmine.bounds._rates import errors_by_position, lattice
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.bounds.families import Gdp
from coalmine.bounds.known import RARE, SUBSAMPLED
from coalmine.bounds.sup import missed_by
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Scores
from coalmine.theory.curves import gaussian_epsilon


def gaussian(rng, mu, n):
    return Scores(rng.normal(size=n), rng.normal(mu, size=n))


def test_the_statistic_of_an_audit_by_hand():
    """Σ_j a(share of X above Y_j) + Σ_i a(share of Y below X_i), up to a constant, from the scores themselves."""
    rng = np.random.default_rng(0)
    scores = gaussian(rng, 1.0, 60)  # so few that the lattice holds every count
    gain = lambda share: -stats.norm.ppf(share)  # noqa: E731
    above = (scores.world0[None, :] >= scores.world1[:, None]).sum(axis=1)
    below = (scores.world1[None, :] <= scores.world0[:, None]).sum(axis=1)
    by_hand = gain((above + 0.5) / 61.0).sum() + gain((below + 0.5) / 61.0).sum()
    found = ranks.rank_sum(gain, 60, 60)(errors_by_position(scores).false_negatives[None, :])[0]
    assert found + 60 * gain(0.5 / 61.0) == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("confidence", [0.99999, 0.999999])
def test_a_confidence_that_would_take_minutes_is_refused_at_once(confidence):
    rng = np.random.default_rng(0)
    with pytest.raises(UnsupportedError, match=r"too high for the rule ranks, .* bonferroni, holdout or given"):
        gdp(gaussian(rng, 1.0, 60), delta=1e-5, confidence=confidence, threshold=Ranks())
    assert ranks.simulations_for(1e-4) == 1_000_000


def test_the_likelihood_of_an_audit_by_hand():
    """For Gaussians, ln r = 3t − 4.5 at the score t that (Φ(−t) + Φ(3 − t))/2 of all scores exceed, for μ = 3."""
    rng = np.random.default_rng(0)
    scores = gaussian(rng, 1.0, 60)
    together = np.concatenate([scores.world0, scores.world1])
    above = np.array([(together > x).sum() for x in scores.world0])
    t = np.linspace(-3.0, 6.0, 20_001)
    ratio = np.interp(
        (above + 0.5) / 120.0, ((stats.norm.sf(t) + stats.norm.sf(t - 3.0)) / 2.0)[::-1], 3.0 * t[::-1] - 4.5
    )
    errors = errors_by_position(scores)
    table = ranks.likelihood(Gdp(delta=1e-5), 60, 60)
    found = table[np.arange(60), errors.places[:-1]].sum()
    assert found == pytest.approx(-ratio.sum(), rel=2e-3)


@pytest.mark.parametrize("family", [Gdp(delta=1e-5), DpSgdNoise(mechanism=RARE, delta=1e-5, added=True, octave=64)])
def test_it_rises_with_every_comparison(family):
    """Raising a score of world 1 or lowering one of world 0 never lowers the statistic: what the proof needs."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        scores = gaussian(rng, rng.uniform(0.0, 3.0), 80)
        before = ranks.observed(family, scores)
        one, zero = scores.world1.copy(), scores.world0.copy()
        one[rng.integers(80)] += rng.exponential()
        zero[rng.integers(80)] -= rng.exponential()
        assert ranks.observed(family, Scores(zero, one)) >= before


def test_it_rises_where_not_every_count_is_told_from_the_next():
    rng, family = np.random.default_rng(11), Gdp(delta=1e-5)
    for _ in range(20):
        scores = gaussian(rng, rng.uniform(0.0, 2.0), 1500)
        one = scores.world1.copy()
        one[rng.integers(1500, size=5)] += 1.0
        assert ranks.observed(family, Scores(scores.world0, one)) >= ranks.observed(family, scores)


@pytest.mark.parametrize("total", [1024, 1025, 5000, 100_000])
def test_the_counts_that_are_told_apart(total):
    """Of the fine lattice, all near the ends, and nowhere further apart than 1.5 standard deviations."""
    kept, near = ranks.told_apart(total), np.arange(64)
    assert np.isin(kept, lattice(total, fine=True)).all()
    assert np.isin(near, kept).all()
    assert np.isin(total - near, kept).all()
    gaps = np.diff(kept)
    inner = np.minimum(kept[1:], total - kept[:-1])
    assert (gaps <= np.maximum(1.0, 1.5 * np.sqrt(inner))).all()
    assert (kept.size == total + 1) == (total <= 1024)


def test_with_many_trials_the_likelihood_decides():
    """Its scatter is half that of the best threshold, and scores of the family itself are no exception to it."""
    family, n = DpSgdNoise(mechanism=SUBSAMPLED, delta=1e-5, added=True, octave=64), 20_000
    curve = family.curve(family.near(1.0))
    places = np.concatenate([missed_by(curve, *pair) for pair in ranks._copies(n, n, simulations=150, seed=3)])
    raw, ladder = ranks._raw(family, n, n)(places), ranks._ladder(family, n, n)
    threshold, likelihood = (ranks._up_the_ladder(raw[:, k], ladder[:, k]) for k in range(2))
    # Under a tenth of the copies; at one in five, 15 or fewer of 150 have a probability of 1e-3 already. Fixed seed.
    assert np.mean(threshold > likelihood) < 0.1
    assert np.std(likelihood) < 0.8 * np.std(threshold)


@pytest.mark.parametrize(("mu", "n"), [(0.7, 100), (3.0, 40)])
def test_near_the_best_that_is_possible_for_two_gaussians(mu, n):
    """The z-test that knows both laws proves μ̂ − 1.645·√(2/n) at 95 %: the rank test loses a tenth of its width."""
    rng = np.random.default_rng(2)
    lost = []
    for _ in range(4):
        scores = gaussian(rng, mu, n)
        best = scores.world1.mean() - scores.world0.mean() - 1.645 * np.sqrt(2.0 / n)
        lost.append(best - gdp(scores, delta=1e-5, confidence=0.95, threshold=Ranks()).details["mu"])
    # 4 differences with a standard deviation under half the width: their mean is known to a quarter of it.
    assert -1.0 < np.mean(lost) / np.sqrt(2.0 / n) < (1.5 if mu < 2.0 else 3.0)


def test_sharper_than_the_best_threshold_for_sampled_steps():
    """On the same 4 audits, summed: each gain is paired."""
    rng = np.random.default_rng(3)
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.386, steps=100)
    audits = [Scores(_llr(rng, 400, 0), _llr(rng, 400, 1)) for _ in range(4)]
    options = {"mechanism": mechanism, "delta": 1e-5, "confidence": 0.95}
    sharp = [dpsgd(scores, **options) for scores in audits]
    blunt = [dpsgd(scores, **options, threshold=Sup()) for scores in audits]
    assert {bound.threshold_rule for bound in sharp} == {"ranks"}
    assert all(bound.epsilon <= bound.ceiling for bound in sharp)
    assert np.mean([bound.epsilon for bound in sharp]) > np.mean([bound.epsilon for bound in blunt])
    assert max(bound.epsilon for bound in sharp) < 4.0


def _llr(rng, trials, world, *, q=0.1, sigma=1.386, steps=100):
    seen = sigma * rng.normal(size=(steps, trials)) + world * (rng.random((steps, trials)) < q)
    return np.log1p(q * np.expm1((2.0 * seen - 1.0) / (2.0 * sigma**2))).sum(axis=0)


def test_the_level_is_kept_at_the_truth():
    """4000 audits of a Gaussian leak that is just the claim: misses beyond 5 % + 5 standard deviations never happen."""
    family, n = Gdp(delta=1e-5), 50
    rng = np.random.default_rng(4)
    places = np.array([errors_by_position(gaussian(rng, 1.0, n)).places for _ in range(4000)])
    values = np.sort(ranks.statistic(family, places, n, n))
    low, high = 0, values.size
    while low < high:  # θ rises with the statistic: the audits that miss are those above one value
        middle = (low + high) // 2
        above = ranks.invert(family, n, n, float(values[middle]), level=0.05) > 1.0
        low, high = (low, middle) if above else (middle + 1, high)
    share = (values.size - low) / values.size
    assert share < 0.05 + 5.0 * np.sqrt(0.05 * 0.95 / 4000)
    assert share > 0.02  # and not for nothing


@pytest.mark.parametrize(("mechanism", "rounded"), [(SUBSAMPLED, False), (RARE, False), (RARE, True)])
def test_the_level_is_kept_where_the_order_of_the_worlds_is_known(mechanism, rounded):
    """3000 audits with the exact ratios of the very mechanism: nothing can come nearer to its curve. As above."""
    family, n = DpSgdNoise(mechanism=mechanism, delta=1e-5, added=True, octave=64), 40
    rng = np.random.default_rng(5)
    sample = known.every_step(mechanism)
    audits = [Scores(sample(rng, 0, n), sample(rng, 1, n)) for _ in range(3000)]
    if rounded:
        audits = [Scores(np.round(one.world0, 1), np.round(one.world1, 1)) for one in audits]
    places = np.array([errors_by_position(one).places for one in audits])
    values = np.sort(ranks.statistic(family, places, n, n))
    low, high = 0, values.size
    truth = np.log2(4096.0 / mechanism.noise_multiplier) * 64 + 1.0
    while low < high:
        middle = (low + high) // 2
        above = ranks.invert(family, n, n, float(values[middle]), level=0.05) > truth
        low, high = (low, middle) if above else (middle + 1, high)
    assert (values.size - low) / values.size < 0.05 + 5.0 * np.sqrt(0.05 * 0.95 / 3000)


def test_it_proves_more_where_canaries_are_rare():
    """On the same 4 audits, summed: few scores carry the evidence, and the likelihood counts all of those."""
    rng = np.random.default_rng(7)
    mechanism = DpSgd(sample_rate=0.01, noise_multiplier=0.5, steps=50)
    sample = known.every_step(mechanism)
    audits = [Scores(sample(rng, 0, 400), sample(rng, 1, 400)) for _ in range(4)]
    options = {"mechanism": mechanism, "delta": 1e-5, "confidence": 0.95}
    sharp = sum(dpsgd(scores, **options, added=True).epsilon for scores in audits)
    assert sharp > 1.2 * sum(dpsgd(scores, **options, threshold=Sup()).epsilon for scores in audits)


def test_it_still_sees_what_few_trials_show():
    """One trial in ten gives the canary away, and the others say nothing: the best threshold decides."""
    rng = np.random.default_rng(8)
    scores = Scores(rng.normal(size=500), rng.normal(size=500) + 6.0 * (rng.random(500) < 0.1))
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=1.386, steps=100)
    found = dpsgd(scores, mechanism=mechanism, delta=1e-5, confidence=0.99, added=True).epsilon
    blunt = dpsgd(scores, mechanism=mechanism, delta=1e-5, confidence=0.99, threshold=Sup(), added=True).epsilon
    assert found > max(2.0, 0.8 * blunt)


def test_the_order_of_the_worlds_is_said_and_asked_for_only_where_it_can_be_known():
    scores = gaussian(np.random.default_rng(9), 2.0, 100)
    mechanism = DpSgd(sample_rate=0.2, noise_multiplier=1.0, steps=10)
    found = dpsgd(scores, mechanism=mechanism, delta=1e-5, confidence=0.9, added=True)
    assert "world 1 is world 0 with rows added" in found.assumptions
    for changes in ({"family": "last_iterate"}, {"mechanism": dataclasses.replace(mechanism, relation="replace")}):
        with pytest.raises(UnsupportedError, match="added = True is not allowed"):
            dpsgd(scores, **{"mechanism": mechanism, "delta": 1e-5, "confidence": 0.9, "added": True, **changes})


@pytest.mark.parametrize("family", [Gdp(delta=1e-5), DpSgdNoise(mechanism=SUBSAMPLED, delta=1e-5, octave=64)])
def test_the_search_ends_where_all_copies_pass_the_value_in_one_step(family, monkeypatch):
    """So it is with many trials and a strong leak. Here no copy may be kept, and the answer is a little lower."""
    value = ranks.observed(family, gaussian(np.random.default_rng(10), 2.0, 60))
    plain = ranks.invert(family, 60, 60, value, level=0.05)
    monkeypatch.setattr(ranks, "_PLENTY", 0)
    ranks._refuted.cache_clear()
    rough = ranks.invert(family, 60, 60, value, level=0.05)
    ranks._refuted.cache_clear()
    assert 0.0 < rough < plain


def test_ties_and_separation():
    same = Scores(np.zeros(50), np.zeros(50))
    assert gdp(same, delta=1e-5, confidence=0.95, threshold=Ranks()).epsilon == 0.0
    apart = Scores(np.zeros(50), np.ones(50))
    found = gdp(apart, delta=1e-5, confidence=0.95, threshold=Ranks())
    assert 0.9 * found.ceiling < found.epsilon <= found.ceiling
    assert found.epsilon < gaussian_epsilon(8.0, delta=1e-5)
    wrong_way = Scores(np.ones(50), np.zeros(50))
    assert gdp(wrong_way, delta=1e-5, confidence=0.95, threshold=Ranks()).epsilon == 0.0


def test_copies_and_few_trials():
    rng = np.random.default_rng(5)
    mechanism = DpSgd(sample_rate=0.2, noise_multiplier=1.0, steps=10)
    scores = gaussian(rng, 4.0, 20)
    one, two = (dpsgd(scores, mechanism=mechanism, delta=1e-5, confidence=0.9, copies=k).epsilon for k in (1, 2))
    assert 0.0 < two < one
    tiny = gdp(Scores([0.0], [1.0]), delta=1e-5, confidence=0.9, threshold=Ranks())
    assert tiny.epsilon == 0.0


def test_for_known_families_only():
    with pytest.raises(UnsupportedError, match="there the best threshold says all"):
        clopper_pearson(gaussian(np.random.default_rng(6), 1.0, 50), delta=1e-5, confidence=0.95, threshold=Ranks())


def test_a_leak_beyond_the_family(monkeypatch):
    """So rare a canary that no noise of the grid explains scores this far apart: the largest member is the answer, and
    it is found in a few steps.
    """
    steps, ask = [], ranks._next
    monkeypatch.setattr(ranks, "_next", lambda *given: steps.append(given) or ask(*given))
    mechanism = DpSgd(sample_rate=1e-3, noise_multiplier=1.0, steps=1)
    scores = Scores(np.arange(40.0), np.arange(100.0, 140.0))
    for analysis in ("standard", "last_iterate"):
        family = DpSgdNoise(mechanism=mechanism, delta=1e-5, octave=16, analysis=analysis)
        assert family.near(1e7) == family.size
        assert ranks.invert(family, 40, 40, ranks.observed(family, scores), level=0.05) == family.size
    assert len(steps) <= 8


def test_the_family_without_noise_known():
    family = DpSgdNoise(mechanism=DpSgd(sample_rate=0.1, noise_multiplier=3.0, steps=7), delta=1e-5)
    assert family.near(1.0) == family.search(lambda theta: theta <= family.near(1.0), start=family.near(1.2))


def test_equal_counts_give_equal_values_however_they_are_added_up():
    """A copy that equals the observed scores must count as reaching them: one row, and the same among many."""
    family = Gdp(delta=1e-5)
    apart = errors_by_position(Scores(np.arange(300.0), np.arange(290.0, 590.0))).places
    alone = ranks.statistic(family, apart[None, :], 300, 300)[0]
    assert np.unique(ranks.statistic(family, np.tile(apart, (1001, 1)), 300, 300)).tolist() == [alone]
