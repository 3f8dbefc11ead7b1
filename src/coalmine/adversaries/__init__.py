"""The adversaries: who they are, what they may see, how they choose the worlds and tell them apart."""

from coalmine.adversaries.attack import Adversary, Attack, Scene, Shortcut, ThreatModel
from coalmine.adversaries.catalogue import CATALOGUE, adversary

__all__ = ["CATALOGUE", "Adversary", "Attack", "Scene", "Shortcut", "ThreatModel", "adversary"]
