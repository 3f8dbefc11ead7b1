"""The reference of commands, from the commands themselves."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer.main

from coalmine.cli import app


def markdown() -> str:
    """Every command with its arguments and options, as Markdown."""
    root = typer.main.get_command(app)
    return "\n\n".join(_section(name, command) for name, command in _walk("coalmine", root))


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """All commands below; a group only holds commands and does nothing by itself."""
    below = getattr(command, "commands", {})
    if not below:
        yield name, command
    for child, inner in below.items():
        yield from _walk(f"{name} {child}", inner)


def _section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)  # the words of --help
        if record is not None:
            how, meaning = (" ".join(words.split()).replace("|", "\\|") for words in record)
            rows.append(f"| `{how}` | {meaning.replace('<', '&lt;').replace('*', '&#42;')} |")
    return "\n\n".join(
        [
            f"## {name}",
            inspect.cleandoc(command.help or ""),
            f"`{' '.join([name, *command.collect_usage_pieces(context)])}`",
            "\n".join(["| option | meaning |", "|---|---|", *rows]),
        ]
    )
