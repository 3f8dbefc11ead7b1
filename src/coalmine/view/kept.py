"""Results without trials on a page: what a probe found, and the canaries of one training, as they were kept.

What a store holds may come from anybody: a report that is not as expected is refused in words.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from coalmine.errors import StoreError
from coalmine.probing import page
from coalmine.probing.findings import ProbeReport
from coalmine.report import one_run as one_run_report
from coalmine.report.figures import NARROW
from coalmine.store import Store, results
from coalmine.store.results import Result
from coalmine.view import figures


def read(store: Store, result: str) -> Result:
    """The result of that fingerprint, whole and unchanged."""
    return results.read(store, result)


def called(found: Result) -> str:
    """Its name, or what it is about."""
    return found.name or str(found.summary.get("subject") or found.fingerprint[:12])


def probe(found: Result) -> dict[str, Any]:
    """Everything that the page of a probe shows."""
    with _readable(found):
        report = ProbeReport.from_dict(found.report)
        return {**page.told(report, figures.shown), "title": called(found)}


def one_run(found: Result) -> dict[str, Any]:
    """Everything that the page of one training with canaries shows."""
    with _readable(found):
        section = found.report
        return {
            **one_run_report.judged(section),
            **one_run_report.told(section),
            "title": called(found),
            "total": len(section["canaries"]["id"]),
            "scores": figures.shown(one_run_report.scores(section, width=NARROW)),
            "trade_off": figures.canaries(section),
            "versions": list(dict(found.summary.get("versions") or {}).items()),
            "run": str(section.get("run") or ""),
            "digest": str(section.get("digest") or ""),
        }


def canaries(found: Result) -> list[tuple[str, str, str, str]]:
    """Every canary, the highest score first: id, score, coin, guess."""
    with _readable(found):
        return one_run_report.ranked(found.report["canaries"])


@contextlib.contextmanager
def _readable(found: Result) -> Iterator[None]:
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"result {found.fingerprint[:12]} cannot be read: {error}") from error
