"""The full-batch baseline of last-iterate-2024, eq. (4): no sampling, noise σ/q so that the noise per gradient stays.

For full-batch DP-GD the last iterate and all iterates reveal the same, and the Gaussian mechanism with μ = q·√T/σ is
exact (Appendix B). For DP-SGD itself it is only a point of comparison, usually (not always) a smaller ε.
"""

from __future__ import annotations

import math

from coalmine import _validate
from coalmine.accounting._common import sensitivity
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Heuristic, Sampling
from coalmine.theory import curves


def mu(mechanism: DpSgd) -> float:
    """μ = Δ·q·√T/σ of full-batch DP-GD with noise σ/q (last-iterate-2024, eq. 4 and Appendix B).

    >>> round(mu(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000)), 6)
    0.909091
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE:
        raise UnsupportedError("sampling = 'shuffle' has no full-batch baseline: it needs 'poisson' or 'full'")
    per_step = sensitivity(mechanism.relation) * mechanism.sample_rate / mechanism.noise_multiplier
    return per_step * math.sqrt(mechanism.steps)


def epsilon(mechanism: DpSgd, *, delta: float) -> Heuristic:
    """ε at δ of the full-batch baseline, exactly.

    >>> round(epsilon(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), delta=1e-5).epsilon, 4)
    3.9213
    """
    value = mu(mechanism)
    delta = _validate.open_unit("delta", delta)
    return _heuristic(mechanism, curves.gaussian_epsilon(value, delta=delta), delta)


def delta(mechanism: DpSgd, *, epsilon: float) -> Heuristic:
    """δ at ε of the full-batch baseline, exactly.

    >>> round(delta(DpSgd(sample_rate=0.01, noise_multiplier=1.1, steps=10_000), epsilon=0.0).delta, 4)
    0.3506
    """
    value = mu(mechanism)
    epsilon = _validate.non_negative("epsilon", epsilon)
    return _heuristic(mechanism, epsilon, curves.gaussian_delta(value, epsilon=epsilon))


def _heuristic(mechanism: DpSgd, epsilon: float, delta: float) -> Heuristic:
    """The record, with what it rests on."""
    return Heuristic(
        epsilon=epsilon,
        delta=delta,
        analysis="full_batch",
        relation=mechanism.relation,
        assumptions=(
            "exact for full-batch DP-GD with noise σ/q (last-iterate-2024, eq. 4), not the algorithm given",
            "a point of comparison for DP-SGD, not a guarantee for it",
        ),
    )
