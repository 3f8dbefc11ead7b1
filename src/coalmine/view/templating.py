"""Templates: every value that is not markup of ours is escaped, whatever a store holds."""

from __future__ import annotations

import datetime
import functools
from typing import Any

import jinja2
from markupsafe import Markup

from coalmine.report import rounding
from coalmine.report.html import environment


@functools.cache
def _environment() -> jinja2.Environment:
    return environment(
        "coalmine.view", day=day, moment=moment, duration=duration, down=rounding.down, least=rounding.least
    )


def render(template: str, /, **context: Any) -> Markup:
    """A template as markup."""
    return Markup(_environment().get_template(f"{template}.html.j2").render(**context))


def day(seconds: float) -> str:
    """A moment for people, in UTC.

    >>> day(1.7e9)
    '2023-11-14 22:13 UTC'
    """
    found = _when(seconds)
    return "unknown" if found is None else found.strftime("%Y-%m-%d %H:%M UTC")


def moment(seconds: float) -> str:
    """The same for programs."""
    found = _when(seconds)
    return "" if found is None else found.isoformat(timespec="seconds")


def _when(seconds: float) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return None


def duration(seconds: float) -> str:
    """How long, in the two largest units.

    >>> duration(42.2), duration(3725), duration(200_000)
    ('42 s', '1 h 2 min', '2 d 7 h')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"
