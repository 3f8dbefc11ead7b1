"""``bundle``: an audit of a store as one file that others can check."""

from __future__ import annotations

import os
from pathlib import Path

from coalmine import report
from coalmine.auditing.results import AuditResult
from coalmine.evidence import archive
from coalmine.evidence.contents import Contents
from coalmine.store import Store


def bundle(
    audit: str | AuditResult,
    *,
    store: Store | str | os.PathLike[str] = "coalmine.db",
    output: str | os.PathLike[str] | None = None,
) -> Path:
    """Write an audit as one zip: config, claim, versions, fingerprints, scores, all that they prove, report, checksums.

    The same audit gives the same bytes. There are no rows of data in it, no texts of exceptions and none that are bound
    to functions; content hashes of data and code are. Needs the extra ``report``.

    Args:
        audit: a result, the name of an audit, or the beginning of its fingerprint or of that of one of its runs.
        store: where its trials are kept; they must be complete.
        output: the file to write; ``coalmine-AUDIT.zip`` in this folder without one.

    Returns:
        The path of the file; :func:`coalmine.verify` checks it.

    """
    report.check_packages()
    called = audit.audit if isinstance(audit, AuditResult) else audit
    if isinstance(store, Store):
        contents = Contents.of(store, called)
    else:
        with Store.open(store, create=False, read_only=True) as opened:
            contents = Contents.of(opened, called)
    result = contents.result()
    target = report.check_target(output or f"coalmine-{result.audit[:12]}.zip", name="output", kind="bundle")
    files = {
        **contents.to_files(),
        archive.RESULT: archive.json_bytes(result.to_dict()),
        archive.REPORT: report.page(result).encode(),
    }
    return report.write_bytes(archive.pack(files), target, name="output", kind="bundle")
