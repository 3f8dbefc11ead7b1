"""The adversaries: who they are, what they may see, how they choose the worlds and tell them apart."""

from coalmine.adversaries.attack import (
    Adversary,
    Attack,
    DrawnScores,
    ManyCanaries,
    Scene,
    Settles,
    Shortcut,
    ThreatModel,
)
from coalmine.adversaries.catalogue import GROUP, Listed, adversary, catalogue, identity_of, resolve

__all__ = [
    "GROUP",
    "Adversary",
    "Attack",
    "DrawnScores",
    "Listed",
    "ManyCanaries",
    "Scene",
    "Settles",
    "Shortcut",
    "ThreatModel",
    "adversary",
    "catalogue",
    "identity_of",
    "resolve",
]
