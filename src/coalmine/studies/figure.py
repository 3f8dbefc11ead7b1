"""A study as a picture: one chart for every study, drawn as its TOML says.

``[figure]`` names what goes where: ``kind`` ("lines", "points" or "bars"), ``x`` and ``y`` (axes of the study, or
columns of its measure; ``y`` may be several), ``color`` and ``facet`` (axes), ``rule`` (a column drawn as a line
across, such as the guarantee), ``log_x``/``log_y``, ``diagonal`` (where ours equals the published value), and titles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from coalmine.errors import UnsupportedError
from coalmine.report.figures import INK, NARROW, PROMISED, PROVED, QUIET, WIDE, Figure, chart_of, finished
from coalmine.studies.cells import Study
from coalmine.studies.run import CellResult

_COLOURS = (PROVED, "#d55e00", "#009e73", "#cc79a7", PROMISED, "#56b4e9", INK, "#b3a100")
_DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [1, 3])
_MOST_FACETS = 3  # beside each other on a page


def draw(study: Study, results: Sequence[CellResult]) -> Figure:
    """The chart of a study from the cells that were measured."""
    spec = study.figure
    if not spec:
        raise UnsupportedError(f"study {study.name!r} has no figure: its table says it all")
    series = [spec["y"]] if isinstance(spec["y"], str) else list(spec["y"])
    rows = _long([result.row() for result in results], spec=spec, series=series)
    if not rows:
        raise UnsupportedError(f"study {study.name!r} has no finite values to draw in the cells that were run")
    facets = list(dict.fromkeys(row["facet"] for row in rows)) if "facet" in spec else []
    beside = 2 if len(facets) == 4 else min(len(facets), _MOST_FACETS)
    width = WIDE if len(facets) < 2 else WIDE // beside - 30
    chart = _layers(spec, rows=rows, series=series, width=width if facets else WIDE)
    if facets:
        title = alt.Header(title=None, labelFontSize=12, labelFontWeight="bold")
        chart = chart.facet(facet=alt.Facet("facet:N", header=title, sort=facets), columns=beside, spacing=24)
    name = study.name.replace("/", "-")
    caption = " ".join([study.citation + ".", *study.notes])
    mark = "black ticks" if _by_name(spec, rows) else "black dashes"
    subtitle = f"{mark}: {spec['rule']}" if any("rule" in row for row in rows) else ""
    chart = finished(chart, study.title, WIDE, subtitle=subtitle, fit=not facets)
    return Figure(name=name, title=study.title, caption=caption, chart=chart)


def _by_name(spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the places along x are names and not numbers."""
    return spec["kind"] == "bars" or not all(isinstance(row["x"], (int, float)) for row in rows)


def _long(rows: Sequence[Mapping[str, Any]], *, spec: Mapping[str, Any], series: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each value of each series, in the names that the chart uses; what is not finite is left out."""
    made = []
    for row in rows:
        for name in series:
            value = row.get(name)
            x = row.get(spec["x"])
            if not isinstance(value, (int, float)) or not math.isfinite(value) or x is None:
                continue
            one = {"x": x, "y": float(value), "series": name}
            if "color" in spec:
                one["color"] = str(row[spec["color"]])
            if "facet" in spec:
                one["facet"] = f"{spec['facet']} = {row[spec['facet']]}"
            rule = row.get(spec["rule"]) if "rule" in spec else None
            if isinstance(rule, (int, float)) and math.isfinite(rule):
                one["rule"] = float(rule)
            made.append(one)
    return made


def _layers(spec: Mapping[str, Any], *, rows: list[dict[str, Any]], series: Sequence[str], width: int) -> Any:
    """The marks of one panel."""
    kind = spec["kind"]
    number = not _by_name(spec, rows)
    x_scale = alt.Scale(type="log") if spec.get("log_x") else alt.Scale(zero=bool(spec.get("diagonal")), nice=True)
    order = list(dict.fromkeys(str(row["x"]) for row in rows))
    x_title = spec.get("x_title", spec["x"])
    axis = alt.Axis(labelOverlap="greedy", labelSeparation=6)
    if number and spec.get("log_x"):  # the points that were measured: of a logarithmic axis the last label gets lost
        axis.values = sorted({float(row["x"]) for row in rows})
        axis.labelFlush = False
    x = (
        alt.X("x:Q", title=x_title, scale=x_scale, axis=axis)
        if number
        else alt.X(
            "x:N",
            title=x_title,
            sort=order,
            axis=alt.Axis(labelAngle=-30 if max(map(len, order)) > 8 else 0, labelLimit=200),
        )
    )
    y_scale = alt.Scale(type="log" if spec.get("log_y") else "linear", zero=not spec.get("log_y"))
    if "y_range" in spec:
        y_scale = alt.Scale(domain=list(spec["y_range"]), clamp=True)
    y = alt.Y("y:Q", title=spec.get("y_title", " / ".join(series)), scale=y_scale)
    by = "color" if "color" in spec else "series"
    names = list(dict.fromkeys(row[by] for row in rows))
    legend = alt.Legend(title=spec.get("color") if by == "color" else None, orient="bottom", columns=4)
    color = alt.Color(
        f"{by}:N",
        sort=names,
        scale=alt.Scale(domain=names, range=[_COLOURS[i % len(_COLOURS)] for i in range(len(names))]),
        legend=legend if len(names) > 1 else None,
    )
    several = by == "color" and len(series) > 1
    base = chart_of(rows)
    layers: list[Any] = []
    if kind == "bars":
        bars = base.mark_bar(stroke=INK, strokeWidth=1)
        beside = "series" if len(series) > 1 else by  # values of ε stand beside each other: stacked they would add up
        inner = list(series) if beside == "series" else names
        layers.append(bars.encode(x=x, y=y, color=color, xOffset=alt.XOffset(f"{beside}:N", sort=inner)))
    else:
        extra: dict[str, Any] = {}
        key: dict[str, Any] = {"title": None, "orient": "bottom", "columns": 4}
        if several and kind == "lines":
            key |= {"symbolType": "stroke", "symbolSize": 400, "symbolStrokeColor": INK, "symbolStrokeWidth": 2}
            dashes = alt.Scale(domain=list(series), range=[_DASHES[i % len(_DASHES)] for i in range(len(series))])
            extra["strokeDash"] = alt.StrokeDash("series:N", sort=list(series), scale=dashes, legend=alt.Legend(**key))
        elif several:
            extra["shape"] = alt.Shape("series:N", sort=list(series), legend=alt.Legend(**key))
        if kind == "lines":
            layers.append(base.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, **extra))
            # Points of their own: as part of the line they would take the dashes out of the legend.
            dots = {"detail": "series:N"} if several else {}
            layers.append(base.mark_point(size=36, filled=True, opacity=1).encode(x=x, y=y, color=color, **dots))
        else:
            layers.append(
                base.mark_point(size=70, filled=False, strokeWidth=2, opacity=1).encode(x=x, y=y, color=color, **extra)
            )
    if any("rule" in row for row in rows):
        mark = (
            base.mark_tick(thickness=3, color=INK, width=alt.RelativeBandSize(0.9))
            if not number
            else base.mark_line(color=INK, strokeWidth=2, strokeDash=[6, 4])
        )
        layers.append(mark.transform_filter("isValid(datum.rule)").encode(x=x, y=alt.Y("rule:Q")))
    if spec.get("diagonal"):
        top = max(max(float(row["x"]), row["y"]) for row in rows)
        ends = chart_of([{"x": 0.0, "y": 0.0}, {"x": top, "y": top}])
        layers.insert(0, ends.mark_line(color=QUIET, strokeDash=[4, 4]).encode(x="x:Q", y="y:Q"))
    return alt.layer(*layers).properties(width=width, height=300 if width > NARROW else 240)
