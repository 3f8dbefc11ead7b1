"""A probe as one HTML page that needs nothing else, in the style of an audit's report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from coalmine.probing import faults, pictures
from coalmine.records import Outcome
from coalmine.report import render
from coalmine.report.figures import NARROW, WIDE, Figure
from coalmine.report.html import render_template

if TYPE_CHECKING:
    from coalmine.probing.findings import Finding, Measurement, ProbeReport


def document(report: ProbeReport) -> str:
    """The whole page."""
    return render_template(told(report, _shown), name="probe.html.j2")


def told(report: ProbeReport, drawn: Callable[[Figure, Figure], Any]) -> dict[str, Any]:
    """Everything that a page shows of a probe.

    Args:
        report: the probe.
        drawn: makes of a figure, for a screen and for a phone, what the page takes.

    Returns:
        Words, tables and pictures by their names.
    """
    return {
        "outcome": report.verdict.outcome.value,
        "headline": headline(report),
        "subject": report.subject,
        "blind": [f"{one.name}: {one.blind}" for one in report.measurements if one.blind],
        "findings": [_finding(one, drawn) for one in report.findings],
        "level": f"{100 * report.level:g}%",
        "measurements": [
            {"name": one.name, "result": one.result, "words": one.sentence} for one in report.measurements
        ],
        "pictures": [
            drawn(wide, narrow) for one in report.measurements for wide, narrow in _pictures(one, _partly(report))
        ],
        "promise": [
            (key.replace("_", " "), _plain(value).replace("_", " or "))
            for key, value in _promise(report).items()
            if value is not None
        ],
        "versions": list(report.versions.items()),
        "seconds": f"{report.seconds:.1f}",
    }


def headline(report: ProbeReport) -> str:
    """The verdict in one line."""
    if report.verdict.outcome is Outcome.REFUTED:
        names = list(dict.fromkeys(one.fault for one in report.findings))
        return f"Refuted: {', '.join(names)}"
    if report.verdict.outcome is Outcome.INCONCLUSIVE:
        return "Inconclusive: nothing was found, but not everything could have been"
    return "Consistent: nothing was found, and what the probe broke on purpose was"


def _finding(one: Finding, drawn: Callable[[Figure, Figure], Any]) -> dict[str, Any]:
    fault = faults.by_name(one.fault)
    facts = [("measured", _plain(one.number)), ("allowed", _plain(one.allowed)), ("witness", one.witness)]
    facts += [("look at", one.look_at)]
    if one.level:
        facts.append(("chance in a right step", f"at most {one.level:.2g}"))
    return {
        "fault": one.fault,
        "sentence": one.sentence,
        "meaning": fault.meaning if fault else "",
        "picture": drawn(*_both(pictures.stages, fault)) if fault else None,
        "facts": [(key, value) for key, value in facts if value],
    }


def _partly(report: ProbeReport) -> bool:
    """Whether something that is released carries no noise."""
    return any(one.fault in (faults.NO_NOISE.name, faults.UNNOISED.name) for one in report.findings)


def _pictures(one: Measurement, partly: bool) -> list[tuple[Figure, Figure]]:
    """Pictures of a measurement, where its details have the numbers for one: for a screen, and for a phone."""
    found = []
    values, allowed = one.details.get("influences"), one.details.get("allowed")
    if values and allowed:
        found.append(_both(pictures.influences, values, allowed))
    tensors = [row for row in one.details.get("tensors", ()) if isinstance(row, Mapping) and "ratio" in row]
    if tensors:
        found.append(_both(pictures.noise, tensors, partly))
    return found


def _both(draw: Callable[..., Figure], *values: Any) -> tuple[Figure, Figure]:
    return draw(*values, width=WIDE), draw(*values, width=NARROW)


def _shown(wide: Figure, narrow: Figure) -> dict[str, Any]:
    """A figure for the page. The renderer escapes text in an SVG."""
    return {
        "title": wide.title,
        "caption": wide.caption,
        "svg": Markup(render.inline_svg(wide)),
        "narrow": Markup(render.inline_svg(narrow, suffix="-narrow")),
    }


def _promise(report: ProbeReport) -> Mapping[str, Any]:
    promise: Mapping[str, Any] = report.details.get("promise", {})
    return promise


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
