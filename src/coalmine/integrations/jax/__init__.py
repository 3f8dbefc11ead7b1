"""Trainings and private steps written in JAX: many trainings in one call, and a step probed through its key."""

from coalmine.integrations.jax.step_probe import probe
from coalmine.integrations.jax.trainings import audit

__all__ = ["audit", "probe"]
