"""What is made when the book is built: pages ask for it with a comment, ``<!-- made: commands -->``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import gallery
import settings

MADE: dict[str, Callable[[], str]] = {
    "commands": commands.markdown,
    "config": settings.markdown,
    "gallery": gallery.markdown,
}


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", _put_in)
    app.connect("builder-inited", _play)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _put_in(app: Any, name: str, source: list[str]) -> None:
    source[0] = re.sub(r"<!-- made: (\w+) -->", lambda found: MADE[found[1]](), source[0])


def _play(app: Any) -> None:
    if app.builder.format == "html":
        gallery.make(Path(app.outdir) / "gallery", kept=Path(app.config.nb_execution_cache_path))
