"""Trainings and private steps written in JAX: many trainings in one call, a step probed through its key, gradient
canaries of one run.
"""

from coalmine.integrations.jax.canaries import StepCanaries
from coalmine.integrations.jax.step_probe import probe
from coalmine.integrations.jax.trainings import audit

__all__ = ["StepCanaries", "audit", "probe"]
