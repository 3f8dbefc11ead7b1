"""Where the gap comes from: the parts are exact on mechanisms whose law is known, and add up."""

import dataclasses

import numpy as np
import pytest
import report_sample as sample

from coalmine import bounds, report
from coalmine.auditing.gap import gaps
from coalmine.records import DpSgd, EpsilonClaim, MechanismClaim, Scores
from coalmine.report import gap as shown
from coalmine.report import rounding
from coalmine.theory.curves import GaussianCurve, gaussian_epsilon

FULL = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)  # the Gaussian mechanism with μ = 1
SURE = {"delta": 1e-5, "confidence": 0.99}


def gaussian(mu, n, seed):
    rng = np.random.default_rng(seed)
    return Scores(rng.normal(size=n), rng.normal(mu, 1.0, size=n))


def audited(*attacks, mechanism=FULL):
    """An audit of a known mechanism: each attack is its name and its scores, from the weakest rung to the strongest."""
    found = []
    for name, scores in attacks:
        one = sample.adversary(name, trials=8)
        bound = bounds.lower_bound(scores, **SURE)
        others = (bounds.dpsgd(scores, mechanism=mechanism, **SURE), bounds.gdp(scores, **SURE))
        found.append(dataclasses.replace(one, scores=scores, bound=bound, others=others))
    result = sample.result(*found)
    guarantee = dataclasses.replace(result.guarantee, epsilon=gaussian_epsilon(1.0, delta=1e-5))
    subject = dataclasses.replace(result.subject, ran=mechanism, guarantee=guarantee)
    return dataclasses.replace(result, subject=subject)


@pytest.mark.parametrize(("n", "method"), [(60, "gdp"), (400, "gdp"), (400, "clopper_pearson")])
def test_the_typical_bound_is_the_median_of_bounds(n, method):
    """Of 60 audits with other seeds as many prove more as prove less; 11 or fewer on a side has probability 4e-7."""
    typical = bounds.typical_bound(GaussianCurve(mu=1.0), negatives=n, positives=n, method=method, **SURE)
    found = [
        bounds.lower_bound(gaussian(1.0, n, [7, seed]), method=method, threshold=bounds.Sup(simulations=1999), **SURE)
        for seed in range(60)
    ]
    above = sum(one.epsilon > typical for one in found)
    below = sum(one.epsilon < typical for one in found)
    assert above > 11
    assert below > 11 or typical == 0.0


def test_a_perfect_attack_loses_nothing_but_trials_and_assumptions():
    """With so many trials nothing is left to the attack, and little to their number."""
    result = audited(("perfect", gaussian(1.0, 100_000, 1)))
    [gap] = gaps(result)
    assert gap.promised == gaussian_epsilon(1.0, delta=1e-5)
    assert gap.trials < 0.06 * gap.promised
    assert gap.attack < 0.03 * gap.promised  # chance alone: five standard deviations of μ are 5·√2/√100 000
    assert gap.view == 0.0
    direct = bounds.dpsgd(result.adversaries[0].scores, mechanism=FULL, **SURE).epsilon
    assert gap.assumptions == direct - result.adversaries[0].bound.epsilon
    assert gap.trials + gap.attack + gap.view + gap.assumptions == pytest.approx(gap.promised - gap.proved, abs=1e-12)


def test_what_an_attack_wastes_is_left_to_the_attack():
    """Noise of its own, as large as the mechanism's, leaves μ/√2: that and nothing else is what the attack lost."""
    [gap] = gaps(audited(("wasteful", gaussian(1.0 / np.sqrt(2.0), 100_000, 2))))
    truth = gaussian_epsilon(1.0, delta=1e-5) - gaussian_epsilon(1.0 / np.sqrt(2.0), delta=1e-5)
    assert gap.attack == pytest.approx(truth, rel=0.1)


def test_few_trials_are_what_is_lost_when_the_attack_is_perfect():
    claim = MechanismClaim(mechanism=FULL, delta=1e-5)
    [gap] = gaps(audited(("perfect", gaussian(1.0, 50, 3))))
    typical = bounds.typical_bound(
        bounds.less_noise(claim, share=1.0), negatives=50, positives=50, method="dpsgd", mechanism=FULL, **SURE
    )
    assert gap.typical == typical
    assert gap.trials == gap.promised - max(typical, gap.stronger) > 0.3 * gap.promised


def test_what_an_attacker_may_not_see_is_what_the_next_rung_proves():
    weak, strong = gaussian(0.5, 2000, 4), gaussian(1.0, 2000, 5)
    result = audited(("weak", weak), ("strong", strong))
    result = dataclasses.replace(
        result,
        adversaries=(
            result.adversaries[0],
            dataclasses.replace(
                result.adversaries[1], attack=dataclasses.replace(result.adversaries[1].attack, chosen_data=True)
            ),
        ),
    )
    first, second = gaps(result)
    family = [bounds.dpsgd(scores, mechanism=FULL, **SURE).epsilon for scores in (weak, strong)]
    assert first.view == pytest.approx(family[1] - family[0])
    assert (first.above, first.tried, second.above, second.tried) == ("strong", True, "", False)
    assert second.view == 0.0
    text = report.page(result).replace("\u00a0", " ")
    assert "Where the gap comes from" in text
    for one in (first, second):
        for title, amount, measured in shown.lines(one):
            assert title in text
            assert f">{amount}</td>" in text
            assert measured in text
    assert f"strong proves {rounding.down(family[1])} if DP-SGD" in text


def test_luck_is_called_luck():
    [gap] = gaps(audited(("lucky", gaussian(1.6, 60, 6))))
    assert gap.typical < gap.perfect == gap.stronger
    assert gap.attack == 0.0
    said = {title: measured for title, _, measured in shown.lines(gap)}
    assert "chance let this one prove more" in said["lost to the number of trials"]


def test_there_is_no_gap_where_nothing_is_promised_or_more_is_proved():
    assert gaps(sample.result(sample.adversary(), noise=0.0)) == ()
    assert gaps(audited(("caught", gaussian(4.0, 2000, 8)))) == ()


def test_a_claimed_epsilon_is_compared_with_a_gaussian_training_that_just_keeps_it():
    result = audited(("one", gaussian(0.5, 400, 9)))
    own = dataclasses.replace(
        result,
        subject=dataclasses.replace(result.subject, own=True, guarantee=None, heuristic=None, ran=None),
        claim=EpsilonClaim(epsilon=3.0, delta=1e-5),
        claim_epsilon=3.0,
        adversaries=tuple(dataclasses.replace(one, others=one.others[1:]) for one in result.adversaries),
    )
    [gap] = gaps(own)
    assert (gap.method, gap.promised) == ("gdp", 3.0)
    curve = bounds.less_noise(own.claim, share=1.0)
    assert gap.typical == bounds.typical_bound(curve, negatives=400, positives=400, method="gdp", **SURE)
