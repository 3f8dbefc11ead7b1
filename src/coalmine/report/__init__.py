"""The report: an audit as one HTML page that needs nothing else, and its figures as SVG, PNG or PDF.

Records in, pictures and words out: nothing here trains, and nothing here is loaded before it is asked for.
"""

from __future__ import annotations

import os
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coalmine import _validate
from coalmine.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from coalmine.auditing.results import AuditResult

CHARTS = ("overview", "scores", "trade_off", "growth", "beliefs")


def check_packages() -> None:
    """An error in words where the packages of the extra ``report`` are not installed."""
    missing = [name for name in ("altair", "vl_convert", "jinja2") if util.find_spec(name) is None]
    if missing:
        raise UnsupportedError(
            f"a report needs {', '.join(missing)}: install the extra with pip install 'coalmine[report]'"
        )


def check_target(path: str | os.PathLike[str], *, name: str = "report") -> Path:
    """The path of a report (or of what ``name`` says) that can be written, tested before any work is done."""
    target = Path(path)
    try:
        if target.is_dir():
            raise _validate.reject(name, str(target), "the name of a file; this is a folder")
        if not target.parent.is_dir():
            raise _validate.reject(name, str(target), f"a folder that is there; {str(target.parent)!r} is not")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise _validate.reject(name, str(target), "a place that can be written")
    except OSError as error:
        raise InvalidInputError(f"{name} = {str(target)!r} cannot be written: {error.strerror}") from None
    return target


def check_figure(path: str | os.PathLike[str]) -> Path:
    """The same for a figure, whose ending says its format."""
    check_packages()
    from coalmine.report.render import FORMATS

    target = check_target(path, name="figure")
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


def write_text(text: str, path: str | os.PathLike[str], *, name: str = "report") -> Path:
    """Write a page, as :func:`write_bytes`."""
    return write_bytes(text.encode(), path, name=name)


def write_bytes(content: bytes, path: str | os.PathLike[str], *, name: str) -> Path:
    """Write what ``name`` says; a file that is there is replaced only once the new one is complete."""
    target = check_target(path, name=name)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InvalidInputError(f"{name} = {str(target)!r} cannot be written: {error.strerror}") from None
    return target


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
