"""``coalmine report``: a stored run as one HTML page, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coalmine.cli._output import print_lines


def report(
    run: Annotated[str, typer.Argument(help="The first characters of the run's fingerprint (see coalmine runs list).")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; by default coalmine-RUN.html.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure into this folder too, as SVG, PNG and PDF.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
) -> None:
    """Write the report of the audit that a run belongs to: one HTML file that needs nothing else.

    Nothing is loaded, crafted or trained: the report says what the stored trials prove, and how many are still missing.
    """
    from coalmine import report as reports
    from coalmine.auditing.stored import stored_result
    from coalmine.errors import StoreError
    from coalmine.store import Store

    reports.check_packages()
    with Store.open(store, create=False) as opened:
        found = opened.run(run)
        short = found.fingerprint[:12]
        if not found.trials:
            raise StoreError(f"run {short} has no trials yet: play it first (coalmine runs resume {short})")
        target = reports.check_target(output or Path(f"coalmine-{short}.html"), name="output")
        result = stored_result(opened, found.fingerprint)
    reports.write_html(result, target)
    written = reports.write_figures(result, figures) if figures is not None else []
    print_lines([f"Report: {target}"] + ([f"Figures: {len(written)} files in {figures}"] if written else []))
