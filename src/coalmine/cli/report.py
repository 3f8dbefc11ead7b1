"""``coalmine report``: a stored run as one HTML page, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli._output import print_lines

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult
    from coalmine.store import Run, Store


def report(
    run: Annotated[str, typer.Argument(help="The first characters of the run's fingerprint (see coalmine runs list).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; by default coalmine-RUN.html.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure into this folder too, as SVG, PNG and PDF.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with data files that are already there (or set COALMINE_DATA).")
    ] = None,
) -> None:
    """Write the report of the audit that a run belongs to: one HTML file that needs nothing else.

    Nothing is trained: the report says what the stored trials prove, and how many are still missing.
    """
    from coalmine import report as reports
    from coalmine.errors import StoreError
    from coalmine.store import Store

    reports.check_packages()
    with Store.open(store, create=False) as opened:
        found = opened.run(run)
        short = found.fingerprint[:12]
        if not found.trials:
            raise StoreError(f"run {short} has no trials yet: play it first (coalmine runs resume {short})")
        target = reports.check_target(output or Path(f"coalmine-{short}.html"), name="output")
        result = _stored(opened, found, data_dir=data_dir)
    reports.write_html(result, target)
    written = reports.write_figures(result, figures) if figures is not None else []
    print_lines([f"Report: {target}"] + ([f"Figures: {len(written)} files in {figures}"] if written else []))


def _stored(store: Store, run: Run, *, data_dir: str | None) -> AuditResult:
    """What the stored trials of the run's audit prove."""
    from coalmine.auditing import config as configs
    from coalmine.auditing.run import audit
    from coalmine.errors import StoreError

    stored = dict(run.description).get("config", {})
    if "train" in stored:  # a training of the user's own: its code is not called
        from coalmine.integrations import stored_result

        return stored_result(store, run.fingerprint)
    settings = configs.parse(stored)
    result = audit(settings, store=store, execution=configs.Execution(data_dir=data_dir), train=False)
    if run.fingerprint not in {one.fingerprint for one in result.adversaries}:
        raise StoreError(
            f"run {run.fingerprint[:12]} cannot be reported: its trials come from other data or another version of "
            "Coalmine than those here"
        )
    return result
