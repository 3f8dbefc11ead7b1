"""Coalmine measures how much a differentially private training algorithm really leaks."""

__version__ = "0.1.0"
