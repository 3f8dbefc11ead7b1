"""Others' trainers and tools: plain functions (:func:`audit_function`), Opacus, Transformers, Lightning, pytest."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.integrations.functions import audit_function, load_function, load_worlds, parse_dpsgd
    from coalmine.integrations.tool_files import ToolScores, detect_tool, read_tool_scores
    from coalmine.integrations.tool_formulas import ToolClaim, tool_claims
    from coalmine.integrations.worlds import Worlds, neighbours

__all__ = [
    "ToolClaim",
    "ToolScores",
    "Worlds",
    "audit_function",
    "detect_tool",
    "load_function",
    "load_worlds",
    "neighbours",
    "parse_dpsgd",
    "read_tool_scores",
    "tool_claims",
]

_ROOMS = {
    "functions": "audit_function load_function load_worlds parse_dpsgd",
    "tool_files": "ToolScores detect_tool read_tool_scores",
    "tool_formulas": "ToolClaim tool_claims",
    "worlds": "Worlds neighbours",
}
_WHERE = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Loaded when it is asked for: pytest loads this package in every run, and the training parts need torch."""
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
