"""What it means for a person: posterior belief, membership advantage, and how to choose ε from them (bernau-2021)."""

from coalmine.identifiability import advantage, belief, choose

__all__ = ["advantage", "belief", "choose"]
