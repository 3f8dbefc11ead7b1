"""How adversaries choose the canary: the crafters of nasr-2021 that are more than a line."""
