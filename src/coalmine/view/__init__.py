"""A page over a store: audits as they run, what they prove, side by side. It only reads, on this machine alone.

The server needs the extra ``view``; nothing of it is loaded before it is asked for.
"""

from __future__ import annotations

from importlib import util

from coalmine.errors import UnsupportedError


def check_packages() -> None:
    """An error in words where the packages of the extra ``view`` are not installed."""
    needed = ("starlette", "uvicorn", "altair", "vl_convert", "jinja2")
    missing = [name for name in needed if util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"the view needs {', '.join(missing)}: install the extra with pip install 'coalmine[view]'"
        )
