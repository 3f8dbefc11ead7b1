"""A probe as one HTML page that needs nothing else, in the style of an audit's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coalmine.probing import faults, pictures
from coalmine.records import Outcome

if TYPE_CHECKING:
    from coalmine.probing.findings import Finding, Measurement, ProbeReport


def document(report: ProbeReport) -> str:
    """The whole page."""
    from markupsafe import Markup

    from coalmine.report.html import render_template

    outcome = report.verdict.outcome
    return render_template(
        {
            "outcome": outcome.value,
            "headline": headline(report),
            "subject": report.subject,
            "blind": [f"{one.name}: {one.blind}" for one in report.measurements if one.blind],
            "findings": [_finding(one, Markup) for one in report.findings],
            "level": f"{100 * report.level:g}%",
            "measurements": [
                {"name": one.name, "result": one.result, "words": one.sentence} for one in report.measurements
            ],
            "pictures": [
                {"title": title, "svg": Markup(svg), "caption": caption}  # drawn here, and escaped there
                for one in report.measurements
                for title, svg, caption in _pictures(one)
            ],
            "promise": [
                (key.replace("_", " "), _plain(value)) for key, value in _promise(report).items() if value is not None
            ],
            "versions": list(report.versions.items()),
            "seconds": f"{report.seconds:.1f}",
        },
        name="probe.html.j2",
    )


def headline(report: ProbeReport) -> str:
    """The verdict in one line."""
    if report.verdict.outcome is Outcome.REFUTED:
        names = list(dict.fromkeys(one.fault for one in report.findings))
        return f"Refuted: {', '.join(names)}"
    if report.verdict.outcome is Outcome.INCONCLUSIVE:
        return "Inconclusive: nothing was found, but not everything could have been"
    return "Consistent: nothing was found, and what the probe broke on purpose was"


def _finding(one: Finding, markup: Any) -> dict[str, Any]:
    fault = faults.by_name(one.fault)
    facts = [("measured", _plain(one.number)), ("allowed", _plain(one.allowed)), ("witness", one.witness)]
    facts += [("look at", one.look_at)]
    if one.level:
        facts.append(("chance in a right step", f"at most {one.level:.2g}"))
    return {
        "fault": one.fault,
        "sentence": one.sentence,
        "meaning": fault.meaning if fault else "",
        "picture": markup(pictures.stages(fault)) if fault else "",
        "facts": [(key, value) for key, value in facts if value],
    }


def _pictures(one: Measurement) -> list[tuple[str, str, str]]:
    """Pictures of a measurement, where its details have the numbers for one."""
    found = []
    values, allowed = one.details.get("influences"), one.details.get("allowed")
    if values and allowed:
        found.append(
            (
                "How far one row moves the sum",
                pictures.influences(values, allowed),
                f"Each dot is one of {len(values)} rows that were tried: crafted to be extreme, then improved.",
            )
        )
    tensors = [row for row in one.details.get("tensors", ()) if isinstance(row, Mapping) and "ratio" in row]
    if tensors:
        found.append(
            (
                "Noise in each tensor",
                pictures.noise([(row["tensor"], row["ratio"], row["smallest_ratio_found"]) for row in tensors]),
                "Bars: noise as a part of what is promised. Marks: less than this is found nine times out of ten.",
            )
        )
    return found


def _promise(report: ProbeReport) -> Mapping[str, Any]:
    promise: Mapping[str, Any] = report.details.get("promise", {})
    return promise


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
