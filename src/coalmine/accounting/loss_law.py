"""How the best score of one canary is distributed in both worlds of DP-SGD: for predictions, never for a bound."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from coalmine import _validate
from coalmine.accounting import _losses
from coalmine.accounting._common import gaussian_steps_mu
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Relation, Sampling

Array = NDArray[np.float64]
_POINTS = 20_001
_LARGE = math.log(1e300)
_OFF = 1e-3
"""Without the canary the probabilities add up to 1, unless the grid of losses is too coarse for what it holds."""


@functools.lru_cache(maxsize=64)
def loss_law(mechanism: DpSgd) -> tuple[Array, Array, Array]:
    """Losses ln(P/Q) in ascending order, and their probabilities with the canary (P) and without (Q).

    The loss of all steps together is the best score that an attacker who sees every step can have. For sampled batches
    it comes from the composed privacy loss distribution, rounded up by a fraction of its width.

    Args:
        mechanism: DP-SGD with Poisson or full batches and add/remove neighbours.

    Returns:
        Losses, P and Q.

    >>> losses, inside, outside = loss_law(DpSgd(sample_rate=1.0, noise_multiplier=2.0, steps=4))
    >>> round(float(losses @ inside), 4), round(float(losses @ outside), 4)
    (0.5, -0.5)
    """
    _validate.instance("mechanism", mechanism, DpSgd)
    if mechanism.sampling is Sampling.SHUFFLE or mechanism.relation is not Relation.ADD_REMOVE:
        raise UnsupportedError("the law of losses needs Poisson or full batches and add/remove neighbours")
    if mechanism.sample_rate == 1.0:
        mu = gaussian_steps_mu(mechanism)
        edges = np.linspace(-9.0, 9.0 + mu, _POINTS + 1)
        losses = mu * (0.5 * (edges[1:] + edges[:-1]) - mu / 2.0)
        return losses, np.diff(special.ndtr(edges - mu)), np.diff(special.ndtr(edges))
    part = _losses.composed(mechanism, 10.0)._pmf_remove
    part = part if hasattr(part, "_probs") else part.to_dense_pmf()  # few losses are kept in another form
    losses = (np.arange(part.size) + part._lower_loss) * part._discretization
    inside = np.clip(np.asarray(part._probs, dtype=np.float64), 0.0, None)
    outside = inside * np.exp(-np.clip(losses, -_LARGE, _LARGE))
    if abs(outside.sum() - 1.0) > _OFF:
        return _drawn_or_not(mechanism)
    return losses, inside / inside.sum(), outside / outside.sum()


def _drawn_or_not(mechanism: DpSgd) -> tuple[Array, Array, Array]:
    """Where there is next to no noise, losses are too large for a grid: a canary is seen if it is ever drawn."""
    never = mechanism.steps * math.log1p(-mechanism.sample_rate)
    seen = -math.expm1(never)
    return np.array([max(never, -_LARGE), _LARGE]), np.array([1.0 - seen, seen]), np.array([1.0, 0.0])
