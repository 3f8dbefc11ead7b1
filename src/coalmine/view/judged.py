"""Results of audits from their stored trials, by the one judge. Judging takes seconds, so it is done once, apart."""

from __future__ import annotations

import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from coalmine.auditing.results import AuditResult
from coalmine.auditing.stored import AuditRecord, conclude, record_of, stored_trials
from coalmine.errors import CoalmineError, StoreError
from coalmine.store import Store

_KEPT = 16
"""Results that are kept, the last used: each holds its scores."""


class Judged:
    """Results, each judged once for the trials that are there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coalmine-judge")
        self._records: dict[str, AuditRecord] = {}
        self._results: OrderedDict[tuple[str, tuple[int, ...]], Future[AuditResult]] = OrderedDict()

    def record(self, audit: str) -> AuditRecord:
        """What the audit is; an error if the store has none of that name, or if its description was changed."""
        found = self._records.get(audit)
        if found is None:
            try:
                found = self._records[audit] = record_of(self._store, audit)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                if isinstance(error, CoalmineError):
                    raise
                raise StoreError(f"the description of audit {audit[:12]} cannot be read: {error}") from error
        return found

    def begin(self, audit: str) -> Future[AuditResult]:
        """Have the trials judged that are there now, or find that done."""
        record = self.record(audit)
        key = (audit, tuple(stored_trials(self._store, record.members).values()))
        with self._lock:
            if key not in self._results:
                self._results[key] = self._pool.submit(conclude, self._store, record)
            self._results.move_to_end(key)
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
            return self._results[key]

    def result(self, audit: str) -> AuditResult:
        """The result, waited for."""
        return self.begin(audit).result()

    def close(self) -> None:
        """Judge no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)
