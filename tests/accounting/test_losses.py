"""Privacy profiles over whole arrays: the library's numbers."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from coalmine.accounting import _losses
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
