"""Thresholds weighed by the family's own curves: still valid, and tighter for small sampling rates."""

import numpy as np
import pytest

from coalmine import bounds
from coalmine.bounds._rates import lattice_limits
from coalmine.bounds.dpsgd import DpSgdNoise
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Scores


def ratios(generator, *, q, sigma, trials, steps=1):
    """Log-likelihood ratios of all steps of DP-SGD: their trade-off curve is that of the standard family, exactly."""
    values = sigma * generator.normal(size=(2, trials, steps))
    values[1] += generator.random((trials, steps)) < q
    sums = np.logaddexp(np.log1p(-q), np.log(q) + (values - 0.5) / sigma**2).sum(axis=2)
    return Scores(sums[0], sums[1])


@pytest.mark.parametrize("analysis", ["standard", "last_iterate"])
def test_the_table_falls_in_both_errors(analysis):
    family = DpSgdNoise(
        mechanism=DpSgd(sample_rate=0.05, noise_multiplier=1.0, steps=3), delta=1e-5, analysis=analysis, weigh="curves"
    )
    alpha, beta = lattice_limits(500, 0.001), lattice_limits(300, 0.001, fine=True)
    table = family.evidence(alpha, beta)
    assert table.shape == (alpha.size, beta.size)
    assert np.isfinite(table).all()
    assert (np.diff(table, axis=0) <= 0.0).all()
    assert (np.diff(table, axis=1) <= 0.0).all()


def test_it_misses_no_more_often_than_it_may():
    """50 audits of 400 + 400 at 90 %: a right bound exceeds the truth 20 times or more with chance below 1e-7."""
    q, sigma = 0.2, 0.8
    from coalmine.accounting import standard

    mechanism = DpSgd(sample_rate=q, noise_multiplier=sigma, steps=1)
    truth = standard.epsilon(mechanism, delta=1e-3).epsilon
    generator, above, values = np.random.default_rng(3), 0, []
    for _ in range(50):
        scores = ratios(generator, q=q, sigma=sigma, trials=400)
        found = bounds.dpsgd(
            scores, mechanism=mechanism, delta=1e-3, confidence=0.9, family="last_iterate", weigh="curves",
            threshold=bounds.Sup(simulations=199),
        )  # fmt: skip
        values.append(found.epsilon)
        above += found.epsilon > truth
    assert above < 20
    assert np.median(values) > 0.25 * truth, (values, truth)


def test_it_is_tighter_where_the_canary_is_rarely_drawn():
    """10 steps at q = 0.1, noise for ε = 8: thresholds that one trial in thirty passes say most (seed fixed)."""
    scores = ratios(np.random.default_rng(4), q=0.1, sigma=0.612, trials=20_000, steps=10)
    mechanism = DpSgd(sample_rate=0.1, noise_multiplier=0.612, steps=10)
    curves, gaussian = (
        bounds.dpsgd(
            scores, mechanism=mechanism, delta=1e-5, confidence=0.95, weigh=weigh, threshold=bounds.Sup()
        ).epsilon
        for weigh in ("curves", "gaussian")
    )
    assert gaussian < curves < 8.0


def test_bad_input():
    with pytest.raises(InvalidInputError, match="weigh = 'own'"):
        DpSgdNoise(mechanism=DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=3), delta=1e-5, weigh="own")
