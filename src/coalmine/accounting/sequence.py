"""DP-SGD whose noise or sampling rate changes on the way: several trainings in a row on the same data."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from coalmine import _validate
from coalmine.accounting import _losses, standard
from coalmine.errors import UnsupportedError
from coalmine.records import DpSgd, Guarantee, Sampling


def merged(mechanisms: Sequence[DpSgd]) -> tuple[DpSgd, ...]:
    """Steps of the same kind put together; composition does not depend on their order.

    >>> step = DpSgd(sample_rate=0.1, noise_multiplier=1.0, steps=1)
    >>> [one.steps for one in merged([step, step.with_noise(2.0), step])]
    [2, 1]
    """
    steps: dict[DpSgd, int] = {}
    for one in mechanisms:
        _validate.instance("mechanisms", one, DpSgd)
        kind = one.with_steps(1)
        steps[kind] = steps.get(kind, 0) + one.steps
    return tuple(kind.with_steps(count) for kind, count in steps.items())


def epsilon(mechanisms: Sequence[DpSgd], *, delta: float) -> Guarantee:
    """The ε that composition over all steps of all ``mechanisms`` guarantees at δ, by PLD.

    One kind of step is :func:`coalmine.accounting.standard.epsilon`. Several kinds are put on one grid of privacy
    losses, rounded up, and composed (Koskela et al. 2020, Doroshenko et al. 2022).

    >>> early = DpSgd(sample_rate=0.5, noise_multiplier=1.0, steps=2)
    >>> round(epsilon([early, early.with_noise(2.0)], delta=1e-5).epsilon, 2)
    5.15

    Args:
        mechanisms: What ran, one after the other, under one neighboring relation, with Poisson sampling or every row.
        delta: The δ at which ε is stated.

    Returns:
        The guarantee, never rounded down.
    """
    delta = _validate.open_unit("delta", delta)
    kinds = merged(mechanisms)
    if not kinds:
        raise _validate.reject("mechanisms", mechanisms, "at least one DpSgd")
    if len(kinds) == 1:
        return standard.epsilon(kinds[0], delta=delta)
    kinds = tuple(one for one in kinds if one.sample_rate > 0.0) or kinds[:1]
    if any(one.sampling is Sampling.SHUFFLE for one in kinds) or len({one.relation for one in kinds}) > 1:
        raise UnsupportedError("mechanisms of one training must share their relation and not shuffle")
    whole = max(kinds, key=lambda one: one.steps).with_steps(sum(one.steps for one in kinds))
    left = delta - standard._rounding(whole)
    if not left > delta / 2.0:
        raise UnsupportedError(
            f"delta = {delta!r} is below the rounding error of the PLD analysis of {whole.steps} steps"
        )
    # All kinds of step on the coarsest grid that one of them needs.
    sampled = [
        DpSgd(sample_rate=min(one.sample_rate, 1.0 - 1e-9), noise_multiplier=one.noise_multiplier, steps=whole.steps)
        for one in kinds
    ]
    interval = max(map(_losses._interval, sampled))
    distributions = [_losses.one_step(one, interval).self_compose(one.steps) for one in kinds]
    value = functools.reduce(lambda one, other: one.compose(other), distributions).get_epsilon_for_delta(left)
    words = ", and ".join(f"{one.steps} with q = {one.sample_rate:g}, σ = {one.noise_multiplier:g}" for one in kinds)
    return Guarantee(
        epsilon=float(value),
        delta=delta,
        analysis="pld",
        relation=kinds[0].relation,
        assumptions=(f"Poisson sampling; steps: {words}", "per-example gradients clipped; every iterate may be seen"),
    )
