"""Addresses of the pages: of the live server, and of the same pages as files in one folder."""

from __future__ import annotations

import dataclasses
import re
from urllib.parse import quote, urlencode

_SAFE = re.compile("[0-9a-f]{8,128}")


@dataclasses.dataclass(frozen=True)
class Links:
    """Where each page is, as seen from any other: a path of the server, or (not ``live``) a file in one folder.

    A fingerprint that is none never becomes part of a file's name.
    """

    live: bool

    def home(self) -> str:
        """The list of audits."""
        return "/" if self.live else "index.html"

    def audit(self, audit: str) -> str:
        """One audit."""
        return self._page("audits", "audit", audit)

    def attack(self, audit: str, index: int) -> str:
        """One attack of an audit."""
        return f"{self.audit(audit)}/attacks/{index}" if self.live else f"attack-{_short(audit)}-{index}.html"

    def trials(self, run: str, page: int = 1) -> str:
        """The trials of a run."""
        return self._page("runs", "trials", run) + _turned(page) if self.live else f"trials-{_short(run)}-{page}.html"

    def result(self, result: str) -> str:
        """A probe, or one training with canaries."""
        return self._page("results", "result", result)

    def canaries(self, result: str, page: int = 1) -> str:
        """The canaries of one training."""
        if self.live:
            return f"{self.result(result)}/canaries{_turned(page)}"
        return f"canaries-{_short(result)}-{page}.html"

    def compare(self, first: str, second: str) -> str:
        """Two audits side by side."""
        if self.live:
            return "/compare?" + urlencode([("audit", first), ("audit", second)])
        return f"compare-{_short(first)}-{_short(second)}.html"

    def static(self, name: str) -> str:
        """A file that comes with the pages."""
        return f"/static/{name}" if self.live else f"static/{name}"

    def _page(self, folder: str, kind: str, fingerprint: str) -> str:
        return f"/{folder}/{quote(fingerprint, safe='')}" if self.live else f"{kind}-{_short(fingerprint)}.html"


def is_fingerprint(text: str) -> bool:
    """Whether the text is a fingerprint; a store from anybody may hold anything in its place."""
    return _SAFE.fullmatch(text) is not None


def _short(fingerprint: str) -> str:
    return fingerprint[:16] if is_fingerprint(fingerprint) else "unknown"


def _turned(page: int) -> str:
    return f"?page={page}" if page > 1 else ""
