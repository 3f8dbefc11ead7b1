"""The list of audits and results: what each is about, how far it is, how it ended; filtered, sorted, cut into pages.

What a store holds may come from anybody: whatever is not as expected is left out, and never an error.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any, Self, TypeAlias
from urllib.parse import urlencode

from coalmine import _validate
from coalmine.auditing.stored import is_current
from coalmine.store import Store, listing, results
from coalmine.store.listing import AuditEntry, Progress
from coalmine.store.results import ResultEntry, faults_of, number, part

PAGE = 50
"""Rows on one page."""
KINDS = ("audit", *results.KINDS)
OUTCOMES = ("refuted", "consistent", "inconclusive")
STATES = ("running", "complete", "incomplete")
SORTS = ("date", "name", "data", "claim", "proved", "ceiling", "verdict", "progress")
Entry: TypeAlias = AuditEntry | ResultEntry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked of the list."""

    text: str = ""
    kind: str = ""
    outcome: str = ""
    state: str = ""
    tag: str = ""
    sort: str = "date"
    descending: bool = True
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """From the parameters of an address."""
        number = given.get("page", "1")
        return cls(
            text=given.get("text", "").strip()[:200],
            kind=_validate.choice("kind", given.get("kind", ""), ("", *KINDS)),
            outcome=_validate.choice("outcome", given.get("outcome", ""), ("", *OUTCOMES)),
            state=_validate.choice("state", given.get("state", ""), ("", *STATES)),
            tag=given.get("tag", "").strip()[:200],
            sort=_validate.choice("sort", given.get("sort", "date"), SORTS),
            descending=_validate.choice("order", given.get("order", "down"), ("up", "down")) == "down",
            page=int(number) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
        )

    def address(self, **changed: Any) -> str:
        """The parameters of this query with some changed, for a link."""
        one = dataclasses.replace(self, **changed)
        given = {
            "text": one.text,
            "kind": one.kind,
            "outcome": one.outcome,
            "state": one.state,
            "tag": one.tag,
            "sort": "" if one.sort == "date" else one.sort,
            "order": "" if one.descending else "up",
            "page": "" if one.page == 1 else str(one.page),
        }
        return "?" + urlencode({name: value for name, value in given.items() if value})


CONTROL = "control: "
"""How the label of a control's run begins."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class About:
    """What an audit is about, for people: from its description, which never changes."""

    data: str
    own: bool
    attacks: tuple[tuple[str, str], ...]
    claimed: float | None
    claim: str
    delta: float | None

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Self:
        """From the description of an audit. A run's label is the name of its attack with its options."""
        subject, claim = part(description, "subject"), part(description, "claim")
        attacks: list[tuple[str, str]] = []
        members = description.get("members")
        for one in members if isinstance(members, list) else []:
            for member, before in ((one, ""), (part(one, "control"), CONTROL)):
                if isinstance(member, dict) and isinstance(member.get("run"), str):
                    attacks.append((member["run"], before + label_of(part(member, "attack"))))
        return cls(
            data=str(subject.get("name", "")),
            own=bool(subject.get("own")),
            attacks=tuple(attacks),
            claimed=number(claim.get("epsilon")) or number(part(subject, "guarantee").get("epsilon")),
            claim=_claim(claim),
            delta=number(part(part(description, "config"), "audit").get("delta")) or number(claim.get("delta")),
        )

    @classmethod
    def of_result(cls, summary: Mapping[str, Any]) -> Self:
        """From the summary of a probe or of one training with canaries."""
        claim = part(summary, "claim")
        return cls(
            data=str(summary.get("subject", "")),
            own=False,
            attacks=(),
            claimed=number(claim.get("epsilon")),
            claim=_claim(claim),
            delta=number(claim.get("delta")),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRow:
    """A run in the list, below its audit."""

    fingerprint: str
    label: str
    wanted: int
    progress: Progress

    @property
    def done(self) -> int:
        """The trials that count."""
        return min(self.progress.trials, self.wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """An audit or a result in the list. ``ended`` is how it was judged when it ended, if that is still so."""

    entry: Entry
    about: About
    runs: tuple[RunRow, ...]
    running: bool
    ended: Mapping[str, Any] | None

    @property
    def done(self) -> int:
        """The trials that are there."""
        return sum(run.done for run in self.runs)

    @property
    def wanted(self) -> int:
        """The trials that were asked for."""
        return sum(run.wanted for run in self.runs)

    @property
    def controls(self) -> int:
        """Those of them that are of a control: trainings with less noise, which an audit holds its own against."""
        controls = {run for run, label in self.about.attacks if label.startswith(CONTROL)}
        return sum(run.done for run in self.runs if run.fingerprint in controls)

    @property
    def state(self) -> str:
        """Running, complete or incomplete."""
        if self.running:
            return "running"
        if self.entry.kind != "audit":
            return "complete"
        return "complete" if self.done >= self.wanted and self.runs else "incomplete"

    @property
    def percent(self) -> int:
        """Rounded down: 100 only when all is there."""
        return 100 * self.done // self.wanted if self.wanted else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the list, and how many rows the query finds on all pages and there are in all."""

    query: Query
    rows: tuple[Row, ...]
    found: int
    every: int
    kinds: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return max(1, math.ceil(self.found / PAGE))


class Catalogue:
    """The audits and results of a store. What never changes is read once, the rest again when the store has changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._version: int | None = None
        self._entries: tuple[Entry, ...] = ()
        self._progress: dict[str, Progress] | None = None
        self._about: dict[str, About] = {}

    def page(self, query: Query, *, size: int = PAGE) -> Page:
        """The rows that a query asks for, and of those one page."""
        with self._lock:
            self._refresh()
            running = {one.run for one in listing.workers(self._store)}
            kept = [entry for entry in self._entries if self._fits(entry, query)]
            if query.state or query.sort == "progress":
                shown = self._rows(kept, running, self._everything())
                rows = [row for row in shown if query.state in ("", row.state)]
                rows = _sorted(rows, query)
                found, chosen = len(rows), rows[(query.page - 1) * size : query.page * size]
            else:
                kept = _sorted_entries(kept, query, self._about)
                part = kept[(query.page - 1) * size : query.page * size]
                names = [run for entry in part for run in entry.members]
                found, chosen = len(kept), self._rows(part, running, listing.progress(self._store, names))
            tags = tuple(sorted({tag for entry in self._entries for tag in entry.tags}))
            kinds = {entry.kind for entry in self._entries}
            return Page(
                query=query,
                rows=tuple(chosen),
                found=found,
                every=len(self._entries),
                kinds=tuple(one for one in KINDS if one in kinds),
                tags=tags,
            )

    def row(self, audit: str) -> Row | None:
        """One audit as it is in the list; None if there is none of that fingerprint."""
        with self._lock:
            self._refresh()
            entry = next((one for one in self._entries if one.fingerprint == audit and one.kind == "audit"), None)
            if entry is None:
                return None
            running = {one.run for one in listing.workers(self._store, entry.members)}
            return self._rows([entry], running, listing.progress(self._store, entry.members))[0]

    def audits_of(self, run: str) -> list[Entry]:
        """The audits that a run belongs to, the last used first, three at most."""
        with self._lock:
            self._refresh()
            return [entry for entry in self._entries if run in entry.members][:3]

    def _refresh(self) -> None:
        """Read the audits again if another process has changed the store."""
        version = listing.changes(self._store)
        if version == self._version:
            return
        audits, others = listing.audits(self._store), results.every(self._store)
        self._entries, self._progress = (*audits, *others), None
        self._about |= {entry.fingerprint: About.of_result(entry.summary) for entry in others}
        new = [entry.fingerprint for entry in audits if entry.fingerprint not in self._about]
        for name, description in listing.descriptions(self._store, new).items():
            self._about[name] = About.of(description)
        self._version = version

    def _everything(self) -> dict[str, Progress]:
        """How far every run is."""
        if self._progress is None:
            names = {run for entry in self._entries for run in entry.members}
            self._progress = listing.progress(self._store, names)
        return self._progress

    def _fits(self, entry: Entry, query: Query) -> bool:
        """Whether an audit or result is asked for, but for its state."""
        about = self._about[entry.fingerprint]
        if query.tag and query.tag not in entry.tags:
            return False
        if query.kind and query.kind != entry.kind:
            return False
        if query.outcome and (entry.conclusion or {}).get("outcome") != query.outcome:
            return False
        words = (
            entry.name,
            entry.kind,
            entry.fingerprint,
            about.data,
            about.claim,
            *entry.tags,
            *(label for _, label in about.attacks),
            *faults_of(entry),
        )
        every = "\n".join(words).casefold()
        return all(word in every for word in query.text.casefold().split())

    def _rows(self, entries: list[Entry], running: set[str], progress: Mapping[str, Progress]) -> list[Row]:
        """Audits with their runs."""
        rows = []
        for entry in entries:
            about = self._about[entry.fingerprint]
            labels = dict(about.attacks)
            runs = tuple(
                RunRow(fingerprint=run, label=labels.get(run, run[:12]), wanted=wanted, progress=progress[run])
                for run, wanted in entry.members.items()
            )
            current = entry.kind != "audit" or (
                entry.conclusion is not None
                and is_current(entry.conclusion, {run.fingerprint: run.done for run in runs})
            )
            rows.append(
                Row(
                    entry=entry,
                    about=about,
                    runs=runs,
                    running=bool(running & set(entry.members)),
                    ended=entry.conclusion if current else None,
                )
            )
        return rows


def _sorted_entries(entries: list[Entry], query: Query, about: Mapping[str, About]) -> list[Entry]:
    """Sorted by what needs no trials; audits that lack the value come last."""

    def key(entry: Entry) -> Any:
        ended = entry.conclusion or {}
        return {
            "date": entry.used,
            "name": entry.name.casefold() or None,
            "data": about[entry.fingerprint].data.casefold() or None,
            "claim": about[entry.fingerprint].claimed or number(ended.get("claim")),
            "proved": number(ended.get("epsilon")),
            "ceiling": number(ended.get("ceiling")),
            "verdict": ended.get("outcome") if isinstance(ended.get("outcome"), str) else None,
        }[query.sort]

    return _last_without(entries, key, descending=query.descending)


def _sorted(rows: list[Row], query: Query) -> list[Row]:
    """The same where how far each is matters."""
    if query.sort == "progress":
        return _last_without(
            rows, lambda row: row.done / row.wanted if row.wanted else None, descending=query.descending
        )
    order = {row.entry.fingerprint: row for row in rows}
    about = {row.entry.fingerprint: row.about for row in rows}
    return [order[entry.fingerprint] for entry in _sorted_entries([row.entry for row in rows], query, about)]


def _last_without(items: list[Any], key: Any, *, descending: bool) -> list[Any]:
    pairs = [(key(item), item) for item in items]
    known = sorted((pair for pair in pairs if pair[0] is not None), key=lambda pair: pair[0], reverse=descending)
    return [item for _, item in known] + [item for value, item in pairs if value is None]


def label_of(attack: dict[str, Any]) -> str:
    """The attack's name with its options."""
    options = ", ".join(f"{key}={value}" for key, value in part(attack, "options").items())
    name = str(attack.get("name", "unknown attack"))
    return f"{name} ({options})" if options else name


def _claim(claim: dict[str, Any]) -> str:
    """What is claimed, where that is a mechanism or one step of it."""
    step = claim.get("kind") == "step"
    found = claim if step else part(claim, "mechanism")
    words = {"sample_rate": "q", "noise_multiplier": "σ", "steps": "T"} | ({"clip_norm": "C"} if step else {})
    sizes = [(sign, number(found.get(key))) for key, sign in words.items()]
    said = ", ".join(f"{sign} = {size:g}" for sign, size in sizes if size is not None)
    return f"{'' if step else 'DP-SGD '}{said}" if said else ""
