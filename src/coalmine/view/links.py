"""Addresses of the pages: of the live server, and of the same pages as files in one folder."""

from __future__ import annotations

import re
from typing import Protocol
from urllib.parse import quote, urlencode

_SAFE = re.compile("[0-9a-f]{8,128}")


class Links(Protocol):
    """Where each page is, as seen from any other."""

    live: bool

    def home(self) -> str:
        """The list of audits."""
        ...

    def audit(self, audit: str) -> str:
        """One audit."""
        ...

    def attack(self, audit: str, index: int) -> str:
        """One attack of an audit."""
        ...

    def trials(self, run: str, page: int = 1) -> str:
        """The trials of a run."""
        ...

    def result(self, result: str) -> str:
        """A probe, or one training with canaries."""
        ...

    def canaries(self, result: str, page: int = 1) -> str:
        """The canaries of one training."""
        ...

    def compare(self, first: str, second: str) -> str:
        """Two audits side by side."""
        ...

    def static(self, name: str) -> str:
        """A file that comes with the pages."""
        ...


class LiveLinks:
    """Paths of the server."""

    live = True

    def home(self) -> str:
        """The list of audits."""
        return "/"

    def audit(self, audit: str) -> str:
        """One audit."""
        return f"/audits/{quote(audit, safe='')}"

    def attack(self, audit: str, index: int) -> str:
        """One attack of an audit."""
        return f"{self.audit(audit)}/attacks/{index}"

    def trials(self, run: str, page: int = 1) -> str:
        """The trials of a run."""
        return f"/runs/{quote(run, safe='')}" + (f"?page={page}" if page > 1 else "")

    def result(self, result: str) -> str:
        """A probe, or one training with canaries."""
        return f"/results/{quote(result, safe='')}"

    def canaries(self, result: str, page: int = 1) -> str:
        """The canaries of one training."""
        return f"{self.result(result)}/canaries" + (f"?page={page}" if page > 1 else "")

    def compare(self, first: str, second: str) -> str:
        """Two audits side by side."""
        return "/compare?" + urlencode([("audit", first), ("audit", second)])

    def static(self, name: str) -> str:
        """A file that comes with the pages."""
        return f"/static/{name}"


class FileLinks:
    """Names of files in one folder. A fingerprint that is none never becomes part of a name."""

    live = False

    def home(self) -> str:
        """The list of audits."""
        return "index.html"

    def audit(self, audit: str) -> str:
        """One audit."""
        return f"audit-{_short(audit)}.html"

    def attack(self, audit: str, index: int) -> str:
        """One attack of an audit."""
        return f"attack-{_short(audit)}-{index}.html"

    def trials(self, run: str, page: int = 1) -> str:
        """The trials of a run."""
        return f"trials-{_short(run)}-{page}.html"

    def result(self, result: str) -> str:
        """A probe, or one training with canaries."""
        return f"result-{_short(result)}.html"

    def canaries(self, result: str, page: int = 1) -> str:
        """The canaries of one training."""
        return f"canaries-{_short(result)}-{page}.html"

    def compare(self, first: str, second: str) -> str:
        """Two audits side by side."""
        return f"compare-{_short(first)}-{_short(second)}.html"

    def static(self, name: str) -> str:
        """A file that comes with the pages."""
        return f"static/{name}"


def is_fingerprint(text: str) -> bool:
    """Whether the text is a fingerprint; a store from anybody may hold anything in its place."""
    return _SAFE.fullmatch(text) is not None


def _short(fingerprint: str) -> str:
    return fingerprint[:16] if is_fingerprint(fingerprint) else "unknown"
