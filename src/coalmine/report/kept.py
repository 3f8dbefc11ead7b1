"""What stands at the head of a page about a kept result: what it is called, when it was kept, made with what."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.store.results import Result


def facts(found: Result) -> list[tuple[str, str]]:
    """What a reader needs to find it again: name, tags, date, versions and fingerprint, as far as they are known."""
    said: Mapping[str, Any] = found.summary
    versions = said.get("versions")
    known = [f"{name} {version}" for name, version in versions.items()] if isinstance(versions, Mapping) else []
    rows = [
        ("Name", found.name),
        ("Tags", ", ".join(found.tags)),
        ("Kept", _date(found.created)),
        ("Versions", ", ".join(known)),
        ("Run", str(found.report.get("run") or "")),
        ("Digest", str(found.report.get("digest") or "")),
        ("Result", found.fingerprint),
    ]
    return [(key, value) for key, value in rows if value]


def _date(seconds: float) -> str:
    """A moment for people, in UTC."""
    try:
        when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    except (OverflowError, OSError, ValueError):
        return "at an unknown time"
    return f"{when.day} {when:%B %Y, %H:%M} UTC"
