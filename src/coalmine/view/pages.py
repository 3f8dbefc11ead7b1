"""The pages: what each shows, from the store and the judge, as HTML. No bound is computed here."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import tomli_w

from coalmine.auditing.results import AdversaryResult, AuditResult
from coalmine.auditing.stored import AuditRecord
from coalmine.errors import CoalmineError, StoreError
from coalmine.report import one_person, rounding, summary, tables, words
from coalmine.report import one_run as one_run_report
from coalmine.report.figures import NARROW
from coalmine.store import Store, listing
from coalmine.store.results import faults_of, number, size_of
from coalmine.view import figures, kept
from coalmine.view.catalogue import KINDS, OUTCOMES, PAGE, STATES, Catalogue, Entry, Query, Row, label_of
from coalmine.view.judged import Judged
from coalmine.view.links import Links
from coalmine.view.live import LiveAudit, Watched
from coalmine.view.templating import day, render

TRIALS = 200
"""Trials on one page."""
MOST_PAGES = 25
"""Pages of trials that are written to files for one run: the first 5,000."""
_COLUMNS = (
    ("name", "Audit"),
    ("date", "Date"),
    ("data", "Data"),
    ("claim", "Claim"),
    ("proved", "Proved"),
    ("ceiling", "Ceiling"),
    ("verdict", "Verdict"),
    ("progress", "Progress"),
)
_DOWN_FIRST = ("date", "claim", "proved", "ceiling", "progress")
_FEW = 10
_WATCHED = 8


class Pages:
    """Every page over one store. ``patience`` are the seconds that a page waits for the judge."""

    def __init__(self, store: Store, links: Links, *, patience: float | None = 1.5) -> None:
        self.catalogue, self.judged = Catalogue(store), Judged(store)
        self._store, self._links, self._patience = store, links, patience
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Judge no more."""
        self.judged.close()

    # ---- the list ----------------------------------------------------------------------------------------------

    def runs(
        self,
        query: Query,
        *,
        part: bool = False,
        pairs: Sequence[tuple[str, str]] = (),
        only: Collection[str] | None = None,
    ) -> str:
        """The list; with ``part`` what a filter or a sort changes, with ``only`` some and all on one page."""
        page = self.catalogue.page(query, size=PAGE if only is None else 10**9)
        page = dataclasses.replace(page, rows=tuple(self._as_judged(row) for row in page.rows))
        if only is not None:
            rows = tuple(row for row in page.rows if row.entry.fingerprint in only)
            page = dataclasses.replace(page, rows=rows, found=len(rows), every=len(rows))

        def turn(number: int) -> str:
            return "/" + query.address(page=number)

        shown = {"page": page, "columns": _COLUMNS, "down_first": _DOWN_FIRST, "turn": turn, **self._cells()}
        if part:
            return self._render("list", **shown)
        every = {"kinds": KINDS, "outcomes": OUTCOMES, "states": STATES, "unclaimed": self._unclaimed(), "pairs": pairs}
        return self._render("runs", **shown, **every)

    def _unclaimed(self) -> tuple[str, ...]:
        """Runs without an audit; files are written for audits alone."""
        return listing.unclaimed(self._store) if self._links.live else ()

    def row(self, audit: str) -> str:
        """One audit as it is in the list."""
        return self._render("row", row=self._row(audit), **self._cells())

    def _row(self, audit: str) -> Row:
        found = self.catalogue.row(audit)
        if found is None:
            raise StoreError(f"no audit {audit[:12]!r} in this store")
        return self._as_judged(found)

    def _as_judged(self, row: Row) -> Row:
        """The row with how it ended, if that was found out here: this page cannot write it into the store."""
        if row.ended is not None:
            return row
        trials = {run.fingerprint: run.done for run in row.runs}
        return dataclasses.replace(row, ended=self.judged.summary(row.entry.fingerprint, trials))

    def _cells(self) -> dict[str, Any]:
        """What the cells of a row say, each number rounded to the safe side."""

        def at_delta(row: Row) -> str:
            return "" if row.about.delta is None else " at " + _tight(f"δ = {rounding.small(row.about.delta)}")

        def claim(row: Row) -> str:
            value = row.about.claimed if row.about.claimed is not None else number((row.ended or {}).get("claim"))
            if value is None:
                return row.about.claim.replace(" = ", "\u00a0=\u00a0") or "none"
            return "none" if math.isinf(value) else _tight(f"ε ≤ {rounding.up(value)}") + at_delta(row)

        def proved(row: Row) -> str:
            """What is proved; at the claim's δ, which is named here where the claim has none."""
            text = shown(row)
            return text + at_delta(row) if text.startswith("ε") and "δ" not in claim(row) else text

        def shown(row: Row) -> str:
            if row.entry.kind == "probe":
                return ", ".join(faults_of(row.entry)) or "no fault found"
            if row.entry.kind != "audit":
                value = number((row.ended or {}).get("epsilon"))
                return "–" if value is None else _proved(value)
            parts = (row.ended or {}).get("proved")
            if not isinstance(parts, dict):
                return "–"
            return both(parts, _proved)

        def both(parts: Mapping[str, Any], text: Callable[[float], str]) -> str:
            """One number, or two with what each is about."""
            names = {"on_data": "your data", "on_chosen_data": "chosen data"}
            known = [(name, number(parts.get(key))) for key, name in names.items()]
            texts = [(name, text(value)) for name, value in known if value is not None]
            return texts[0][1] if len(texts) == 1 else ", ".join(f"{one} ({name})" for name, one in texts) or "–"

        def ceiling(row: Row) -> str:
            """Of the very attacks whose bounds stand beside it."""
            parts = (row.ended or {}).get("ceilings")
            if isinstance(parts, dict):
                return both(parts, rounding.down)
            value = number((row.ended or {}).get("ceiling"))
            return "–" if value is None else rounding.down(value)

        return {
            "claim": claim,
            "proved": proved,
            "ceiling": ceiling,
            "size": lambda row: size_of(row.entry) or "complete",
        }

    # ---- one audit ---------------------------------------------------------------------------------------------

    def audit(self, audit: str, *, judge: bool = False, others: Sequence[tuple[str, str]] = ()) -> str:
        """One audit: how far it is, and what its trials prove."""
        row = self._row(audit)
        shown: dict[str, Any] = {
            "row": row,
            "name": _name(row),
            "live": None,
            "offered": False,
            "others": others,
            **self._cells(),
            **_NOTHING,
        }
        if row.state != "complete":
            now = self.look(audit)
            shown |= {"live": self.live(now), "so_far": _so_far(now)}
        if row.state == "running" and not judge:
            return self._render("audit", **shown | {"offered": row.done > 0})
        if row.done == 0:
            return self._render("audit", **shown)
        result = self._judged(shown, [audit], again=self._links.audit(audit) + ("?judge=now" if judge else ""))
        if result:
            shown |= {"row": self._as_judged(row), **self._result(audit, result[0])}
        return self._render("audit", **shown)

    def look(self, audit: str) -> LiveAudit:
        """The audit as it is now; what was read at an earlier look is not read again."""
        with self._lock:
            watched = self._watched.get(audit)
        if watched is None:
            watched = Watched(self._store, self.judged.record(audit))
            with self._lock:
                while len(self._watched) >= _WATCHED:
                    self._watched.pop(next(iter(self._watched)))
                watched = self._watched.setdefault(audit, watched)
        return watched.look()

    def live(self, now: LiveAudit) -> str:
        """The part of an audit's page that changes while it runs."""
        return self._render("live", now=now, labels={one.run: one.label for one in now.attacks})

    def _result(self, audit: str, result: AuditResult) -> dict[str, Any]:
        """What the trials prove."""
        answer, reasons = summary.could_fail(result)
        return {
            "answer": answer,
            "reasons": reasons,
            "result": result,
            "sentence": words.verdict(result),
            "headline": words.headline(result),
            "caveats": words.caveats(result),
            "meaning": one_person.meaning(result),
            "overview": figures.overview(result),
            "attacks": [self._attack(audit, index, one) for index, one in enumerate(result.adversaries)],
            "config": tomli_w.dumps(result.config.model_dump(mode="json", exclude_none=True)),
            "versions": list(result.versions.items()),
        }

    def _attack(self, audit: str, index: int, one: AdversaryResult) -> dict[str, Any]:
        """One attack in the table of an audit."""
        return {
            "label": one.label,
            "link": self._links.attack(audit, index),
            "trials_link": self._links.trials(one.run),
            "sees": one.view.value.replace("_", " "),
            "trials": words.played(one),
            "proved": _bound(one),
            "ceiling": _ceiling(one),
            "assumed": words.epsilon(one.assumed) if one.assumed else "–",
            "failed": f"{one.failed[0]:,}, {one.failed[1]:,}",
        }

    # ---- drill-down --------------------------------------------------------------------------------------------

    def attack(self, audit: str, index: int) -> str:
        """One attack: scores, trade-off curve, beliefs, canaries, methods, failures."""
        row = self._row(audit)
        shown: dict[str, Any] = {"audit": audit, "name": _name(row), "label": "Attack", **_NOTHING}
        result = self._judged(shown, [audit], again=self._links.attack(audit, index), part="#main")
        if not result:
            return self._render("attack", **shown)
        if not 0 <= index < len(result[0].adversaries):
            raise StoreError(f"no attack {index} in this audit: it has {len(result[0].adversaries)}")
        return self._render("attack", **shown | self._drilled(result[0], index))

    def _drilled(self, result: AuditResult, index: int) -> dict[str, Any]:
        one = result.adversaries[index]
        every = tables.methods(result)
        before = sum(1 + len(other.others) for other in result.adversaries[:index])
        reasons = [found for found in self._store.failures(one.run) if found.trial is not None]
        proved = words.epsilon(one.bound) if rounding.worth_saying(one.bound.epsilon) else "Nothing is proved"
        return {
            "label": one.label,
            "proved": f"{proved} at δ = {rounding.small(one.bound.delta)} and "
            f"{rounding.confidence(one.bound.confidence)} confidence; ceiling {_ceiling(one)}.",
            "about": words.adversary(one),
            "notes": one.notes,
            "trials_link": self._links.trials(one.run),
            "scores": figures.scores(one),
            "trade_off": figures.trade_off(result, one),
            "beliefs": figures.beliefs(one),
            "certainty": one_person.certainty(one) if one.log_odds is not None else [],
            "canaries": one_run_report.told(one_run_report.section_of(one)) if one.one_run else None,
            "columns": every.columns[1:],
            "methods": [row[1:] for row in every.rows[before : before + 1 + len(one.others)]],
            "failed": f"{one.failed[0]:,} trainings failed in world 0 and {one.failed[1]:,} in world 1.",
            "failures": [(found.trial, found.reason) for found in reasons[:_FEW]],
        }

    def trials(self, run: str, *, page: int = 1, only: Collection[str] | None = None) -> str:
        """The trials of a run, a page of them; with ``only`` it names no other audits that it belongs to."""
        found = self._store.run(run)
        part, total = listing.trials(self._store, found.fingerprint, start=(page - 1) * TRIALS, count=TRIALS)
        columns: list[Any] = [part.world, part.score, *part.columns.values()]
        rows = [
            (int(trial), int(values[0]), *(_plain(value) for value in values[1:]))
            for trial, *values in zip(part.trial.tolist(), *(column.tolist() for column in columns), strict=True)
        ]
        failures = self._store.failures(found.fingerprint)
        here = {row[0] for row in rows}
        attack = found.description.get("attack")
        return self._render(
            "trials",
            run=found,
            label=label_of(attack) if isinstance(attack, dict) else found.fingerprint[:12],
            audits=[
                (self._links.audit(one.fingerprint), _called(one))
                for one in self.catalogue.audits_of(found.fingerprint)
                if only is None or one.fingerprint in only
            ],
            total=total,
            page=page,
            pages=self._pages(total),
            size=TRIALS,
            first=rows[0][0] if rows else 0,
            last=rows[-1][0] if rows else 0,
            columns=list(part.columns),
            rows=rows,
            reasons={one.trial: one.reason for one in failures if one.trial in here},
            blocks=[(one.block, one.reason) for one in failures if one.trial is None][:50],
            turn=lambda number: self._links.trials(found.fingerprint, number),
        )

    def trial_pages(self, run: str) -> int:
        """How many pages the trials of a run take."""
        return self._pages(self._store.run(run).trials)

    def _pages(self, trials: int) -> int:
        every = max(1, math.ceil(trials / TRIALS))
        return every if self._links.live else min(every, MOST_PAGES)

    # ---- results without trials --------------------------------------------------------------------------------

    def result(self, result: str) -> str:
        """A probe with its findings, or one training with its canaries, as it was kept."""
        found = kept.read(self._store, result)
        context = kept.probe(found) if found.kind == "probe" else kept.one_run(found)
        return self._render(
            "probe" if found.kind == "probe" else "one_run",
            entry=found,
            all_canaries=self._links.canaries(found.fingerprint),
            **context,
        )

    def canaries(self, result: str, *, page: int = 1) -> str:
        """The canaries of one training, a page of them, the highest score first."""
        found = kept.read(self._store, result)
        every = kept.canaries(found)
        return self._render(
            "canaries",
            entry=found,
            title=kept.called(found),
            rows=every[(page - 1) * TRIALS : page * TRIALS],
            total=len(every),
            page=page,
            pages=self._pages(len(every)),
            size=TRIALS,
            turn=lambda number: self._links.canaries(found.fingerprint, number),
        )

    def canary_pages(self, result: str) -> int:
        """How many pages the canaries of one training take; none for a probe."""
        found = kept.read(self._store, result)
        return self._pages(len(kept.canaries(found))) if found.kind != "probe" else 0

    # ---- two audits --------------------------------------------------------------------------------------------

    def compare(self, first: str, second: str) -> str:
        """Two audits: what differs in the config, ε side by side, curves on each other."""
        names = _names(self._row(first), self._row(second))
        settings = [_settings(self.judged.record(audit)) for audit in (first, second)]
        keys = list(dict.fromkeys([*settings[0], *settings[1]]))
        differ = [key for key in keys if settings[0].get(key) != settings[1].get(key)]
        shown: dict[str, Any] = {
            "first": first,
            "second": second,
            "names": names,
            "differences": [(key, *(one.get(key, "–") for one in settings)) for key in differ],
            "alike": len(keys) - len(differ),
            **_NOTHING,
        }
        results = self._judged(shown, [first, second], again=self._links.compare(first, second))
        if results:
            pairs = list(zip(names, results, strict=True))
            shown |= {"epsilons": _side_by_side(results), "curves": figures.compared(pairs[0], pairs[1])}
        return self._render("compare", **shown)

    def message(self, title: str, text: str) -> str:
        """A page with a sentence."""
        return self._render("message", title=title, text=text)

    def _judged(
        self, shown: dict[str, Any], audits: Sequence[str], *, again: str, part: str = "#judged"
    ) -> list[AuditResult]:
        """The results, or nothing and in ``shown`` what to say instead: the judge is at work, or cannot judge.

        ``part`` of the page is replaced once the judge is done.
        """
        started = time.monotonic()
        results = []
        try:
            for found in [self.judged.begin(audit) for audit in audits]:
                left = None if self._patience is None else max(0.0, self._patience - (time.monotonic() - started))
                results.append(found.result(left))
        except concurrent.futures.TimeoutError:
            shown["judging"] = self._render("judging", again=again, part=part)
            return []
        except CoalmineError as error:
            shown["problem"] = str(error)
            return []
        return results

    def _render(self, template: str, **context: Any) -> str:
        name = str(self._store.path)
        about = {"store": name, "store_name": self._store.path.name, "written": day(time.time())}
        return render(template, links=self._links, **about, **context)


_NOTHING: Mapping[str, Any] = {"judging": None, "problem": None, "result": None}


def _name(row: Row) -> str:
    return _called(row.entry)


def _called(entry: Entry) -> str:
    """What an audit is called: its name, or the beginning of its fingerprint."""
    return entry.name or f"Audit {entry.fingerprint[:12]}"


def _names(first: Row, second: Row) -> tuple[str, str]:
    """Two names that can be told apart."""
    names = _name(first), _name(second)
    if names[0] != names[1]:
        return names
    return f"{names[0]} ({first.entry.fingerprint[:6]})", f"{names[1]} ({second.entry.fingerprint[:6]})"


def _so_far(now: LiveAudit) -> dict[str, Any]:
    return figures.shown(figures.so_far(now), figures.so_far(now, width=NARROW))


def _tight(text: str) -> str:
    """Keep a short statement on one line."""
    return text.replace(" ", "\u00a0")


def _bound(one: AdversaryResult) -> str:
    return words.proved(one.bound)


def _proved(epsilon: float) -> str:
    """A lower bound; at zero it says nothing."""
    return _tight(f"ε ≥ {rounding.least(epsilon)}") if rounding.worth_saying(epsilon) else "nothing"


def _ceiling(one: AdversaryResult) -> str:
    return "–" if one.bound.ceiling is None else rounding.down(one.bound.ceiling)


def _plain(value: float) -> str:
    return "failed" if math.isnan(value) else f"{value:.6g}"


def _settings(record: AuditRecord) -> dict[str, str]:
    """The config and the facts of what was audited, flat: a name with dots, and its value."""
    tree = record.config.model_dump(mode="json", exclude_none=True)
    claim = {} if record.claim is None else {"claim": record.claim.to_dict()}
    return {**_flat(tree), **_flat({"subject": dict(record.subject.details), **claim})}


def _flat(tree: Any, name: str = "") -> dict[str, str]:
    """A tree of tables and lists as names with dots; tables of a list go by their names, one line each."""
    if isinstance(tree, dict):
        parts = [_flat(value, f"{name}.{key}" if name else str(key)) for key, value in tree.items()]
        return {key: value for part in parts for key, value in part.items()}
    if not isinstance(tree, list):
        return {name: str(tree)}
    if not any(isinstance(one, dict) for one in tree):
        return {name: ", ".join(map(str, tree))}
    found: dict[str, str] = {}
    for place, one in enumerate(tree):
        options = dict(one) if isinstance(one, dict) else {"name": one}
        key = f"{name}[{options.pop('name', place)}]"
        while key in found:
            key += "'"
        found[key] = ", ".join(f"{k} = {v}" for k, v in options.items()) or "yes"
    return found


def _side_by_side(results: Sequence[AuditResult]) -> list[tuple[str, ...]]:
    """Verdict, claim, what is proved and could have been, attack by attack."""

    def best(one: AdversaryResult | None) -> str:
        if one is None:
            return "not tried"
        return words.proved(one.bound) + (f" ({one.label})" if rounding.worth_saying(one.bound.epsilon) else "")

    def at_most(value: float | None) -> str:
        return "none" if value is None or math.isinf(value) else rounding.up(value)

    rows = [
        ("Verdict", *(result.verdict.outcome.value for result in results)),
        ("Claim: ε at most", *(at_most(result.claim_epsilon) for result in results)),
        (
            "Guarantee: ε at most",
            *(at_most(result.guarantee.epsilon if result.guarantee else None) for result in results),
        ),
        ("Proved on your data", *(best(result.on_data) for result in results)),
        ("Proved on a data set that the attacker chose", *(best(result.on_chosen_data) for result in results)),
        (
            "Ceiling: the most that could have been proved",
            *(
                "none" if result.verdict.ceiling is None else rounding.down(result.verdict.ceiling)
                for result in results
            ),
        ),
        ("δ", *(rounding.small(result.config.audit.delta) for result in results)),
        ("Confidence", *(rounding.confidence(result.config.audit.confidence) for result in results)),
        ("Trials", *(words.trials(result) for result in results)),
    ]
    labels = list(dict.fromkeys(one.label for result in results for one in result.adversaries))
    for label in labels:
        cells = []
        for result in results:
            found = next((one for one in result.adversaries if one.label == label), None)
            cells.append("–" if found is None else f"{_bound(found)}, ceiling {_ceiling(found)}")
        rows.append((f"Attack {label}", *cells))
    return rows
