"""What theory promises for the mechanism of an audit: the one place where an audit asks the accountant."""

from __future__ import annotations

import functools
import math

from coalmine.accounting import calibrate, last_iterate, standard
from coalmine.auditing.config import AuditConfig
from coalmine.identifiability import belief
from coalmine.records import Claim, DpSgd, EpsilonClaim, Guarantee, Heuristic, Relation, Sampling


def epsilon(mechanism: DpSgd, *, delta: float) -> float:
    """ε at δ that is guaranteed for the mechanism (rounded up)."""
    return standard.epsilon(mechanism, delta=delta).epsilon


def epsilon_of(claim: Claim) -> float:
    """ε at δ of a claim, for people: as claimed, or by the accountant (rounded up)."""
    return claim.epsilon if isinstance(claim, EpsilonClaim) else epsilon(claim.mechanism, delta=claim.delta)


def promised(mechanism: DpSgd | None, *, delta: float, local: bool) -> tuple[Guarantee, Heuristic | None]:
    """What is promised to everybody, and what is predicted; ``local``: noise scaled to the local sensitivity."""
    return _local_theory(mechanism, delta=delta) if local else _theory(mechanism, delta=delta)


def noise(settings: AuditConfig, *, rate: float, steps: int, sampling: Sampling) -> float:
    """σ: as given, or the smallest that keeps ε (or the ε behind a belief) within the target."""
    training = settings.training
    if training.noise_multiplier is not None:
        return training.noise_multiplier
    target = training.target_epsilon
    if training.target_belief is not None:
        target = belief.to_epsilon(training.target_belief)
    assert target is not None
    return calibrate.noise_multiplier(
        sample_rate=rate,
        steps=steps,
        epsilon=target,
        delta=settings.audit.delta,
        analysis=training.analysis.replace("-", "_"),
        sampling=sampling,
    ).noise_multiplier


@functools.lru_cache(maxsize=64)
def _theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """What is promised, and what is predicted for the last iterate."""
    if mechanism is None:
        return _nothing("there is no noise, so nothing is promised", delta=delta), None
    return standard.epsilon(mechanism, delta=delta), last_iterate.epsilon(mechanism, delta=delta)


def _nothing(reason: str, *, delta: float) -> Guarantee:
    """No promise, and why."""
    return Guarantee(
        epsilon=math.inf, delta=delta, analysis="none", relation=Relation.ADD_REMOVE, assumptions=(reason,)
    )


def _local_theory(mechanism: DpSgd | None, *, delta: float) -> tuple[Guarantee, Heuristic | None]:
    """With noise scaled to the local sensitivity of two data sets, theory speaks about these two alone."""
    nothing = _nothing(
        "the noise is scaled to the local sensitivity of the two data sets of each attack: what it hides is the "
        "difference between these two, so nothing is promised to any other person",
        delta=delta,
    )
    if mechanism is None:
        return nothing, None
    # Each step is a Gaussian mechanism whose noise is σ times the distance of its two means, exactly.
    pair = standard.epsilon(mechanism, delta=delta)
    predicted = Heuristic(
        epsilon=pair.epsilon,
        delta=delta,
        analysis="local_sensitivity",
        relation=Relation.ADD_REMOVE,
        assumptions=(
            "holds between the two data sets of an attack, whether a row is added, removed or replaced, and for no "
            "other neighbours of this data set",
            "bernau-2021, Section 5.1: noise scaled to the local sensitivity of the clipped gradients in every step",
        ),
    )
    return nothing, predicted
