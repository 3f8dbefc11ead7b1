"""Privacy profiles over whole arrays: the library's numbers."""

import math
import re

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy import stats

from coalmine.accounting import _losses, standard
from coalmine.errors import InvalidInputError
from coalmine.records import DpSgd, Relation

SETTINGS = [
    (1e-4, 0.844),
    (1e-4, 300.0),
    (0.00427, 0.4),
    (0.05, 0.05),
    (0.1, 5.0),
    (0.5, 1.5),
    (0.9, 0.4),
    (0.999, 2.0),
]


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_profile_is_that_of_the_library(q, sigma, relation):
    composed = _losses.composed(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=50, relation=relation), 10.0)
    epsilons = np.linspace(0.0, min(500.0, 1.2 * composed.get_epsilon_for_delta(1e-12)), 64)
    expected = composed.get_delta_for_epsilon(epsilons.tolist())
    found = _losses.deltas(composed, epsilons)
    np.testing.assert_allclose(np.maximum(*found), expected, rtol=1e-12, atol=1e-17)
    assert np.ptp(expected) > 0.0


def test_a_distribution_of_another_form_is_asked_itself():
    few = privacy_loss_distribution.from_randomized_response(0.4, 2)
    epsilons = np.array([0.0, 0.1, 5.0])
    for found in _losses.deltas(few, epsilons):
        np.testing.assert_array_equal(found, few.get_delta_for_epsilon(epsilons.tolist()))


@pytest.mark.parametrize("rate", [1e-6, 9.99e-7, 1e-7, 2.5e-8, 1e-9, 1e-10, 1e-12])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5, 2.0])
def test_tiny_sampling_rates_are_accounted_for(rate, sigma):
    """Beside the exact δ of one step, from both sides: never below it, and close where float64 holds it."""
    mechanism = DpSgd(sample_rate=rate, noise_multiplier=sigma, steps=1)
    for share in (1e-3, 0.1, 1.0):
        epsilon = share * rate
        cut = sigma**2 * math.log1p(math.expm1(epsilon) / rate) + 0.5
        exact = rate * stats.norm.sf((cut - 1.0) / sigma) - (math.expm1(epsilon) + rate) * stats.norm.sf(cut / sigma)
        found = standard.delta(mechanism, epsilon=epsilon).delta
        assert exact * (1.0 - 1e-6) <= found <= 1.5 * exact + 1e-12


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.1, 0.001, 1_000_000), (0.5, 0.002, 10_000_000)])
def test_the_noise_that_an_error_names_is_enough(q: float, sigma: float, steps: int) -> None:
    with pytest.raises(InvalidInputError, match=f"noise_multiplier = {sigma}") as caught:
        standard.epsilon(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=steps), delta=1e-5)
    named = float(re.search(r"at least ([\d.e-]+) here", str(caught.value)).group(1))  # type: ignore[union-attr]
    assert sigma < named < 10.0 * sigma
    assert standard.epsilon(DpSgd(sample_rate=q, noise_multiplier=named, steps=steps), delta=1e-5).epsilon > 1e6
