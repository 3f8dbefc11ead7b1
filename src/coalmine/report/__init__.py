"""The report: an audit as one HTML page that needs nothing else, and its figures as SVG, PNG or PDF.

Records in, pictures and words out: nothing here trains, and nothing here is loaded before it is asked for.
"""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine import _validate
from coalmine.errors import UnsupportedError
from coalmine.report.targets import check_target, write_bytes

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult

__all__ = [
    "CHARTS",
    "chart",
    "check_figure",
    "check_packages",
    "check_target",
    "page",
    "write_bytes",
    "write_figures",
    "write_html",
    "write_text",
]

CHARTS = ("overview", "scores", "trade_off", "growth", "beliefs")


def check_packages() -> None:
    """An error in words where the packages of the extra ``report`` are not installed."""
    missing = [name for name in ("altair", "vl_convert", "jinja2") if util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"a report needs {', '.join(missing)}: install the extra with pip install 'coalmine[report]'"
        )


def check_figure(path: str | os.PathLike[str]) -> Path:
    """The same for a figure, whose ending says its format."""
    check_packages()
    from coalmine.report.render import FORMATS

    target = check_target(path, name="figure", kind="figure")
    if target.suffix.removeprefix(".") not in FORMATS:
        raise _validate.reject("figure", str(target), "a name that ends in .svg, .png or .pdf")
    return target


def page(result: AuditResult) -> str:
    """The report as one HTML document without a single reference outside itself."""
    check_packages()
    from coalmine.report import html

    return html.document(result)


def write_html(result: AuditResult, path: str | os.PathLike[str]) -> Path:
    """Write the report of an audit."""
    check_packages()
    check_target(path)
    return write_text(page(result), path)


def write_text(text: str, path: str | os.PathLike[str], *, name: str = "report", kind: str = "report") -> Path:
    """Write a page, as :func:`write_bytes`."""
    return write_bytes(text.encode(), path, name=name, kind=kind)


def write_figures(
    result: AuditResult, folder: str | os.PathLike[str], *, formats: tuple[str, ...] = ("svg", "png", "pdf")
) -> list[Path]:
    """Write every figure into a folder, in each of the formats svg, png and pdf."""
    check_packages()
    from coalmine.report import figures, render

    return render.files(figures.all_figures(result), Path(folder), formats=formats)


def chart(result: AuditResult, what: str = "overview", *, adversary: int | None = None) -> Any:
    """One figure as an Altair chart; ``adversary`` is an index into ``result.adversaries``, else the strongest."""
    what = _validate.choice("what", what, CHARTS)
    check_packages()
    from coalmine.report import figures

    if what == "overview":
        return figures.overview(result).chart
    last = len(result.adversaries) - 1
    one = (
        result.strongest
        if adversary is None
        else result.adversaries[_validate.integer("adversary", adversary, at_least=0, at_most=last)]
    )
    if what == "beliefs":
        from coalmine.report import persons

        if one.beliefs is None:
            raise UnsupportedError(f"{one.label} gives scores, not beliefs: only identifiability has beliefs to draw")
        return persons.figure(one).chart
    if one.one_run is not None:
        from coalmine.report import one_run

        if what == "growth":
            raise UnsupportedError(f"{one.label} has one training: nothing grows with more of them")
        return getattr(one_run, what)(one_run.section_of(one)).chart
    if what == "scores":
        return figures.histograms(one).chart
    return (figures.trade_off if what == "trade_off" else figures.growth)(result, one).chart
