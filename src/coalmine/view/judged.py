"""Results of audits from their stored trials, by the one judge. Judging takes seconds, so it is done once, apart."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, conclude, record_of, stored_trials, summary
from coalmine.errors import StoreError
from coalmine.store import Store

_KEPT = 16
"""Results that are kept, the last used: each holds its scores."""
_FRESH_SECONDS = 10.0
"""How long a result counts although more trials have come in since."""


_Key = tuple[str, frozenset[tuple[str, int]]]


def _key(audit: str, trials: Mapping[str, int]) -> _Key:
    """An audit with the trials that are there, by run."""
    return audit, frozenset(trials.items())


class Judged:
    """Results, each judged once for the trials that are there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._closed = False
        self._records: dict[str, AuditRecord] = {}
        self._last: dict[str, tuple[_Key, float]] = {}
        self._results: OrderedDict[_Key, Future[AuditResult]] = OrderedDict()

    def record(self, audit: str) -> AuditRecord:
        """What the audit is; an error if the store has none of that name, or if its description was changed."""
        found = self._records.get(audit)
        if found is None:
            found = self._records[audit] = record_of(self._store, audit)
        return found

    def begin(self, audit: str) -> Future[AuditResult]:
        """Have the trials judged that are there now, or find that done.

        While trials come in, a result that is just a little older counts too: judging must come to an end.
        """
        record = self.record(audit)
        key = _key(audit, stored_trials(self._store, record.members))
        with self._lock:
            last = self._last.get(audit)
            if last is not None and last[0] in self._results:
                found = self._results[last[0]]
                if not found.done() or time.monotonic() - last[1] < _FRESH_SECONDS:
                    return found
            if key not in self._results:
                self._results[key] = self._submit(key, record)
            self._results.move_to_end(key)
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
            self._last[audit] = (key, time.monotonic())
            return self._results[key]

    def _submit(self, key: _Key, record: AuditRecord) -> Future[AuditResult]:
        """Judge in a thread, one audit after the other. It does not hold up the end of the process, as a pool would."""
        future: Future[AuditResult] = Future()

        def work() -> None:
            with self._turn:
                try:
                    if self._closed:
                        raise StoreError("the view has ended")
                    found = conclude(self._store, record)
                except BaseException as error:  # noqa: BLE001 - whoever waits for the result is told
                    future.set_exception(error)
                else:
                    with self._lock:
                        self._last[key[0]] = (key, time.monotonic())
                    future.set_result(found)

        threading.Thread(target=work, name="coalmine-judge", daemon=True).start()
        return future

    def result(self, audit: str) -> AuditResult:
        """The result, waited for."""
        return self.begin(audit).result()

    def summary(self, audit: str, trials: Mapping[str, int]) -> dict[str, Any] | None:
        """How the audit ended, in numbers, if these trials have been judged here."""
        with self._lock:
            found = self._results.get(_key(audit, trials))
        if found is None or not found.done() or found.exception() is not None:
            return None
        return summary(self._store, self.record(audit), found.result())

    def close(self) -> None:
        """Begin to judge no more."""
        self._closed = True
