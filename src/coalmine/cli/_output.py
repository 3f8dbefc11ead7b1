"""What every command shares: one JSON object or readable tables on stdout, one line on stderr for an error."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


def print_json(payload: Mapping[str, Any]) -> None:
    """One JSON object on stdout: valid JSON always (an infinite ε is the string "infinity")."""
    from coalmine.records import plain

    _still()
    every_sign = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(plain(payload), indent=2, ensure_ascii=not every_sign, allow_nan=False)
    # JSON escapes the control characters below 32 by itself; a terminal obeys others too.
    typer.echo("".join(_escaped(sign) for sign in text) if not text.isascii() or "\x7f" in text else text)


def _escaped(sign: str) -> str:
    """A character inside JSON, as its number where a terminal could obey it."""
    return sign if _harmless(sign) else json.dumps(sign).strip('"').replace("\x7f", "\\u007f")


def _harmless(sign: str) -> bool:
    """Whether a terminal only shows this character. (Python calls a no-break space unprintable.)"""
    return sign == "\n" or sign.isprintable() or unicodedata.category(sign) == "Zs"


def printable(text: str) -> str:
    """The text with what a terminal would obey spelled out: a store or a file may come from anybody.

    >>> len(printable(chr(27) + "[31mred"))
    11
    >>> len(printable("50\u00a0:\u00a050"))
    7
    """
    return "".join(sign if _harmless(sign) else ascii(sign)[1:-1] for sign in text)


def console() -> Console:
    """The console for people: stdout, soft-wrapped to the terminal, plain when piped."""
    _still()
    return Console(highlight=False)


_STYLES = {"consistent": "bold green", "refuted": "bold red", "inconclusive": "bold yellow"}
"""The colors of verdicts; a terminal alone shows them, and none where NO_COLOR is set."""


def verdict_text(text: str) -> Text:
    """A text whose verdict (consistent, refuted, inconclusive) has its color."""
    found = Text(_as_shown(text))
    for outcome, style in _STYLES.items():
        found.highlight_regex(rf"(?i)\b{outcome}\b", style)
    return found


def print_verdict(text: str) -> None:
    """The verdict, in bold and in its color."""
    first, colon, rest = text.partition(":")
    screen = console()
    shown = verdict_text(f"{first}{colon}")
    shown.stylize("bold")
    screen.print(shown.append(_as_shown(rest)))


_WAIT_SECONDS = 1.0
_turning: list[Callable[[], None]] = []
"""What ends the spinner that turns now, if one does."""


@contextlib.contextmanager
def working(what: str, *, shown: bool = True) -> Iterator[None]:
    """Within it a spinner turns on stderr, from the first second to the first output, if that is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield
        return
    screen = Console(stderr=True)
    status = screen.status(_as_shown(what), spinner="dots" if screen.encoding.startswith("utf") else "line")
    timer = threading.Timer(_WAIT_SECONDS, status.start)
    timer.daemon = True

    def stop() -> None:
        timer.cancel()
        timer.join()
        status.stop()

    _still()
    _turning.append(stop)
    timer.start()
    try:
        yield
    finally:
        _still()


def _still() -> None:
    """End the spinner, because something is written or done."""
    while _turning:
        _turning.pop()()


_PLAIN_SIGNS = {
    "⁻": "^-",
    "▸": ">",
    "λ": "lambda",
    "Λ": "Lambda",
    "≥": ">=",
    "≤": "<=",
    "≈": "about",
    "∞": "infinity",
    "√": "sqrt",
    "→": "->",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "·": "*",
    "×": "x",
    "⌊": "floor(",
    "⌋": ")",
    "′": "'",
    "’": "'",
    "‹": "'",
    "›": "'",
}


def _plain_letters(error: UnicodeError) -> tuple[str, int]:
    """What is written for signs that the output's encoding does not have: epsilon for ε, >= for ≥."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    words = []
    for sign in error.object[error.start : error.end]:
        name = unicodedata.name(sign, "")
        if sign in _PLAIN_SIGNS:
            words.append(_PLAIN_SIGNS[sign])
        elif name.startswith("GREEK"):
            word = name.split(" LETTER ")[-1].split(" ")[0]
            words.append(word.capitalize() if "CAPITAL" in name else word.lower())
        else:
            simple = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
            words.append(simple or sign.encode("ascii", "backslashreplace").decode())
    return "".join(words), error.end


_HANDLER = "coalmine.plain_letters"
codecs.register_error(_HANDLER, _plain_letters)
_ASCII = "coalmine-ascii"
"""ASCII under another name: Typer takes ASCII for a wrong setting and would write UTF-8 instead."""


def _ascii_codec(name: str) -> codecs.CodecInfo | None:
    if name.replace("_", "-") != _ASCII:
        return None
    plain = codecs.lookup("ascii")
    return codecs.CodecInfo(
        plain.encode, plain.decode, plain.streamreader, plain.streamwriter, plain.incrementalencoder,
        plain.incrementaldecoder, name=_ASCII,
    )  # fmt: skip


codecs.register(_ascii_codec)


@contextlib.contextmanager
def any_encoding() -> Iterator[None]:
    """Within it, output that the terminal's encoding does not have is written in plain letters, and never an error."""
    streams = [one for one in (sys.stdout, sys.stderr) if isinstance(one, io.TextIOWrapper)]
    before = [(one.encoding, one.errors) for one in streams]
    for one in streams:
        is_ascii = codecs.lookup(one.encoding).name == "ascii"
        one.reconfigure(encoding=_ASCII if is_ascii else None, errors=_HANDLER)
    try:
        yield
    finally:
        for one, (encoding, errors) in zip(streams, before, strict=True):
            with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads it any more
                one.reconfigure(encoding=encoding, errors=errors)


def _as_shown(text: str) -> str:
    """The text as the terminal will show it, so that a table knows how wide it is."""
    encoding = sys.stdout.encoding or "utf-8"
    return printable(text).encode(encoding, _HANDLER).decode(encoding)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A title over the whole width and a table under it; where the columns do not fit side by side, several tables.

    A value without a space (a number, a name) is never broken or cut off: it is what one looks for, or copies. The
    first column names the row, and is repeated in each of the tables.
    """
    screen = console()
    screen.print(Text(_as_shown(title), style="bold"))
    body = [[_as_shown(cell) for cell in row] for row in rows]
    columns = [_as_shown(name) for name in columns]
    texts = [[name, *(row[index] for row in body)] for index, name in enumerate(columns)]
    words = [max(len(word) for text in column for word in [*text.split(), ""]) for column in texts]
    cells = [max([0, *map(len, column[1:])]) for column in texts]
    full = [max(map(len, column)) for column in texts]
    for part in _side_by_side(words, screen.width):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, width in zip(part, _widths(part, words, cells, full, screen.width), strict=True):
            table.add_column(columns[index], width=width, overflow="fold")
        for row in body:
            table.add_row(*(verdict_text(row[index]) if row[index] in _STYLES else Text(row[index]) for index in part))
        screen.print(table)


def _room(widths: Iterable[int]) -> int:
    """What columns take side by side: three signs between two of them, one at either end."""
    taken = list(widths)
    return sum(taken) + 3 * len(taken) - 1


def _side_by_side(words: Sequence[int], room: int) -> list[list[int]]:
    """The columns that fit beside the first one, table by table; each table has the first and at least one more."""
    parts = [[0]]
    for index in range(1, len(words)):
        if len(parts[-1]) > 1 and _room(words[one] for one in [*parts[-1], index]) > room:
            parts.append([0])
        parts[-1].append(index)
    return parts


def _widths(
    part: Sequence[int], words: Sequence[int], cells: Sequence[int], full: Sequence[int], room: int
) -> list[int]:
    """A width for each column: long headers give way first, then the widest; none below its longest word."""
    widths = {index: full[index] for index in part}
    while _room(widths.values()) > room:
        wide = [index for index in part if widths[index] > words[index]]
        if not wide:
            break
        widths[max(wide, key=lambda index: (widths[index] > cells[index], widths[index]))] -= 1
    return list(widths.values())


def print_facts(title: str, facts: Iterable[tuple[str, str]]) -> None:
    """A title and under it names with their values, a line each; long values stay in their column."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(f"  {_as_shown(name)}"), verdict_text(value) if value in _STYLES else Text(_as_shown(value)))
    screen = console()
    screen.print(Text(_as_shown(title), style="bold"))
    screen.print(grid)


def print_lines(lines: Iterable[str]) -> None:
    """Plain sentences under a table."""
    screen = console()
    for line in lines:
        screen.print(_as_shown(line), markup=False)


def number(value: float, digits: int = 4) -> str:
    """A number for people: fixed digits, "∞" where there is no finite one. For what is neither proved nor promised."""
    return _fixed(value, digits, ROUND_HALF_EVEN)


def at_most(value: float, digits: int = 4) -> str:
    """The same of an upper bound, which is never rounded down; and of a noise, which keeps what more noise keeps.

    >>> at_most(15.78271949), at_most(1.0), at_most(4.4249e-9)
    ('15.7828', '1.0000', '4.43e-09')
    """
    return _fixed(value, digits, ROUND_CEILING)


def at_least(value: float, digits: int = 4) -> str:
    """The same of a lower bound, which is never rounded up.

    >>> at_least(0.42999, 2), at_least(4.4249e-9), at_least(0.0)
    ('0.42', '4.42e-09', '0.0000')
    """
    return _fixed(value, digits, ROUND_FLOOR)


def _fixed(value: float, digits: int, how: str) -> str:
    if value == float("inf"):
        return "∞"
    exact = Decimal(repr(float(value)))
    if value == 0 or abs(value) >= 10.0**-digits:
        return f"{exact.quantize(Decimal(1).scaleb(-digits), rounding=how, context=_EXACTLY):f}"
    return f"{float(exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), rounding=how)):.2e}"


_EXACTLY = Context(prec=400)


def as_option_names(message: str, options: Iterable[str]) -> str:
    """Rewrite the Python names in an error message to option names: ``sample_rate = 2`` → ``--sample-rate = 2``."""
    for option in sorted(options, key=len, reverse=True):
        message = re.sub(
            rf"(?<![\w.-]){re.escape(option)}(?= = |\b is | has |\[)", "--" + option.replace("_", "-"), message
        )
    return message
