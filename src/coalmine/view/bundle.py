"""The same pages as files in one folder, to share: they open in a browser without a server, and ask nobody."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from coalmine import report
from coalmine.errors import InvalidInputError, StoreError
from coalmine.store import Store
from coalmine.view.app import STATIC, static_file
from coalmine.view.catalogue import Query, Row
from coalmine.view.links import Links, is_fingerprint
from coalmine.view.pages import Pages

_PAGE = re.compile(r"(?:audit|attack|trials|result|canaries|compare)-[0-9a-f-]+\.html|static")
_HEAD = 4096
"""How a page of ours begins, and the files that a bundle has."""
MOST_COMPARED = 8
"""Every pair among so many audits, the last used, is compared: 28 pages."""


def write_bundle(store: Store, folder: Path, *, audits: Sequence[str] = ()) -> list[Path]:
    """Write the pages of a store.

    ``audits`` are the beginnings of fingerprints, or names, of what to show; all if none is named. A folder with other
    files in it is refused. Gives the files that were written.
    """
    links = Links(live=False)
    _prepare(folder)
    pages = Pages(store, links, patience=None)
    written: list[Path] = []

    def write(name: str, text: str) -> None:
        written.append(report.write_text(text, folder / name))

    try:
        rows = _chosen(pages, audits)
        keep = {row.entry.fingerprint for row in rows}
        compared = [row for row in rows if row.done][:MOST_COMPARED]  # audits: a result has no trials
        pairs = list(itertools.combinations(compared, 2))
        for row in rows:
            audit = row.entry.fingerprint
            if row.entry.kind != "audit":
                write(links.result(audit), pages.result(audit))
                for number in range(1, pages.canary_pages(audit) + 1):
                    write(links.canaries(audit, number), pages.canaries(audit, page=number))
                continue
            mine = [
                (links.compare(a.entry.fingerprint, b.entry.fingerprint), _title(b if a is row else a))
                for a, b in pairs
                if row in (a, b)
            ]
            write(links.audit(audit), pages.audit(audit, judge=True, others=mine))
            if row.done:
                for index in range(len(pages.judged.result(audit).adversaries)):
                    write(links.attack(audit, index), pages.attack(audit, index))
        for run in dict.fromkeys(run.fingerprint for row in rows for run in row.runs):
            for page in range(1, pages.trial_pages(run) + 1):
                write(links.trials(run, page), pages.trials(run, page=page, only=keep))
        for first, second in pairs:
            a, b = first.entry.fingerprint, second.entry.fingerprint
            write(links.compare(a, b), pages.compare(a, b))
        named = [
            (
                links.compare(a.entry.fingerprint, b.entry.fingerprint),
                " and ".join(_apart(_title(one)) for one in (a, b)),
            )
            for a, b in pairs
        ]
        write(links.home(), pages.runs(Query(), pairs=named, only=keep))
    finally:
        pages.close()
    (folder / "static").mkdir(exist_ok=True)
    for name in ("vega.js", *(one for one in STATIC if not one.startswith("htmx"))):
        (folder / links.static(name)).write_bytes(static_file(name))
        written.append(folder / links.static(name))
    return written


def _prepare(folder: Path) -> None:
    """The folder, empty or with an earlier bundle in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [one.name for one in folder.iterdir()]
    except OSError as error:
        raise InvalidInputError(f"folder = {str(folder)!r} cannot be written: {error.strerror}") from None
    index = folder / "index.html"
    earlier = index.is_file() and b"Coalmine</title>" in index.read_bytes()[:_HEAD]
    # One that was not finished (a full disk) has no list yet, and nothing but pages.
    if there and not earlier and not all(_PAGE.fullmatch(name) for name in there):
        raise InvalidInputError(
            f"folder = {str(folder)!r} is not allowed: expected a folder that is empty, or not there yet"
        )


def _chosen(pages: Pages, audits: Sequence[str]) -> list[Row]:
    """The audits and results that are asked for, the last used first."""
    rows = [
        row
        for row in pages.catalogue.page(Query(), size=10**9).rows
        if is_fingerprint(row.entry.fingerprint) and all(is_fingerprint(run.fingerprint) for run in row.runs)
    ]
    for one in audits:
        if not any(_is(row, one) for row in rows):
            raise StoreError(
                f"no audit or result {one!r} in this store: give a name, or the beginning of a fingerprint"
            )
    return [row for row in rows if not audits or any(_is(row, one) for one in audits)]


def _is(row: Row, named: str) -> bool:
    return row.entry.name == named or (len(named) >= 4 and row.entry.fingerprint.startswith(named))


def _apart(name: str) -> str:
    """A name beside others: one that is written from right to left turns nothing around but itself."""
    return f"\u2068{name}\u2069"


def _title(row: Row) -> str:
    return row.entry.name or row.entry.fingerprint[:12]
