"""The reference of the config, from the classes that read it."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic.fields import FieldInfo
from sphinx.pycode import ModuleAnalyzer

from coalmine.auditing import config


def markdown() -> str:
    """Every section of a config with its keys, as Markdown."""
    sections = [
        _section("[data]", config.DataSection),
        _section("[model]", config.ModelSection),
        _section("[training]", config.TrainingSection),
        _section("[audit]", config.AuditSection),
        _section("[[adversary]]", config.AdversarySection),
    ]
    return "\n\n".join(sections)


def _section(title: str, section: type[config._Section]) -> str:
    meanings = ModuleAnalyzer.for_module(section.__module__).find_attr_docs()
    rows = [
        f"| `{name}` | {_allowed(field)} | {_default(field)} | {_plain(meanings[section.__name__, name])} |"
        for name, field in section.model_fields.items()
    ]
    words = _plain([section.__doc__ or ""])
    return "\n".join(
        [f"## `{title}`", "", words, "", "| key | allowed | default | meaning |", "|---|---|---|---|", *rows]
    )


def _plain(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split()).replace("``", "`")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is None:
        return ""
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{str(value).lower()}`" if isinstance(value, bool) else f"`{value!r}`".replace("'", '"')


def _allowed(field: FieldInfo) -> str:
    return _kind(field.annotation, list(field.metadata))


def _kind(annotation: Any, limits: list[Any]) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        return _kind(inner, [*limits, *more])
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(annotation) if one is not type(None)]
        return " or ".join(dict.fromkeys(_kind(one, limits if len(kinds) == 1 else []) for one in kinds))
    if origin is typing.Literal:
        return " or ".join(f'`"{value}"`' for value in typing.get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, config._Section):
        return f"table: {', '.join(f'`{name}`' for name in annotation.model_fields)}"
    if origin is tuple:
        return f"list: {_kind(typing.get_args(annotation)[0], [])}"
    words = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text"}[annotation]
    return ", ".join([words, *_limits(limits)])


def _limits(limits: list[Any]) -> list[str]:
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    parts = [part for limit in limits for part in getattr(limit, "metadata", None) or [limit]]
    return [f"{word} {getattr(part, sign):g}" for part in parts for sign, word in signs.items() if hasattr(part, sign)]
