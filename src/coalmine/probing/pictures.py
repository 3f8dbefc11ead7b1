"""Pictures of a probe, as Altair charts: where a fault lies, how far rows reach, and how much noise there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from coalmine.probing.faults import Fault, Stage
from coalmine.report.figures import INK, NARROW, PALE, PROVED, QUIET, WIDE, Figure, finished

WRONG, FILL = "#9b2c00", "#fdf0ea"
_TENSORS = 24
"""Tensors that are drawn: those with the least noise."""
_FAR = 20.0
"""Beyond so many times what is allowed, influences are drawn on a logarithmic scale."""


def stages(fault: Fault, *, width: int = WIDE) -> Figure:
    """The way of the data through a private step, with the stage marked in which the fault lies."""
    across = len(Stage) if width > NARROW else (len(Stage) + 1) // 2
    boxes = [
        {
            "left": place % across + 0.06,
            "right": place % across + 0.94,
            "middle": place % across + 0.5,
            "top": -(place // across) - 0.15,
            "bottom": -(place // across) - 0.85,
            "center": -(place // across) - 0.5,
            "stage": stage.value,
            "here": stage is fault.stage,
        }
        for place, stage in enumerate(Stage)
    ]
    down = -(-len(Stage) // across)
    base = alt.Chart(alt.InlineData(values=boxes))
    x: dict[str, Any] = {"scale": alt.Scale(domain=[0, across], nice=False), "axis": None}
    y: dict[str, Any] = {"scale": alt.Scale(domain=[-down, 0], nice=False), "axis": None}
    box = base.mark_rect(cornerRadius=3).encode(
        x=alt.X("left:Q", **x),
        x2="right:Q",
        y=alt.Y("top:Q", **y),
        y2="bottom:Q",
        fill=alt.condition("datum.here", alt.value(FILL), alt.value("#ffffff")),
        stroke=alt.condition("datum.here", alt.value(WRONG), alt.value(PALE)),
        strokeWidth=alt.condition("datum.here", alt.value(3), alt.value(1.5)),
    )
    text = base.mark_text(fontSize=12).encode(
        x=alt.X("middle:Q", **x),
        y=alt.Y("center:Q", **y),
        text="stage:N",
        color=alt.condition("datum.here", alt.value(WRONG), alt.value(QUIET)),
    )
    return Figure(
        name=_slug(f"stage-{fault.name}"),
        title=f"{fault.name}: in the stage “{fault.stage.value}”",
        caption="Where it lies on the way from the data to the release.",
        chart=_bare(alt.layer(box, text).properties(width=width - 10, height=46 * down)),
    )


def influences(values: Sequence[float], allowed: float, *, width: int = WIDE, unit: str = "") -> Figure:
    """How far each row that was tried moves the sum, from the least to the most, and how far it may."""
    values = sorted(float(one) for one in values)
    most = values[-1]
    logarithmic = most > _FAR * allowed
    least = 0.5 * max(1e-3 * allowed, min(values[0], allowed))  # where the scale is logarithmic, zero is drawn there
    rows = [
        {"place": place, "moves": max(value, least) if logarithmic else value, "over": value > 1.001 * allowed}
        for place, value in enumerate(values, start=1)
    ]
    scale = (
        alt.Scale(type="log", domain=[least, 1.5 * most], nice=False)
        if logarithmic
        else alt.Scale(domain=[0.0, 1.15 * max(most, allowed)], nice=False)
    )
    x = alt.X(
        "place:Q",
        title="rows that were tried, from the least to the most influence",
        scale=alt.Scale(domain=[0, len(rows) + 1], nice=False),
        axis=alt.Axis(tickCount=6, format="d", grid=False),
    )
    axis = alt.Axis(tickCount=5, format="~g" if logarithmic else "~f")
    dots = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=True, size=34, opacity=0.85)
        .encode(
            x=x,
            y=alt.Y("moves:Q", title=f"moves the sum by{unit}", scale=scale, axis=axis),
            color=_wrong_if("over"),
            shape=alt.condition("datum.over", alt.value("triangle-up"), alt.value("circle")),
        )
    )
    end = len(rows) + 1
    line = alt.InlineData(values=[{"allowed": allowed, "end": end, "words": f"allowed: {allowed:.4g}"}])
    rule = alt.Chart(line).mark_rule(color=INK, strokeWidth=1.5, strokeDash=[5, 3]).encode(y="allowed:Q")
    label = (
        alt.Chart(line)
        .mark_text(align="right", baseline="top", dy=5, color=INK, fontSize=11.5)
        .encode(x="end:Q", y="allowed:Q", text="words:N")
    )
    over = most > 1.001 * allowed
    said = "further than it may" if over else "and no row goes further than it may"
    return Figure(
        name="influences",
        title=f"One row moves the sum by up to {most:.4g}, {said}",
        caption=(
            f"Each mark is one of {len(values)} rows that were tried: crafted to be extreme, then improved. Where rows "
            "are clipped, the largest ones all end at the same height. All have the random draws that were recorded "
            "first; what other draws decide is measured apart."
        ),
        chart=finished(alt.layer(dots, rule, label).properties(width=width, height=210), "", width),
    )


def noise(tensors: Sequence[Mapping[str, Any]], partly: bool = False, *, width: int = WIDE) -> Figure:
    """For each tensor, noise as a part of what is promised; the tick is the largest part that would be found.

    Args:
        tensors: those that carry noise.
        partly: whether something that is released carries none.
        width: of the picture.
    """
    shown = sorted(tensors, key=lambda one: one["ratio"])[:_TENSORS]
    room = 34 if width > NARROW else 16
    rows = [
        {
            "tensor": name if len(name := str(one["tensor"])) <= room else f"…{name[1 - room :]}",
            "ratio": one["ratio"],
            "found": one["smallest_ratio_found"],
            "short": bool(one.get("short")),
            "words": f"{one['ratio']:.3g}",
        }
        for one in shown
    ]
    order = [row["tensor"] for row in rows]
    most = 1.25 * max(1.0, *(row["ratio"] for row in rows))
    base = alt.Chart(alt.InlineData(values=rows))
    scale = alt.Scale(domain=[0.0, most], nice=False)
    y = alt.Y("tensor:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, ticks=False, domain=False))
    x = alt.X("ratio:Q", title="noise, as a part of what is promised", scale=scale, axis=alt.Axis(tickCount=5))
    bars = base.mark_bar(height=14).encode(x=x, y=y, color=_wrong_if("short"))
    # Where its bar begins, or behind it where that is short: behind a long one it would be read as the dashed line's.
    words = [
        base.transform_filter(f"datum.ratio {which} {_LONG * most}")
        .transform_calculate(at=at)
        .mark_text(align="left", dx=6, color=color, fontSize=11.5, fontWeight="bold")
        .encode(x=alt.X("at:Q", scale=scale), y=y, text="words:N")
        for which, at, color in ((">=", "0", "white"), ("<", "datum.ratio", INK))
    ]
    marks = base.mark_tick(color=INK, thickness=2, height=20).encode(x=alt.X("found:Q", scale=scale), y=y)
    promised = (
        alt.Chart(alt.InlineData(values=[{"promised": 1.0}]))
        .mark_rule(color=INK, strokeWidth=1.5, strokeDash=[5, 3])
        .encode(x=alt.X("promised:Q", scale=scale))
    )
    short = [row for row in rows if row["short"]]
    title = "Noise is as large as promised"
    if short:
        title = f"Noise is too small in {len(short)} of {len(tensors)} tensors"
    elif partly:
        title = "Noise is as large as promised where there is any"
    layers = alt.layer(bars, promised, marks, *words).properties(width=width, height=24 * len(rows))
    more = f" Of {len(tensors)} tensors, the {len(rows)} with the least noise." if len(tensors) > len(rows) else ""
    return Figure(
        name="noise",
        title=title,
        caption=(
            "Dashed line: what is promised. Ticks: noise that is so small, or smaller, is found nine times out of ten; "
            f"more numbers in a tensor show smaller faults.{more}"
        ),
        chart=finished(layers, "", width),
    )


_LONG = 0.15
"""The part of the width from which on a bar holds its number."""


def _wrong_if(field: str) -> Any:
    return alt.condition(f"datum.{field}", alt.value(WRONG), alt.value(PROVED))


def _bare(chart: Any) -> Any:
    """Without axes, frame or title: a diagram."""
    return chart.properties(background="white", padding=4).configure_view(stroke=None)


def _slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower())
