"""Coalmine measures how much a differentially private training algorithm really leaks."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.auditing.run import audit
    from coalmine.integrations import Worlds, audit_function, neighbours

__all__ = ["Worlds", "__version__", "audit", "audit_function", "neighbours"]
__version__ = "0.1.0"

_WHERE = {
    "Worlds": "coalmine.integrations",
    "audit": "coalmine.auditing.run",
    "audit_function": "coalmine.integrations",
    "neighbours": "coalmine.integrations",
}


def __getattr__(name: str) -> Any:
    """Names that need the heavy parts are loaded when they are asked for: the mathematics does without torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'coalmine' has no attribute {name!r}")
