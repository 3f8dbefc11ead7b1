"""``coalmine report``: a stored run as one HTML page, without training."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli._kept import page
from coalmine.cli._output import Json, print_json, print_lines
from coalmine.cli._targets import check_apart
from coalmine.errors import InvalidInputError, StoreError

if TYPE_CHECKING:
    from coalmine.store.results import Result


def report(
    run: Annotated[
        str, typer.Argument(help="The beginning of its fingerprint (see coalmine runs list), or an audit's name.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page to write; by default coalmine-RUN.html.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write every figure into this folder too, as SVG, PNG and PDF.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where trials are kept.")] = Path("coalmine.db"),
    json: Json = False,
) -> None:
    """Write the report of a run's audit, or of a stored probe or one-run result: one HTML file that needs nothing else.

    Nothing is loaded, crafted or trained: the report says what the stored trials prove, and how many are still missing.
    """
    from coalmine import report as reports
    from coalmine.auditing.stored import conclude, record_of, summary
    from coalmine.store import Store, results
    from coalmine.store.listing import audit_called

    check_apart({"output": output}, {"the store": store})
    reports.check_packages()
    with Store.open(store, create=False) as opened:
        kept = results.called(opened, run)
        if kept is not None:
            _say(_stored(results.read(opened, kept.fingerprint), output, figures), [], figures, json=json)
            return
        audit = audit_called(opened, run)
        name = opened.run(run).fingerprint if audit is None else audit.fingerprint
        short = name[:12]
        if not any(opened.run(one).trials for one in (audit.members if audit else [name])):
            what = "run" if audit is None else "audit"
            raise StoreError(f"{what} {short} has no trials yet: play it first (coalmine runs resume {short})")
        target = reports.check_target(output or Path(f"coalmine-{short}.html"), name="output")
        record = record_of(opened, name)
        result = conclude(opened, record)
        with contextlib.suppress(StoreError):  # where the store cannot be written, lists judge it anew
            opened.keep_conclusion(record.name, summary(opened, record, result))
    reports.write_html(result, target)
    written = reports.write_figures(result, figures) if figures is not None else []
    _say(target, written, figures, json=json)


def _say(target: Path, written: Sequence[Path], figures: Path | None, *, json: bool) -> None:
    """What was written."""
    if json:
        print_json({"report": str(target), "figures": [str(one) for one in written]})
    else:
        print_lines([f"Report: {target}"] + ([f"Figures: {len(written)} files in {figures}"] if written else []))


def _stored(found: Result, output: Path | None, figures: Path | None) -> Path:
    """The page of a probe, or of one training with canaries."""
    from coalmine import report as reports

    if figures is not None:
        raise InvalidInputError("figures is not allowed for a probe or a one-run result: expected --output alone")
    target = reports.check_target(output or Path(f"coalmine-{found.fingerprint[:12]}.html"), name="output")
    reports.write_text(page(found), target)
    return target
