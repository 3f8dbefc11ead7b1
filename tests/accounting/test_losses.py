"""Privacy loss distributions over whole arrays: the library's numbers, to the last bit."""

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


@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_one_step_is_that_of_the_library(q, sigma):
    mechanism = DpSgd(sample_rate=q, noise_multiplier=sigma, steps=100)
    interval = 10.0 * _losses._interval(mechanism)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=interval
    )
    ours = _losses._one_step(mechanism, interval)
    epsilons = np.linspace(0.0, min(30.0, 1.1 * theirs.get_epsilon_for_delta(1e-12)), 50).tolist()
    for steps in (1, 3):
        expected = theirs.self_compose(steps).get_delta_for_epsilon(epsilons)
        np.testing.assert_allclose(ours.self_compose(steps).get_delta_for_epsilon(epsilons), expected, rtol=1e-12)
    # A pair of losses on either side of every edge of the formula.
    for one, other in ((theirs._pmf_remove, ours._pmf_remove), (theirs._pmf_add, ours._pmf_add)):
        one, other = one.to_dense_pmf(), other.to_dense_pmf()
        assert (one._lower_loss, one.size) == (other._lower_loss, other.size)
        np.testing.assert_allclose(other._probs, one._probs, rtol=1e-12, atol=1e-17)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("q", "sigma"), SETTINGS)
def test_profile_is_that_of_the_library(q, sigma, relation):
    composed = _losses.composed(DpSgd(sample_rate=q, noise_multiplier=sigma, steps=50, relation=relation), 10.0)
    epsilons = np.linspace(0.0, min(500.0, 1.2 * composed.get_epsilon_for_delta(1e-12)), 64)
    expected = composed.get_delta_for_epsilon(epsilons.tolist())
    np.testing.assert_allclose(_losses.deltas(composed, epsilons), expected, rtol=1e-12, atol=1e-17)
    assert np.ptp(expected) > 0.0


def test_a_distribution_of_another_form_is_asked_itself():
    few = privacy_loss_distribution.from_randomized_response(0.4, 2)
    epsilons = np.array([0.0, 0.1, 5.0])
    np.testing.assert_array_equal(_losses.deltas(few, epsilons), few.get_delta_for_epsilon(epsilons.tolist()))
