"""Gradient canaries of one run in a training in JAX: added to the sum of every step, and scored from what it releases.

As in a training with Opacus (:mod:`coalmine.one_run.hooks`), a canary stands for a row of norm C after clipping. Noise
and accounting are put to the test; sampler and clipping are not, because these rows do not pass through them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import ArrayLike, NDArray

from coalmine import _validate
from coalmine.errors import InvalidInputError
from coalmine.one_run.canaries import GradientCanaries
from coalmine.one_run.likelihood import Along
from coalmine.records import DpSgd


class StepCanaries:
    """Pure functions for a step: ``insert`` adds the canaries that are drawn, ``seen`` is what the step says of each.

    ``included`` go into the training, ``scored`` are all that may have. Noise is added to a sum, so canaries may be
    added before it or after it: where a library clips, adds up and adds noise in one call, ``insert`` goes behind it.

    >>> from coalmine.one_run.canaries import dirac
    >>> mechanism = DpSgd(sample_rate=1.0, noise_multiplier=1.0, steps=1)
    >>> every = dirac(parameters=3, canaries=2)
    >>> hook = StepCanaries(included=every.take([0]), scored=every, mechanism=mechanism)
    >>> released = hook.insert(jnp.zeros(3), jax.random.key(0))
    >>> hook.scores([hook.seen(released)]).tolist()  # no noise was added
    [0.5, -0.5]
    """

    def __init__(
        self,
        *,
        included: GradientCanaries,
        scored: GradientCanaries,
        mechanism: DpSgd,
        unit: float = 1.0,
    ) -> None:
        """Prepare what the step needs.

        Args:
            included: What the coins chose.
            scored: Every canary.
            mechanism: The DP-SGD that is claimed; canaries are drawn at its sampling rate.
            unit: What a row of norm C adds to the gradient that is handed over: C for a sum, C over the divisor for a
                mean.
        """
        _validate.instance("mechanism", mechanism, DpSgd)
        for name, given in (("included", included), ("scored", scored)):
            _validate.instance(name, given, GradientCanaries)
        if included.parameters != scored.parameters:
            raise InvalidInputError(
                f"included is for {included.parameters} parameters: expected {scored.parameters}, as scored is"
            )
        scored.check_part(included)
        self._unit = _validate.positive("unit", unit)
        self._mechanism, self._included, self._parameters = mechanism, included, scored.parameters
        self._along = Along(scored, scale=1.0 / self._unit)

    def insert(self, gradient: Any, key: jax.Array) -> Any:
        """The gradient of a step with the canaries that are in and drawn, each by its own Poisson draw.

        Args:
            gradient: A tree of arrays, in the order of ``jax.tree.leaves``: the sum (or mean) of clipped gradients.
            key: A key of its own for this step.

        Returns:
            The same tree.
        """
        flat, again = self._flat(gradient)
        drawn = jax.random.bernoulli(key, self._mechanism.sample_rate, (self._included.number, 1))
        added = jnp.where(drawn, self._included.values * self._unit, 0.0).astype(flat.dtype)
        return again(flat.at[self._included.indices].add(added))

    def seen(self, released: Any, shared: Any = None) -> jax.Array:
        """What one step shows of each canary, to be kept for :meth:`scores` (``lax.scan`` stacks it).

        Args:
            released: The gradient with canaries and noise.
            shared: The gradient before both, where the attacker may know the other rows and which were drawn: what they
                add is taken off.

        Returns:
            One number for each place that canaries have.
        """
        return jnp.asarray(self._along.seen(self._flat(released)[0], None if shared is None else self._flat(shared)[0]))

    def scores(self, seen: ArrayLike) -> NDArray[np.float64]:
        """The score of every canary: the log-likelihood ratio of all that was seen, one row for each step."""
        steps = np.asarray(seen, dtype=np.float64)
        if steps.ndim != 2 or not steps.shape[0]:
            raise InvalidInputError(f"seen has shape {steps.shape}: expected what seen() gave, one row for each step")
        if steps.shape[0] > self._mechanism.steps:
            raise InvalidInputError(
                f"steps = {self._mechanism.steps} of the mechanism is not allowed: expected {steps.shape[0]}, as many "
                "as were trained"
            )
        likelihood = self._along.likelihood(self._mechanism)
        if steps.shape[1] != self._along.places:
            raise InvalidInputError(f"seen has {steps.shape[1]} numbers a step: expected {self._along.places}")
        for one in steps:
            likelihood.add(one)
        return self._along.log_odds(likelihood)

    def _flat(self, gradient: Any) -> tuple[jax.Array, Any]:
        flat, again = ravel_pytree(gradient)
        if flat.shape != (self._parameters,):
            raise InvalidInputError(
                f"a gradient of {flat.size} numbers came: expected {self._parameters}, as the canaries have parameters"
            )
        return flat, again
