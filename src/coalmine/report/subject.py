"""What was audited: a DP-SGD of ours with its guarantee, or a user's own training with a claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coalmine.auditing.config import AuditConfig
from coalmine.records import DpSgd, Sampling

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult


def is_own(result: AuditResult) -> bool:
    """Whether a user's own training was audited: then the ε put to the test is a claim, not a guarantee of ours."""
    return not isinstance(result.config, AuditConfig)


def is_local(result: AuditResult) -> bool:
    """Whether the noise was scaled to the local sensitivity: then nothing is promised beyond the pairs attacked."""
    training = getattr(result.config, "training", None)
    return training is not None and training.noise_scale == "local"


def mechanism_of(result: AuditResult) -> DpSgd | None:
    """The DP-SGD that was audited (or is claimed), where it is one with noise."""
    settings: Any = result.config
    if is_own(result):
        claimed = settings.mechanism
        return claimed if isinstance(claimed, DpSgd) else None
    known = result.mechanism
    if not known["noise_multiplier"] or is_local(result):
        return None
    return DpSgd(
        sample_rate=known["sample_rate"],
        steps=known["steps"],
        noise_multiplier=known["noise_multiplier"],
        sampling=Sampling.parse(settings.training.sampling),
    )
