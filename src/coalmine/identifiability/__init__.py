"""What it means for a person: posterior belief, membership advantage, and how to choose ε from them (bernau-2021)."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["advantage", "belief", "choose", "estimates", "sensitivity"]


def __getattr__(name: str) -> Any:
    """Load a module when it is first asked for: ``sensitivity`` is used where dp-accounting is not installed."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
