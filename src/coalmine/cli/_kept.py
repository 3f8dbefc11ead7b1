"""The report of a probe or of one training with canaries that a store keeps: it says by what it is found again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coalmine.errors import StoreError

if TYPE_CHECKING:
    from coalmine.store.results import Result


def write_kept(store: Path, mark: str, report: Path) -> None:
    """Write the report of a result that was just kept."""
    from coalmine import report as reports
    from coalmine.store import Store, results

    with Store.open(store, create=False, read_only=True) as opened:
        reports.write_text(page(results.read(opened, mark)), report)


def page(found: Result) -> str:
    """The page as one HTML document; an error in words for a report that is not as expected."""
    from coalmine.report import html, kept, one_run

    try:
        if found.kind != "probe":
            return one_run.page(found.report, kept=kept.facts(found))
        from coalmine.probing import page as probe
        from coalmine.probing.findings import ProbeReport

        told = probe.told(ProbeReport.from_dict(found.report), html.figure_shown)
        return html.render_template({**told, "kept": kept.facts(found)}, name="probe.html.j2")
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise StoreError(f"result {found.fingerprint[:12]} cannot be read: {error}") from error
