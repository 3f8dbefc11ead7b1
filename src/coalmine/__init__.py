"""Coalmine measures how much a differentially private training algorithm really leaks."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.integrations import Worlds, audit_function, neighbours

__all__ = ["Worlds", "__version__", "audit_function", "neighbours"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Names that need the heavy parts are loaded when they are asked for: the mathematics does without torch."""
    if name in __all__:
        from coalmine import integrations

        return getattr(integrations, name)
    raise AttributeError(f"module 'coalmine' has no attribute {name!r}")
