"""The price of a tolerated belief as one picture: belief against accuracy."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import altair as alt

from coalmine import _validate
from coalmine.report import rounding
from coalmine.report.figures import INK, PROMISED, PROVED, QUIET, WIDE, Figure, chart_of, finished

if TYPE_CHECKING:
    from coalmine.identifiability.choose import Sweep


def figure(sweep: Sweep, *, width: int = WIDE) -> Figure:
    """Accuracy over the belief that is tolerated, with twice the standard error, and the point that was chosen."""
    rows: list[dict[str, Any]] = [
        {
            **dataclasses.asdict(point),
            "low": max(0.0, point.accuracy - 2.0 * point.standard_error),
            "high": min(1.0, point.accuracy + 2.0 * point.standard_error),
            "text": f"σ = {_validate.rounded_up(point.noise_multiplier, 3)}",
        }
        for point in sweep.points
    ]
    chosen = [row for row in rows if row["belief"] == sweep.chosen.belief]
    lowest = min(row["low"] for row in rows)
    highest = max([sweep.without_noise, *(row["high"] for row in rows)])
    x = alt.X(
        "belief:Q",
        title="how sure an adversary may become that one person's row was used (tolerated belief)",
        scale=alt.Scale(domain=[0.5, 1.0], nice=False),
        axis=alt.Axis(format="%", tickCount=10),
    )
    y = alt.Y(
        "accuracy:Q",
        title="test accuracy that is left",
        scale=alt.Scale(domain=[max(0.0, lowest - 0.04), min(1.0, highest + 0.05)], nice=False),
        axis=alt.Axis(format="%"),
    )
    base = chart_of(rows)
    free = chart_of([{"accuracy": sweep.without_noise, "belief": 0.5, "text": "without noise, no privacy"}])
    layers = [
        free.mark_rule(color=QUIET, strokeDash=[5, 4], strokeWidth=1.5).encode(y=y),
        free.mark_text(align="left", dx=6, dy=-8, fontSize=11, color=QUIET).encode(x=x, y=y, text="text:N"),
        base.mark_rule(color=PROVED, strokeWidth=1.5).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        base.mark_line(color=PROVED, strokeWidth=2, point=alt.OverlayMarkDef(size=50, color=PROVED)).encode(x=x, y=y),
        base.mark_text(align="center", dy=10, fontSize=11, color=QUIET).encode(x=x, y=alt.Y("low:Q"), text="text:N"),
        chart_of(chosen).mark_point(size=260, filled=False, stroke=PROMISED, strokeWidth=4, opacity=1).encode(x=x, y=y),
        chart_of(chosen)
        .mark_text(align="right", dx=-14, dy=-12, fontSize=12, fontWeight="bold", color=INK, text="your choice")
        .encode(x=x, y=y),
    ]
    title = f"What it costs to limit how sure anyone can become: {sweep.subject}"
    point = sweep.chosen
    caption = (
        f"Each point is the mean of {sweep.trainings} trainings on {sweep.test_rows} test rows, bars are two standard "
        f"errors. Chosen: belief at most {rounding.up_percent(point.belief)}% (ε ≤ {rounding.up(point.epsilon)} at "
        f"δ = {sweep.delta:g}, noise multiplier σ = {_validate.rounded_up(point.noise_multiplier, 4)}), accuracy "
        f"{100 * point.accuracy:.1f}%; without noise {100 * sweep.without_noise:.1f}%."
    )
    chart = alt.layer(*layers).properties(width=width, height=320)
    return Figure(name="belief-accuracy", title=title, caption=caption, chart=finished(chart, title, width))
