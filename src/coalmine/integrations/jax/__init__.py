"""Trainings and private steps written in JAX: many trainings in one call, and a step probed through its key."""


from coalmine.integrations.jax.trainings import audit

__all__ = ["audit"]
