"""What every command shares: one JSON object or readable tables on stdout, one line on stderr for an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coalmine.records import plain

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(payload: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON document on stdout: valid JSON always (an infinite ε is the string "infinity")."""
    typer.echo(json.dumps(plain(payload), indent=2, ensure_ascii=False, allow_nan=False))


def console() -> Console:
    """The console for people: stdout, soft-wrapped to the terminal, plain when piped."""
    return Console(highlight=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table with a title; the first column is text, the others are right-aligned numbers or words."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """A title and under it names with their values, a line each; long values stay in their column."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(f"  {name}", Text(value))
    screen = console()
    screen.print(Text(title, style="bold"))
    screen.print(grid)


def print_lines(lines: Iterable[str]) -> None:
    """Plain sentences under a table."""
    screen = console()
    for line in lines:
        screen.print(line, markup=False)


def number(value: float, digits: int = 4) -> str:
    """A number for people: fixed digits, "∞" where there is no finite one."""
    if value == float("inf"):
        return "∞"
    return f"{value:.{digits}f}" if abs(value) >= 10.0**-digits or value == 0 else f"{value:.2e}"


def as_option_names(message: str, options: Iterable[str]) -> str:
    """Rewrite the Python names in an error message to option names: ``sample_rate = 2`` → ``--sample-rate = 2``."""
    for option in sorted(options, key=len, reverse=True):
        message = re.sub(
            rf"(?<![\w.-]){re.escape(option)}(?= = |\b is | has |\[)", "--" + option.replace("_", "-"), message
        )
    return message
