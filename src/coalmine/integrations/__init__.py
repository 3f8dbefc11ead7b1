"""Others' trainers and tools: plain functions (:func:`audit_function`), Opacus, Transformers, Lightning, pytest."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.integrations.functions import audit_function, load_function, load_worlds, parse_dpsgd
    from coalmine.integrations.worlds import Worlds, neighbours

__all__ = ["Worlds", "audit_function", "load_function", "load_worlds", "neighbours", "parse_dpsgd"]

_WHERE = {
    "Worlds": "worlds",
    "audit_function": "functions",
    "load_function": "functions",
    "load_worlds": "functions",
    "neighbours": "worlds",
    "parse_dpsgd": "functions",
}


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: pytest loads this package in every run, and the training parts need torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
